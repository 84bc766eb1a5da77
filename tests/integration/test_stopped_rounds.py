"""Runs in simulated time that are stopped at any of their calls, and go on as if nothing had been."""

import asyncio
from collections.abc import Iterator
from typing import TypeVar

import pytest

from client_sim.fleet import Fleet
from client_sim.results import RoundRecord
from client_sim.runs import fleet_task, start_task
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import task_rounds
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from fedcs_client.endpoints import Call
from tests.integration.cell import fresh_name
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack

Answer = TypeVar("Answer")
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
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1") as found:
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
    task_id = await start_task(api, chosen, fleet_task(fleet, chosen.task, training=False), training=False)
    return fleet, task_id


async def go_on(api: AsyncApi, fleet: Fleet, task_id: str, records: list[RoundRecord]) -> None:
    fleet = Fleet.draw(scenario(), fleet.name, keys=fleet.keys)  # as after a restart
    async with task_rounds(api, scenario(), fleet, task_id, training=False) as rounds:
        async for record in rounds.run(len(records)):
            records.append(record)
            if len(records) == ROUNDS:
                return


def outcome(records: list[RoundRecord], model: bytes) -> tuple[object, ...]:
    return [(item.number, item.received, item.late, item.dropped, item.rejected) for item in records], model


async def go_on_with_devices_enrolled_again(api: AsyncApi, name: str, task_id: str) -> list[RoundRecord]:
    """The rounds of a run whose devices are removed and enrolled again after each."""
    records: list[RoundRecord] = []
    while len(records) < ROUNDS:
        fleet = Fleet.draw(scenario(), name)
        await fleet.enrol(api)
        async with task_rounds(api, scenario(), fleet, task_id, training=False) as rounds:
            async for record in rounds.run(len(records)):
                records.append(record)
                break
        assert await fleet.remove(api) == 0
    return records


def test_devices_that_are_enrolled_again_are_drawn_as_before(stack: Stack) -> None:
    async def play() -> tuple[object, ...]:
        async with AsyncApi(str(stack.service.base_url), OPERATOR_KEY) as api:
            fleet, task_id = await begin(api, scenario())
            assert await fleet.remove(api) == await fleet.remove(api) == 0
            records = await go_on_with_devices_enrolled_again(api, fleet.name, task_id)
            return outcome(records, await api.send(endpoints.get_model(task_id, ROUNDS)))

    undisturbed, _ = asyncio.run(played(stack, None, before=True))
    assert asyncio.run(play()) == undisturbed


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
        model = await api.send(endpoints.get_model(task_id, ROUNDS))
    return outcome(records, model), sent


@pytest.mark.parametrize("before", [True, False])
def test_wherever_a_run_is_stopped_it_ends_the_same(before: bool, stack: Stack) -> None:
    undisturbed, calls_made = asyncio.run(played(stack, None, before=before))
    assert sum(late for _, _, late, _, _ in undisturbed[0]) > 0  # type: ignore[attr-defined]
    assert sum(dropped for _, _, _, dropped, _ in undisturbed[0]) > 0  # type: ignore[attr-defined]
    for stop_after in range(calls_made):
        disturbed, _ = asyncio.run(played(stack, stop_after, before=before))
        assert disturbed == undisturbed, f"stopped at call {stop_after}"
