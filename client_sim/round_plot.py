"""The Gantt chart of a round as it went, over what was planned."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from client_sim.plots import to_png
from client_sim.round_play import Played
from services.charts.gantt import MOST_ROWS
from services.contract.rounds import RoundSlot, ScheduleResponse

_UPDATE = "#bcd4e6"
_UPLOAD = "#1b4f72"
_LATE = "#f2d6d2"
_DISTRIBUTION = "#f0f0f0"
_DEADLINE = "#b3261e"


def draw_played_round(schedule: ScheduleResponse, played: Sequence[Played]) -> bytes:
    """Each device's update and upload, over the frame of its planned upload, as PNG."""
    rows = list(zip(schedule.slots, played, strict=True))[:MOST_ROWS]
    figure = Figure(figsize=(10, 1.8 + 0.26 * max(len(rows), 3)), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    updates_begin_s = schedule.selection_s + schedule.distribution_s
    axes.axvspan(schedule.selection_s, updates_begin_s, color=_DISTRIBUTION, label="distribution")
    _draw_played(axes, [device for _, device in rows], updates_begin_s)
    _draw_planned(axes, [slot for slot, _ in rows])
    if schedule.policy != "fl":
        deadline_s = schedule.round_deadline_s - schedule.aggregation_s
        axes.axvline(deadline_s, color=_DEADLINE, linewidth=1.5, label="upload deadline")
    axes.set_yticks(range(len(rows)), [_row_label(slot) for slot, _ in rows], fontsize=8)
    axes.set_ylim(max(len(rows), 3) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("round time (s)")
    axes.set_title(_title(schedule, played, len(rows)), fontsize=11, loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    return to_png(figure)


def _draw_played(axes: Axes, played: Sequence[Played], updates_begin_s: float) -> None:
    there = {row: device for row, device in enumerate(played) if not device.dropped}
    axes.barh(
        list(there),
        [device.update_s for device in there.values()],
        left=updates_begin_s,
        height=0.5,
        color=_UPDATE,
        label="update",
    )
    for late, colour, hatch, label in ((False, _UPLOAD, "", "upload"), (True, _LATE, "////", "late upload")):
        shown = {row: device for row, device in there.items() if device.late is late}
        if shown:
            axes.barh(
                list(shown),
                [device.upload_s for device in shown.values()],
                left=[device.upload_start_s or 0.0 for device in shown.values()],
                height=0.5,
                color=colour,
                hatch=hatch,
                edgecolor=_DEADLINE if late else None,
                label=label,
            )
    dropped = [row for row, device in enumerate(played) if device.dropped]
    if dropped:
        begin_s = [updates_begin_s] * len(dropped)
        axes.plot(begin_s, dropped, "kx", markersize=7, label="dropped out")


def _draw_planned(axes: Axes, slots: Sequence[RoundSlot]) -> None:
    axes.barh(
        range(len(slots)),
        [slot.upload_s for slot in slots],
        left=[slot.window_start_s for slot in slots],
        height=0.8,
        fill=False,
        edgecolor="black",
        linewidth=0.9,
        label="upload as planned",
    )


def _row_label(slot: RoundSlot) -> str:
    """A dollar sign would start a formula."""
    name = slot.client_id if len(slot.client_id) <= 24 else f"…{slot.client_id[-23:]}"
    return f"{slot.order}  {name}".replace("$", r"\$")


def _title(schedule: ScheduleResponse, played: Sequence[Played], shown: int) -> str:
    late, dropped = (sum(getattr(device, fate) for device in played) for fate in ("late", "dropped"))
    title = f"{schedule.policy}: {len(played)} clients, {late} late, {dropped} dropped out"
    return title if shown == len(played) else f"{title} (the first {shown} shown)"
