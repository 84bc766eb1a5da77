"""``GET /assignments``: what a client has to do now, and how it learns of it at once."""

import hashlib
import time
from collections.abc import Callable
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
    open_round,
    report,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import quick_round, quick_task, round_in_state, upload_as
from tests.running_service import running_service


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
    model = service.get(f"/rounds/{opened['round_id']}/model")
    assert planned.items() <= slot.items()
    assert planned["client_id"] == slot["client_id"]
    assert assignment == {
        "kind": "train",
        "task_id": opened["task_id"],
        "round_id": opened["round_id"],
        "local_epochs": 3,
        "batch_size": 20,
        "learning_rate": 0.5,
        "gradient_clip_norm": None,
        "local_momentum": 0.0,
        "weight_decay": 0.0,
        "proximal_mu": 0.0,
        "calibrated_loss": False,
        "started_at": opened["started_at"],
        "upload_deadline_s": 178,
        "starts_in_s": None,
        "ends_in_s": None,
        "model_version": 0,
        "model_size_bytes": len(model.content),
        "model_digest": hashlib.sha256(model.content).hexdigest(),
        "model_encoding": "float32",
        "update_encoding": "float32",
        "topk_fraction": 0.1,
        "channel": None,
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


def test_the_terms_of_local_training_are_told(service: httpx.Client) -> None:
    terms: dict[str, Any] = {
        "gradient_clip_norm": 1.5,
        "local_momentum": 0.9,
        "weight_decay": 1e-4,
        "proximal_mu": 0.01,
        "calibrated_loss": True,
    }
    opened, keys = started_round(service, **terms)
    (assignment,) = _assignments(service, *keys.values())
    assert {name: assignment[name] for name in terms} == terms
    task = service.get(f"/tasks/{opened['task_id']}").json()
    assert {name: task[name] for name in terms} == terms


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
    assert [item["round_id"] for item in _assignments(service, key)] == rounds


def test_in_the_report_window_clients_are_asked_for_a_report(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, {"cell": fresh_name("cell")}
    ((client_id, key),) = enrol(service, 1, labels).items()
    task = create_task(service, labels=labels, report_window_s=5)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    (asked,) = _assignments(service, key)
    assert 0 < asked.pop("ends_in_s") <= 5
    assert asked == {
        "kind": "report",
        "task_id": task["task_id"],
        "round_id": opened["round_id"],
        "until": opened["window_ends_at"],
        "starts_in_s": 0,
    }
    with as_client(service, key) as client:
        report(client, client_id)
    assert _assignments(service, key) == []  # it has answered
    round_in_state(service, opened["round_id"], "scheduled")
    (assignment,) = _assignments(service, key)
    assert (assignment["kind"], assignment["round_id"]) == ("train", opened["round_id"])


def test_on_the_wall_clock_the_time_until_the_slot_is_told(service: httpx.Client) -> None:
    opened, keys = quick_round(service, model_size_bytes=10**9)
    (slot,) = opened["schedule"]["slots"]
    (first,) = _assignments(service, *keys.values())
    (second,) = _assignments(service, *keys.values())
    for assignment in (first, second):
        length_s = slot["window_end_s"] - slot["window_start_s"]
        assert assignment["ends_in_s"] - assignment["starts_in_s"] == pytest.approx(length_s)
    assert second["starts_in_s"] < first["starts_in_s"] < slot["window_start_s"]


def test_without_a_tag_the_answer_comes_at_once(service: httpx.Client) -> None:
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        answer = client.get("/assignments", params={"wait_s": "60"}, timeout=30)
    assert answer.json() == {"assignments": []}


def test_the_tag_names_what_there_is_to_do(service_on_each: httpx.Client) -> None:
    service = service_on_each
    task, keys = quick_task(service)
    ((client_id, key),) = keys.items()
    with as_client(service, key) as client:
        idle = client.get("/assignments").headers["etag"]
        round_id = open_round(service, task["task_id"])["round_id"]
        tags = [client.get("/assignments").headers["etag"] for _ in range(3)]
        assert len(set(tags)) == 1, "though the time until the slot differs"
        tag = tags[0]
        assert tag != idle
        for named in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            unchanged = client.get("/assignments", headers={"If-None-Match": named})
            assert (unchanged.status_code, unchanged.content) == (304, b"")
            assert unchanged.headers["etag"] == tag
        for named in (idle, '"x"', "", tag.strip('"')):
            changed = client.get("/assignments", headers={"If-None-Match": named})
            assert [item["round_id"] for item in changed.json()["assignments"]] == [round_id]
        assert upload_as(service, key, round_id, client_id, fedcs_elapsed_s=None).status_code == 201
        assert client.get("/assignments").headers["etag"] == idle


def _poll(service: httpx.Client, key: str, wait_s: str = "60") -> httpx.Response:
    """A long poll for what comes after what there is to do now."""
    with as_client(service, key) as client:
        known = {"If-None-Match": client.get("/assignments").headers["etag"]}
        return client.get("/assignments", params={"wait_s": wait_s}, headers=known)


def _while_waiting(
    service: httpx.Client, key: str, act: Callable[[], object]
) -> tuple[httpx.Response, float]:
    """What a long poll brings, and how long after the act it did."""

    def wait() -> tuple[httpx.Response, float]:
        return _poll(service, key), time.monotonic()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        time.sleep(0.5)
        assert not waiting.done()
        act()
        acted = time.monotonic()
        found, answered = waiting.result()
    return found, answered - acted


def _assigned(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assigned: list[dict[str, Any]] = answer.json()["assignments"]
    return assigned


def test_a_long_poll_wakes_when_a_round_opens(service_on_each: httpx.Client) -> None:
    service = service_on_each
    task, keys = quick_task(service)
    (key,) = keys.values()
    found, delay_s = _while_waiting(service, key, lambda: open_round(service, task["task_id"]))
    assert [item["task_id"] for item in _assigned(found)] == [task["task_id"]]
    assert delay_s < 40, "it wakes; its time is not over"


def test_a_long_poll_goes_on_when_others_are_selected(service: httpx.Client) -> None:
    task, keys = quick_task(service)
    (key,) = keys.values()

    def act() -> None:
        started_round(service)
        open_round(service, task["task_id"])

    found, _ = _while_waiting(service, key, act)
    assert [item["task_id"] for item in _assigned(found)] == [task["task_id"]]


@pytest.mark.parametrize("ending", ["close", "cancel"])
def test_a_long_poll_wakes_when_the_round_is_over(ending: str, service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    (key, _) = keys.values()
    close, cancel = f"/rounds/{opened['round_id']}/close", f"/tasks/{opened['task_id']}/cancel"
    found, delay_s = _while_waiting(
        service, key, lambda: service.post(close if ending == "close" else cancel)
    )
    assert _assigned(found) == []
    assert delay_s < 40


def test_a_long_poll_wakes_when_the_report_window_ends_without_a_report(service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    ((_, key),) = enrol(service, 1, labels).items()
    task = create_task(service, labels=labels, report_window_s=4)
    set_model(service, task["task_id"])
    open_round(service, task["task_id"])
    began = time.monotonic()
    assert _assigned(_poll(service, key, wait_s="60")) == []
    assert time.monotonic() - began < 40


def test_a_long_poll_waits_although_there_is_something_to_do(service: httpx.Client) -> None:
    """It used to be answered at once, and a device that asked again asked hundreds of times a second."""
    opened, keys = started_round(service)
    (key,) = keys.values()
    began = time.monotonic()
    answer = _poll(service, key, wait_s="0.4")
    assert (answer.status_code, answer.content) == (304, b"")
    assert time.monotonic() - began >= 0.4
    assert [item["round_id"] for item in _assignments(service, key)] == [opened["round_id"]]


def test_a_long_poll_ends_with_nothing_when_its_time_is_over(service: httpx.Client) -> None:
    _, key = enrol_one(service)
    began = time.monotonic()
    assert _poll(service, key, wait_s="0.4").status_code == 304
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("ending", ["keys/{key_id}", "clients/{client_id}", "clients/{client_id}/keys"])
def test_a_long_poll_ends_with_its_key(ending: str, service_on_each: httpx.Client) -> None:
    client_id, key = enrol_one(service_on_each)
    path = "/" + ending.format(client_id=client_id, key_id=key.split("_")[1])
    found, delay_s = _while_waiting(service_on_each, key, lambda: service_on_each.delete(path))
    assert_problem(found, 401, "UNAUTHENTICATED")
    assert delay_s < 40


def test_a_long_poll_ends_when_another_process_revokes_its_key(tmp_path: Path) -> None:
    with running_service(tmp_path) as first, running_service(tmp_path) as other:
        _, key = enrol_one(first)
        found, delay_s = _while_waiting(other, key, lambda: first.delete(f"/keys/{key.split('_')[1]}"))
    assert_problem(found, 401, "UNAUTHENTICATED")
    assert delay_s < 40


@pytest.mark.parametrize("wait_s", ["-1", "61", "nan", "long"])
def test_nobody_waits_for_ever(wait_s: str, service: httpx.Client) -> None:
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        response = client.get("/assignments", params={"wait_s": wait_s})
    assert_problem(response, 422, "INVALID_REQUEST")
