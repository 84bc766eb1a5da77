"""Pictures of runs: how accuracy grows with time, and how many clients a round gets.

Runs differ by dashes and markers as well as by colour, so that they can be told apart when printed grey.
"""

from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from client_sim.results import RunRecord

_STYLES = (
    ("#1b4f72", "-", "o"),
    ("#c8553d", "--", "s"),
    ("#6a994e", "-.", "^"),
    ("#8e6c8a", ":", "D"),
)
_MARKERS = 12
"""Along a line; one at every round would hide it."""


def draw_accuracy(runs: Sequence[RunRecord]) -> bytes:
    """Accuracy over the task's clock, a line for each run, as PNG."""
    figure, axes = new_plot("Accuracy of the global model", "elapsed time (min)", "accuracy")
    for place, run in enumerate(runs):
        points = [(record.elapsed_s, record.accuracy) for record in run.rounds]
        shown = [(time_s / 60, value) for time_s, value in points if time_s is not None and value is not None]
        _draw_line(axes, [time for time, _ in shown], [value for _, value in shown], place, _label(run, runs))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", frameon=False)
    return to_png(figure)


def draw_clients_per_round(runs: Sequence[RunRecord]) -> bytes:
    """How many updates each round got, a line for each run, as PNG."""
    figure, axes = new_plot("Clients per round", "round", "updates received in time")
    for place, run in enumerate(runs):
        label = f"{_label(run, runs)} (mean {run.clients_per_round or 0:.1f})"
        numbers = [record.number for record in run.rounds]
        _draw_line(axes, numbers, [record.received for record in run.rounds], place, label)
    axes.set_ylim(0, _headroom([record.received for run in runs for record in run.rounds]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", frameon=False, ncols=2)
    return to_png(figure)


def new_plot(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    """An empty picture with its axes named."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def to_png(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def style_of(place: int, points: int) -> dict[str, Any]:
    """How the line of this place is drawn: no two alike, even without colours."""
    colour, dashes, marker = _STYLES[place % len(_STYLES)]
    return {
        "color": colour,
        "linestyle": dashes,
        "linewidth": 1.6,
        "marker": marker,
        "markersize": 5,
        "markevery": max(1, points // _MARKERS),
    }


def _draw_line(axes: Axes, across: Sequence[float], up: Sequence[float], place: int, label: str) -> None:
    axes.plot(across, up, label=label, **style_of(place, len(across)))


def _label(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """The policy; and what else tells runs of the same policy apart."""
    if Counter(other.policy for other in runs)[run.policy] == 1:
        return run.policy
    uncertainty = run.scenario.behaviour.uncertainty
    return f"{run.policy}, r = {uncertainty:g}, seed {run.scenario.seed}"


def _headroom(counts: Sequence[int]) -> float:
    """Room above the lines for the legend."""
    return max(1.3 * max(counts, default=0), 1.0)
