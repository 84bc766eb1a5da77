"""Plots of runs: accuracy over time, clients per round, the map of the cell, a Gantt chart of a round."""

from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator, MaxNLocator

from client_sim.fleet import Fleet
from client_sim.results import RunRecord, trials_of
from client_sim.round_simulation import SimulatedSlot
from services.contract.rounds import RoundSlot, ScheduleResponse
from services.gantt import (
    DEADLINE_COLOUR,
    MAX_ROWS,
    UPDATE_COLOUR,
    UPLOAD_COLOUR,
    add_legend,
    new_chart,
    row_label,
)

_STYLES = (
    ("#1b4f72", "-", "o"),
    ("#c8553d", "--", "s"),
    ("#6a994e", "-.", "^"),
    ("#8e6c8a", ":", "D"),
)
_MARKERS = 12
"""Markers along a line."""


def draw_accuracy(runs: Sequence[RunRecord]) -> bytes:
    """Accuracy over elapsed time, a line for each policy and value of the sweep, as PNG.

    Of several trials: the mean, and a band of one standard deviation to both sides.
    """
    figure, axes = new_plot("Accuracy of the global model", "elapsed time (min)", "accuracy")
    for index, (label, trials) in enumerate(trials_of(runs).items()):
        _draw_trials(axes, [_accuracies(run) for run in trials], index, _label(label, trials))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", frameon=False)
    return to_png(figure)


def draw_clients_per_round(runs: Sequence[RunRecord]) -> bytes:
    """Updates received in each round, lines and bands as in `draw_accuracy`, as PNG."""
    figure, axes = new_plot("Clients per round", "round", "updates received in time")
    for index, (label, trials) in enumerate(trials_of(runs).items()):
        mean = fmean(run.clients_per_round or 0 for run in trials)
        series = [{float(record.number): float(record.received) for record in run.rounds} for run in trials]
        _draw_trials(axes, series, index, f"{_label(label, trials)} (mean {mean:.1f})")
    axes.set_ylim(0, _headroom([record.received for run in runs for record in run.rounds]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", frameon=False, ncols=2)
    return to_png(figure)


def _accuracies(run: RunRecord) -> dict[float, float]:
    """Accuracy by elapsed minutes."""
    known = {} if run.initial_accuracy is None else {0.0: run.initial_accuracy}
    return known | {
        record.elapsed_s / 60: record.accuracy
        for record in run.rounds
        if record.elapsed_s is not None and record.accuracy is not None
    }


def _draw_trials(axes: Axes, series: Sequence[Mapping[float, float]], index: int, label: str) -> None:
    """The mean over the trials with a band; each trial has its last value, once it has one."""
    if not all(series):
        series = [values for values in series if values]
    if not series:
        axes.plot([], [], label=label, **style_of(index, 0))
        return
    start, end = max(min(values) for values in series), min(max(values) for values in series)
    x = sorted({place for values in series for place in values if start <= place <= end})
    y = np.array([_values_at(values, x) for values in series])
    mean = y.mean(axis=0)
    axes.plot(x, mean, label=label, **style_of(index, len(x)))
    if len(series) > 1:
        deviation = y.std(axis=0, ddof=1)
        colour = style_of(index, 0)["color"]
        axes.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def _values_at(values: Mapping[float, float], x: Sequence[float]) -> list[float]:
    known = sorted(values)
    return [values[known[place - 1]] for place in np.searchsorted(known, x, side="right")]


def _label(label: str, trials: Sequence[RunRecord]) -> str:
    return label if len(trials) == 1 else f"{label}, {len(trials)} trials"


def new_plot(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """An empty plot with labelled axes."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def to_png(figure: Figure) -> bytes:
    """Render a figure as PNG."""
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def style_of(index: int, points: int) -> dict[str, Any]:
    """The style of a line; lines also differ in dashes and markers."""
    colour, dashes, marker = _STYLES[index % len(_STYLES)]
    return {
        "color": colour,
        "linestyle": dashes,
        "linewidth": 1.6,
        "marker": marker,
        "markersize": 5,
        "markevery": max(1, points // _MARKERS),
    }


def _headroom(counts: Sequence[int]) -> float:
    """The upper limit of the axis, with space for the legend."""
    return max(1.3 * max(counts, default=0), 1.0)


_MANY_DEVICES = 2_000
_ANGLE_SEED = 0x6D6170
"""Differs from the seed of the distances: with the same seed the devices would lie on a spiral."""


def draw_cell(fleet: Fleet, radius_m: float, selected: Collection[str], title: str) -> bytes:
    """A map of the cell with the selected devices marked, as PNG.

    The model has only distances; the angles are random, with a fixed seed.
    """
    angles = np.random.default_rng(_ANGLE_SEED).uniform(0.0, 2.0 * np.pi, len(fleet))
    east_km, north_km = (fleet.distances_m / 1000 * part for part in (np.cos(angles), np.sin(angles)))
    figure = Figure(figsize=(7.4, 6.4), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    devices = axes.scatter(
        east_km,
        north_km,
        c=fleet.reports.throughput_bps / 1e6,
        cmap="viridis_r",
        norm=LogNorm(),
        s=24 if len(fleet) <= _MANY_DEVICES else 3,
        edgecolors="grey",
        linewidths=0.4 if len(fleet) <= _MANY_DEVICES else 0,
    )
    ticks = LogLocator(subs=(1.0, 3.0))
    scale = figure.colorbar(
        devices, ax=axes, label="throughput (Mbit/s)", shrink=0.8, ticks=ticks, format="%g"
    )
    scale.minorticks_off()
    numbers = [fleet.number(client_id) for client_id in selected]
    axes.scatter(
        east_km[numbers],
        north_km[numbers],
        s=110,
        facecolors="none",
        edgecolors="black",
        linewidths=1.4,
        label=f"selected ({len(numbers)})",
    )
    axes.plot(0, 0, marker="^", markersize=10, color="black", linestyle="none", label="base station")
    _frame(axes, radius_m / 1000, title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return to_png(figure)


def _frame(axes: Axes, radius_km: float, title: str) -> None:
    axes.add_patch(Circle((0.0, 0.0), radius_km, fill=False, color="grey", linestyle=":"))
    axes.set_aspect("equal")
    axes.set_xlim(-1.05 * radius_km, 1.05 * radius_km)
    axes.set_ylim(-1.05 * radius_km, 1.05 * radius_km)
    axes.set_xlabel("km")
    axes.set_ylabel("km")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


_LATE = "#f2d6d2"
_DISTRIBUTION = "#f0f0f0"


def draw_simulated_round(schedule: ScheduleResponse, slots: Sequence[SimulatedSlot]) -> bytes:
    """A Gantt chart of the simulated round, with the planned uploads as outlines, as PNG."""
    rows = list(zip(schedule.slots, slots, strict=True))[:MAX_ROWS]
    figure, axes = new_chart([row_label(slot) for slot, _ in rows], _title(schedule, slots, len(rows)))
    distributions_s = {cell.cell_id: cell.distribution_s for cell in schedule.cells}
    begins_s = [schedule.selection_s + distributions_s[slot.cell_id] for slot, _ in rows]
    longest_s = schedule.selection_s + schedule.distribution_s
    axes.axvspan(schedule.selection_s, longest_s, color=_DISTRIBUTION, label="distribution")
    _draw_simulated(axes, [device for _, device in rows], begins_s)
    _draw_planned(axes, [slot for slot, _ in rows])
    if schedule.deadline_s is not None:
        deadline_s = schedule.deadline_s - schedule.aggregation_s
        axes.axvline(deadline_s, color=DEADLINE_COLOUR, linewidth=1.5, label="upload deadline")
    axes.set_xlim(left=0)
    add_legend(figure, len(rows), columns=7)
    return to_png(figure)


def _draw_simulated(axes: Axes, slots: Sequence[SimulatedSlot], begins_s: Sequence[float]) -> None:
    active = {row: device for row, device in enumerate(slots) if not device.dropped}
    axes.barh(
        list(active),
        [device.update_s for device in active.values()],
        left=[begins_s[row] for row in active],
        height=0.5,
        color=UPDATE_COLOUR,
        label="update",
    )
    for late, colour, hatch, label in (
        (False, UPLOAD_COLOUR, "", "upload"),
        (True, _LATE, "////", "late upload"),
    ):
        shown = {row: device for row, device in active.items() if device.late is late}
        if shown:
            axes.barh(
                list(shown),
                [device.upload_s for device in shown.values()],
                left=[device.upload_start_s or 0.0 for device in shown.values()],
                height=0.5,
                color=colour,
                hatch=hatch,
                edgecolor=DEADLINE_COLOUR if late else None,
                label=label,
            )
    dropped = [row for row, device in enumerate(slots) if device.dropped]
    if dropped:
        axes.plot([begins_s[row] for row in dropped], dropped, "kx", markersize=7, label="dropped out")


def _draw_planned(axes: Axes, slots: Sequence[RoundSlot]) -> None:
    axes.barh(
        range(len(slots)),
        [slot.upload_s for slot in slots],
        left=[slot.window_start_s for slot in slots],
        height=0.8,
        fill=False,
        edgecolor="black",
        linewidth=0.9,
        label="planned upload",
    )


def _title(schedule: ScheduleResponse, slots: Sequence[SimulatedSlot], shown: int) -> str:
    late, dropped = (sum(getattr(device, outcome) for device in slots) for outcome in ("late", "dropped"))
    title = f"{schedule.policy}: {len(slots)} clients, {late} late, {dropped} dropped out"
    return title if shown == len(slots) else f"{title} (the first {shown} shown)"
