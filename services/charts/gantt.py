"""The Gantt chart of a round: distribution, updates in parallel, uploads one after another."""

from collections.abc import Sequence
from io import BytesIO
from typing import Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.contract.plans import PlanRequest, PlanResponse, Slot
from services.contract.rounds import ScheduleResponse

Terms: TypeAlias = PlanRequest | ScheduleResponse
Plan: TypeAlias = PlanResponse | ScheduleResponse

MOST_ROWS = 150
"""More would not be readable; the title says how many there are."""

_DISTRIBUTION = "#f4a259"
_UPDATE = "#bcd4e6"
_UPLOAD = "#1b4f72"
_DEADLINE = "#b3261e"


def draw_gantt(request: Terms, plan: Plan, file_format: Literal["png", "svg"]) -> bytes:
    """Draw a planned round in round time."""
    shown = plan.slots[:MOST_ROWS]
    figure = Figure(figsize=(10, 1.6 + 0.26 * max(len(shown), 3)), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    updates_begin_s = request.selection_s + plan.distribution_s
    _draw_slots(axes, request, shown, updates_begin_s)
    if request.policy != "fl":
        axes.axvline(request.round_deadline_s, color=_DEADLINE, linewidth=1.5, label="deadline")
    axes.set_yticks(range(len(shown)), [_label(slot) for slot in shown], fontsize=8)
    axes.set_ylim(max(len(shown), 3) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("round time (s)")
    axes.set_title(_title(plan, len(shown)), fontsize=11, loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    picture = BytesIO()
    # No date inside: the same plan gives the same bytes.
    figure.savefig(picture, format=file_format, metadata={"Date": None} if file_format == "svg" else {})
    return picture.getvalue()


def _draw_slots(axes: Axes, request: Terms, slots: Sequence[Slot], updates_begin_s: float) -> None:
    rows = range(len(slots))
    distribution_s = updates_begin_s - request.selection_s
    axes.barh(
        rows, distribution_s, left=request.selection_s, height=0.5, color=_DISTRIBUTION, label="distribution"
    )
    axes.barh(
        rows,
        [slot.update_s for slot in slots],
        left=updates_begin_s,
        height=0.5,
        color=_UPDATE,
        label="update",
    )
    axes.barh(
        rows,
        [slot.upload_s for slot in slots],
        left=[slot.window_start_s for slot in slots],
        height=0.7,
        color=_UPLOAD,
        label="upload",
    )


def _label(slot: Slot) -> str:
    """A dollar sign would start a formula."""
    name = slot.client_id if len(slot.client_id) <= 24 else f"{slot.client_id[:23]}…"
    return f"{slot.order}  {name}".replace("$", r"\$")


def _title(plan: Plan, shown: int) -> str:
    title = f"{plan.policy}: {len(plan.slots)} clients, done after {plan.total_s:.1f} s"
    return title if shown == len(plan.slots) else f"{title} (the first {shown} shown)"
