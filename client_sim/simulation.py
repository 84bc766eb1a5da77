"""``fedcs simulate`` and ``fedcs demo``: one run per policy, then results and plots."""

import asyncio
import secrets
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from client_sim.connect import StartedStack, start_stack
from client_sim.experiment import PlannedRun, Sweep, planned_batches
from client_sim.exports import Exporter, make_exporters
from client_sim.fleet import Fleet
from client_sim.results import (
    ResultsError,
    RoundRecord,
    RunRecord,
    check_unused,
    check_writable,
    read_finished,
    remove_results,
    summary_table,
    upload_accuracy,
    write_file,
    write_results,
    write_uploads,
)
from client_sim.runs import show_progress, task_group
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import SimulatedRun, run_simulated
from client_sim.wall_run import WallRun, run_wall
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.contract.registries import deadline_of
from services.domain.tasks import Clock
from services.errors import FedCSError

_ROUNDS_BEFORE_WARNING = 3


@dataclass(frozen=True)
class Simulation:
    """The settings of ``fedcs simulate``."""

    scenario: Scenario
    policies: Sequence[str]
    training: bool
    time_scale: float
    """The speed-up of a wall-clock run."""
    out: Path
    keep_clients: bool
    """Do not remove the devices after the run."""
    sweep: Sweep | None = None
    trials: int = 1
    resume: bool = False
    """Add the runs that are missing in the results."""
    mlflow_uri: str | None = None
    tensorboard_dir: Path | None = None

    def batches(self) -> list[list[tuple[int, PlannedRun]]]:
        """The numbered runs; those of a batch run at the same time."""
        numbers = count()
        batches = planned_batches(self.scenario, self.policies, self.sweep, self.trials)
        return [[(next(numbers), run) for run in batch] for batch in batches]


class ExperimentRecords:
    """The results of all runs, written after every round."""

    def __init__(self, out: Path, finished: Mapping[int, RunRecord]) -> None:
        self._out = out
        self._records = dict(finished)

    @property
    def records(self) -> list[RunRecord]:
        """The runs that have begun, in the order of the experiment."""
        return [self._records[number] for number in sorted(self._records)]

    def begin(self, number: int, planned: PlannedRun, task_id: str) -> None:
        """Add the run with this number in the experiment."""
        self._records[number] = RunRecord(planned.scenario, task_id, [], None, 0.0, swept=planned.swept)

    def add_round(self, number: int, round_: RoundRecord) -> RunRecord:
        """Add a round to a run, and write all results."""
        run = self._records[number]
        return self.set(number, replace(run, rounds=[*run.rounds, round_], wall_s=run.wall_s + round_.wall_s))

    def set(self, number: int, run: RunRecord) -> RunRecord:
        """Replace a run, and write all results."""
        self._records[number] = run
        write_results(self._out, self.records)
        return run


async def simulate(api: AsyncApi, simulation: Simulation, console: Console) -> None:
    """Run the scenario with each policy, value and seed; write results and plots, and print a summary."""
    out = simulation.out
    batches = simulation.batches()
    for _, planned in batches[0]:
        planned.scenario.require_limit()
        Fleet.draw(planned.scenario, "check")  # reads the traces
    check_writable(out)
    finished = _finished(simulation, batches)
    records = ExperimentRecords(out, finished)
    exporters = make_exporters(simulation.scenario.name, simulation.mlflow_uri, simulation.tensorboard_dir)
    runs: list[SimulatedRun] = []
    try:
        with show_progress(console) as progress:
            experiment = _Experiment(api, simulation, progress, records, exporters)
            for batch in batches:
                async with task_group() as group:
                    tasks = [
                        group.create_task(_run(experiment, number, planned))
                        for number, planned in batch
                        if number not in finished
                    ]
                runs += [task.result() for task in tasks]
    except BaseException:
        if any(record.rounds for record in records.records):
            console.print(f"Interrupted. The results up to here are in {out}/; --resume completes them.")
        for exporter in exporters:
            with suppress(FedCSError):
                exporter.close([])
        raise
    console.print(summary_table(records.records))
    uploads = {run.record.label: run.uploads for run in runs if isinstance(run, WallRun)}
    if uploads:
        console.print(upload_accuracy(uploads))
        write_uploads(out / "uploads.csv", uploads)
    with console.status("Drawing plots"):
        pictures = _draw(out, records.records, runs)
    for exporter in exporters:
        exporter.close(pictures)
    console.print(f"Results and plots: {out}/")


def _finished(
    simulation: Simulation, batches: Sequence[Sequence[tuple[int, PlannedRun]]]
) -> dict[int, RunRecord]:
    """The runs of this experiment that the directory of results has, by their number."""
    if not simulation.resume:
        check_unused(simulation.out)
        return {}
    finished = {}
    for record in read_finished(simulation.out):
        for number, run in chain.from_iterable(batches):
            if run.scenario == record.scenario and run.swept == record.swept:
                finished[number] = record
                break
        else:
            raise ResultsError(
                f"{simulation.out} has a run of {record.label} with seed {record.scenario.seed} and other "
                "settings than this command: repeat the options of that experiment, or use another "
                "directory for --out"
            )
    return finished


@dataclass(frozen=True)
class _Experiment:
    """What the runs of an experiment share."""

    api: AsyncApi
    simulation: Simulation
    progress: Progress
    records: ExperimentRecords
    exporters: Sequence[Exporter]


async def _run(experiment: _Experiment, number: int, planned: PlannedRun) -> SimulatedRun:
    api, simulation, progress = experiment.api, experiment.simulation, experiment.progress
    records, exporters = experiment.records, experiment.exporters
    scenario = planned.scenario
    title = planned.label if simulation.trials == 1 else f"{planned.label}, seed {scenario.seed}"
    bar = progress.add_task(title, total=_expected_rounds(scenario), note="enrolling")

    def begin(task_id: str) -> None:
        records.begin(number, planned, task_id)
        for exporter in exporters:
            exporter.begin(title, scenario, task_id)

    def show(round_: RoundRecord) -> None:
        run = records.add_round(number, round_)
        for exporter in exporters:
            exporter.add_round(title, round_)
        accuracy = "" if round_.accuracy is None else f", accuracy {round_.accuracy:.3f}"
        progress.update(bar, advance=1, note=f"{round_.received} clients{accuracy}")
        if run.selected_nobody and len(run.rounds) == _ROUNDS_BEFORE_WARNING:
            progress.console.print(_nobody(title, run))

    name = f"{scenario.task.policy}-{secrets.token_hex(4)}"
    if simulation.training and scenario.task.dataset is not None:
        scenario = scenario.with_value(("task", "evaluate_initial_model"), value=True)
    try:
        if scenario.task.clock is Clock.SIMULATED:
            run = await run_simulated(
                api, scenario, name=name, training=simulation.training, on_round=show, on_task=begin
            )
        else:
            run = await run_wall(
                api,
                scenario,
                name=name,
                time_scale=simulation.time_scale,
                training=simulation.training,
                on_round=show,
                on_task=begin,
            )
    finally:
        if not simulation.keep_clients:
            progress.update(bar, note="removing clients (Ctrl-C to skip)")
            if left := await Fleet.draw(scenario, name).remove(api):
                progress.console.print(f"{left} clients with the label fleet={name} may still be enrolled.")
    progress.update(bar, total=progress.tasks[bar].completed, note="done")
    initial = (await api.send(endpoints.task_metrics(run.record.task_id))).initial_accuracy
    record = replace(run.record, scenario=planned.scenario, swept=planned.swept, initial_accuracy=initial)
    run = replace(run, record=records.set(number, record))
    for exporter in exporters:
        exporter.end(title, run.record)
    if run.record.selected_nobody and len(run.record.rounds) < _ROUNDS_BEFORE_WARNING:
        progress.console.print(_nobody(title, run.record))
    return run


def _nobody(title: str, run: RunRecord) -> str:
    """A warning that the rounds of a run are empty."""
    task = run.scenario.task
    return (
        f"Warning: {title}: no client was selected in {len(run.rounds)} rounds, so nothing is learnt. "
        f"No candidate can finish within round_deadline_s = {task.round_deadline_s:g}, or fewer than "
        f"min_clients = {task.min_clients} can (task {run.task_id})."
    )


def _expected_rounds(scenario: Scenario) -> int | None:
    """The number of rounds, or None if rounds have no deadline."""
    fitting = None
    deadline_s = deadline_of(scenario.task.policy, scenario.task.round_deadline_s)
    if scenario.task.final_deadline_s is not None and deadline_s is not None:
        fitting = int(scenario.task.final_deadline_s // deadline_s)
    known = [rounds for rounds in (scenario.rounds, fitting) if rounds is not None]
    return min(known, default=None)


def _draw(out: Path, records: Sequence[RunRecord], runs: Sequence[SimulatedRun]) -> list[Path]:
    """Draw the plots: of all runs, and of the last round of the last trial of each policy and value."""
    # Imported here because matplotlib takes a second to load.
    from client_sim.plots import (  # noqa: PLC0415
        draw_accuracy,
        draw_cell,
        draw_clients_per_round,
        draw_simulated_round,
    )

    pictures = {}
    if any(record.final_accuracy is not None for record in records):
        pictures["accuracy"] = draw_accuracy(records)
    pictures["clients"] = draw_clients_per_round(records)
    for run in runs:
        if (last := run.last_round) is None:
            continue
        scenario, label = run.record.scenario, run.record.label
        slug = label.replace(", ", "-").replace("/", "_")
        pictures[f"round-{slug}"] = draw_simulated_round(last.schedule, last.simulated_slots)
        # Without the time scale, as in the scenario.
        fleet = Fleet.draw(scenario, run.fleet.name)
        selected = [slot.client_id for slot in last.schedule.slots]
        title = f"{label}, round {last.number}: the cell and the selected devices"
        pictures[f"cell-{slug}"] = draw_cell(fleet, scenario.cell.radius_m, selected, title)
    for name, picture in pictures.items():
        write_file(out / f"{name}.png", picture)
    return [out / f"{name}.png" for name in pictures]


_POLICIES = ("fedcs", "fedlim")


def run_demo(console: Console, out: Path, seed: int, *, keep: bool) -> None:
    """Start a service and run the small scenario with both policies; with ``keep``, serve until Ctrl-C."""
    scenario = load_scenario("small").changed(seed=seed)
    task = scenario.task
    # The service is deleted after the demo, so the clients need not be removed.
    simulation = Simulation(scenario, _POLICIES, training=True, time_scale=1.0, out=out, keep_clients=True)
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-demo-") as data_dir,
        start_stack(console, Path(data_dir)) as service,
    ):
        address = f"Dashboard: {service.url}\nOperator key: {service.operator_key}"
        console.print(address)
        console.print(
            f"A cell of {scenario.cell.clients} devices trains {task.model} on the data set {task.dataset}: "
            f"rounds of {task.round_deadline_s:g} s, {(task.final_deadline_s or 0) / 60:g} simulated "
            "minutes. FedCS selects as many devices as can meet the deadline; FedLim selects at random."
        )
        if remove_results(out):
            console.print(f"The results of the last demo in {out}/ are replaced.")
        asyncio.run(_simulate(service, simulation, console))
        if keep:
            console.print(
                f"Dashboard: {service.url}\nOperator key: {service.operator_key}\nStop with Ctrl-C."
            )
            signal.pause()


async def _simulate(service: StartedStack, simulation: Simulation, console: Console) -> None:
    async with AsyncApi(service.url, service.operator_key) as api:
        await simulate(api, simulation, console)
