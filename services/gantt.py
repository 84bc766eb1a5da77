"""The Gantt chart of a round: distribution, updates in parallel, uploads one after another."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.contract.plans import PlanRequest, PlanResponse, Slot
from services.contract.rounds import CellSlot, ScheduleResponse
from services.escaping import escape_unprintable

Terms: TypeAlias = PlanRequest | ScheduleResponse
Plan: TypeAlias = PlanResponse | ScheduleResponse

MAX_ROWS = 150
"""Rows in the chart; the title has the total number."""
_MANY_ROWS = 15
"""Longer charts have their axis and legend above as well: they do not fit on a screen."""

DISTRIBUTION_COLOUR = "#b07f00"
UPDATE_COLOUR = "#1d7a8c"
UPLOAD_COLOUR = "#0b57a4"
DEADLINE_COLOUR = "#b3261e"
"""The colours of the dashboard by day."""


def draw_gantt(request: Terms, plan: Plan, file_format: Literal["png", "svg"]) -> bytes:
    """Draw a planned round in round time."""
    shown = plan.slots[:MAX_ROWS]
    labels = [row_label(slot, with_cell=len(_cells(plan)) > 1) for slot in shown]
    figure, axes = new_chart(labels, _title(plan, len(shown)))
    _draw_slots(axes, request.selection_s, shown, [_distribution_s(plan, slot) for slot in shown])
    if request.deadline_s is not None:
        axes.axvline(request.deadline_s, color=DEADLINE_COLOUR, linewidth=1.5, label="deadline")
    axes.set_xlim(left=0)
    add_legend(figure, len(shown), columns=4)
    picture = BytesIO()
    # No date: the same plan gives the same bytes.
    figure.savefig(picture, format=file_format, metadata={"Date": None} if file_format == "svg" else {})
    return picture.getvalue()


def new_chart(labels: Sequence[str], title: str) -> tuple[Figure, Axes]:
    """An empty chart over round time, with a row for each label."""
    rows = max(len(labels), 3)
    figure = Figure(figsize=(10, 1.7 + 0.26 * rows), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlabel("round time (s)")
    if len(labels) > _MANY_ROWS:
        axes.secondary_xaxis("top").set_xlabel("round time (s)")
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def add_legend(figure: Figure, rows: int, columns: int) -> None:
    """A legend below a chart, and above a long one, too."""
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    if rows > _MANY_ROWS:
        figure.legend(loc="outside upper center", ncols=columns, fontsize=8, frameon=False)


def _cells(plan: Plan) -> Mapping[str, float]:
    """The distribution time of each cell of a round; a plan is of one cell without a name."""
    if isinstance(plan, PlanResponse):
        return {}
    return {cell.cell_id: cell.distribution_s for cell in plan.cells}


def _distribution_s(plan: Plan, slot: Slot) -> float:
    return _cells(plan)[slot.cell_id] if isinstance(slot, CellSlot) else plan.distribution_s


def _draw_slots(
    axes: Axes, selection_s: float, slots: Sequence[Slot], distributions_s: Sequence[float]
) -> None:
    rows = range(len(slots))
    axes.barh(
        rows, distributions_s, left=selection_s, height=0.5, color=DISTRIBUTION_COLOUR, label="distribution"
    )
    axes.barh(
        rows,
        [slot.update_s for slot in slots],
        left=[selection_s + distribution_s for distribution_s in distributions_s],
        height=0.5,
        color=UPDATE_COLOUR,
        label="update",
    )
    axes.barh(
        rows,
        [slot.upload_s for slot in slots],
        left=[slot.window_start_s for slot in slots],
        height=0.7,
        color=UPLOAD_COLOUR,
        label="upload",
    )


def row_label(slot: Slot, *, with_cell: bool = False) -> str:
    """The row label; dollar signs are escaped because they start a formula. Long ids differ at their end."""
    client_id = escape_unprintable(slot.client_id)
    name = client_id if len(client_id) <= 24 else f"…{client_id[-23:]}"
    cell = f"{slot.cell_id}  " if with_cell and isinstance(slot, CellSlot) else ""
    return f"{cell}{slot.order}  {name}".replace("$", r"\$")


def _title(plan: Plan, shown: int) -> str:
    title = f"{plan.policy}: {len(plan.slots)} clients, done after {plan.total_s:.1f} s"
    return title if shown == len(plan.slots) else f"{title} (the first {shown} shown)"
