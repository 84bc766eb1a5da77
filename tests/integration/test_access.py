"""Who may call what: the whole OpenAPI document against every kind of caller, over real HTTP."""

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    UNKNOWN_KEY,
    as_client,
    create_task,
    enrol_one,
    report,
    set_model,
    started_round,
    without_key,
)

RULES = {"open", "operator:read", "operator:manage", "client"}
METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}

STRANGERS = {
    "no key": None,
    "an unknown key": f"Bearer {UNKNOWN_KEY}",
    "a malformed key": "Bearer fedcs_",
    "half a key": f"Bearer {UNKNOWN_KEY.rpartition('_')[0]}",
    "no scheme": UNKNOWN_KEY,
    "another scheme": "Basic b3BlcmF0b3I6c2VjcmV0",
    "an empty key": "Bearer",
}
ALLOWED = {"read": {"operator:read"}, "manage": {"operator:read", "operator:manage"}, "client": {"client"}}


@dataclass(frozen=True)
class Operation:
    """An operation of the document, and who may call it according to ``x-access``."""

    method: str
    path: str
    access: frozenset[str]
    has_key: bool
    takes_json: bool
    takes_model: bool

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


@dataclass(frozen=True)
class Things:
    """What exists: a client that was selected for a round, another one that was not, and a key."""

    parameters: Mapping[str, str]
    own: str
    other: str
    authorizations: Mapping[str, str | None]


def operations_of(document: Mapping[str, Any]) -> list[Operation]:
    found = []
    for path, operations in document["paths"].items():
        for method, said in operations.items():
            assert method in METHODS
            content = said.get("requestBody", {}).get("content", {})
            found.append(
                Operation(
                    method,
                    path,
                    frozenset(said.get("x-access", ())),
                    bool(said.get("security")),
                    "application/json" in content,
                    "application/octet-stream" in content,
                )
            )
    return found


@pytest.fixture(scope="module")
def stranger(service: httpx.Client) -> Iterator[httpx.Client]:
    with without_key(service) as client:
        yield client


@pytest.fixture(scope="module")
def operations(service: httpx.Client) -> list[Operation]:
    return operations_of(service.get("/openapi.json").json())


@pytest.fixture(scope="module")
def things(service: httpx.Client) -> Things:
    opened, keys = started_round(service, dataset="generated")
    ((own, own_key),) = keys.items()
    report(service, own)
    other, other_key = enrol_one(service)
    gone, _ = enrol_one(service)
    made = {name: service.post("/keys", json={"scope": name}).json() for name in ("read", "manage")}
    revoked = [service.post("/keys", json={"scope": scope}).json() for scope in ("read", "manage")]
    revoked.append(service.post(f"/clients/{own}/keys", json={}).json())
    for key in revoked:
        assert service.delete(f"/keys/{key['key_id']}").status_code == 204
    removed = service.post(f"/clients/{gone}/keys", json={}).json()
    assert service.delete(f"/clients/{gone}").status_code == 204
    training = {"round_id": opened["round_id"], "client_id": own, "partition": 0}
    task_id = create_task(service)["task_id"]
    set_model(service, task_id)
    return Things(
        parameters={
            "client_id": own,
            "key_id": made["read"]["key_id"],
            "task_id": task_id,
            "round_id": opened["round_id"],
            "training_id": service.post("/trainings", json=training).json()["training_id"],
            "version": "0",
            "cell_id": "default",
        },
        own=own,
        other=other,
        authorizations=STRANGERS
        | {
            "a revoked read key": f"Bearer {revoked[0]['api_key']}",
            "a revoked manage key": f"Bearer {revoked[1]['api_key']}",
            "a revoked client key": f"Bearer {revoked[2]['api_key']}",
            "a removed client's key": f"Bearer {removed['api_key']}",
            "read": f"Bearer {made['read']['api_key']}",
            "manage": f"Bearer {made['manage']['api_key']}",
            "client": f"Bearer {own_key}",
            "another client": f"Bearer {other_key}",
        },
    )


def call(
    stranger: httpx.Client, operation: Operation, things: Things, caller: str, *, harmless: bool
) -> tuple[int, str]:
    """Status and cause of an answer, whose body may never end.

    Bodies are good only where they name a client, so that nothing is created. Who may do harm is sent to
    what does not exist.
    """
    parameters = dict(things.parameters)
    if harmless:
        parameters |= dict.fromkeys(("client_id", "key_id", "task_id", "round_id", "cell_id"), "nothing")
    path = operation.path.format(**parameters)
    headers = {"Last-Event-ID": "0"}
    if (authorization := things.authorizations[caller]) is not None:
        headers["Authorization"] = authorization
    content = None
    if operation.takes_json:
        headers["Content-Type"] = "application/json"
        body = {
            "client_id": things.own,
            "throughput_bps": 1000,
            "compute_samples_per_s": 1,
            "data_samples": 1,
        }
        is_report, is_key = operation.path == "/reports", operation.path == "/clients/{client_id}/keys"
        is_decline = operation.path.endswith("/decline") and caller == "another client"
        is_ready = operation.path.endswith("/ready") and caller == "another client"
        harmful = (
            body if is_report else {} if is_key or is_ready else {"reason": "no"} if is_decline else None
        )
        content = json.dumps({"unknown": 1} if harmful is None else harmful)
    if operation.takes_model:
        headers |= {"Content-Digest": f"sha-256=:{'A' * 43}=:", "Fedcs-Data-Samples": "1"}
        headers |= {"Fedcs-Elapsed-S": "1"}
        content = "no tensors"
    with stranger.stream(operation.method, path, headers=headers, content=content) as response:
        if response.status_code < 400:
            return response.status_code, ""
        return response.status_code, json.loads(response.read()).get("cause", "")


def expected(operation: Operation, caller: str) -> str:
    if operation.access == {"open"}:
        return "in"
    if caller == "another client":
        if "client" not in operation.access:
            return "FORBIDDEN"
        names_the_other = any(name in operation.path for name in ("{client_id}", "{round_id}"))
        return "not its own" if names_the_other or operation.path == "/reports" else "in"
    if caller not in ALLOWED:
        return "UNAUTHENTICATED"
    return "in" if ALLOWED[caller] & operation.access else "FORBIDDEN"


def outcome(status: int, cause: str) -> str:
    if status == 401:
        return cause
    if status == 403:
        return "not its own" if cause == "NOT_SELECTED" else cause
    return "in"


def test_every_operation_says_who_may_call_it(operations: list[Operation]) -> None:
    assert len(operations) > 25
    for operation in operations:
        assert operation.access, operation
        assert operation.access <= RULES, operation
        assert operation.has_key != (operation.access == {"open"}), operation
        assert "open" not in operation.access or operation.access == {"open"}, operation
        changes_something = operation.method != "get" and operation.path != "/plans"
        assert not (changes_something and "operator:read" in operation.access), operation
    assert {str(item) for item in operations if item.access == {"open"}} == {
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "POST /oauth2/token",
    }


def test_everyone_gets_as_far_as_the_document_says(
    service: httpx.Client, stranger: httpx.Client, operations: list[Operation], things: Things
) -> None:
    wrong = []
    for operation in operations:
        for caller in things.authorizations:
            due = expected(operation, caller)
            harmless = due == "in" and operation.method != "get" and caller in ("read", "manage")
            status, cause = call(stranger, operation, things, caller, harmless=harmless)
            got = outcome(status, cause)
            if due == "not its own":
                is_right = status == 403 and cause in ("FORBIDDEN", "NOT_SELECTED")
            else:
                is_right = got == due
            if not is_right or status >= 500:
                wrong.append(f"{operation} with {caller}: {status} {cause}, due: {due}")
    assert not wrong, "\n".join(wrong)
    assert service.get(f"/clients/{things.own}").status_code == 200, "nothing was done by those kept out"
    shown = service.get(f"/rounds/{things.parameters['round_id']}").json()
    assert shown["state"] in ("scheduled", "collecting")


def test_own_things_are_within_reach(
    stranger: httpx.Client, operations: list[Operation], things: Things
) -> None:
    for operation in operations:
        if operation.method == "get" and "client" in operation.access:
            status, cause = call(stranger, operation, things, "client", harmless=False)
            assert status == 200, f"{operation}: {status} {cause}"


def test_a_client_sees_nothing_of_others_in_lists(service: httpx.Client, things: Things) -> None:
    key = str(things.authorizations["another client"]).removeprefix("Bearer ")
    with as_client(service, key) as client:
        rounds = client.get("/rounds")
        assert (rounds.json(), rounds.headers["x-total-count"]) == ([], "0")
        assert client.get("/assignments").json() == {"assignments": []}


def test_a_client_sees_only_its_own_part_of_a_round(service: httpx.Client) -> None:
    opened, keys = started_round(service, 3)
    client_id, key = next(iter(keys.items()))
    others = set(keys) - {client_id}
    with as_client(service, key) as client:
        for path in ("", "/schedule"):
            shown = client.get(f"/rounds/{opened['round_id']}{path}")
            assert client_id in shown.text
            assert not any(other in shown.text for other in others)
        for form in ("text/csv", "image/svg+xml"):
            shown = client.get(f"/rounds/{opened['round_id']}/schedule", headers={"Accept": form})
            assert shown.status_code == 200
            assert not any(other in shown.text for other in others)


def test_no_body_is_read_before_the_key_is_checked(
    service: httpx.Client, operations: list[Operation], things: Things
) -> None:
    """A body is announced and never sent; whoever waits for it would never answer."""
    address = (service.base_url.host, service.base_url.port or 80)
    for operation in operations:
        if operation.access == {"open"}:
            continue
        forbidden = "client" if "client" not in operation.access else "read"
        for caller, status in (("no key", 401), ("an unknown key", 401), (forbidden, 403)):
            if expected(operation, caller) == "in":
                continue
            authorization = things.authorizations[caller]
            with socket.create_connection(address, timeout=10) as connection:
                lines = [
                    f"{operation.method.upper()} {operation.path.format(**things.parameters)} HTTP/1.1",
                    "Host: service",
                    "Content-Type: application/json",
                    "Content-Length: 60000000",
                    *([f"Authorization: {authorization}"] if authorization else []),
                ]
                connection.sendall("\r\n".join([*lines, "", ""]).encode())
                assert connection.recv(1000).startswith(f"HTTP/1.1 {status} ".encode()), operation


def test_the_scheme_is_written_in_any_case(service: httpx.Client, stranger: httpx.Client) -> None:
    key = service.headers["Authorization"].removeprefix("Bearer ")
    for header in (f"bearer {key}", f"BEARER {key}", f"Bearer   {key}"):
        assert stranger.get("/clients", headers={"Authorization": header}).status_code == 200, header


def test_a_key_in_the_address_is_none(service: httpx.Client) -> None:
    key = service.headers["Authorization"].removeprefix("Bearer ")
    url = service.base_url.join(f"/clients?api_key={key}&access_token={key}&Authorization=Bearer+{key}")
    assert httpx.get(url, timeout=60).status_code == 401
