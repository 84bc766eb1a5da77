"""Clients that do not deliver, wrong estimates and implausible reports, over HTTP."""

import re
from typing import Any

import httpx
import pytest

from tests.dashboard_session import logged_in
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    fresh_name,
    open_round,
    report,
    report_all,
    set_model,
)
from tests.integration.rounds_setup import get_round, upload_as


def _task(service: httpx.Client, clients: int, **terms: object) -> tuple[str, dict[str, str]]:
    """A task with a model and new clients with reports; its rounds fail without two updates."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, clients, labels)
    report_all(service, list(keys))
    task_id = create_task(service, labels=labels, min_updates=2, **terms)["task_id"]
    set_model(service, task_id)
    return task_id, keys


def _failed_round(service: httpx.Client, task_id: str, *uploads: tuple[str, str]) -> dict[str, Any]:
    """A round in which these clients upload, by their ids and keys, and no other."""
    opened = open_round(service, task_id)
    for client_id, key in uploads:
        times = {"fedcs_elapsed_s": "20", "fedcs_update_s": "40", "fedcs_upload_s": "4"}
        assert upload_as(service, key, opened["round_id"], client_id, **times).status_code == 201
    assert service.post(f"/rounds/{opened['round_id']}/close").status_code == 200
    return opened


def _participation(service: httpx.Client, client_id: str) -> dict[str, Any]:
    (of_task,) = service.get(f"/clients/{client_id}").raise_for_status().json()["tasks"]
    assert isinstance(of_task, dict)
    return of_task


def test_a_client_that_does_not_deliver_is_passed_over_for_a_while(service: httpx.Client) -> None:
    task_id, keys = _task(service, 3, cooldown=True)
    absent, present, _ = keys
    for _ in range(2):
        assert absent in _selected(_failed_round(service, task_id, (present, keys[present])))
    assert _participation(service, absent) == {
        "task_id": task_id,
        "rounds": 2,
        "selected": 2,
        "received": 0,
        "share": 1.0,
        "cooldown_until_round": 4,
    }
    third = open_round(service, task_id)
    reasons = {candidate["client_id"]: candidate["reason"] for candidate in third["schedule"]["not_selected"]}
    assert _selected(third) == {present}
    assert reasons[absent] == "COOLDOWN"
    assert _participation(service, present)["cooldown_until_round"] is None
    with logged_in(service) as operator:
        page = operator.get(f"/dashboard/rounds/{third['round_id']}").text
    assert "Did not deliver in its last rounds: not drawn for some rounds." in page
    metrics = service.get("/metrics").text
    assert 'fedcs_open_candidates{outcome="COOLDOWN"}' in metrics
    assert "fedcs_implausible_clients_ratio" in metrics


def _selected(round_: dict[str, Any]) -> set[str]:
    return {slot["client_id"] for slot in round_["schedule"]["slots"]}


def test_a_client_has_its_share(service: httpx.Client) -> None:
    task_id, keys = _task(service, 1, max_share=0.5)
    (client_id,) = keys
    _failed_round(service, task_id)
    second = open_round(service, task_id)
    assert (second["state"], second["outcome"]) == ("failed", "TOO_FEW_CLIENTS")
    (candidate,) = second["schedule"]["not_selected"]
    assert (candidate["client_id"], candidate["reason"]) == (client_id, "MAX_SHARE")
    assert _participation(service, client_id)["share"] == 0.5
    with logged_in(service) as operator:
        page = operator.get(f"/dashboard/rounds/{second['round_id']}").text
    assert "Has had its largest share of the task&#39;s rounds." in page


def test_the_round_tells_what_was_reported_and_what_was_expected(service: httpx.Client) -> None:
    task_id, keys = _task(service, 3, correct_estimates=True)
    slow, other, never = keys
    report(service, slow, throughput_bps=8_640_000)
    report(service, never, data_samples=0)
    for _ in range(3):
        first = _failed_round(service, task_id, (slow, keys[slow]))
    slots = {slot["client_id"]: slot for slot in first["schedule"]["slots"]}
    record = service.get(f"/clients/{slow}").json()["record"]
    assert record["update_ratio"] == pytest.approx(2.0)  # 200 samples, 5 epochs, 50 samples/s: 20 s
    assert record["upload_ratio"] == pytest.approx(4 / (800_000 / 8_640_000))
    assert record["upload_spread"] == pytest.approx(0, abs=1e-3)

    planned = open_round(service, task_id)
    slots = {slot["client_id"]: slot for slot in planned["schedule"]["slots"]}
    assert slots[slow]["throughput_bps"] == 8_640_000
    assert slots[slow]["expected_throughput_bps"] == pytest.approx(200_000, rel=0.05)
    assert slots[slow]["compute_samples_per_s"] == 50
    assert slots[slow]["expected_compute_samples_per_s"] == pytest.approx(25, rel=0.1)
    assert slots[slow]["upload_s"] == pytest.approx(4, rel=0.05)
    assert slots[other]["expected_throughput_bps"] is slots[other]["expected_compute_samples_per_s"] is None
    (candidate,) = planned["schedule"]["not_selected"]
    assert (candidate["client_id"], candidate["throughput_bps"]) == (never, 1_000_000)
    assert candidate["expected_throughput_bps"] is None
    with logged_in(service) as operator:
        page = operator.get(f"/dashboard/rounds/{planned['round_id']}").text
    assert "Reported 8.6 Mbit/s, expected 0.2" in page
    assert re.search(r"Reported 50 samples/s, expected 2\d\.", page)
    with as_client(service, keys[slow]) as client:
        (own,) = get_round(client, planned["round_id"])["schedule"]["slots"]
    assert own == slots[slow]


def test_a_report_above_the_peak_rate_is_flagged_and_capped_on_request(service: httpx.Client) -> None:
    task_id, keys = _task(service, 2, cap_reports=True)
    boasting, honest = keys
    report(service, boasting, throughput_bps=50_000_000, report_resource_blocks=20)
    clients = {client_id: service.get(f"/clients/{client_id}").json()["implausible"] for client_id in keys}
    assert clients[honest] == []
    peak = {"figure": "throughput_bps", "reason": "PEAK_RATE", "reported": 25e6, "limit": 8.64e6}
    assert clients[boasting] == [peak]
    listed = service.get("/clients", params={"label": f"cell={_cell_of(service, boasting)}"}).json()
    assert [client["implausible"] for client in listed] == [[peak], []]
    slots = {slot["client_id"]: slot for slot in open_round(service, task_id)["schedule"]["slots"]}
    assert slots[boasting]["throughput_bps"] == 25e6
    assert slots[boasting]["expected_throughput_bps"] == 8.64e6
    assert slots[honest]["expected_throughput_bps"] is None


def _cell_of(service: httpx.Client, client_id: str) -> str:
    name = service.get(f"/clients/{client_id}").json()["labels"]["cell"]
    assert isinstance(name, str)
    return name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_share", 0),
        ("max_share", 1.01),
        ("max_share", "half"),
        ("cooldown", 2),
        ("correct_estimates", "yes"),
        ("cap_reports", None),
    ],
)
def test_other_values_are_refused(service: httpx.Client, field: str, value: object) -> None:
    response = service.post("/tasks", json={"round_deadline_s": 60, field: value})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [field["param"] for field in problem["invalid_params"]] == [f"/{field}"]


def test_the_settings_are_off_by_default(service: httpx.Client) -> None:
    task = create_task(service, labels={"cell": fresh_name("cell")})
    assert task["correct_estimates"] is task["cooldown"] is task["cap_reports"] is False
    assert task["max_share"] is None
