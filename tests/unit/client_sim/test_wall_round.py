"""What the devices of a round share on the wall clock."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client_sim.device import RoundRegistry, outcome_of
from client_sim.fleet import Fleet
from client_sim.scenario import Scenario, load_scenario
from client_sim.wall_round import WallRound
from fedcs_client.api import ApiError
from fedcs_client.endpoints import assignments
from services.contract.common import Problem
from services.contract.rounds import RoundResponse
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import SlotEnforcement
from tests.unit.client_sim.schedules import paper_schedule


def scenario_of(dropout: float = 0.0, **task: Any) -> Scenario:
    small = load_scenario("small")
    return small.model_copy(
        update={
            "behaviour": small.behaviour.model_copy(update={"dropout": dropout}),
            "task": small.task.model_copy(update=task),
        }
    )


def wall_round(
    scenario: Scenario | None = None, *, policy: str = "fedcs", age_s: float = 0.0, deadline_s: float = 180.0
) -> WallRound:
    schedule = paper_schedule(policy, selection_s=1.5).model_copy(update={"round_deadline_s": deadline_s})
    now = datetime.now(UTC)
    scheduled = RoundResponse(
        round_id="round-1",
        task_id="task-1",
        number=1,
        state=RoundState.SCHEDULED,
        outcome=None,
        model_version=0,
        clients=100,
        asked=100,
        selected=len(schedule.slots),
        received=0,
        opened_at=now,
        window_ends_at=None,
        started_at=now - timedelta(seconds=age_s),
        upload_deadline_at=None,
        ended_at=None,
        duration_s=None,
        schedule=schedule,
    )
    scenario = scenario or scenario_of()
    return WallRound(scheduled, scenario, Fleet.draw(scenario, "cell"), asyncio.get_running_loop().time())


async def is_settled(round_: WallRound) -> bool:
    try:
        await asyncio.wait_for(round_.wait_finished(), 0.01)
    except TimeoutError:
        return False
    return True


def test_a_round_is_settled_when_every_device_has_done_its_part() -> None:
    async def play() -> None:
        round_ = wall_round()
        first = round_.simulated_slots[0].client_id
        assert round_.begin_s(first) == 1.5 + round_.schedule.distribution_s
        for slot in round_.simulated_slots:
            assert not await is_settled(round_)
            assert round_.join(slot.client_id) == slot
            assert round_.join(slot.client_id) is None, "it is taking part already"
            round_.finish(slot.client_id)
        assert await is_settled(round_)

    asyncio.run(play())


def test_who_has_not_come_when_the_round_ends_is_waited_for_no_longer() -> None:
    async def play() -> None:
        round_ = wall_round()
        absent, present, *others = [slot.client_id for slot in round_.simulated_slots]
        assert round_.join(present) is not None
        round_.skip_absent()
        await round_.channel(present).wait_free(present)
        assert all(round_.join(client_id) is None for client_id in (absent, *others))
        assert not await is_settled(round_)
        round_.finish(present)
        assert await is_settled(round_)

    asyncio.run(play())


def test_who_drops_out_has_no_part() -> None:
    async def play() -> None:
        round_ = wall_round(scenario_of(dropout=0.5))
        dropped = [slot.client_id for slot in round_.simulated_slots if slot.dropped]
        assert 0 < len(dropped) < len(round_.simulated_slots)
        assert all(round_.join(client_id) is None for client_id in dropped)
        everybody = wall_round(scenario_of(dropout=1.0))
        assert await is_settled(everybody)

    asyncio.run(play())


def test_round_time_begins_where_the_service_says() -> None:
    async def play() -> None:
        assert 100 < wall_round(age_s=100.0).now_s < 110
        await wall_round(age_s=100.0).sleep_until(99.0)  # it has passed
        await wall_round(age_s=100.0).sleep_until(100.02)

    asyncio.run(play())


def test_a_round_waits_for_nothing_longer_than_two_deadlines() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        short = wall_round(deadline_s=0.05)
        assert short.time_limit_s - loop.time() <= 0.1
        await asyncio.wait_for(short.sleep_until(1000.0), 10)
        endless = wall_round(policy="fl", deadline_s=0.05)
        assert endless.time_limit_s == float("inf")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endless.sleep_until(1000.0), 0.2)

    asyncio.run(play())


def test_strict_slots_are_kept() -> None:
    async def play() -> None:
        free, strict = wall_round(), wall_round(scenario_of(slot_enforcement=SlotEnforcement.STRICT))
        last = free.schedule.slots[-1]
        assert free.earliest_upload_s(last.client_id) == 0
        assert strict.earliest_upload_s(last.client_id) == last.window_start_s > 0

    asyncio.run(play())


def test_a_device_may_hear_of_a_round_before_it_is_announced_or_after_it_is_over() -> None:
    async def play() -> None:
        rounds, round_ = RoundRegistry(), wall_round()
        early, impatient = (asyncio.create_task(rounds.wait_for("round-1")) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        rounds.add(round_)
        assert await early is round_
        assert await rounds.wait_for("round-1") is round_
        rounds.remove(round_)
        assert await rounds.wait_for("round-1") is None

    asyncio.run(play())


@pytest.mark.parametrize(
    ("status", "cause", "outcome"),
    [
        (409, "DEADLINE_PASSED", SlotOutcome.LATE),
        (409, "SLOT_CLOSED", SlotOutcome.LATE),
        (409, "ROUND_NOT_COLLECTING", SlotOutcome.MISSED),
        (413, "TOO_LARGE", SlotOutcome.REJECTED),
        (422, "BAD_TENSORS", SlotOutcome.REJECTED),
    ],
)
def test_what_a_refusal_means(status: int, cause: str, outcome: SlotOutcome) -> None:
    problem = Problem(title="Refused", status=status, detail="So it is.", cause=cause)
    assert outcome_of(ApiError(assignments(), problem)) is outcome


def test_other_refusals_end_the_run() -> None:
    problem = Problem(title="Unauthorized", status=401, detail="Who are you?", cause="UNAUTHORIZED")
    with pytest.raises(ApiError, match="401 Unauthorized"):
        outcome_of(ApiError(assignments(), problem))
