"""What has been done of the trials that are wanted, what is left, and how long it may take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from rich.table import Table

from client_sim.reproduction.campaign import AT_ONCE
from client_sim.reproduction.results_file import TrialRun
from client_sim.reproduction.rows import Row, Trial, scenario_of
from client_sim.reproduction.until import Until
from services.domain.candidates import count_candidates
from services.domain.nanoseconds import to_ns
from services.domain.resources import LocalWork, estimate_times
from services.domain.selection import POLICIES

_CELLS = 20
"""To draw for the clients per round of a row that has not been run."""


@dataclass(frozen=True)
class Standing:
    """A trial that is wanted, and how far it is."""

    trial: Trial
    run: TrialRun | None
    rounds_left: int
    """At the most: an accuracy may be reached earlier."""
    seconds_left: float | None
    """At the most, by the pace so far; None: nothing on this data set has been run yet."""


def standings(runs: Mapping[Trial, TrialRun], trials: Sequence[Trial], until: Until) -> list[Standing]:
    """How far each trial is."""
    paces = _paces(runs)
    clients = _clients_per_round(runs, {trial.row for trial in trials})
    found = []
    for trial in trials:
        run = runs.get(trial)
        rounds = rounds_left(trial, run, until)
        pace = paces.get(trial.row.dataset)
        seconds = 0.0 if not rounds else None if pace is None else rounds * clients[trial.row] * pace
        found.append(Standing(trial, run, rounds, seconds))
    return found


def rounds_left(trial: Trial, run: TrialRun | None, until: Until) -> int:
    """How many rounds a trial may still play."""
    round_s = 60.0 * trial.row.round_minutes
    elapsed_s = run.elapsed_s if run is not None else 0.0
    best = run.best_accuracy if run is not None else None
    if until.reached(elapsed_s, best, round_s):
        return 0
    return int((60.0 * until.minutes - elapsed_s) // round_s)


def standings_table(found: Sequence[Standing], until: Until) -> Table:
    """Done and left, a line for each trial."""
    table = Table(title=f"Until {until}", title_justify="left", caption=_all_together(found))
    for name in ("trial", "rounds", "minutes", "best accuracy", "left at most"):
        table.add_column(name, justify="left" if name == "trial" else "right")
    for one in found:
        run = one.run
        done = (
            (str(len(run.rounds)), f"{run.elapsed_s / 60:g}", _shown(run.best_accuracy, "{:.3f}"))
            if run is not None
            else ("–", "–", "–")
        )
        table.add_row(str(one.trial), *done, _left(one))
    return table


def _left(one: Standing) -> str:
    if not one.rounds_left:
        return "done"
    return f"{one.rounds_left} rounds, {_duration(one.seconds_left)}"


def _all_together(found: Sequence[Standing]) -> str:
    left = [one.seconds_left for one in found if one.rounds_left]
    known = [seconds for seconds in left if seconds is not None]
    if not left:
        return "Nothing is left."
    if len(known) < len(left):
        return f"{len(left)} trials are left; how long that takes shows after a first round."
    return f"{len(left)} trials are left: at most {_duration(sum(known))} on a machine like this."


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _shown(value: float | None, pattern: str) -> str:
    return "–" if value is None else pattern.format(value)


def _paces(runs: Mapping[Trial, TrialRun]) -> dict[str, float]:
    """Seconds of this machine for a client's update, with all that belongs to it, by data set."""
    paces = {}
    for dataset in {trial.row.dataset for trial in runs}:
        lines = [line for run in runs.values() if run.trial.row.dataset == dataset for line in run.rounds]
        updates = sum(line.received for line in lines)
        if updates:
            paces[dataset] = sum(line.wall_s for line in lines) / updates / AT_ONCE
    return paces


def _clients_per_round(runs: Mapping[Trial, TrialRun], rows: set[Row]) -> dict[Row, float]:
    """As they came; for rows that have not been run, as the model of the cell expects them."""
    clients = {}
    for row in rows:
        received = [line.received for run in runs.values() if run.trial.row == row for line in run.rounds]
        clients[row] = fmean(received) if received else expected_clients(row)
    return clients


def expected_clients(row: Row) -> float:
    """The mean over some cells of how many are selected in a round."""
    scenario = scenario_of(Trial(row, 0))
    task = scenario.task
    assert task.model_size_bytes is not None, "the presets say what the paper states"
    work = LocalWork(task.model_size_bytes, task.local_epochs, task.resource_blocks)
    asked = count_candidates(scenario.cell.clients, task.request_fraction)
    counts = []
    for seed in range(_CELLS):
        dice = np.random.default_rng(seed)
        times = estimate_times(scenario.cell.cell().draw_reports(asked, dice), work)
        chosen = POLICIES[row.policy].select(times, to_ns(task.round_deadline_s), dice)
        counts.append(len(chosen.order))
    return fmean(counts)
