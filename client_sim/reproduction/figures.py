"""Statistics of the trials of a row of the paper's tables, and their plots."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from client_sim.plots import new_plot, style_of, to_png
from client_sim.reproduction.results_file import TrialRun, longest_runs
from client_sim.reproduction.rows import PUBLISHED, Published, Row, compared_row


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation."""

    mean: float
    deviation: float | None
    """None with a single value."""
    count: int


def spread_of(values: Iterable[float]) -> Spread | None:
    """The spread of the values; None if there are none."""
    found = list(values)
    if not found:
        return None
    return Spread(fmean(found), stdev(found) if len(found) > 1 else None, len(found))


@dataclass(frozen=True)
class TimeToAccuracy:
    """When trials first reached an accuracy, in simulated minutes."""

    whole_rounds: Spread | None
    """Every round counts its full deadline; only trials that reached it."""
    actual_ends: Spread | None
    """Rounds count to the end of their last upload; the same trials."""
    never: Sequence[float]
    """The simulated minutes of the trials that have not reached it."""


@dataclass(frozen=True)
class RowFigures:
    """The statistics of a row, over trials that the same version ran."""

    row: Row
    version: str
    runs: Sequence[TrialRun]

    @property
    def name(self) -> str:
        """The row and the version."""
        return f"{self.row.name}, version {self.version}"

    @property
    def published(self) -> Published:
        """The published figures of the row, or of the row that it is compared with."""
        return PUBLISHED[compared_row(self.row)]

    @property
    def minutes(self) -> float:
        """The simulated minutes of the longest trial."""
        return max(run.elapsed_s for run in self.runs) / 60

    @property
    def clients_per_round(self) -> Spread:
        """Updates received in a round; the spread is over rounds."""
        found = spread_of(line.received for run in self.runs for line in run.rounds)
        assert found is not None, "a run has at least one round"
        return found

    @property
    def late_share(self) -> float:
        """The share of selected clients that were late."""
        lines = [line for run in self.runs for line in run.rounds]
        return sum(line.late for line in lines) / max(sum(line.selected for line in lines), 1)

    def time_to_accuracy(self, accuracy: float) -> TimeToAccuracy:
        """When the trials first reached an accuracy."""
        reached = {run.trial.seed: run.first_reached(accuracy) for run in self.runs}
        times = [time for time in reached.values() if time is not None]
        never = [run.elapsed_s / 60 for run in self.runs if reached[run.trial.seed] is None]
        return TimeToAccuracy(
            spread_of(whole for whole, _ in times), spread_of(actual for _, actual in times), never
        )

    def accuracy_at(self, minutes: float) -> Spread | None:
        """The accuracy at a time, over the trials that ran so long."""
        long_enough = [run for run in self.runs if run.elapsed_s / 60 + self.row.round_minutes > minutes]
        return spread_of(
            accuracy for run in long_enough if (accuracy := _accuracy_by(run, minutes)) is not None
        )


def _accuracy_by(run: TrialRun, minutes: float) -> float | None:
    known = [line.accuracy for line in run.rounds if line.elapsed_s <= 60 * minutes]
    return next((accuracy for accuracy in reversed(known) if accuracy is not None), None)


def figures_of(runs: Iterable[TrialRun]) -> list[RowFigures]:
    """The rows with results, of each version apart, in the order of the paper's tables; extensions last.

    If a trial was restarted, its longest run counts.
    """
    groups: dict[tuple[Row, str], list[TrialRun]] = defaultdict(list)
    for run in runs:
        groups[run.trial.row, run.version].append(run)
    order = {row: number for number, row in enumerate(PUBLISHED)}
    return [
        RowFigures(row, version, sorted(longest_runs(group).values(), key=_seed))
        for (row, version), group in sorted(
            groups.items(),
            key=lambda item: (order.get(item[0][0], len(order)), str(item[0][0]), item[0][1]),
        )
    ]


def _seed(run: TrialRun) -> int:
    return run.trial.seed


_BAR_LABEL_WIDTH, _LEGEND_WIDTH = 64, 95
"""In characters; longer labels have several lines."""

_Series = Callable[[TrialRun], Sequence[float]]


def draw_accuracies(rows: Sequence[RowFigures], title: str) -> bytes:
    """Accuracy over simulated time, with the published times to the paper's accuracies as crosses."""
    figure, axes = _plot_means(rows, title, "accuracy", _accuracies)
    for index, row in enumerate(rows):
        published = row.published.minutes_to if row.row in PUBLISHED else {}
        reached = [(minutes, accuracy) for accuracy, minutes in published.items() if minutes is not None]
        if reached:
            axes.plot(*zip(*reached, strict=True), "x", color=style_of(index, 1)["color"], markersize=9)
    for accuracy in sorted({accuracy for row in rows for accuracy in row.published.minutes_to}):
        axes.axhline(accuracy, color="grey", linewidth=0.7, linestyle=":")
    axes.set_ylim(0, 1)
    return _render(figure, axes)


def draw_clients(rows: Sequence[RowFigures], title: str) -> bytes:
    """Updates received in each round."""
    return _render(*_plot_means(rows, title, "clients in a round", _received))


def draw_totals(rows: Sequence[RowFigures], title: str) -> bytes:
    """Cumulative number of updates received."""
    return _render(
        *_plot_means(rows, title, "clients in total", lambda run: list(accumulate(_received(run))))
    )


def _received(run: TrialRun) -> list[int]:
    return [line.received for line in run.rounds]


def _accuracies(run: TrialRun) -> list[float]:
    """The accuracy after each round; a failed round keeps the last value."""
    values: list[float] = []
    for line in run.rounds:
        values.append(line.accuracy if line.accuracy is not None else (values[-1] if values else 0.0))
    return values


def _plot_means(rows: Sequence[RowFigures], title: str, label: str, series: _Series) -> tuple[Figure, Axes]:
    """A plot of the means of a series over simulated time, a line for each row."""
    figure, axes = new_plot(title, "simulated time (min)", label)
    for index, row in enumerate(rows):
        _draw_mean(axes, row, series, index)
    axes.set_ylim(bottom=0)
    return figure, axes


def _draw_mean(axes: Axes, row: RowFigures, series: _Series, index: int) -> None:
    """Draw the mean over the trials, and shade the standard deviation.

    The rounds of trials may end at different times; a trial has the value of its last round, until its end.
    """
    times = [[line.elapsed_s / 60 for line in run.rounds] for run in row.runs]
    values = [np.array(series(run), dtype=float) for run in row.runs]
    minutes = sorted({minute for of_run in times for minute in of_run})
    means, deviations = [], []
    for minute in minutes:
        current = [
            of_run[bisect_right(ends, minute) - 1]
            for ends, of_run in zip(times, values, strict=True)
            if ends[0] <= minute <= ends[-1]
        ]
        means.append(np.mean(current))
        deviations.append(np.std(current))
    style = style_of(index, len(minutes))
    axes.plot(minutes, means, label=_label(row), **style)
    lower, upper = (np.array(means) + sign * np.array(deviations) for sign in (-1, 1))
    axes.fill_between(minutes, lower, upper, color=style["color"], alpha=0.15)


def _label(row: RowFigures) -> str:
    trials = len(row.runs)
    return fill(f"{row.name} ({trials} trial{'s' * (trials > 1)})", _LEGEND_WIDTH)


def _lines(label: str) -> int:
    return label.count("\n") + 1


@dataclass(frozen=True)
class Bar:
    """A bar of the plot of times to an accuracy."""

    label: str
    minutes: float
    """0 if the accuracy was not reached."""
    text: str
    is_published: bool


def draw_times(panels: Mapping[str, Sequence[Bar]]) -> bytes:
    """The minutes to the higher accuracy: published, ours, and with extensions; a panel for each table."""
    labels = {title: [fill(bar.label, _BAR_LABEL_WIDTH) for bar in bars] for title, bars in panels.items()}
    heights = [1.5 + sum(map(_lines, labels[title])) for title in panels]
    figure = Figure(figsize=(10, 0.3 * sum(heights)), dpi=120, layout="constrained")
    subplots = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, bars) in zip(subplots, panels.items(), strict=True):
        ends = list(accumulate(map(_lines, labels[title])))
        places = [end - _lines(label) / 2 for end, label in zip(ends, labels[title], strict=True)]
        axes.barh(
            places,
            [bar.minutes for bar in bars],
            tick_label=labels[title],
            color=["#b8b8b8" if bar.is_published else style_of(0, 1)["color"] for bar in bars],
        )
        for place, bar in zip(places, bars, strict=True):
            axes.annotate(bar.text, (bar.minutes, place), (4, 0), textcoords="offset points", va="center")
        axes.set_ylim(ends[-1], 0)
        axes.margins(x=0.25)
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("simulated time (min)")
    return to_png(figure)


def _render(figure: Figure, axes: Axes) -> bytes:
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower left", frameon=False)
    return to_png(figure)
