"""Our figures for a row of the paper's tables: means and spreads over its trials."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

from client_sim.reproduction.results_file import TrialRun
from client_sim.reproduction.rows import PUBLISHED, Published, Row, Trial


@dataclass(frozen=True)
class Spread:
    """A mean, and how far single values are from it."""

    mean: float
    deviation: float | None
    """The standard deviation; None with a single value."""
    count: int


def spread_of(values: Iterable[float]) -> Spread | None:
    """None if there are no values."""
    found = list(values)
    if not found:
        return None
    return Spread(fmean(found), stdev(found) if len(found) > 1 else None, len(found))


@dataclass(frozen=True)
class Arrival:
    """When trials first had an accuracy, in simulated minutes."""

    whole_rounds: Spread | None
    """Every round counted with its full deadline; of the trials that got there."""
    actual_ends: Spread | None
    """Rounds counted to the end of their last upload, for the same trials."""
    never: Sequence[float]
    """How long the other trials have been followed without it."""


@dataclass(frozen=True)
class RowFigures:
    """What our trials of a row say."""

    row: Row
    runs: Sequence[TrialRun]

    @property
    def published(self) -> Published:
        """What the paper says."""
        return PUBLISHED[self.row]

    @property
    def minutes(self) -> float:
        """How long the longest trial has been followed."""
        return max(run.elapsed_s for run in self.runs) / 60

    @property
    def clients_per_round(self) -> Spread:
        """Whose updates counted; the spread is between rounds."""
        found = spread_of(line.received for run in self.runs for line in run.rounds)
        assert found is not None, "a run has a round"
        return found

    @property
    def late_share(self) -> float:
        """Of the selected."""
        lines = [line for run in self.runs for line in run.rounds]
        return sum(line.late for line in lines) / max(sum(line.selected for line in lines), 1)

    def arrival(self, accuracy: float) -> Arrival:
        """When this accuracy was first reached."""
        moments = {run.trial.seed: first_moments(run, accuracy) for run in self.runs}
        there = [moment for moment in moments.values() if moment is not None]
        never = [run.elapsed_s / 60 for run in self.runs if moments[run.trial.seed] is None]
        return Arrival(
            spread_of(whole for whole, _ in there), spread_of(actual for _, actual in there), never
        )

    def accuracy_at(self, minutes: float) -> Spread | None:
        """Of the last model that was there by then, in the trials that were followed so long."""
        long_enough = [run for run in self.runs if run.elapsed_s / 60 + self.row.round_minutes > minutes]
        return spread_of(
            accuracy for run in long_enough if (accuracy := _accuracy_by(run, minutes)) is not None
        )


def first_moments(run: TrialRun, accuracy: float) -> tuple[float, float] | None:
    """The minutes after which a trial first had this accuracy: by whole rounds, and by their actual ends."""
    ends_s = accumulate(line.duration_s or 0.0 for line in run.rounds)
    for line, end_s in zip(run.rounds, ends_s, strict=True):
        if line.accuracy is not None and line.accuracy >= accuracy:
            return line.elapsed_s / 60, end_s / 60
    return None


def _accuracy_by(run: TrialRun, minutes: float) -> float | None:
    known = [line.accuracy for line in run.rounds if line.elapsed_s <= 60 * minutes]
    return next((accuracy for accuracy in reversed(known) if accuracy is not None), None)


def figures_of(runs: Mapping[Trial, TrialRun]) -> list[RowFigures]:
    """The rows that have been tried, in the order of the paper's tables."""
    return [
        RowFigures(row, found)
        for row in PUBLISHED
        if (found := sorted((run for run in runs.values() if run.trial.row == row), key=_seed))
    ]


def _seed(run: TrialRun) -> int:
    return run.trial.seed
