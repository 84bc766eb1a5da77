"""A run in simulated time: the fleet enrols, the task begins, and its rounds are played."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord, RunRecord
from client_sim.scenario import Scenario
from client_sim.simulated_rounds import PlayedRound, rounds_of
from client_sim.task_start import begin_task, cancelled_on_failure, task_of


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a run; the last round with uploads is kept for a picture."""

    record: RunRecord
    fleet: Fleet
    last_round: PlayedRound | None


async def run_simulated(
    api: AsyncApi,
    scenario: Scenario,
    *,
    name: str,
    training: bool,
    on_round: Callable[[RoundRecord], None],
) -> SimulatedRun:
    """Enrol the fleet under this ``name``, begin the task, and play its rounds."""
    began_s = time.monotonic()
    fleet = Fleet.draw(scenario, name)
    await fleet.enrol(api)
    task = task_of(fleet, scenario.task, training=training)
    task_id = await begin_task(api, scenario, task, training=training)
    records = []
    async with (
        cancelled_on_failure(api, task_id),
        rounds_of(api, scenario, fleet, task_id, training=training) as rounds,
    ):
        async for record in rounds.play():
            records.append(record)
            on_round(record)
            if len(records) == scenario.rounds:
                break
    outcome = rounds.outcome or f"{len(records)} rounds were asked for."
    run = RunRecord(scenario, task_id, records, outcome, time.monotonic() - began_s)
    return SimulatedRun(run, fleet, rounds.last_round)
