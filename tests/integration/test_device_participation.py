"""Clients decline rounds and report evaluations, over real HTTP."""

from typing import Any

import httpx
import pytest

from tests.integration.cell import as_client, assert_problem, enrol_one, fresh_name, started_round
from tests.integration.rounds_setup import get_round


def test_a_client_declines_its_slot(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    path = f"/rounds/{opened['round_id']}/decline"
    (first, key), _ = keys.items()
    with as_client(service, key) as client:
        assert len(client.get("/assignments").json()["assignments"]) == 1
        declined = client.post(path, json={"reason": "low battery"})
        assert declined.status_code == 200, declined.text
        assert client.post(path, json={"reason": "low battery"}).json() == declined.json()
        assert client.get("/assignments").json() == {"assignments": []}
    slots = {slot["client_id"]: slot for slot in get_round(service, opened["round_id"])["schedule"]["slots"]}
    assert slots[first]["outcome"] == "declined"
    record = service.get(f"/clients/{first}").json()["record"]
    assert (record["declined"], record["missed"]) == (1, 0)
    _, stranger_key = enrol_one(service)
    with as_client(service, stranger_key) as client:
        assert_problem(client.post(path, json={"reason": "no"}), 403, "NOT_SELECTED")


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "x" * 129}, {"reason": 1}, {"why": "x"}])
def test_a_decline_says_why_in_a_few_words(service: httpx.Client, body: dict[str, Any]) -> None:
    opened, keys = started_round(service)
    with as_client(service, next(iter(keys.values()))) as client:
        answer = client.post(f"/rounds/{opened['round_id']}/decline", json=body)
        assert_problem(answer, 422, "INVALID_REQUEST")


def test_a_device_reports_what_it_measured(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    path = f"/tasks/{opened['task_id']}/models"
    measured = {"accuracy": 0.5, "loss": 1.25, "samples": 100}
    for number, key in enumerate(keys.values(), start=1):
        with as_client(service, key) as client:
            headers = {"Idempotency-Key": fresh_name()}
            answer = client.post(f"{path}/0/evaluations", json=measured, headers=headers)
            assert answer.status_code == 201, answer.text
            assert answer.json()["devices"] == number
            again = client.post(f"{path}/0/evaluations", json=measured, headers=headers)
            assert (again.status_code, again.json()) == (201, answer.json())
            assert_problem(client.post(f"{path}/0/evaluations", json=measured), 409, "EVALUATION_EXISTS")
            assert_problem(client.post(f"{path}/7/evaluations", json=measured), 404, "MODEL_NOT_FOUND")
    (version,) = service.get(path).json()
    assert (version["accuracy"], version["device_accuracy"]) == (None, 0.5)


@pytest.mark.parametrize(
    "change",
    [{"accuracy": 1.01}, {"accuracy": -0.1}, {"samples": 0}, {"loss": -1}, {"samples": 1.5}, {"weight": 2}],
)
def test_evaluations_that_make_no_sense_are_refused(service: httpx.Client, change: dict[str, Any]) -> None:
    opened, keys = started_round(service)
    body = {"accuracy": 0.5, "loss": None, "samples": 100} | change
    with as_client(service, next(iter(keys.values()))) as client:
        answer = client.post(f"/tasks/{opened['task_id']}/models/0/evaluations", json=body)
    assert_problem(answer, 422, "INVALID_REQUEST")
