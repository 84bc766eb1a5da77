"""The two clocks: whose time counts, when an upload is late, and what closes a round."""

from datetime import datetime

import httpx
import pytest

from tests.in_process_service import TimedService
from tests.integration.cell import as_client, assert_problem, make_model, started_round
from tests.integration.rounds_setup import (
    eventually,
    get_round,
    quick_round,
    round_in_state,
    slot_of,
    task_in_state,
    upload_as,
)


def test_on_a_simulated_clock_the_elapsed_time_has_to_be_told(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    assert opened["upload_deadline_at"] is None
    response = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
    assert_problem(response, 422, "ELAPSED_TIME")
    for nonsense in ("-1", "nan", "inf", "soon", "1e10", ""):
        response = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=nonsense)
        assert_problem(response, 422, "INVALID_REQUEST")
    assert slot_of(service, opened["round_id"], client_id)["rejections"] == 0


@pytest.mark.parametrize("header", ["fedcs_elapsed_s", "fedcs_upload_s"])
def test_on_the_wall_clock_only_the_time_of_the_update_may_be_told(
    header: str, service: httpx.Client
) -> None:
    opened, keys = started_round(service, clock="wall")
    ((client_id, key),) = keys.items()
    headers = {"fedcs_elapsed_s": None, header: "10"}
    response = upload_as(service, key, opened["round_id"], client_id, **headers)
    assert_problem(response, 422, "ELAPSED_TIME")
    headers = {"fedcs_elapsed_s": None, "fedcs_update_s": "40"}
    assert upload_as(service, key, opened["round_id"], client_id, **headers).status_code == 201
    assert slot_of(service, opened["round_id"], client_id)["actual_update_s"] == 40
    record = service.get(f"/clients/{client_id}").json()["record"]
    assert record["update_ratio"] == pytest.approx(2)


def test_an_upload_ends_before_the_deadline_or_is_late(service_on_each: httpx.Client) -> None:
    """Aggregation takes its 3 s from the 180 s of the round."""
    service = service_on_each
    opened, keys = started_round(service, 3, aggregation_s=3)
    round_id, (in_time, late, silent) = opened["round_id"], list(keys)
    assert upload_as(service, keys[in_time], round_id, in_time, fedcs_elapsed_s="176.999").status_code == 201
    response = upload_as(service, keys[late], round_id, late, fedcs_elapsed_s="177", fedcs_update_s="99")
    assert_problem(response, 409, "DEADLINE_PASSED")
    slot = slot_of(service, round_id, late)
    assert (slot["outcome"], slot["elapsed_s"], slot["actual_update_s"]) == ("late", 177, 99)
    again = upload_as(service, keys[late], round_id, late, fedcs_elapsed_s="20")
    assert_problem(again, 409, "DEADLINE_PASSED")
    assert slot_of(service, round_id, silent)["outcome"] == "pending"
    assert get_round(service, round_id)["received"] == 1


def test_a_late_update_is_recorded_even_after_the_round(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (first, second) = opened["round_id"], list(keys)
    upload_as(service, keys[first], round_id, first)
    assert service.post(f"/rounds/{round_id}/close").json()["state"] == "aggregating"
    assert slot_of(service, round_id, second)["outcome"] == "missed"
    response = upload_as(service, keys[second], round_id, second, fedcs_elapsed_s="200")
    assert_problem(response, 409, "DEADLINE_PASSED")
    assert slot_of(service, round_id, second)["outcome"] == "late"
    assert slot_of(service, round_id, first)["outcome"] == "received"


def test_with_the_last_outcome_a_round_closes_even_if_it_was_late(service: httpx.Client) -> None:
    opened, keys = started_round(service, 2)
    round_id, (first, second) = opened["round_id"], list(keys)
    upload_as(service, keys[first], round_id, first, fedcs_elapsed_s="200")
    assert get_round(service, round_id)["state"] == "scheduled"
    upload_as(service, keys[second], round_id, second)
    assert get_round(service, round_id)["state"] == "aggregating"


def test_without_a_deadline_no_upload_is_late(service: httpx.Client) -> None:
    opened, keys = started_round(service, policy="fl")
    ((client_id, key),) = keys.items()
    response = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s="1000000")
    assert response.status_code == 201


def test_the_service_closes_a_wall_clock_round_at_its_deadline(timed: TimedService) -> None:
    service = timed.client
    opened, keys = quick_round(service, 2, round_deadline_s=20, aggregation_s=3)
    round_id, (in_time, late) = opened["round_id"], list(keys)
    started, deadline = (
        datetime.fromisoformat(opened[name]) for name in ("started_at", "upload_deadline_at")
    )
    assert (deadline - started).total_seconds() == 17
    timed.clock.advance(16.999)
    assert upload_as(service, keys[in_time], round_id, in_time, fedcs_elapsed_s=None).status_code == 201
    timed.clock.advance(1.001)
    closed = round_in_state(service, round_id, "aggregating")
    assert closed["received"] == 1
    assert slot_of(service, round_id, in_time)["elapsed_s"] == 16.999
    assert slot_of(service, round_id, late)["outcome"] == "missed"
    response = upload_as(service, keys[late], round_id, late, fedcs_elapsed_s=None)
    assert_problem(response, 409, "DEADLINE_PASSED")
    slot = slot_of(service, round_id, late)
    assert (slot["outcome"], slot["elapsed_s"]) == ("late", 18)


def test_a_wall_clock_round_without_updates_fails_at_its_deadline(timed: TimedService) -> None:
    opened, _ = quick_round(timed.client, round_deadline_s=20)
    timed.clock.advance(21)
    failed = round_in_state(timed.client, opened["round_id"], "failed")
    assert (failed["outcome"], failed["duration_s"]) == ("TOO_FEW_UPDATES", 21)


def test_an_upload_that_outlasts_the_deadline_is_late(timed: TimedService) -> None:
    opened, keys = quick_round(timed.client, 1, round_deadline_s=20)
    ((client_id, key),) = keys.items()
    headers = {"Fedcs-Data-Samples": "200", "Authorization": f"Bearer {key}"}
    path = f"/rounds/{opened['round_id']}/updates/{client_id}"
    response = timed.put_slowly(path, make_model(3), headers, seconds=21)
    assert_problem(response, 409, "DEADLINE_PASSED")
    slot = slot_of(timed.client, opened["round_id"], client_id)
    assert (slot["outcome"], slot["actual_upload_s"]) == ("late", 21)


def test_a_wall_clock_task_ends_when_its_final_deadline_leaves_no_time(timed: TimedService) -> None:
    opened, _ = quick_round(timed.client, round_deadline_s=20, final_deadline_s=39)
    timed.clock.advance(21)
    round_in_state(timed.client, opened["round_id"], "failed")
    finished = task_in_state(timed.client, opened["task_id"], "finished")
    assert finished["elapsed_s"] == 21
    assert_problem(timed.client.post("/rounds", json={"task_id": opened["task_id"]}), 409, "TASK_OVER")


@pytest.mark.parametrize("terms", [{"clock": "simulated"}, {"clock": "wall", "policy": "fl"}])
def test_a_round_without_a_deadline_fails_after_silence(terms: dict[str, str], timed: TimedService) -> None:
    opened, keys = quick_round(timed.client, 2, idle_timeout_s=60, **terms)
    assert opened["upload_deadline_at"] is None
    timed.clock.advance(60)
    failed = round_in_state(timed.client, opened["round_id"], "failed")
    assert failed["outcome"] == "IDLE_TIMEOUT"
    assert {slot["outcome"] for slot in failed["schedule"]["slots"]} == {"missed"}
    client_id = next(iter(keys))
    elapsed = {"fedcs_elapsed_s": "10" if terms["clock"] == "simulated" else None}
    response = upload_as(timed.client, keys[client_id], opened["round_id"], client_id, **elapsed)
    assert_problem(response, 409, "ROUND_NOT_COLLECTING")


def test_simulated_times_are_held_against_the_estimates(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (client_id, silent) = opened["round_id"], list(keys)
    upload_as(service, keys[client_id], round_id, client_id, fedcs_update_s="40", fedcs_upload_s="1.2")
    service.post(f"/rounds/{round_id}/close")
    slot = slot_of(service, round_id, client_id)
    assert (slot["update_s"], slot["actual_update_s"]) == (20, 40)
    assert (slot["upload_s"], slot["actual_upload_s"]) == (0.8, 1.2)
    record = service.get(f"/clients/{client_id}").json()["record"]
    assert (record["slots"], record["received"], record["late"], record["missed"]) == (1, 1, 0, 0)
    assert record["update_ratio"] == pytest.approx(2)
    assert record["upload_ratio"] == pytest.approx(1.5)
    record = service.get(f"/clients/{silent}").json()["record"]
    assert (record["slots"], record["missed"], record["update_ratio"]) == (1, 1, None)


def test_wall_clock_times_are_measured(timed: TimedService) -> None:
    service = timed.client
    opened, keys = started_round(service, clock="wall")
    round_id, ((client_id, key),) = opened["round_id"], keys.items()
    timed.clock.advance(1)
    with as_client(service, key) as client:
        assert client.get(f"/rounds/{round_id}/model").status_code == 200
    eventually(lambda: _has_fetched_the_model(timed, round_id, client_id))
    timed.clock.advance(15)
    headers = {"Fedcs-Data-Samples": "200", "Authorization": f"Bearer {key}"}
    path = f"/rounds/{round_id}/updates/{client_id}"
    assert timed.put_slowly(path, make_model(4), headers, seconds=2).status_code == 201
    slot = slot_of(service, round_id, client_id)
    assert (slot["actual_update_s"], slot["actual_upload_s"], slot["elapsed_s"]) == (15, 2, 18)
    record = service.get(f"/clients/{client_id}").json()["record"]
    assert record["update_ratio"] == pytest.approx(15 / 20)


def _has_fetched_the_model(timed: TimedService, round_id: str, client_id: str) -> bool:
    """That is noted after the last byte was sent."""
    with timed.parts.database.reading() as store:
        slot = store.rounds.slot(store.rounds.get(round_id).serial, client_id)
    return slot is not None and slot.model_fetched_at is not None
