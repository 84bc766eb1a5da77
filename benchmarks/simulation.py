"""The simulator with the whole service: rounds per second, and the overhead of a round.

python -m benchmarks.simulation
"""

import asyncio
import secrets
from datetime import datetime
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.servers import OPERATOR_KEY
from benchmarks.stack import service_with_worker
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import SimulatedRun, run_simulated
from fedcs_client.api import AsyncApi
from services.contract.common import EventResponse

_CELLS = {1_000: 30, 10_000: 15, 100_000: 8}
"""The number of rounds for each cell size."""
_SMALLEST_CELL = min(_CELLS)
_WARM_UP = 2


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Rounds with training, in the paper's setting.")
def main(rounds: int) -> None:
    """Measure, and print the ratios."""
    console = Console()
    table = Table(title="The simulator with the whole service", title_justify="left")
    for name in ("measure", "", "wanted"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    with service_with_worker() as service:
        url = str(service.base_url)
        run, _ = asyncio.run(_run(url, _preset(_SMALLEST_CELL, _CELLS[_SMALLEST_CELL]), training=False))
        taken = median(record.wall_s for record in run.record.rounds[_WARM_UP:])
        received = median(record.received for record in run.record.rounds)
        label = (
            f"rounds/s, {_SMALLEST_CELL} clients, 1 MB, slots of the preset, {received:g} uploads in a round"
        )
        table.add_row(label, f"{1 / taken:.2f}", "≥ 3")
        seconds = {}
        for clients, count in _CELLS.items():
            console.print(f"{count} rounds of {clients} clients")
            run, _ = asyncio.run(_run(url, untrained(clients, count), training=False))
            received = median(record.received for record in run.record.rounds)
            seconds[clients] = median(record.wall_s for record in run.record.rounds[_WARM_UP:])
            wanted = "≥ 3" if clients == _SMALLEST_CELL else ""
            label = f"rounds/s, {clients} clients, 1 MB, {received:g} uploads in a round"
            table.add_row(label, f"{1 / seconds[clients]:.2f}", wanted)
        for clients, taken in seconds.items():
            ratio = taken / seconds[_SMALLEST_CELL]
            label = f"cost of a round with {clients} clients ÷ {_SMALLEST_CELL} clients"
            table.add_row(label, f"{ratio:.2f}", f"≤ {clients // _SMALLEST_CELL}")
        console.print(f"{rounds} rounds with training")
        run, events = asyncio.run(_run(url, _trained(rounds), training=True))
        _add_overhead(table, run, events)
    console.print(table)


def _preset(clients: int, rounds: int) -> Scenario:
    """The paper's cell and slots, with synthetic updates of 1 MB."""
    return load_scenario("paper-cifar-10").changed(clients=clients, rounds=rounds, model_bytes=1_000_000)


def untrained(clients: int, rounds: int) -> Scenario:
    """The paper's cell with slots and synthetic updates of 1 MB."""
    scenario = _preset(clients, rounds)
    task = scenario.task.model_copy(update={"model_size_bytes": None})
    return scenario.model_copy(update={"task": task})


def _trained(rounds: int) -> Scenario:
    """The paper's cell and task, with random images."""
    scenario = load_scenario("paper-cifar-10").changed(rounds=rounds)
    task = scenario.task.model_copy(update={"dataset": "benchmarks.peers.images:load_images"})
    return scenario.model_copy(update={"task": task})


async def _run(url: str, scenario: Scenario, *, training: bool) -> tuple[SimulatedRun, list[EventResponse]]:
    seen: list[EventResponse] = []

    async def watch(api: AsyncApi) -> None:
        async with api.events() as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - the stream is endless

    async with AsyncApi(url, OPERATOR_KEY) as api:
        watching = asyncio.create_task(watch(api)) if training else None
        run = await run_simulated(
            api, scenario, name=f"bench-{secrets.token_hex(4)}", training=training, on_round=lambda _: None
        )
        if watching is not None:
            watching.cancel()
    return run, seen


def _add_overhead(table: Table, run: SimulatedRun, events: list[EventResponse]) -> None:
    """Add rows with the time of training, evaluation and everything else."""
    training_s = evaluation_s = 0.0
    began: datetime | None = None
    ended: datetime | None = None
    for event in events:
        if event.task_id != run.record.task_id:
            continue
        if event.kind == "job.started" and event.data["job"] == "train_client":
            began = began or event.at
        elif event.kind == "training.done":
            ended = event.at
        elif event.kind == "round.aggregated":
            assert began is not None, "the round has trainings"
            assert ended is not None, "the round has trainings"
            training_s += (ended - began).total_seconds()
            began, ended = None, event.at
        elif event.kind == "model.evaluated":
            assert ended is not None, "there is a model"
            evaluation_s += (event.at - ended).total_seconds()
    whole_s = sum(record.wall_s for record in run.record.rounds)
    rest_s = whole_s - training_s - evaluation_s
    table.add_row("s of training", f"{training_s:.1f}", "")
    table.add_row("s of evaluation", f"{evaluation_s:.1f}", "")
    table.add_row("everything else ÷ training", f"{rest_s / training_s:.3f}", "≤ 0.1")


if __name__ == "__main__":
    main()
