"""Strict slots: an upload outside of the client's own window is refused, on either clock."""

from typing import Any

import httpx
import pytest

from tests.in_process_service import TimedService
from tests.integration.cell import (
    assert_problem,
    create_task,
    enrol,
    fresh_name,
    make_model,
    open_round,
    report_all,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import get_round, quick_round, slot_of, upload_as

STRICT = {"slot_enforcement": "strict", "slot_grace_s": 0.5}


def _first_slot(opened: dict[str, Any], keys: dict[str, str]) -> tuple[dict[str, Any], str]:
    slot: dict[str, Any] = opened["schedule"]["slots"][0]
    return slot, keys[slot["client_id"]]


@pytest.mark.parametrize(("elapsed_s", "retry_after"), [("0", "21"), ("10", "11"), ("20.299", "1")])
def test_an_upload_before_its_slot_is_told_when_to_come_again(
    elapsed_s: str, retry_after: str, service_on_each: httpx.Client
) -> None:
    opened, keys = started_round(service_on_each, 2, **STRICT)
    slot, key = _first_slot(opened, keys)
    assert (slot["window_start_s"], slot["window_end_s"]) == (20.8, 21.6)
    response = upload_as(
        service_on_each, key, opened["round_id"], slot["client_id"], fedcs_elapsed_s=elapsed_s
    )
    assert_problem(response, 409, "SLOT_NOT_OPEN")
    assert response.headers["retry-after"] == retry_after
    after = slot_of(service_on_each, opened["round_id"], slot["client_id"])
    assert (after["outcome"], after["rejections"]) == ("pending", 0)


@pytest.mark.parametrize("elapsed_s", ["20.3", "20.8", "21.6", "22.1"])
def test_an_upload_in_its_slot_or_the_grace_period_counts(elapsed_s: str, service: httpx.Client) -> None:
    opened, keys = started_round(service, 2, **STRICT)
    slot, key = _first_slot(opened, keys)
    response = upload_as(service, key, opened["round_id"], slot["client_id"], fedcs_elapsed_s=elapsed_s)
    assert response.status_code == 201
    assert slot_of(service, opened["round_id"], slot["client_id"])["outcome"] == "received"


def test_an_upload_after_its_slot_is_late(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2, **STRICT)
    round_id = opened["round_id"]
    slot, key = _first_slot(opened, keys)
    response = upload_as(service, key, round_id, slot["client_id"], fedcs_elapsed_s="22.101")
    assert_problem(response, 409, "SLOT_CLOSED")
    after = slot_of(service, round_id, slot["client_id"])
    assert (after["outcome"], after["elapsed_s"]) == ("late", 22.101)
    response = upload_as(service, key, round_id, slot["client_id"], fedcs_elapsed_s="21")
    assert_problem(response, 409, "DEADLINE_PASSED")
    assert get_round(service, round_id)["state"] == "scheduled"


def test_slots_that_are_not_strict_may_be_left(service: httpx.Client) -> None:
    opened, keys = started_round(service, 2)
    slot, key = _first_slot(opened, keys)
    response = upload_as(service, key, opened["round_id"], slot["client_id"], fedcs_elapsed_s="0")
    assert response.status_code == 201


def test_by_the_wall_clock_a_slot_opens_when_its_time_has_come(timed: TimedService) -> None:
    """Update 1 s, upload and distribution 0.5 s each: the window is from 1.5 s to 2 s."""
    service, labels = timed.client, {"cell": fresh_name("cell")}
    ((client_id, key),) = enrol(service, 1, labels).items()
    report_all(service, [client_id], throughput_bps=16_000, compute_samples_per_s=1000)
    task = create_task(
        service,
        labels=labels,
        clock="wall",
        model_size_bytes=1000,
        slot_enforcement="strict",
        slot_grace_s=0.3,
    )
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    (slot,) = opened["schedule"]["slots"]
    assert (slot["window_start_s"], slot["window_end_s"]) == (1.5, 2)
    early = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
    assert_problem(early, 409, "SLOT_NOT_OPEN")
    assert early.headers["retry-after"] == "2"
    timed.clock.advance(1.199)
    early = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
    assert_problem(early, 409, "SLOT_NOT_OPEN")
    assert early.headers["retry-after"] == "1"
    timed.clock.advance(0.001)
    sent = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
    assert sent.status_code == 201
    assert slot_of(service, opened["round_id"], client_id)["elapsed_s"] == 1.2


def test_by_the_wall_clock_a_slot_closes(timed: TimedService) -> None:
    service = timed.client
    opened, keys = quick_round(service, slot_enforcement="strict", slot_grace_s=5)
    ((client_id, key),) = keys.items()
    (slot,) = opened["schedule"]["slots"]
    timed.clock.advance(slot["window_end_s"] + 5.001)
    response = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
    assert_problem(response, 409, "SLOT_CLOSED")
    ended = get_round(service, opened["round_id"])
    assert (ended["state"], ended["outcome"]) == ("failed", "TOO_FEW_UPDATES")
    assert ended["schedule"]["slots"][0]["outcome"] == "late"


def test_an_upload_that_outlasts_its_slot_is_late(timed: TimedService) -> None:
    opened, keys = quick_round(timed.client, slot_enforcement="strict", slot_grace_s=5)
    ((client_id, key),) = keys.items()
    headers = {"Fedcs-Data-Samples": "200", "Authorization": f"Bearer {key}"}
    path = f"/rounds/{opened['round_id']}/updates/{client_id}"
    response = timed.put_slowly(path, make_model(3), headers, seconds=6)
    assert_problem(response, 409, "SLOT_CLOSED")
    slot = slot_of(timed.client, opened["round_id"], client_id)
    assert (slot["outcome"], slot["actual_upload_s"]) == ("late", 6)
