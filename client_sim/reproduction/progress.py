"""What has been done of a list of trials, and an estimate of the time that the rest takes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from rich.table import Table

from client_sim.reproduction.results_file import ResultLine, TrialRun
from client_sim.reproduction.rows import PUBLISHED, Row, Trial, scenario_of
from client_sim.reproduction.trial import PlannedTrial
from client_sim.results import format_or_dash
from services.domain.nanoseconds import to_ns
from services.domain.resources import LocalWork, count_candidates, estimate_times
from services.domain.selection import Candidates, make_policy

PARALLEL_TRIALS = 2
_DRAWN_CELLS = 20
"""Cells to draw when estimating the clients per round of a row."""


@dataclass(frozen=True)
class TrialProgress:
    """The progress of a trial."""

    planned: PlannedTrial
    run: TrialRun | None
    minutes_left: float
    """Simulated minutes, estimated; 0 if the trial is done."""
    seconds_left: float | None
    """On this machine, estimated from finished rounds; None without any of this data set and model."""


def trial_progress(
    runs: Mapping[Trial, TrialRun], planned_trials: Sequence[PlannedTrial]
) -> list[TrialProgress]:
    """The progress of each trial.

    A trial that is planned twice, to an accuracy and to a longer time, is counted once up to the first.
    """
    paces = _paces(runs)
    rates = _clients_per_minute(runs, {planned.trial.row for planned in planned_trials})
    reached = {trial: run.elapsed_s / 60 for trial, run in runs.items()}
    found = []
    for planned in planned_trials:
        trial = planned.trial
        run = runs.get(trial)
        minutes = 0.0
        if not planned.is_done(run):
            begin = reached.get(trial, 0.0)
            end = max(begin, _expected_end(runs, planned))
            minutes = end - begin
            reached[trial] = end
        pace = paces.get((trial.row.dataset, trial.row.model))
        seconds = 0.0 if not minutes else None if pace is None else minutes * rates[trial.row] * pace
        found.append(TrialProgress(planned, run, minutes, seconds))
    return found


def _expected_end(runs: Mapping[Trial, TrialRun], planned: PlannedTrial) -> float:
    """The minute in which a trial is expected to stop.

    An accuracy is expected when other trials of the row reached it, else when it was published.
    """
    row, until = planned.trial.row, planned.until
    if until.accuracy is None:
        return until.minutes
    times = [run.first_reached(until.accuracy) for run in runs.values() if run.trial.row == row]
    known = [time[0] for time in times if time is not None]
    paper = PUBLISHED.get(row.paper_row)
    published = paper.minutes_to.get(until.accuracy) if paper is not None else None
    expected = fmean(known) if known else published
    run = runs.get(planned.trial)
    elapsed = run.elapsed_s / 60 if run is not None else 0.0
    return until.minutes if expected is None or expected <= elapsed else min(expected, until.minutes)


def progress_table(found: Sequence[TrialProgress]) -> Table:
    """A table with a row for each trial."""
    table = Table(title="Trials, in the order in which they run", title_justify="left", caption=_total(found))
    for name in ("trial", "until", "rounds", "minutes", "best accuracy", "left, about"):
        table.add_column(name, justify="left" if name in ("trial", "until") else "right")
    for progress in found:
        run = progress.run
        done = (
            (str(len(run.rounds)), f"{run.elapsed_s / 60:.4g}", format_or_dash(run.best_accuracy, "{:.3f}"))
            if run is not None
            else ("–", "–", "–")
        )
        table.add_row(str(progress.planned.trial), str(progress.planned.until), *done, _left(progress))
    return table


def _left(progress: TrialProgress) -> str:
    if progress.planned.is_done(progress.run):
        return "done"
    return _duration(progress.seconds_left)


def _total(found: Sequence[TrialProgress]) -> str:
    left = [progress.seconds_left for progress in found if not progress.planned.is_done(progress.run)]
    known = [seconds for seconds in left if seconds is not None]
    if not left:
        return "All trials are done."
    if len(known) < len(left):
        return f"{len(left)} of {len(found)} left; the first rounds give an estimate of the time."
    return f"{len(left)} of {len(found)} left: about {_duration(sum(known))} on this machine."


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _paces(runs: Mapping[Trial, TrialRun]) -> dict[tuple[str, str], float]:
    """Seconds per received update on this machine, by data set and model."""
    lines: defaultdict[tuple[str, str], list[ResultLine]] = defaultdict(list)
    for trial, run in runs.items():
        lines[trial.row.dataset, trial.row.model] += run.rounds
    updates = {kind: sum(line.received for line in found) for kind, found in lines.items()}
    return {
        kind: sum(line.wall_s for line in found) / updates[kind] / PARALLEL_TRIALS
        for kind, found in lines.items()
        if updates[kind]
    }


def _clients_per_minute(runs: Mapping[Trial, TrialRun], rows: set[Row]) -> dict[Row, float]:
    """Mean clients per simulated minute; estimated for rows without results."""
    rates = {}
    for row in rows:
        of_row = [run for run in runs.values() if run.trial.row == row]
        minutes = sum(run.elapsed_s for run in of_row) / 60
        received = sum(line.received for run in of_row for line in run.rounds)
        rates[row] = received / minutes if received else expected_clients(row) / row.round_minutes
    return rates


def expected_clients(row: Row) -> float:
    """The mean number of selected clients over drawn cells, with the longest deadline."""
    scenario = scenario_of(Trial(row, 0))
    task = scenario.task
    assert task.model_size_bytes is not None, "the presets set it"
    work = LocalWork(task.model_size_bytes, task.local_epochs, task.resource_blocks)
    candidate_count = count_candidates(scenario.cell.clients, task.request_fraction)
    policy = make_policy(row.policy, task.policy_parameters)
    counts = []
    for seed in range(_DRAWN_CELLS):
        rng = np.random.default_rng(seed)
        reports = scenario.cell.cell().draw_reports(candidate_count, rng)
        candidates = Candidates(estimate_times(reports, work), reports)
        counts.append(len(policy.select(candidates, to_ns(task.round_deadline_s), rng)))
    return fmean(counts)
