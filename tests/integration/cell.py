"""A small cell over HTTP: enrol clients, post their reports, make tasks, models and rounds.

Every name is fresh, so that tests can share one service.
"""

import base64
import hashlib
import ssl
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

_TLS = ssl.create_default_context()
"""Made once: it takes longer than most requests."""

UNKNOWN_KEY = f"fedcs_{'0' * 16}_{'1' * 64}"
"""Well-formed, and nobody's."""


def fresh_name(prefix: str = "c") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def enrol(service: httpx.Client, number: int = 1, labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Enrol so many new clients; the key of each by its id, in the order of enrolment."""
    asked = [{"client_id": fresh_name(), "labels": dict(labels or {})} for _ in range(number)]
    response = service.post("/clients/batch", json={"clients": asked})
    assert response.status_code == 201, response.text
    return {item["client_id"]: item["api_key"] for item in response.json()["clients"]}


def enrol_one(service: httpx.Client, labels: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Enrol a new client; its id and its key."""
    ((client_id, key),) = enrol(service, 1, labels).items()
    return client_id, key


@contextmanager
def as_client(service: httpx.Client, key: str) -> Iterator[httpx.Client]:
    """The same service, with another key."""
    with without_key(service) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        yield client


@contextmanager
def without_key(service: httpx.Client) -> Iterator[httpx.Client]:
    """The same service, for a caller without a key."""
    with httpx.Client(base_url=service.base_url, verify=_TLS, timeout=60) as client:
        yield client


def resources(client_id: str, /, **changes: object) -> dict[str, Any]:
    """The body of a resource report; ``...`` leaves a field out."""
    body: dict[str, Any] = {
        "client_id": client_id,
        "throughput_bps": 1_000_000,
        "compute_samples_per_s": 50,
        "data_samples": 200,
    }
    return {name: value for name, value in (body | changes).items() if value is not ...}


def report(service: httpx.Client, client_id: str, **changes: object) -> httpx.Response:
    """Post a resource report, and see that it is accepted."""
    response = service.post("/reports", json=resources(client_id, **changes))
    assert response.status_code == 201, response.text
    return response


def report_all(service: httpx.Client, client_ids: list[str], **changes: object) -> None:
    """Post the same resources for many clients, and see that all are accepted."""
    body = {"reports": [resources(client_id, **changes) for client_id in client_ids]}
    response = service.post("/reports/batch", json=body)
    assert response.status_code == 201, response.text
    assert response.json()["stored"] == len(client_ids)


def create_task(service: httpx.Client, **changes: object) -> dict[str, Any]:
    """Create a task that asks all clients with its labels; give ``labels``, or it asks those of others."""
    terms: dict[str, Any] = {
        "round_deadline_s": 180,
        "request_fraction": 1.0,
        "model_size_bytes": 100_000,
        "clock": "simulated",
    }
    response = service.post("/tasks", json=terms | changes)
    assert response.status_code == 201, response.text
    task: dict[str, Any] = response.json()
    return task


def make_model(seed: int = 0, **changes: Any) -> bytes:
    """A small model as safetensors; ``changes`` add or replace tensors."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {
        "weight": rng.normal(size=(8, 4)).astype(np.float32),
        "bias": rng.normal(size=8).astype(np.float32),
        "batches": np.asarray(0, np.int64),  # as of batch normalization
    }
    return save(tensors | changes)


def content_digest(body: bytes) -> dict[str, str]:
    """The header with the digest of a body (RFC 9530)."""
    sha256 = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return {"Content-Digest": f"sha-256=:{sha256}:"}


def set_model(service: httpx.Client, task_id: str, seed: int = 0) -> bytes:
    """Give a task its initial model; the model."""
    model = make_model(seed)
    response = service.put(f"/tasks/{task_id}/models/0", content=model, headers=content_digest(model))
    assert response.status_code == 200, response.text
    return model


def open_round(service: httpx.Client, task_id: str) -> dict[str, Any]:
    """Open a round of a task; the round."""
    response = service.post("/rounds", json={"task_id": task_id})
    assert response.status_code == 201, response.text
    opened: dict[str, Any] = response.json()
    return opened


def started_round(
    service: httpx.Client, number: int = 1, **changes: object
) -> tuple[dict[str, Any], dict[str, str]]:
    """A round of a new task with so many new clients, all selected; the round, and the clients' keys."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, number, labels)
    report_all(service, list(keys))
    task = create_task(service, labels=labels, **changes)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    assert opened["selected"] == number, opened
    return opened, keys


def upload(
    client: httpx.Client, round_id: str, client_id: str, update: bytes | None = None, **headers: str | None
) -> httpx.Response:
    """Upload an update with its digest; ``fedcs_elapsed_s="7"`` sets that header, None leaves one out."""
    body = make_model(seed=1) if update is None else update
    sent: dict[str, str | None] = {"fedcs_data_samples": "200", "fedcs_elapsed_s": "10", **headers}
    given = {name.replace("_", "-"): value for name, value in sent.items() if value is not None}
    path = f"/rounds/{round_id}/updates/{client_id}"
    return client.put(path, content=body, headers=content_digest(body) | given)


def assert_problem(response: httpx.Response, status: int, cause: str) -> dict[str, Any]:
    """The problem (RFC 9457), if it is one of this status and cause."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["cause"]) == (status, cause), problem
    assert problem["title"]
    assert problem["detail"]
    return problem
