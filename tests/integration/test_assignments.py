"""``GET /assignments``: what a client has to do now, and how it learns of it at once."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
    open_round,
    report,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import quick_task, round_in_state, upload_as


def _assignments(service: httpx.Client, key: str, **params: str) -> list[dict[str, Any]]:
    response = service.get("/assignments", params=params, headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["assignments"]
    return found


def test_a_client_that_was_not_selected_has_nothing_to_do(service_on_each: httpx.Client) -> None:
    started_round(service_on_each)
    _, key = enrol_one(service_on_each)
    assert _assignments(service_on_each, key) == []


def test_a_selected_client_is_told_all_it_needs(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(
        service, 2, local_epochs=3, batch_size=20, learning_rate=0.5, learning_rate_decay=0.9, aggregation_s=2
    )
    slot = opened["schedule"]["slots"][1]
    (assignment,) = _assignments(service, keys[slot["client_id"]])
    planned = assignment.pop("slot")
    assert planned.items() <= slot.items()
    assert planned["client_id"] == slot["client_id"]
    assert assignment == {
        "kind": "train",
        "task_id": opened["task_id"],
        "round_id": opened["round_id"],
        "local_epochs": 3,
        "batch_size": 20,
        "learning_rate": 0.5,
        "started_at": opened["started_at"],
        "upload_deadline_s": 178,
    }


def test_there_is_nothing_more_to_do_after_the_update(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    sent, waiting = keys
    upload_as(service, keys[sent], opened["round_id"], sent)
    assert _assignments(service, keys[sent]) == []
    assert len(_assignments(service, keys[waiting])) == 1
    service.post(f"/rounds/{opened['round_id']}/close")
    assert _assignments(service, keys[waiting]) == []


def test_the_learning_rate_falls_from_round_to_round(service: httpx.Client) -> None:
    opened, keys = started_round(service, learning_rate=0.5, learning_rate_decay=0.9)
    service.post(f"/rounds/{opened['round_id']}/close")
    open_round(service, opened["task_id"])
    (assignment,) = _assignments(service, *keys.values())
    assert assignment["learning_rate"] == pytest.approx(0.45)


def test_without_a_deadline_none_is_told(service: httpx.Client) -> None:
    _, keys = started_round(service, policy="fl")
    (assignment,) = _assignments(service, *keys.values())
    assert assignment["upload_deadline_s"] is None


def test_a_client_may_have_several_tasks(service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    ((client_id, key),) = enrol(service, 1, labels).items()
    report(service, client_id)
    rounds = []
    for _ in range(2):
        task = create_task(service, labels=labels)
        set_model(service, task["task_id"])
        rounds.append(open_round(service, task["task_id"])["round_id"])
    assert [one["round_id"] for one in _assignments(service, key)] == rounds


def test_in_the_report_window_clients_are_asked_for_a_report(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, {"cell": fresh_name("cell")}
    ((client_id, key),) = enrol(service, 1, labels).items()
    task = create_task(service, labels=labels, report_window_s=5)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    assert _assignments(service, key) == [
        {
            "kind": "report",
            "task_id": task["task_id"],
            "round_id": opened["round_id"],
            "until": opened["window_ends_at"],
        }
    ]
    with as_client(service, key) as client:
        report(client, client_id)
    assert _assignments(service, key) == []  # it has answered
    round_in_state(service, opened["round_id"], "scheduled")
    (assignment,) = _assignments(service, key)
    assert (assignment["kind"], assignment["round_id"]) == ("train", opened["round_id"])


def _while_waiting(
    service: httpx.Client, key: str, act: Callable[[], object]
) -> tuple[list[dict[str, Any]], float]:
    """What a long poll brings, and how long after the act it did."""
    began = threading.Event()

    def wait() -> tuple[list[dict[str, Any]], float]:
        began.set()
        found = _assignments(service, key, wait_s="20")
        return found, time.monotonic()

    with ThreadPoolExecutor(1) as threads:
        waiting: Future[tuple[list[dict[str, Any]], float]] = threads.submit(wait)
        began.wait()
        time.sleep(0.3)
        assert not waiting.done()
        act()
        acted = time.monotonic()
        found, answered = waiting.result()
    return found, answered - acted


def test_a_long_poll_wakes_when_a_round_opens(service_on_each: httpx.Client) -> None:
    service = service_on_each
    task, keys = quick_task(service)
    (key,) = keys.values()
    found, delay_s = _while_waiting(service, key, lambda: open_round(service, task["task_id"]))
    assert [one["task_id"] for one in found] == [task["task_id"]]
    assert delay_s < 10, "it wakes; its time is not over"


def test_a_long_poll_goes_on_when_others_are_selected(service: httpx.Client) -> None:
    task, keys = quick_task(service)
    (key,) = keys.values()

    def act() -> None:
        started_round(service)
        open_round(service, task["task_id"])

    found, _ = _while_waiting(service, key, act)
    assert [one["task_id"] for one in found] == [task["task_id"]]


def test_a_long_poll_ends_with_nothing_when_its_time_is_over(service: httpx.Client) -> None:
    _, key = enrol_one(service)
    began = time.monotonic()
    assert _assignments(service, key, wait_s="0.4") == []
    assert 0.4 <= time.monotonic() - began < 5


@pytest.mark.parametrize("wait_s", ["-1", "61", "nan", "long"])
def test_nobody_waits_for_ever(wait_s: str, service: httpx.Client) -> None:
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        response = client.get("/assignments", params={"wait_s": wait_s})
    assert_problem(response, 422, "INVALID_REQUEST")
