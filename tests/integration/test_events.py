"""``GET /events``: what happens, in order, without gaps, until the service ends."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol_one,
    started_round,
)
from tests.integration.rounds_setup import event_stream, events_until, upload_all
from tests.running_service import service_process


def test_the_life_of_a_round_is_told_in_order(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    upload_all(service, opened, keys)
    told = events_until(service, "round.aggregating", task_id=opened["task_id"])
    assert [event["kind"] for event in told] == [
        "task.initializing",
        "model.created",
        "task.ready",
        "task.running",
        "round.requesting",
        "round.scheduled",
        "update.received",
        "round.collecting",
        "update.received",
        "round.aggregating",
    ]
    numbers = [event["number"] for event in told]
    assert numbers == sorted(set(numbers))
    assert {event["task_id"] for event in told} == {opened["task_id"]}
    assert told[5]["data"] == {"number": 1, "selected": 2, "received": 0}
    assert told[6]["client_id"] == opened["schedule"]["slots"][0]["client_id"]


def test_a_stream_is_resumed_after_the_last_event_seen(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    upload_all(service, opened, keys)
    told = events_until(service, "round.aggregating", task_id=opened["task_id"])
    for seen in (0, 4, len(told) - 2):
        rest = events_until(
            service, "round.aggregating", after=told[seen]["number"], task_id=opened["task_id"]
        )
        assert rest == told[seen + 1 :]


def test_a_stream_may_be_of_one_round(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    started_round(service)
    upload_all(service, opened, keys)
    told = events_until(service, "round.aggregating", round_id=opened["round_id"])
    assert {event["round_id"] for event in told} == {opened["round_id"]}
    assert told[0]["kind"] == "round.requesting"


def test_a_new_stream_tells_what_happens_from_now_on(service_on_each: httpx.Client) -> None:
    service = service_on_each
    before = create_task(service)["task_id"]
    last = events_until(service, "task.initializing", task_id=before)[-1]["number"]
    with event_stream(service) as events:
        task_id = create_task(service)["task_id"]
        told = [next(events)]
        while told[-1]["task_id"] != task_id:
            told.append(next(events))
        assert told[0]["number"] > last
        assert told[-1]["kind"] == "task.initializing"


def test_a_new_stream_tells_where_it_stands(service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    last = events_until(service, "task.initializing", task_id=task_id)[-1]["number"]
    with service.stream("GET", "/events", params={"task_id": task_id}, timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == f"id: {last}"
        assert not next(lines)
        service.post(f"/tasks/{task_id}/cancel")
        assert next(lines) == "event: task.cancelled"


def test_nothing_is_missing_when_many_act_at_once(service_on_each: httpx.Client) -> None:
    service, tasks = service_on_each, 60
    last = events_until(service, "task.initializing", task_id=create_task(service)["task_id"])[-1]["number"]
    seen: list[dict[str, Any]] = []

    def follow() -> None:
        with event_stream(service, last) as events:
            while sum(event["kind"] == "task.initializing" for event in seen) < tasks:
                seen.append(next(events))

    following = threading.Thread(target=follow)
    following.start()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: create_task(service)["task_id"], range(tasks)))
    following.join(timeout=20)
    assert not following.is_alive()
    assert [event["number"] for event in seen] == list(range(last + 1, last + 1 + len(seen)))
    assert sorted(e["task_id"] for e in seen if e["kind"] == "task.initializing") == sorted(made)


def test_after_an_event_that_has_not_happened_all_are_told(service_on_each: httpx.Client) -> None:
    """Whoever follows has seen more than a restored database knows of; else it would miss what comes next."""
    service = service_on_each
    opened, keys = started_round(service, 2)
    upload_all(service, opened, keys)
    told = events_until(service, "round.aggregating", task_id=opened["task_id"])
    assert events_until(service, "round.aggregating", after=2**62, task_id=opened["task_id"]) == told


@pytest.mark.parametrize("last", ["-1", "soon", "1.5", str(2**63)])
def test_what_is_no_event_number_is_refused(last: str, service: httpx.Client) -> None:
    response = service.get("/events", headers={"Last-Event-ID": last})
    assert_problem(response, 422, "INVALID_REQUEST")


def test_events_are_not_for_clients(service: httpx.Client) -> None:
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        assert_problem(client.get("/events"), 403, "FORBIDDEN")


def test_who_waits_is_let_go_when_the_service_ends(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    with service_process(tmp_path, log) as (service, process):
        _, key = enrol_one(service)
        with ThreadPoolExecutor(2) as threads:
            stream = threads.submit(_all_events, service)
            poll = threads.submit(_long_poll, service, key)
            time.sleep(0.5)
            assert not stream.done()
            assert not poll.done()
            process.terminate()
            assert process.wait(timeout=60) == 0
            assert "timeout graceful shutdown exceeded" not in log.read_text()
            assert [event["kind"] for event in stream.result()] == ["clients.enrolled"]
            assert poll.result().status_code == 304


def _all_events(service: httpx.Client) -> list[dict[str, Any]]:
    with event_stream(service, 0) as events:
        return list(events)


def _long_poll(service: httpx.Client, key: str) -> httpx.Response:
    with as_client(service, key) as client:
        known = {"If-None-Match": client.get("/assignments").headers["etag"]}
        return client.get("/assignments", params={"wait_s": "60"}, headers=known)
