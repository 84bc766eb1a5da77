"""Updates in time with clients that report 100 times their throughput and never deliver.

python -m benchmarks.unreliable_clients

The paper's cell with 100 clients, without training, through the service. Each cell is compared with the same
cell without the clients that do not deliver.
"""

import asyncio
import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.servers import OPERATOR_KEY
from benchmarks.stack import service_with_worker
from client_sim.fleet import Fleet
from client_sim.round_simulation import SimulatedSlot, round_rng, simulate_round
from client_sim.runs import fleet_task
from client_sim.scenario import Scenario, load_scenario
from client_sim.synthetic_updates import SyntheticUpdates, synthetic_model
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.rounds import RoundResponse
from services.contract.tasks import TaskRequest
from services.domain.rounds import OPEN_STATES, UPLOAD_STATES

_CLIENTS, _LIARS = 100, 5
_LIE = 100.0
_FROM_ROUND = 10
_BOTH: Mapping[str, object] = {"cooldown": True, "correct_estimates": True}
_CELLS: Sequence[tuple[str, int, Mapping[str, object]]] = (
    ("95 clients", 0, {}),
    ("95 clients, cooldown and correct_estimates", 0, _BOTH),
    ("5 more that never deliver", _LIARS, {}),
    ("5 more, cooldown and correct_estimates", _LIARS, _BOTH),
)


@click.command()
@click.option("--rounds", default=60, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--fraction", default=0.3, show_default=True, help="C.")
@click.option("--uncertainty", default=0.2, show_default=True, help="r.")
@click.option("--deadline", default=180.0, show_default=True, help="Of a round, in seconds.")
def main(rounds: int, seeds: int, fraction: float, uncertainty: float, deadline: float) -> None:
    """Measure, and print the ratios."""
    console = Console()
    table = Table(
        title=f"Updates in time from round {_FROM_ROUND} on, {rounds} rounds, {seeds} seeds, "
        f"C = {fraction:g}, r = {uncertainty:g}, {deadline:g} s",
        title_justify="left",
    )
    for name in ("cell", "per round", "to the same cell without them", "wanted"):
        table.add_column(name, justify="left" if name == "cell" else "right")
    with service_with_worker() as service:
        url = str(service.base_url)
        means = []
        for name, liars, settings in _CELLS:
            received = []
            for seed in range(seeds):
                with console.status(f"{name}: seed {seed}"):
                    scenario = load_scenario("paper-cifar-10").changed(
                        clients=_CLIENTS, seed=seed, uncertainty=uncertainty, model_bytes=2000
                    )
                    terms = {"request_fraction": fraction, "round_deadline_s": deadline, **settings}
                    received += asyncio.run(run_cell(url, scenario, liars, terms, rounds))[_FROM_ROUND - 1 :]
            means.append(statistics.mean(received))
            wanted = "≥ 0.95" if liars and settings else ""
            table.add_row(name, f"{means[-1]:.2f}", f"{means[-1] / means[0]:.3f}", wanted)
    console.print(table)


async def run_cell(
    url: str, scenario: Scenario, liars: int, terms: Mapping[str, object], rounds: int
) -> list[int]:
    """The number of updates in time of each round. Without liars the same other clients are in the cell."""
    drawn = Fleet.draw(scenario, f"unreliable-{secrets.token_hex(4)}")
    reports = drawn.reports
    boasted = np.where(np.arange(_CLIENTS) < _LIARS, _LIE, 1.0) * reports.throughput_bps
    there = np.arange(_LIARS - liars, _CLIENTS)
    fleet = replace(
        drawn,
        distances_m=drawn.distances_m[there],
        reports=replace(reports, throughput_bps=boasted).of(there),
    )
    async with AsyncApi(url, OPERATOR_KEY) as api:
        await fleet.enrol(api)
        await fleet.report(api)
        given = scenario.task.model_dump() | {"final_deadline_s": None, **terms}
        task = fleet_task(fleet, TaskRequest.model_validate(given), training=False)
        task_id = (await api.send(endpoints.create_task(task))).task_id
        model = synthetic_model(scenario.synthetic_update.model_bytes, scenario.seed)
        await api.send(endpoints.put_initial_model(task_id, model))
        received = [await _run_round(api, scenario, fleet, task_id, liars) for _ in range(rounds)]
        await api.send(endpoints.finish_task(task_id))
    return received


async def _run_round(api: AsyncApi, scenario: Scenario, fleet: Fleet, task_id: str, liars: int) -> int:
    """Run a round in which the first devices never upload; the number of updates in time."""
    opened = await api.send(endpoints.open_round(task_id))
    if opened.schedule is None or opened.state not in UPLOAD_STATES:
        return 0
    deliver = [slot for slot in opened.schedule.slots if fleet.number(slot.client_id) >= liars]
    schedule = opened.schedule.model_copy(update={"slots": deliver})
    slots = simulate_round(schedule, scenario.behaviour, round_rng(scenario.seed, opened.number))
    updates = SyntheticUpdates(await api.send(endpoints.round_model(opened.round_id)), opened.schedule)
    for slot in slots:
        await _upload(api, opened, fleet, slot, updates)
    if len(deliver) < len(opened.schedule.slots):
        await api.send(endpoints.close_round(opened.round_id))
    while (round_ := await api.send(endpoints.get_round(opened.round_id))).state in OPEN_STATES:
        await asyncio.sleep(0.02)
    return round_.received


async def _upload(
    api: AsyncApi, opened: RoundResponse, fleet: Fleet, slot: SimulatedSlot, updates: SyntheticUpdates
) -> None:
    number = fleet.number(slot.client_id)
    call = endpoints.upload_update(
        opened.round_id,
        slot.client_id,
        b"" if slot.late else updates.of(number),
        fleet.data_samples(slot.client_id),
        encoding="float32",
        elapsed_s=slot.upload_end_s,
        update_s=slot.update_s,
        upload_s=slot.upload_s,
    )
    try:
        await api.send(call, key=fleet.key(slot.client_id))
    except ApiError as error:
        if not (slot.late and error.problem.cause == "DEADLINE_PASSED"):
            raise


if __name__ == "__main__":
    main()
