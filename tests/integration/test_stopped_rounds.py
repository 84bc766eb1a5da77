"""Runs in simulated time that are stopped at any of their calls, and go on as if nothing had been."""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.calls import Call
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_rounds import rounds_of
from client_sim.task_start import begin_task, task_of
from tests.integration.cell import fresh_name
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack

Answer = TypeVar("Answer")
FAST: dict[str, Any] = {"operator_rate_limit": "1000000/minute", "client_rate_limit": "1000000/minute"}
ROUNDS = 2


class StoppedError(Exception):
    """The run was ended from outside."""


class StoppedApi(AsyncApi):
    """Ends the run just before, or just after, one of its calls."""

    left: int | None = None
    before = True
    sent = 0

    async def send(self, call: Call[Answer], key: str | None = None) -> Answer:
        stops = self.left is not None and self.sent >= self.left
        if stops and self.before:
            raise StoppedError
        answer = await super().send(call, key)
        if stops:
            raise StoppedError
        self.sent += 1
        return answer


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1", **FAST) as found:
        yield found


def scenario() -> Scenario:
    """With devices that are late, and some that never upload."""
    chosen = load_scenario("small").changed(
        rounds=ROUNDS, model_bytes=2000, uncertainty=0.3, dropout=0.4, seed=4
    )
    return chosen.model_copy(update={"task": chosen.task.model_copy(update={"model_size_bytes": 4_600_000})})


async def begin(api: AsyncApi, chosen: Scenario) -> tuple[Fleet, str]:
    fleet = Fleet.draw(chosen, fresh_name())
    await fleet.enrol(api)
    task_id = await begin_task(api, chosen, task_of(fleet, chosen.task, training=False), training=False)
    return fleet, task_id


async def go_on(api: AsyncApi, fleet: Fleet, task_id: str, records: list[RoundRecord]) -> None:
    fleet = Fleet.draw(scenario(), fleet.name, keys=fleet.keys)  # as after a restart
    async with rounds_of(api, scenario(), fleet, task_id, training=False) as rounds:
        async for record in rounds.play(len(records)):
            records.append(record)
            if len(records) == ROUNDS:
                return


def outcome(records: list[RoundRecord], model: bytes) -> tuple[object, ...]:
    return [(one.number, one.received, one.late, one.dropped, one.rejected) for one in records], model


async def played(stack: Stack, stop_after: int | None, *, before: bool) -> tuple[tuple[object, ...], int]:
    records: list[RoundRecord] = []
    async with StoppedApi(str(stack.service.base_url), OPERATOR_KEY) as api:
        fleet, task_id = await begin(api, scenario())
        api.left, api.before, api.sent = stop_after, before, 0
        try:
            await go_on(api, fleet, task_id, records)
        except StoppedError:
            api.left = None
            await go_on(api, fleet, task_id, records)
        sent = api.sent
        api.left = None
        model = await api.send(calls.get_model(task_id, ROUNDS))
    return outcome(records, model), sent


@pytest.mark.parametrize("before", [True, False])
def test_wherever_a_run_is_stopped_it_ends_the_same(before: bool, stack: Stack) -> None:
    undisturbed, calls_made = asyncio.run(played(stack, None, before=before))
    assert sum(late for _, _, late, _, _ in undisturbed[0]) > 0  # type: ignore[attr-defined]
    assert sum(dropped for _, _, _, dropped, _ in undisturbed[0]) > 0  # type: ignore[attr-defined]
    for stop_after in range(calls_made):
        disturbed, _ = asyncio.run(played(stack, stop_after, before=before))
        assert disturbed == undisturbed, f"stopped at call {stop_after}"
