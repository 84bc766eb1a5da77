"""Keys of operators and clients, over real HTTP."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard_session import log_in
from tests.integration.cell import (
    UNKNOWN_KEY,
    as_client,
    assert_problem,
    create_task,
    enrol_one,
    fresh_name,
    report,
    without_key,
)
from tests.integration.rounds_setup import event_stream, eventually
from tests.running_service import OPERATOR_KEY, running_service

ENDS_WITHIN_S = 60.0


def make_key(service: httpx.Client, scope: str, **fields: str) -> dict[str, Any]:
    response = service.post("/keys", json={"scope": scope, **fields})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def find_key(service: httpx.Client, key_id: str) -> dict[str, Any]:
    """A key out of the list, wherever it is in it."""
    url = "/keys?per_page=100"
    while True:
        response = service.get(url)
        for key in response.json():
            if key["key_id"] == key_id:
                found: dict[str, Any] = key
                return found
        url = response.links["next"]["url"]


@contextmanager
def following(service: httpx.Client, key: str, **filters: str) -> Iterator[Future[list[str]]]:
    """A stream of events that has begun; what follows its first line, once it has ended."""
    began = threading.Event()

    def follow() -> list[str]:
        with as_client(service, key) as listener, listener.stream("GET", "/events", params=filters) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            began.set()
            return list(lines)

    threads = ThreadPoolExecutor(1)
    try:
        stream = threads.submit(follow)
        assert began.wait(timeout=ENDS_WITHIN_S)
        yield stream
    finally:
        threads.shutdown(wait=False)


def test_a_read_key_looks_and_does_not_act(service_on_each: httpx.Client) -> None:
    key = make_key(service_on_each, "read", name="grafana")
    assert (key["scope"], key["name"], key["client_id"]) == ("read", "grafana", None)
    with as_client(service_on_each, key["api_key"]) as reader:
        assert reader.get("/clients").status_code == 200
        assert reader.get("/tasks").status_code == 200
        assert_problem(reader.post("/clients", json={}), 403, "FORBIDDEN")
        assert_problem(reader.get("/keys"), 403, "FORBIDDEN")
        assert_problem(reader.post("/keys", json={"scope": "manage"}), 403, "FORBIDDEN")
        assert_problem(reader.delete(f"/keys/{key['key_id']}"), 403, "FORBIDDEN")


def test_a_manage_key_acts_and_makes_further_keys(service_on_each: httpx.Client) -> None:
    key = make_key(service_on_each, "manage")
    with as_client(service_on_each, key["api_key"]) as manager:
        assert manager.post("/clients", json={}).status_code == 201
        assert manager.get("/keys").status_code == 200
        further = make_key(manager, "manage")
        with as_client(service_on_each, further["api_key"]) as second:
            assert second.post("/clients", json={}).status_code == 201


def test_a_revoked_key_is_good_for_nothing_at_once(service_on_each: httpx.Client) -> None:
    for scope in ("read", "manage"):
        key = make_key(service_on_each, scope)
        with as_client(service_on_each, key["api_key"]) as holder:
            assert holder.get("/clients").status_code == 200
            assert service_on_each.delete(f"/keys/{key['key_id']}").status_code == 204
            assert_problem(holder.get("/clients"), 401, "UNAUTHENTICATED")
        shown = find_key(service_on_each, key["key_id"])
        assert shown["revoked_at"] >= shown["created_at"]


def test_a_key_that_one_process_revokes_ends_in_the_others(tmp_path: Path) -> None:
    with running_service(tmp_path) as first, running_service(tmp_path) as other:
        key = make_key(first, "read")
        client_id, client_key = enrol_one(first)
        with as_client(other, key["api_key"]) as reader, as_client(other, client_key) as client:
            assert reader.get("/clients").status_code == 200
            report(client, client_id)
            assert first.delete(f"/keys/{key['key_id']}").status_code == 204
            assert first.delete(f"/clients/{client_id}").status_code == 204
            eventually(lambda: reader.get("/clients").status_code == 401)
            eventually(lambda: client.get("/assignments").status_code == 401)


def test_a_revoked_key_ends_its_open_event_stream(service_on_each: httpx.Client) -> None:
    """Also one that waits for the events of a task to which nothing happens."""
    task_id = create_task(service_on_each)["task_id"]
    for filters in ({}, {"task_id": task_id}):
        key = make_key(service_on_each, "read")
        with following(service_on_each, key["api_key"], **filters) as stream:
            assert service_on_each.delete(f"/keys/{key['key_id']}").status_code == 204
            told = stream.result(timeout=ENDS_WITHIN_S)
        assert not any("data:" in line for line in told), told


def test_a_stream_ends_when_another_process_revokes_its_key(tmp_path: Path) -> None:
    with running_service(tmp_path) as first, running_service(tmp_path) as other:
        key = make_key(first, "read")
        with following(other, key["api_key"]) as stream:
            assert first.delete(f"/keys/{key['key_id']}").status_code == 204
            stream.result(timeout=ENDS_WITHIN_S)


def test_other_streams_go_on_when_a_key_is_revoked(service: httpx.Client) -> None:
    key, other = make_key(service, "read"), make_key(service, "read")
    with event_stream(service) as events:
        assert service.delete(f"/keys/{key['key_id']}").status_code == 204
        revoked = next(event for event in events if event["kind"] == "key.revoked")
        assert revoked["data"] == {"key_id": key["key_id"]}
        assert service.delete(f"/keys/{other['key_id']}").status_code == 204
        assert next(event for event in events if event["kind"] == "key.revoked")


def test_a_key_can_revoke_itself(service: httpx.Client) -> None:
    key = make_key(service, "manage")
    with as_client(service, key["api_key"]) as holder:
        assert holder.delete(f"/keys/{key['key_id']}").status_code == 204
        assert holder.get("/clients").status_code == 401


def test_an_operator_gives_a_client_a_further_key(service: httpx.Client) -> None:
    client_id, _ = enrol_one(service)
    made = service.post(f"/clients/{client_id}/keys", json={}).json()
    with as_client(service, made["api_key"]) as client:
        report(client, client_id)
    assert find_key(service, made["key_id"])["client_id"] == client_id


def test_operator_keys_are_refused_where_the_proxy_says_that_devices_come(service: httpx.Client) -> None:
    client_id, key = enrol_one(service)
    headers = {"Fedcs-Client-Keys-Only": "1"}
    for refused in ({}, {"Authorization": f"Bearer {make_key(service, 'read')['api_key']}"}):
        assert_problem(service.get("/rounds", headers=headers | refused), 403, "FORBIDDEN")
    form = {"grant_type": "client_credentials", "client_id": "operator", "client_secret": OPERATOR_KEY}
    with without_key(service) as caller:
        assert_problem(caller.post("/oauth2/token", data=form, headers=headers), 403, "FORBIDDEN")
    with as_client(service, key) as client:
        assert client.get("/rounds", headers=headers).status_code == 200
    assert service.get(f"/clients/{client_id}").status_code == 200


def test_a_client_makes_no_key_for_another(service: httpx.Client) -> None:
    _, key = enrol_one(service)
    other, _ = enrol_one(service)
    with as_client(service, key) as client:
        assert_problem(client.post(f"/clients/{other}/keys", json={}), 403, "FORBIDDEN")


def test_all_keys_of_a_removed_client_end_with_it(service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    further = service_on_each.post(f"/clients/{client_id}/keys", json={}).json()
    service_on_each.delete(f"/clients/{client_id}")
    with as_client(service_on_each, further["api_key"]) as client:
        assert_problem(client.get("/assignments"), 401, "UNAUTHENTICATED")
    assert_problem(service_on_each.delete(f"/keys/{further['key_id']}"), 404, "KEY_NOT_FOUND")


def test_what_is_no_key_cannot_be_revoked(service: httpx.Client) -> None:
    key_id = make_key(service, "read")["key_id"]
    assert service.delete(f"/keys/{key_id}").status_code == 204
    for unknown in (key_id, "0" * 16, "operator"):
        assert_problem(service.delete(f"/keys/{unknown}"), 404, "KEY_NOT_FOUND")
    assert service.get("/clients").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"scope": "client"},
        {"scope": "admin"},
        {"scope": None},
        {"scope": "read", "name": "x" * 129},
        {"scope": "read", "name": "a\nb"},
        {"scope": "read", "api_key": "mine"},
    ],
)
def test_a_key_that_may_not_be_is_refused(body: dict[str, Any], service: httpx.Client) -> None:
    assert_problem(service.post("/keys", json=body), 422, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "change", ["another secret", "another id", "shorter", "longer", "upper case", "none"]
)
def test_a_key_has_to_be_right_to_the_last_character(change: str, service: httpx.Client) -> None:
    good, other = make_key(service, "read")["api_key"], make_key(service, "read")["api_key"]
    prefix, key_id, secret = good.split("_")
    text = {
        "another secret": f"{prefix}_{key_id}_{other.split('_')[2]}",
        "another id": f"{prefix}_{other.split('_')[1]}_{secret}",
        "shorter": good[:-1],
        "longer": f"{good}0",
        "upper case": f"{prefix}_{key_id}_{secret.upper()}",
        "none": UNKNOWN_KEY,
    }[change]
    with as_client(service, text) as caller:
        assert_problem(caller.get("/clients"), 401, "UNAUTHENTICATED")
    with as_client(service, good) as caller:
        assert caller.get("/clients").status_code == 200


def test_keys_have_256_bits_and_are_never_listed(service: httpx.Client) -> None:
    texts = [make_key(service, "read")["api_key"] for _ in range(3)]
    secrets = {bytes.fromhex(text.split("_")[2]) for text in texts}
    assert {len(secret) for secret in secrets} == {32}
    assert len(secrets) == 3
    listed = service.get("/keys", params={"per_page": 100})
    assert all("api_key" not in key and "digest" not in key for key in listed.json())
    assert not any(secret.hex() in listed.text for secret in secrets)


def test_the_newest_key_is_listed_first(service: httpx.Client) -> None:
    ids = [make_key(service, "read")["key_id"] for _ in range(3)]
    listed = service.get("/keys", params={"per_page": 3}).json()
    assert [key["key_id"] for key in listed] == ids[::-1]


def test_no_key_is_to_be_found_in_the_data_directory(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        once = {"Idempotency-Key": fresh_name()}
        enrolled = service.post("/clients", json={}, headers=once).json()
        batch = service.post("/clients/batch", json={"clients": [{}]}, headers={"Idempotency-Key": "batch"})
        made = service.post("/keys", json={"scope": "manage"}, headers={"Idempotency-Key": "key"}).json()
        path = f"/clients/{enrolled['client_id']}/keys"
        further = service.post(path, json={}, headers={"Idempotency-Key": "further"}).json()
        texts = [item["api_key"] for item in (enrolled, *batch.json()["clients"], made, further)]
        with as_client(service, made["api_key"]) as manager:
            again = manager.post("/keys", json={"scope": "read"}, headers={"Idempotency-Key": "again"})
            texts.append(again.json()["api_key"])
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        kept = b"".join(path.read_bytes() for path in files)
        assert enrolled["client_id"].encode() in kept, "the files are those that the service writes"
        assert enrolled["key_id"].encode() in kept
        for text in [*texts, service.headers["Authorization"].removeprefix("Bearer ")]:
            secret = text.rpartition("_")[2]
            assert secret.encode() not in kept
            assert secret.upper().encode() not in kept
            if len(secret) == 64:
                assert bytes.fromhex(secret) not in kept


def test_a_key_with_nul_is_just_a_wrong_one(service_on_each: httpx.Client) -> None:
    """PostgreSQL takes no such text."""
    key = "fedcs_" + 16 * "\0" + "_x"
    form = {"grant_type": "client_credentials", "client_id": "operator", "client_secret": key}
    with without_key(service_on_each) as stranger:
        assert stranger.post("/oauth2/token", data=form).status_code == 401
        assert log_in(stranger, key).status_code == 401
