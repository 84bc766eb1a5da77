"""``/rounds``: who is drawn, who is selected and why not, and how a round is closed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pytest

from services.domain.radio import Cell
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    open_round,
    report,
    report_all,
    resources,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import get_round, get_task, round_in_state, upload_all, upload_as


def _task(service: httpx.Client, labels: dict[str, str], **terms: object) -> str:
    task_id: str = create_task(service, labels=labels, **terms)["task_id"]
    set_model(service, task_id)
    return task_id


def _labels() -> dict[str, str]:
    return {"cell": fresh_name("cell")}


def _clients_of(opened: dict[str, Any]) -> set[str]:
    schedule = opened["schedule"]
    return {item["client_id"] for item in [*schedule["slots"], *schedule["not_selected"]]}


def _reasons(opened: dict[str, Any]) -> dict[str, str]:
    return {item["client_id"]: item["reason"] for item in opened["schedule"]["not_selected"]}


def test_a_share_of_the_clients_with_the_labels_is_drawn(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    keys = enrol(service, 10, {**labels, "vehicle": "bus"})
    enrol(service, 10, {**labels, "vehicle": "tram"})
    enrol(service, 10, {"vehicle": "bus"})
    report_all(service, list(keys))
    task_id = _task(service, {**labels, "vehicle": "bus"}, request_fraction=0.25)
    opened = open_round(service, task_id)
    assert (opened["clients"], opened["asked"], opened["selected"]) == (10, 3, 3)
    assert (opened["number"], opened["state"], opened["model_version"]) == (1, "scheduled", 0)
    assert len(_clients_of(opened)) == 3
    assert _clients_of(opened) <= set(keys)
    assert get_round(service, opened["round_id"]) == opened


def test_without_clients_a_round_fails(service_on_each: httpx.Client) -> None:
    opened = open_round(service_on_each, _task(service_on_each, _labels()))
    assert (opened["state"], opened["outcome"]) == ("failed", "TOO_FEW_CLIENTS")
    assert (opened["clients"], opened["asked"], opened["selected"]) == (0, 0, 0)


def test_every_candidate_is_told_why_it_was_not_selected(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    good, silent, stale, elsewhere, empty, slow = enrol(service, 6, labels)
    task_id = _task(service, labels, report_max_age_s=60)
    other_id = _task(service, _labels())
    report(service, good)
    report(service, stale, observed_at=(datetime.now(UTC) - timedelta(seconds=61)).isoformat())
    report(service, elsewhere, task_id=other_id)
    report(service, empty, data_samples=0)
    report(service, slow, compute_samples_per_s=1)
    opened = open_round(service, task_id)
    assert [slot["client_id"] for slot in opened["schedule"]["slots"]] == [good]
    assert _reasons(opened) == {
        silent: "NO_REPORT",
        stale: "NO_REPORT",
        elsewhere: "NO_REPORT",
        empty: "NO_DATA",
        slow: "DEADLINE",
    }
    (candidate,) = [item for item in opened["schedule"]["not_selected"] if item["client_id"] == slow]
    assert candidate["throughput_bps"] == 1_000_000
    assert (candidate["update_s"], candidate["upload_s"]) == (1000, 0.8)
    assert candidate["cost_s"] == pytest.approx(1000.8 - 20.8)
    for item in opened["schedule"]["not_selected"]:
        if item["reason"] == "NO_REPORT":
            assert (item["throughput_bps"], item["update_s"], item["cost_s"]) == (None, None, None)


def test_the_newest_report_counts_for_all_tasks_or_for_this_one(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    (client_id,) = enrol(service, 1, labels)
    task_id = _task(service, labels)
    moment = datetime.now(UTC) - timedelta(seconds=100)
    for seconds, samples, of_task in [(30, 300, task_id), (10, 100, None), (20, 200, None)]:
        observed_at = (moment + timedelta(seconds=seconds)).isoformat()
        report(service, client_id, data_samples=samples, task_id=of_task, observed_at=observed_at)
    (slot,) = open_round(service, task_id)["schedule"]["slots"]
    assert slot["data_samples"] == 300


def test_throughput_refers_to_the_resource_blocks_that_were_reported(service: httpx.Client) -> None:
    labels = _labels()
    (client_id,) = enrol(service, 1, labels)
    report(service, client_id, throughput_bps=4_000_000, report_resource_blocks=20)
    (slot,) = open_round(service, _task(service, labels, resource_blocks=5))["schedule"]["slots"]
    assert slot["upload_s"] == pytest.approx(0.8)
    assert slot["resource_block_count"] == 5


def _cell_reports(service: httpx.Client, clients: list[str]) -> list[dict[str, Any]]:
    drawn = Cell().draw_reports(len(clients), np.random.default_rng(1))
    columns = (drawn.throughput_bps, drawn.compute_samples_per_s, drawn.data_samples)
    reports = [
        resources(client_id, throughput_bps=bps, compute_samples_per_s=rate, data_samples=samples)
        for client_id, bps, rate, samples in zip(
            clients, *(column.tolist() for column in columns), strict=True
        )
    ]
    assert service.post("/reports/batch", json={"reports": reports}).json()["stored"] == len(clients)
    return reports


@pytest.mark.parametrize("policy", ["fedcs", "optimal"])
def test_the_schedule_is_what_the_plan_says(policy: str, service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    reports = _cell_reports(service, list(enrol(service, 60, labels)))
    terms: dict[str, Any] = {
        "policy": policy,
        "round_deadline_s": 180,
        "selection_s": 2,
        "aggregation_s": 3,
        "model_size_bytes": 18_300_000,
        "resource_blocks": 5,
        "local_epochs": 4,
        "seed": 0,  # of equal candidates the first drawn is taken: this draw takes those that the plan takes
    }
    plan = service.post("/plans", json={**terms, "candidates": reports}).json()
    schedule = open_round(service, _task(service, labels, **terms))["schedule"]
    assert 1 < len(plan["slots"]) < 60
    for name in ("distribution_s", "elapsed_s", "total_s", "upper_bound", "upper_bound_exact", "policy"):
        assert schedule[name] == plan[name], name
    planned = plan["slots"][0].keys()
    assert [{name: slot[name] for name in planned} for slot in schedule["slots"]] == plan["slots"]
    reasons = {item["client_id"]: (item["reason"], item["cost_s"]) for item in plan["not_selected"]}
    assert {
        item["client_id"]: (item["reason"], item["cost_s"]) for item in schedule["not_selected"]
    } == reasons


def test_the_policy_without_a_deadline_takes_everyone_and_the_limited_one_whom_it_can(
    service: httpx.Client,
) -> None:
    labels = _labels()
    _cell_reports(service, list(enrol(service, 40, labels)))
    terms = {"round_deadline_s": 180, "model_size_bytes": 18_300_000}
    everyone = open_round(service, _task(service, labels, policy="fl", **terms))
    assert everyone["selected"] == 40
    assert everyone["schedule"]["total_s"] > 180
    some = open_round(service, _task(service, labels, policy="fedlim", **terms))
    assert 0 < some["selected"] < 40
    assert some["schedule"]["total_s"] < 180
    assert {item["cost_s"] for item in some["schedule"]["not_selected"]} == {None}


def test_clients_that_would_never_finish_leave_a_round_without_clients(service: httpx.Client) -> None:
    labels = _labels()
    (client_id,) = enrol(service, 1, labels)
    report(service, client_id, throughput_bps=100)
    opened = open_round(service, _task(service, labels, policy="fl", model_size_bytes=10**13))
    assert (opened["state"], opened["outcome"]) == ("failed", "TOO_FEW_CLIENTS")
    assert opened["schedule"]["slots"] == []
    (other,) = opened["schedule"]["not_selected"]
    assert (other["client_id"], other["reason"]) == (client_id, "TOO_SLOW")


def test_the_same_seed_draws_the_same_clients(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    report_all(service, list(enrol(service, 20, labels)))

    def drawn(seed: int) -> list[set[str]]:
        task_id = _task(service, labels, request_fraction=0.5, seed=seed)
        rounds = []
        for _ in range(2):
            opened = open_round(service, task_id)
            rounds.append(_clients_of(opened))
            service.post(f"/rounds/{opened['round_id']}/close")
        return rounds

    first = drawn(seed=1)
    assert drawn(seed=1) == first
    assert drawn(seed=2) != first
    assert first[0] != first[1]


def test_with_too_few_clients_a_round_fails_and_another_may_follow(service_on_each: httpx.Client) -> None:
    service, labels = service_on_each, _labels()
    first, other = enrol(service, 2, labels)
    report(service, first)
    task_id = _task(service, labels, min_clients=2)
    failed = open_round(service, task_id)
    assert (failed["state"], failed["outcome"], failed["selected"]) == ("failed", "TOO_FEW_CLIENTS", 0)
    assert failed["ended_at"] is not None
    assert failed["schedule"]["slots"] == []
    assert _reasons(failed)[other] == "NO_REPORT"
    assert get_task(service, task_id)["state"] == "running"
    report(service, other)
    again = open_round(service, task_id)
    assert (again["number"], again["state"], again["selected"]) == (2, "scheduled", 2)


def test_one_round_at_a_time(service_on_each: httpx.Client) -> None:
    opened, _ = started_round(service_on_each)
    response = service_on_each.post("/rounds", json={"task_id": opened["task_id"]})
    assert opened["round_id"] in assert_problem(response, 409, "ROUND_OPEN")["detail"]


@pytest.mark.parametrize("body", [{}, {"task_id": 7}, {"task_id": "a b"}, {"task_id": "t", "more": 1}])
def test_what_names_no_task_opens_no_round(body: dict[str, Any], service: httpx.Client) -> None:
    assert_problem(service.post("/rounds", json=body), 422, "INVALID_REQUEST")


def test_there_is_no_round_of_another_name(service: httpx.Client) -> None:
    assert_problem(service.get("/rounds/round-0"), 404, "ROUND_NOT_FOUND")
    assert_problem(service.get("/rounds/round-0/schedule"), 404, "ROUND_NOT_FOUND")
    assert_problem(service.post("/rounds/round-0/close"), 404, "ROUND_NOT_FOUND")


def test_rounds_are_listed_newest_first_by_task_and_state(service: httpx.Client) -> None:
    first, keys = started_round(service)
    service.post(f"/rounds/{first['round_id']}/close")
    second = open_round(service, first["task_id"])
    another, _ = started_round(service)
    newest = service.get("/rounds").json()
    assert [item["round_id"] for item in newest[:2]] == [another["round_id"], second["round_id"]]
    of_task = service.get("/rounds", params={"task_id": first["task_id"]}).json()
    assert [item["round_id"] for item in of_task] == [second["round_id"], first["round_id"]]
    failed = service.get("/rounds", params={"task_id": first["task_id"], "state": "failed"}).json()
    assert [item["round_id"] for item in failed] == [first["round_id"]]
    (key,) = keys.values()
    with as_client(service, key) as client:
        own = client.get("/rounds").json()
    assert [item["round_id"] for item in own] == [second["round_id"], first["round_id"]]


def test_a_round_closes_when_every_slot_has_its_update(service_on_each: httpx.Client) -> None:
    opened, keys = started_round(service_on_each, 3)
    upload_all(service_on_each, opened, keys)
    closed = get_round(service_on_each, opened["round_id"])
    assert (closed["state"], closed["received"], closed["outcome"]) == ("aggregating", 3, None)
    assert {slot["outcome"] for slot in closed["schedule"]["slots"]} == {"received"}


def test_closing_takes_what_has_arrived(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 3)
    round_id, (sent, spoilt, silent) = opened["round_id"], list(keys)
    assert upload_as(service, keys[sent], round_id, sent).status_code == 201
    assert upload_as(service, keys[spoilt], round_id, spoilt, update=b"nonsense").status_code == 422
    closed = service.post(f"/rounds/{round_id}/close")
    assert closed.status_code == 200
    assert closed.json()["state"] == "aggregating"
    outcomes = {slot["client_id"]: slot["outcome"] for slot in closed.json()["schedule"]["slots"]}
    assert outcomes == {sent: "received", spoilt: "rejected", silent: "missed"}
    assert service.post(f"/rounds/{round_id}/close").json() == closed.json()
    assert_problem(upload_as(service, keys[silent], round_id, silent), 409, "ROUND_NOT_COLLECTING")


def test_with_too_few_updates_a_round_fails(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 3, min_updates=2)
    first = next(iter(keys))
    assert upload_as(service, keys[first], opened["round_id"], first).status_code == 201
    closed = service.post(f"/rounds/{opened['round_id']}/close").json()
    assert (closed["state"], closed["outcome"], closed["received"]) == ("failed", "TOO_FEW_UPDATES", 1)
    assert service.post(f"/rounds/{opened['round_id']}/close").json() == closed
    assert open_round(service, opened["task_id"])["number"] == 2


def test_a_round_does_not_wait_for_a_client_that_is_removed(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (stays, goes) = opened["round_id"], list(keys)
    assert upload_as(service, keys[stays], round_id, stays).status_code == 201
    assert service.delete(f"/clients/{goes}").status_code == 204
    closed = get_round(service, round_id)
    assert closed["state"] == "aggregating"
    outcomes = {slot["client_id"]: slot["outcome"] for slot in closed["schedule"]["slots"]}
    assert outcomes == {stays: "received", goes: "missed"}
    assert_problem(upload_as(service, keys[goes], round_id, goes), 401, "UNAUTHENTICATED")


def test_a_round_whose_clients_are_all_removed_fails(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    (client_id,) = keys
    service.delete(f"/clients/{client_id}")
    ended = get_round(service, opened["round_id"])
    assert (ended["state"], ended["outcome"]) == ("failed", "TOO_FEW_UPDATES")


def test_a_client_sees_no_round_it_was_not_selected_for(service: httpx.Client) -> None:
    opened, _ = started_round(service)
    _, key = enrol_one(service)
    with as_client(service, key) as stranger:
        assert_problem(stranger.get(f"/rounds/{opened['round_id']}"), 403, "NOT_SELECTED")
        assert stranger.get("/rounds").json() == []


def test_with_a_report_window_only_answers_count(service_on_each: httpx.Client) -> None:
    """The report from before does not count, and neither does the client that was removed meanwhile."""
    service, labels = service_on_each, _labels()
    keys = enrol(service, 3, labels)
    answers, silent, goes = keys
    report_all(service, list(keys))
    opened = open_round(service, _task(service, labels, report_window_s=0.7))
    round_id = opened["round_id"]
    assert (opened["state"], opened["schedule"], opened["started_at"]) == ("requesting", None, None)
    assert (opened["asked"], opened["selected"]) == (3, 0)
    assert_problem(service.get(f"/rounds/{round_id}/schedule"), 409, "NOT_SCHEDULED")
    assert_problem(service.post(f"/rounds/{round_id}/close"), 409, "ROUND_NOT_COLLECTING")
    report(service, answers, data_samples=77)
    report(service, goes)
    assert service.delete(f"/clients/{goes}").status_code == 204
    scheduled = round_in_state(service, round_id, "scheduled")
    assert scheduled["started_at"] >= scheduled["window_ends_at"]
    (slot,) = scheduled["schedule"]["slots"]
    assert (slot["client_id"], slot["data_samples"]) == (answers, 77)
    assert _reasons(scheduled) == {silent: "NO_REPORT", goes: "NO_REPORT"}


def test_a_report_window_without_answers_fails_the_round(service: httpx.Client) -> None:
    labels = _labels()
    report_all(service, list(enrol(service, 2, labels)))
    opened = open_round(service, _task(service, labels, report_window_s=0.1))
    failed = round_in_state(service, opened["round_id"], "failed")
    assert failed["outcome"] == "TOO_FEW_CLIENTS"
    assert set(_reasons(failed).values()) == {"NO_REPORT"}


def test_a_requesting_round_is_cancelled_with_its_task(service: httpx.Client) -> None:
    labels = _labels()
    enrol(service, 1, labels)
    task_id = _task(service, labels, report_window_s=600)
    opened = open_round(service, task_id)
    assert_problem(service.post("/rounds", json={"task_id": task_id}), 409, "ROUND_OPEN")
    service.post(f"/tasks/{task_id}/cancel")
    ended = get_round(service, opened["round_id"])
    assert (ended["state"], ended["schedule"]) == ("cancelled", None)
