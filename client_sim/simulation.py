"""A simulation from its first device to its last picture: one run for each policy, all at once."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord, check_writable, summary_table, write_file, write_results
from client_sim.scenario import Scenario
from client_sim.simulated_run import SimulatedRun, run_simulated
from client_sim.together import together
from client_sim.upload_times import upload_accuracy, write_uploads
from client_sim.wall_run import WallRun, run_wall
from services.domain.tasks import Clock

Run = SimulatedRun | WallRun


@dataclass(frozen=True)
class Simulation:
    """What is to be simulated, and how."""

    scenario: Scenario
    policies: Sequence[str]
    training: bool
    time_scale: float
    """How much faster than the scenario's a wall clock goes."""
    out: Path


async def simulate(api: AsyncApi, simulation: Simulation, console: Console) -> None:
    """Run the scenario with each policy, show how they did, and leave the results."""
    out = simulation.out
    simulation.scenario.require_end()
    check_writable(out)
    with _progress(console) as progress:
        async with together() as group:
            tasks = [
                group.create_task(_run(api, simulation, policy, progress)) for policy in simulation.policies
            ]
    runs = [task.result() for task in tasks]
    records = [run.record for run in runs]
    console.print(summary_table(records))
    write_results(out, records)
    uploads = {run.record.policy: run.uploads for run in runs if isinstance(run, WallRun)}
    if uploads:
        console.print(upload_accuracy(uploads))
        write_uploads(out / "uploads.csv", uploads)
    with console.status("Drawing"):
        _draw(out, runs)
    console.print(f"Results and pictures: {out}/")


async def _run(api: AsyncApi, simulation: Simulation, policy: str, progress: Progress) -> Run:
    scenario = simulation.scenario.changed(policy=policy)
    bar = progress.add_task(policy, total=_expected_rounds(scenario), clients="enrolling", accuracy="")

    def show(record: RoundRecord) -> None:
        accuracy = "" if record.accuracy is None else f"accuracy {record.accuracy:.3f}"
        progress.update(bar, advance=1, clients=f"{record.received} clients", accuracy=accuracy)

    name = f"{policy}-{secrets.token_hex(4)}"
    if scenario.task.clock is Clock.SIMULATED:
        return await run_simulated(api, scenario, name=name, training=simulation.training, on_round=show)
    return await run_wall(
        api,
        scenario,
        name=name,
        time_scale=simulation.time_scale,
        training=simulation.training,
        on_round=show,
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[clients]}"),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _expected_rounds(scenario: Scenario) -> int | None:
    """None if nobody can tell: rounds without a deadline last as long as they last."""
    fitting = None
    if scenario.task.final_deadline_s is not None and scenario.task.policy != "fl":
        fitting = int(scenario.task.final_deadline_s // scenario.task.round_deadline_s)
    known = [rounds for rounds in (scenario.rounds, fitting) if rounds is not None]
    return min(known, default=None)


def _draw(out: Path, runs: Sequence[Run]) -> None:
    # Not before it is needed: matplotlib takes a second to load.
    from client_sim.cell_map import draw_cell  # noqa: PLC0415
    from client_sim.plots import draw_accuracy, draw_clients_per_round  # noqa: PLC0415
    from client_sim.round_plot import draw_played_round  # noqa: PLC0415

    records = [run.record for run in runs]
    if any(record.final_accuracy is not None for record in records):
        write_file(out / "accuracy.png", draw_accuracy(records))
    write_file(out / "clients.png", draw_clients_per_round(records))
    for run in runs:
        if (last := run.last_round) is None:
            continue
        scenario, policy = run.record.scenario, run.record.policy
        write_file(out / f"round-{policy}.png", draw_played_round(last.schedule, last.played))
        # As in the scenario, at the pace of its own clock.
        fleet = Fleet.draw(scenario, run.fleet.name)
        selected = [slot.client_id for slot in last.schedule.slots]
        title = f"{policy}, round {last.number}: the cell and who was selected"
        write_file(out / f"cell-{policy}.png", draw_cell(fleet, scenario.cell.radius_m, selected, title))
