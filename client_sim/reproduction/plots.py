"""Pictures of the report: accuracy over time, clients per round, and clients in total."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from client_sim.plots import new_plot, style_of, to_png
from client_sim.reproduction.figures import RowFigures
from client_sim.reproduction.results_file import TrialRun

_Series = Callable[[TrialRun], Sequence[float]]


def draw_accuracies(rows: Sequence[RowFigures], title: str) -> bytes:
    """Accuracy over simulated time; thresholds of the paper's table as thin lines."""
    figure, axes = new_plot(title, "simulated time (min)", "accuracy")
    for place, row in enumerate(rows):
        _draw_mean(axes, row, _accuracies, place)
    for accuracy in sorted({accuracy for row in rows for accuracy in row.published.minutes_to}):
        axes.axhline(accuracy, color="grey", linewidth=0.7, linestyle=":")
    axes.set_ylim(0, 1)
    return _finished(figure, axes)


def draw_clients(rows: Sequence[RowFigures], title: str) -> bytes:
    """Clients whose updates counted, by round."""
    figure, axes = new_plot(title, "simulated time (min)", "clients in a round")
    for place, row in enumerate(rows):
        _draw_mean(axes, row, lambda run: [line.received for line in run.rounds], place)
    axes.set_ylim(bottom=0)
    return _finished(figure, axes)


def draw_totals(rows: Sequence[RowFigures], title: str) -> bytes:
    """All clients so far, each counted as often as it took part."""
    figure, axes = new_plot(title, "simulated time (min)", "clients so far")
    for place, row in enumerate(rows):
        _draw_mean(axes, row, lambda run: list(accumulate(line.received for line in run.rounds)), place)
    axes.set_ylim(bottom=0)
    return _finished(figure, axes)


def _accuracies(run: TrialRun) -> list[float]:
    """A round that failed leaves the model as it was."""
    values: list[float] = []
    for line in run.rounds:
        values.append(line.accuracy if line.accuracy is not None else (values[-1] if values else 0.0))
    return values


def _draw_mean(axes: Axes, row: RowFigures, series: _Series, place: int) -> None:
    """The mean over trials, shaded by their standard deviation; over those that were followed so far."""
    by_minute: dict[float, list[float]] = defaultdict(list)
    for run in row.runs:
        for line, value in zip(run.rounds, series(run), strict=True):
            by_minute[line.elapsed_s / 60].append(value)
    minutes = sorted(by_minute)
    means = np.array([np.mean(by_minute[minute]) for minute in minutes])
    deviations = np.array([np.std(by_minute[minute]) for minute in minutes])
    style = style_of(place, len(minutes))
    axes.plot(minutes, means, label=_label(row), **style)
    axes.fill_between(minutes, means - deviations, means + deviations, color=style["color"], alpha=0.15)


def _label(row: RowFigures) -> str:
    trials = len(row.runs)
    uncertain = f", r = {row.row.uncertainty:.0%}" if row.row.uncertainty else ""
    return f"{row.row.policy}, {row.row.round_minutes} min{uncertain} ({trials} trial{'s' * (trials > 1)})"


def _finished(figure: Figure, axes: Axes) -> bytes:
    axes.set_xlim(left=0)
    axes.legend(loc="best", frameon=False)
    return to_png(figure)
