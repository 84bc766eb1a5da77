"""Runs on the wall clock against the whole stack: real uploads, at the pace of the cell."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from client_sim.results import RoundRecord
from client_sim.runs import RunError
from client_sim.scenario import Scenario, ScenarioError
from client_sim.wall_run import WallRun, run_wall
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.domain.rounds import SlotOutcome
from tests.integration.cell import fresh_name
from tests.integration.rounds_setup import get_round
from tests.integration.wall_cell import PATIENCE_S, QUICK, scenario_of
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack

Found = TypeVar("Found")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("data"), "--processes", "1") as found:
        yield found


def with_api(stack: Stack, play: Callable[[AsyncApi], Awaitable[Found]]) -> Found:
    """What comes of it; nothing may be left running after it."""

    async def begin() -> Found:
        async with AsyncApi(str(stack.service.base_url), OPERATOR_KEY) as api, asyncio.timeout(PATIENCE_S):
            found = await play(api)
        await assert_nothing_runs()
        return found

    return asyncio.run(begin())


async def assert_nothing_runs() -> None:
    """Nothing but this task, after a moment: the loop closes generators that were left behind in tasks."""
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() != {asyncio.current_task()}:
            await asyncio.sleep(0.01)


def run(stack: Stack, scenario: Scenario, time_scale: float = 1.0) -> WallRun:
    told: list[RoundRecord] = []

    async def play(api: AsyncApi) -> WallRun:
        return await run_wall(
            api,
            scenario,
            name=fresh_name("wall"),
            time_scale=time_scale,
            training=False,
            on_round=told.append,
        )

    found = with_api(stack, play)
    assert list(found.record.rounds) == told
    return found


def test_uploads_take_as_long_as_the_throughput_says(stack: Stack) -> None:
    scenario = scenario_of(
        30,
        seed=2,
        model_bytes=2_400_000,
        cell={"radius_m": 700.0},
        round_deadline_s=300.0,
        aggregation_s=60.0,
    )
    found = run(stack, scenario, time_scale=20)
    (record,) = found.record.rounds
    assert record.selected == len(found.uploads) >= 20
    assert record.received + record.late == record.selected
    ratios = []
    for upload in found.uploads:
        throughput_bps = found.fleet.reports.throughput_bps[found.fleet.number(upload.client_id)]
        assert upload.expected_s == pytest.approx(8 * upload.size_bytes / throughput_bps)
        assert upload.is_synthetic
        if upload.measured_s is not None:
            ratios.append(upload.measured_s / upload.expected_s)
    assert ratios
    assert min(ratios) >= 0.99, "none is faster than its throughput; slower only as the machine is"


def test_who_misses_the_deadline_is_refused_and_counted(stack: Stack) -> None:
    scenario = scenario_of(
        12,
        seed=19,
        uncertainty=0.3,
        dropout=0.15,
        model_bytes=400_000,
        cell={"radius_m": 700.0},
        round_deadline_s=60.0,
    )
    found = run(stack, scenario, time_scale=10)
    assert found.last_round is not None
    played = {item.client_id: item for item in found.last_round.simulated_slots}
    outcomes = {upload.client_id: upload.outcome for upload in found.uploads}
    assert set(outcomes) == {name for name, played_ in played.items() if not played_.dropped}
    late = {name for name, played_ in played.items() if played_.late}
    assert any((played[name].upload_start_s or 0) > 6.0 for name in late), "some begin too late already"
    assert any((played[name].upload_start_s or 9) < 6.0 for name in late), "some end too late"
    assert late <= {name for name, outcome in outcomes.items() if outcome is SlotOutcome.LATE}
    assert set(outcomes.values()) == {SlotOutcome.LATE, SlotOutcome.RECEIVED}
    (record,) = found.record.rounds
    assert record.late == sum(outcome is SlotOutcome.LATE for outcome in outcomes.values())
    assert record.received == sum(outcome is SlotOutcome.RECEIVED for outcome in outcomes.values())
    assert record.dropped == sum(played_.dropped for played_ in played.values()) > 0
    assert record.rejected == 0
    slots = get_round(stack.service, found.last_round.schedule.round_id)["schedule"]["slots"]
    told = {slot["client_id"]: slot["actual_update_s"] for slot in slots if slot["client_id"] in outcomes}
    assert told == {name: pytest.approx(played[name].update_s) for name in outcomes}, "without any wait"
    arrived_s = {slot["client_id"]: slot["elapsed_s"] for slot in slots if slot["outcome"] == "received"}
    order = sorted(arrived_s, key=arrived_s.__getitem__)
    assert order == [name for name in played if name in order], "the channel is shared as scheduled"


def test_uploads_follow_a_trace_through_its_outages(stack: Stack, tmp_path: Path) -> None:
    """Of 3 seconds of the trace, one is an outage; an upload takes about 4 seconds of it."""
    trace = tmp_path / "uplink.csv"
    trace.write_text("time_s,bps\n0,1000000\n1,0\n2,2000000\n", encoding="utf-8")
    scenario = scenario_of(4, seed=3, model_bytes=500_000, round_deadline_s=200.0).changed(
        traces=[str(trace)]
    )
    found = run(stack, scenario, time_scale=10)
    (record,) = found.record.rounds
    assert record.received == len(found.uploads) == 4
    assert found.last_round is not None
    blocks = found.last_round.schedule.cells[0].resource_block_count
    assert blocks == 10
    for upload in found.uploads:
        assert 3.0 < 10 * upload.expected_s < 5.0, "4 Mbit at 1 Mbit/s, 0 and 2 Mbit/s in turn"
        assert upload.measured_s is not None
        assert upload.measured_s >= upload.expected_s - 0.001
    reported = {slot.client_id: slot.upload_s for slot in found.last_round.schedule.slots}
    assert len(set(reported.values())) > 1, "each has its own offset"


def test_devices_that_leave_come_back_and_upload(stack: Stack) -> None:
    cell = QUICK | {"radius_m": 600.0, "compute_samples_per_s": (1.0, 1.0)}
    scenario = scenario_of(6, seed=5, model_bytes=400_000, cell=cell, round_deadline_s=2000.0)
    leaving = scenario.behaviour.model_copy(update={"leaving": 1.0, "away_s": (4.0, 8.0)})
    found = run(stack, scenario.model_copy(update={"behaviour": leaving}), time_scale=10)
    (record,) = found.record.rounds
    assert (record.selected, record.received) == (6, 6)
    assert found.last_round is not None
    round_id = found.last_round.schedule.round_id
    elapsed_s = {
        slot["client_id"]: slot["elapsed_s"]
        for slot in get_round(stack.service, round_id)["schedule"]["slots"]
    }
    in_their_update = 0
    for slot in found.last_round.simulated_slots:
        assert slot.absence is not None
        if slot.update_s > 1.1:
            in_their_update += 1
            assert elapsed_s[slot.client_id] >= slot.absence.back_ns / 1e9
    assert in_their_update > 2


def test_a_device_with_next_to_no_throughput_does_not_hold_up_the_run(stack: Stack) -> None:
    cell = QUICK | {"radius_m": 10.0, "compute_samples_per_s": (20.0, 20.0)}
    scenario = scenario_of(
        2, seed=1841, uncertainty=1.0, model_bytes=2_000_000, cell=cell, round_deadline_s=7.5
    )
    found = run(stack, scenario, time_scale=10)
    slow = max(found.uploads, key=lambda upload: upload.expected_s)
    assert slow.expected_s > PATIENCE_S
    assert slow.measured_s is None, "in the end it was sent faster than that"
    assert [upload.outcome for upload in found.uploads] == [SlotOutcome.LATE, SlotOutcome.LATE]
    (record,) = found.record.rounds
    assert (record.selected, record.received, record.late) == (2, 0, 2)


def test_devices_answer_when_they_are_asked_for_reports(stack: Stack) -> None:
    scenario = scenario_of(4, rounds=2, round_deadline_s=2400.0, report_window_s=60.0)
    found = run(stack, scenario, time_scale=20)
    assert [record.received for record in found.record.rounds] == [4, 4]
    assert found.record.outcome == "The run has completed its 2 rounds."
    first, second = found.record.rounds
    assert first.elapsed_s is not None
    assert second.elapsed_s is not None
    assert first.elapsed_s < second.elapsed_s


def test_without_a_deadline_a_round_ends_with_the_last_who_uploads(stack: Stack) -> None:
    found = run(stack, scenario_of(6, seed=1, policy="fl", dropout=0.5, round_deadline_s=1.0))
    (record,) = found.record.rounds
    assert record.selected == 6
    assert 0 < record.dropped == 6 - record.received < 6


def test_in_strict_slots_devices_wait_for_their_own(stack: Stack) -> None:
    cell = QUICK | {"compute_samples_per_s": (5.0, 20.0)}
    scenario = scenario_of(
        5,
        seed=15,
        uncertainty=0.5,
        cell=cell,
        round_deadline_s=4.0,
        slot_enforcement="strict",
        slot_grace_s=0.1,
    )
    found = run(stack, scenario)
    assert found.last_round is not None
    slots = {slot.client_id: slot for slot in found.last_round.schedule.slots}
    early_s = [
        slots[item.client_id].window_start_s - (item.upload_start_s or 0)
        for item in found.last_round.simulated_slots
    ]
    assert max(early_s) > 0.2, "left to themselves some would be too early"
    assert len(found.uploads) == 5
    assert {upload.outcome for upload in found.uploads} <= {SlotOutcome.RECEIVED, SlotOutcome.LATE}


def test_rounds_that_fail_are_rounds_like_others(stack: Stack) -> None:
    found = run(stack, scenario_of(3, rounds=2, min_clients=4, round_deadline_s=0.2))
    assert [(round_.selected, round_.received) for round_ in found.record.rounds] == [(0, 0), (0, 0)]
    assert found.last_round is None
    found = run(stack, scenario_of(3, rounds=2, dropout=1.0, round_deadline_s=0.5))
    assert [(round_.selected, round_.dropped) for round_ in found.record.rounds] == [(3, 3), (3, 3)]
    assert not found.uploads
    found = run(stack, scenario_of(3, rounds=2, min_updates=4, round_deadline_s=120.0))
    assert [(round_.selected, round_.received) for round_ in found.record.rounds] == [(3, 3), (3, 3)]
    assert found.record.outcome == "The run has completed its 2 rounds."


def test_a_round_after_one_that_failed_is_played_to_its_end(stack: Stack) -> None:
    cell = QUICK | {"radius_m": 1500.0}
    scenario = scenario_of(
        4,
        seed=142,
        rounds=2,
        cell=cell,
        model_bytes=100_000,
        round_deadline_s=1.5,
        min_clients=2,
        request_fraction=0.5,
    )
    failed, played = run(stack, scenario).record.rounds
    assert (failed.asked, failed.selected) == (2, 0)
    assert (played.asked, played.selected, played.received + played.late) == (2, 2, 2)


def test_a_run_ends_with_its_task(stack: Stack) -> None:
    scenario = scenario_of(2, rounds=None, dropout=1.0, round_deadline_s=0.6, final_deadline_s=1.5)
    found = run(stack, scenario)
    assert 1 <= len(found.record.rounds) <= 2
    assert "final deadline" in (found.record.outcome or "")


@pytest.mark.parametrize("after_s", [0.0, 0.7])
def test_a_run_can_be_stopped_at_any_time(stack: Stack, after_s: float) -> None:
    async def play(api: AsyncApi) -> None:
        scenario = scenario_of(20, model_bytes=1_000_000, cell={"radius_m": 300.0}, round_deadline_s=60.0)
        running = asyncio.create_task(
            run_wall(
                api, scenario, name=fresh_name("wall"), time_scale=1, training=False, on_round=lambda _: None
            )
        )
        await asyncio.sleep(after_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await assert_nothing_runs()

    with_api(stack, play)


async def disturbed(api: AsyncApi, disturb: Callable[[str, str], Awaitable[object]]) -> None:
    """A run with something done to it, with its name and task, as soon as its round is open."""
    name = fresh_name("wall")
    scenario = scenario_of(3, cell=QUICK | {"compute_samples_per_s": (10.0, 10.0)}, round_deadline_s=100.0)
    async with api.events() as events:
        running = asyncio.create_task(
            run_wall(api, scenario, name=name, time_scale=1, training=False, on_round=lambda _: None)
        )
        async for event in events:
            if event.kind == "round.collecting" and event.task_id is not None:
                task = await api.send(endpoints.get_task(event.task_id))
                if task.labels == {"fleet": name}:
                    await disturb(name, event.task_id)
                    break
    await running


def test_a_device_that_the_service_forgets_ends_the_run(stack: Stack) -> None:
    async def play(api: AsyncApi) -> None:
        await disturbed(api, lambda name, _: api.send(endpoints.remove_client(f"{name}-1")))

    with pytest.raises(ApiError, match="401 Unauthorized"):
        with_api(stack, play)


def test_a_task_that_is_cancelled_ends_the_run(stack: Stack) -> None:
    async def play(api: AsyncApi) -> None:
        await disturbed(api, lambda _, task_id: api.send(endpoints.cancel_task(task_id)))

    with pytest.raises(RunError, match="was cancelled"):
        with_api(stack, play)


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_scale_that_is_none_is_told_before_anything_is_done(stack: Stack, time_scale: float) -> None:
    with pytest.raises(ScenarioError, match="time scale"):
        run(stack, scenario_of(3, round_deadline_s=10.0), time_scale)


def test_the_channel_is_granted_to_one_device_at_a_time(stack: Stack) -> None:
    scenario = scenario_of(
        30,
        seed=2,
        uncertainty=0.3,
        model_bytes=600_000,
        cell={"radius_m": 700.0},
        round_deadline_s=3000.0,  # it ends when every slot has an outcome
        dispatch="on_ready",
        planning_factor=0.8,
    )
    found = run(stack, scenario, time_scale=20)
    (record,) = found.record.rounds
    assert record.received >= 1
    (round_,) = stack.service.get("/rounds", params={"task_id": found.record.task_id}).json()
    slots = get_round(stack.service, round_["round_id"])["schedule"]["slots"]
    received = [slot for slot in slots if slot["outcome"] == "received"]
    assert len(received) == record.received
    intervals = sorted((slot["granted_s"], slot["elapsed_s"]) for slot in received)
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))
