"""What tests of rounds need beside a cell: quick clients, patience, event streams, a worker."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.databases import new_database
from tests.integration.cell import (
    create_task,
    enrol,
    fresh_name,
    open_round,
    report_all,
    set_model,
    upload,
)
from tests.integration.worker import Worker
from tests.running_service import running_service

Found = TypeVar("Found")

QUICK = {"throughput_bps": 1e9, "compute_samples_per_s": 1e7}
"""Resources with which update and upload take about a millisecond."""


def eventually(look: Callable[[], Found | None], timeout_s: float = 300.0) -> Found:
    """What ``look`` finds, as soon as it finds something."""
    until = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found


def get_round(service: httpx.Client, round_id: str) -> dict[str, Any]:
    """A round as it stands."""
    response = service.get(f"/rounds/{round_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def get_task(service: httpx.Client, task_id: str) -> dict[str, Any]:
    """A task as it stands."""
    response = service.get(f"/tasks/{task_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def slot_of(service: httpx.Client, round_id: str, client_id: str) -> dict[str, Any]:
    """A client's slot as it stands."""
    slots: list[dict[str, Any]] = get_round(service, round_id)["schedule"]["slots"]
    (slot,) = [item for item in slots if item["client_id"] == client_id]
    return slot


def round_in_state(service: httpx.Client, round_id: str, state: str) -> dict[str, Any]:
    """The round, once it is in this state."""

    def look() -> dict[str, Any] | None:
        found = get_round(service, round_id)
        return found if found["state"] == state else None

    return eventually(look)


def task_in_state(service: httpx.Client, task_id: str, state: str) -> dict[str, Any]:
    """The task, once it is in this state."""

    def look() -> dict[str, Any] | None:
        found = get_task(service, task_id)
        return found if found["state"] == state else None

    return eventually(look)


def round_number(service: httpx.Client, task_id: str, number: int) -> dict[str, Any]:
    """The task's round of this number, once it is open."""

    def look() -> dict[str, Any] | None:
        rounds: list[dict[str, Any]] = service.get("/rounds", params={"task_id": task_id}).json()
        return next((round_ for round_ in rounds if round_["number"] == number), None)

    return get_round(service, eventually(look)["round_id"])


def quick_task(
    service: httpx.Client, number: int = 1, **terms: object
) -> tuple[dict[str, Any], dict[str, str]]:
    """A task with its model and so many quick clients, by the wall clock; the task, and the clients' keys."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, number, labels)
    report_all(service, list(keys), **QUICK)
    task = create_task(service, **{"clock": "wall", "model_size_bytes": 1000, "labels": labels, **terms})
    set_model(service, task["task_id"])
    return task, keys


def quick_round(
    service: httpx.Client, number: int = 1, **terms: object
) -> tuple[dict[str, Any], dict[str, str]]:
    """The first round of a quick task; the round, and the clients' keys."""
    task, keys = quick_task(service, number, **terms)
    opened = open_round(service, task["task_id"])
    assert opened["selected"] == number, opened
    return opened, keys


def upload_as(service: httpx.Client, key: str, round_id: str, client_id: str, **given: Any) -> httpx.Response:
    """Upload with a client's own key."""
    return upload(service, round_id, client_id, authorization=f"Bearer {key}", **given)


def upload_all(service: httpx.Client, opened: dict[str, Any], keys: dict[str, str]) -> None:
    """Upload for every slot of a simulated round; with the last one the round closes."""
    for slot in opened["schedule"]["slots"]:
        client_id = slot["client_id"]
        response = upload_as(service, keys[client_id], opened["round_id"], client_id)
        assert response.status_code == 201, response.text


@contextmanager
def event_stream(
    service: httpx.Client, after: int | None = None, **filters: str
) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a stream as they come; the ``id`` and ``event`` lines are held against the data."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    with service.stream("GET", "/events", params=filters, headers=headers, timeout=20) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response)


def events_until(
    service: httpx.Client, last_kind: str, after: int | None = 0, **filters: str
) -> list[dict[str, Any]]:
    """The events of a stream up to the first of a kind."""
    found: list[dict[str, Any]] = []
    with event_stream(service, after, **filters) as events:
        for event in events:
            found.append(event)
            if event["kind"] == last_kind:
                break
    return found


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and "data" in fields:
            event: dict[str, Any] = json.loads(fields["data"])
            assert fields["id"] == str(event["number"])
            assert fields["event"] == event["kind"]
            yield event
            fields = {}


@dataclass(frozen=True)
class Site:
    """A service, and a worker on the same database and model store."""

    service: httpx.Client
    worker: Worker


@contextmanager
def site(kind: str, directory: Path, postgres_url: str, **settings: str) -> Iterator[Site]:
    """A service of its own with a worker, on a kind of database."""
    url = new_database(kind, directory, postgres_url)
    with running_service(directory, database_url=url, **settings) as service:
        worker = Worker(url, directory / "models")
        yield Site(service, worker)
        worker.close()
