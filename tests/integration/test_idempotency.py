"""Requests that come twice, over real HTTP, on each kind of database."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    report,
    report_all,
    resources,
    set_model,
    started_round,
)
from tests.running_service import running_service

Answers = list[httpx.Response]


def post(client: httpx.Client, path: str, body: object, key: str) -> httpx.Response:
    return client.post(path, json=body, headers={"Idempotency-Key": key})


def post_at_once(client: httpx.Client, path: str, body: object, key: str, times: int = 12) -> Answers:
    """The same request, so many times at the same moment."""
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(lambda _: post(client, path, body, key), range(times)))


@pytest.fixture
def creations(service_on_each: httpx.Client) -> dict[str, Any]:
    """A body for every path that creates something."""
    client_id, _ = enrol_one(service_on_each)
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service_on_each, 2, labels)
    report_all(service_on_each, list(keys))
    task = create_task(service_on_each, labels=labels)
    set_model(service_on_each, task["task_id"])
    opened, selected = started_round(service_on_each, dataset="generated")
    training = {"round_id": opened["round_id"], "client_id": next(iter(selected)), "partition": 0}
    return {
        "/clients": {"client_id": fresh_name(), "labels": {"vehicle": "bus"}},
        "/clients/batch": {"clients": [{"client_id": fresh_name()}, {}]},
        "/cells": {"name": "North tower"},
        f"/clients/{client_id}/keys": {"name": "second"},
        "/keys": {"name": "grafana", "scope": "read"},
        "/reports": resources(client_id),
        "/reports/batch": {"reports": [resources(client_id), resources(fresh_name())]},
        "/tasks": {"round_deadline_s": 180},
        "/rounds": {"task_id": task["task_id"]},
        "/trainings": training,
    }


def test_every_path_that_creates_takes_an_idempotency_key(
    service_on_each: httpx.Client, creations: dict[str, Any]
) -> None:
    document = service_on_each.get("/openapi.json").json()
    taking = {
        path
        for path, operations in document["paths"].items()
        for parameter in operations.get("post", {}).get("parameters", ())
        if parameter["name"].lower() == "idempotency-key"
    }
    taking.remove("/tasks/{task_id}/models/{version}/evaluations")  # for clients: test_device_participation
    tried = {"/clients/{client_id}/keys" if path.endswith("/keys") else path for path in creations}
    assert taking == (tried - {"/clients/{client_id}/keys"}) | {"/clients/{client_id}/keys", "/keys"}
    not_creating = {"/plans", "/tasks/{task_id}/cancel", "/tasks/{task_id}/finish"}
    not_creating |= {"/rounds/{round_id}/close", "/rounds/{round_id}/decline", "/oauth2/token"}
    not_creating.add("/rounds/{round_id}/ready")
    not_creating.add("/tasks/{task_id}/models/{version}/evaluations")
    assert {path for path, operations in document["paths"].items() if "post" in operations} == (
        taking | not_creating
    )


def test_the_same_request_gives_the_first_answer_again(
    service_on_each: httpx.Client, creations: dict[str, Any]
) -> None:
    for path, body in creations.items():
        key = fresh_name("once")
        first = post(service_on_each, path, body, key)
        assert first.status_code in (201, 202), first.text
        for _ in range(2):
            again = post(service_on_each, path, body, key)
            assert (again.status_code, again.content) == (first.status_code, first.content), path
            assert again.headers["content-type"] == first.headers["content-type"]


def test_the_same_request_at_once_does_it_once(
    service_on_each: httpx.Client, creations: dict[str, Any]
) -> None:
    for path, body in creations.items():
        before = int(service_on_each.get("/clients").headers["x-total-count"])
        answers = post_at_once(service_on_each, path, body, fresh_name("once"))
        assert {answer.status_code for answer in answers} <= {201, 202}, (path, [a.text for a in answers])
        assert len({answer.content for answer in answers}) == 1, path
        after = int(service_on_each.get("/clients").headers["x-total-count"])
        assert after - before == {"/clients": 1, "/clients/batch": 2}.get(path, 0)


def test_one_report_is_stored_of_those_that_came_at_once(service_on_each: httpx.Client) -> None:
    client_id, key = enrol_one(service_on_each)
    with as_client(service_on_each, key) as client:
        post_at_once(client, "/reports", resources(client_id), "report-1")
    assert service_on_each.get(f"/clients/{client_id}/reports").headers["x-total-count"] == "1"


def test_one_task_is_created_of_those_that_came_at_once(service_on_each: httpx.Client) -> None:
    name = fresh_name("task")
    before = int(service_on_each.get("/tasks").headers["x-total-count"])
    post_at_once(service_on_each, "/tasks", {"name": name, "round_deadline_s": 60}, fresh_name())
    assert int(service_on_each.get("/tasks").headers["x-total-count"]) == before + 1


def test_without_an_idempotency_key_every_request_counts(service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    report(service_on_each, client_id)
    report(service_on_each, client_id)
    assert service_on_each.get(f"/clients/{client_id}/reports").headers["x-total-count"] == "2"
    with ThreadPoolExecutor(8) as pool:
        body = {"client_id": fresh_name()}
        answers = list(pool.map(lambda _: service_on_each.post("/clients", json=body), range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    assert {answer.json().get("cause") for answer in answers} == {None, "CLIENT_EXISTS"}


def test_a_key_that_comes_with_another_request_is_refused(service_on_each: httpx.Client) -> None:
    key, body = fresh_name("once"), {"client_id": fresh_name()}
    first = post(service_on_each, "/clients", body, key)
    for path, other in (
        ("/clients", {"client_id": fresh_name()}),
        ("/clients", body | {"labels": {"a": "b"}}),
        ("/clients/batch", {"clients": [body]}),
        ("/tasks", {"round_deadline_s": 60}),
    ):
        response = post(service_on_each, path, other, key)
        assert key in assert_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")["detail"]
    assert post(service_on_each, "/clients", body, key).content == first.content


def test_a_request_that_failed_can_come_again(service_on_each: httpx.Client) -> None:
    key, client_id = fresh_name("once"), fresh_name()
    assert_problem(post(service_on_each, "/reports", resources(client_id), key), 404, "CLIENT_NOT_FOUND")
    service_on_each.post("/clients", json={"client_id": client_id})
    assert post(service_on_each, "/reports", resources(client_id), key).status_code == 201
    taken = fresh_name("once")
    response = post(service_on_each, "/clients", {"client_id": client_id}, taken)
    assert_problem(response, 409, "CLIENT_EXISTS")
    service_on_each.delete(f"/clients/{client_id}")
    assert post(service_on_each, "/clients", {"client_id": client_id}, taken).status_code == 201


def test_callers_do_not_meet_in_their_keys(service_on_each: httpx.Client) -> None:
    keys = enrol(service_on_each, 2)
    shared = fresh_name("once")
    for client_id, key in keys.items():
        with as_client(service_on_each, key) as client:
            answer = post(client, "/reports", resources(client_id), shared)
            assert (answer.status_code, answer.json()["client_id"]) == (201, client_id)
            made = post(client, f"/clients/{client_id}/keys", {}, f"{shared}-key")
            assert made.json()["client_id"] == client_id
    second = service_on_each.post("/keys", json={"scope": "manage"}).json()["api_key"]
    body = {"name": shared, "scope": "read"}
    with as_client(service_on_each, second) as other:
        answers = [post(caller, "/keys", body, shared).json() for caller in (service_on_each, other)]
    assert answers[0]["key_id"] != answers[1]["key_id"]


@pytest.mark.parametrize("key", [b"", b"a b", b"x" * 256, b"caf\xe9"])
def test_a_key_that_is_none_is_refused(key: bytes, service: httpx.Client) -> None:
    headers = httpx.Headers([(b"Idempotency-Key", key)])
    response = service.post("/keys", json={"scope": "read"}, headers=headers)
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"].lower() == "idempotency-key"


def test_the_longest_key_is_taken(service: httpx.Client) -> None:
    key = fresh_name().ljust(255, "~")
    assert post(service, "/keys", {"scope": "read"}, key).status_code == 201


@pytest.fixture
def with_another_key(tmp_path: Path) -> Iterator[tuple[str, httpx.Client]]:
    """A service that was used with one operator key, and started again with another."""
    with running_service(tmp_path) as service:
        assert post(service, "/keys", {"scope": "manage"}, "before").status_code == 201
    with running_service(tmp_path, operator_key="another-operator-key-0123456789abcdef") as service:
        yield "before", service


def test_a_changed_operator_key_does_not_open_old_answers(
    with_another_key: tuple[str, httpx.Client],
) -> None:
    key, service = with_another_key
    response = post(service, "/keys", {"scope": "manage"}, key)
    assert_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")
    assert post(service, "/keys", {"scope": "manage"}, fresh_name()).status_code == 201
