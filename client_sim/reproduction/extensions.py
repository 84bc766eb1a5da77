"""Rows with extensions, compared with FedCS as in the paper with the same seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from client_sim.reproduction.figures import RowFigures
from client_sim.reproduction.results_file import TrialRun
from client_sim.reproduction.rows import PUBLISHED, Row, compared_row, parse_change


@dataclass(frozen=True)
class SeedComparison:
    """The time of a trial to an accuracy, and that of the paper's row with the same seed."""

    fixed: TrialRun
    extended: TrialRun
    accuracy: float

    @property
    def versions(self) -> str:
        """The version of the trial, and that of the paper's row if it is another one."""
        ours, theirs = self.extended.version, self.fixed.version
        return ours if ours == theirs else f"{ours}; fixed FedCS: {theirs}"

    @property
    def ratio(self) -> float | None:
        """The ratio of the times; None if one of them is not known."""
        return self._ratio(0)

    @property
    def ratio_of_ends(self) -> float | None:
        """The same, with rounds counted to the end of their last upload."""
        return self._ratio(1)

    def _ratio(self, kind: int) -> float | None:
        fixed, extended = (run.first_reached(self.accuracy) for run in (self.fixed, self.extended))
        return None if fixed is None or extended is None else extended[kind] / fixed[kind]

    def __str__(self) -> str:
        times = f"{_minutes(self.extended, self.accuracy)} / {_minutes(self.fixed, self.accuracy)} min"
        ratio = "" if self.ratio is None else f" = {self.ratio:.2f}"
        return f"seed {self.extended.trial.seed}: {times}{ratio}"


@dataclass(frozen=True)
class ExtensionTime:
    """The times of a row with extensions to an accuracy, as ratios to the paper's row."""

    row: Row
    accuracy: float
    versions: str
    seeds: Sequence[SeedComparison]

    @property
    def mean_ratio(self) -> str:
        """The mean of the ratios, and in brackets that of rounds counted to their last upload."""
        ratios = [seed.ratio for seed in self.seeds if seed.ratio is not None]
        of_ends = [seed.ratio_of_ends for seed in self.seeds if seed.ratio_of_ends is not None]
        return f"{fmean(ratios):.2f} ({len(ratios)}) [{fmean(of_ends):.2f}]" if ratios else "–"


def compare_extensions(all_figures: Sequence[RowFigures]) -> list[ExtensionTime]:
    """The times of all rows with extensions; trials of different versions are in different lines."""
    fixed = [run for figures in all_figures if figures.row in PUBLISHED for run in figures.runs]
    lines = []
    for figures in all_figures:
        if figures.row in PUBLISHED:
            continue
        for accuracy in sorted(figures.published.minutes_to):
            groups: dict[str, list[SeedComparison]] = {}
            for comparison in _comparisons(figures, fixed, accuracy):
                groups.setdefault(comparison.versions, []).append(comparison)
            lines += [
                ExtensionTime(figures.row, accuracy, versions, seeds) for versions, seeds in groups.items()
            ]
    return lines


def _comparisons(figures: RowFigures, fixed: Sequence[TrialRun], accuracy: float) -> Iterator[SeedComparison]:
    """Compare each trial with a run of the paper's row, if possible of the same version."""
    row = compared_row(figures.row)
    for run in figures.runs:
        found = [other for other in fixed if other.trial.row == row and other.trial.seed == run.trial.seed]
        if found:
            best = max(
                found,
                key=lambda other: (
                    other.first_reached(accuracy) is not None,
                    other.version == run.version,
                    len(other.rounds),
                ),
            )
            yield SeedComparison(best, run, accuracy)


def _minutes(run: TrialRun, accuracy: float) -> str:
    reached = run.first_reached(accuracy)
    return f"not in {run.elapsed_s / 60:.1f}" if reached is None else f"{reached[0]:.1f}"


def changes_of(row: Row) -> Iterator[str]:
    """What differs from the row of the paper that it is compared with."""
    compared = compared_row(row)
    if row.policy != compared.policy:
        yield f"the policy is `{row.policy}` instead of the paper's greedy selection"
    if row.round_minutes != compared.round_minutes:
        yield f"the deadline is {row.round_minutes} minutes instead of {compared.round_minutes}"
    if row.deadline_mode != "fixed":
        yield "the service chooses the deadline of each round, and a round ends with its last upload"
    if row.update_encoding != "float32":
        yield f"clients upload `{row.update_encoding}`, and the scheduled size is that of the encoded update"
    if row.model_encoding != "float32":
        yield f"clients download `{row.model_encoding}`, and the scheduled size is that of the encoded model"
    if row.dispatch == "on_ready":
        yield "the channel is granted to a client whose update is ready, not in the planned order"
    if row.model != compared.model:
        yield f"the network is `{row.model}`"
    if row.aggregation != compared.aggregation:
        yield f"the aggregation is `{row.aggregation}`"
    for name, value in map(parse_change, row.changes):
        yield f"the field `{name}` of the task is `{value}`"
