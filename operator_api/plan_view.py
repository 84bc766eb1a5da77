"""A plan on the terminal: the slots, a Gantt chart below them, and who was left out."""

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.contract.plans import PlanRequest, PlanResponse, Slot

_MOST_ROWS = 40
_WIDEST_CHART = 100


def print_plan(console: Console, request: PlanRequest, plan: PlanResponse) -> None:
    """Print the plan; a long one is cut, and says so."""
    console.print(_headline(request, plan))
    if plan.slots:
        console.print(_table(plan))
        _print_gantt(console, request, plan)
    if len(plan.slots) > _MOST_ROWS:
        console.print(f"… and {len(plan.slots) - _MOST_ROWS} more; --json and --html have them all.")
    for reason, count in Counter(one.reason.value for one in plan.not_selected).items():
        console.print(f"{count} not selected: {reason}")


def _headline(request: PlanRequest, plan: PlanResponse) -> Text:
    deadline = "no deadline" if request.policy == "fl" else f"deadline {request.round_deadline_s:g} s"
    return Text.assemble(
        (f"{plan.policy}: {len(plan.slots)} of {len(request.candidates)} clients", "bold"),
        f", the most possible is {plan.upper_bound}.\n",
        f"Distribution {plan.distribution_s:.1f} s, updates and uploads {plan.elapsed_s:.1f} s, "
        f"in all {plan.total_s:.1f} s; {deadline}.",
    )


def _table(plan: PlanResponse) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("client", max_width=20, no_wrap=True)
    for name in ("update s", "upload s", "window s", "time slots"):
        table.add_column(name, justify="right", no_wrap=True)
    for slot in plan.slots[:_MOST_ROWS]:
        table.add_row(
            str(slot.order),
            Text(slot.client_id),
            f"{slot.update_s:.1f}",
            f"{slot.upload_s:.1f}",
            f"{slot.window_start_s:.1f}-{slot.window_end_s:.1f}",
            f"{slot.time_slot_first}+{slot.time_slot_count}",
        )
    return table


def _print_gantt(console: Console, request: PlanRequest, plan: PlanResponse) -> None:
    end_s = plan.total_s if request.policy == "fl" else max(plan.total_s, request.round_deadline_s)
    number_width = len(str(len(plan.slots)))
    width = min(console.width - number_width - 1, _WIDEST_CHART)
    legend = Text.assemble(
        ("░", "yellow"), " distribution  ", ("▒", "cyan"), " update  ", ("█", "blue"), " upload"
    )
    console.print(Text("\n").append_text(legend).append(f"   0 to {end_s:g} s"))
    for slot in plan.slots[:_MOST_ROWS]:
        bar = Text(f"{slot.order:>{number_width}} ").append_text(_bar(request, plan, slot, width / end_s))
        console.print(bar, no_wrap=True)


def _bar(request: PlanRequest, plan: PlanResponse, slot: Slot, per_second: float) -> Text:
    updates_begin_s = request.selection_s + plan.distribution_s
    bar = Text()
    for character, style, until_s in (
        (" ", "", request.selection_s),
        ("░", "yellow", updates_begin_s),
        ("▒", "cyan", updates_begin_s + slot.update_s),
        ("·", "dim", slot.window_start_s),
        ("█", "blue", slot.window_end_s),
    ):
        bar.append(character * (round(until_s * per_second) - len(bar)), style)
    return bar
