"""``fedcs plan``: reads resource reports from a file; writes the plan to the terminal or an HTML page."""

import codecs
import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, TextIO

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from operator_api.planning import shortest_deadline_s
from services.contract.plans import Candidate, PlanRequest, PlanResponse, Slot
from services.domain.radio import PAPER_MODEL_SIZE_BYTES
from services.errors import PlanFileError
from services.escaping import escape_unprintable
from services.gantt import draw_gantt

_COLUMNS = tuple(Candidate.model_fields)
_DEFAULTS = {"round_deadline_s": 180, "model_size_bytes": PAPER_MODEL_SIZE_BYTES["cifar10"]}
_MAX_ERRORS = 5


def read_plan_request(file: TextIO, terms: Mapping[str, object]) -> PlanRequest:
    """Read the candidates; ``terms`` from the command line win over those in the file."""
    try:
        text = file.read()
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{file.name}: {_not_utf8(error)}") from error
    lines: list[int] = []
    if text.lstrip().startswith(("{", "[")):
        content = _from_json(text, file.name)
    else:
        rows, lines = _from_csv(text, file.name)
        content = {"candidates": rows}
    try:
        # Validated as JSON, so that errors name JSON types, not Python types.
        return PlanRequest.model_validate_json(json.dumps({**_DEFAULTS, **content, **terms}))
    except ValidationError as error:
        raise PlanFileError(_explain(error, file.name, lines)) from error


def _from_json(text: str, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{name}: not JSON: {error}") from error
    return content if isinstance(content, dict) else {"candidates": content}


def _not_utf8(error: UnicodeDecodeError) -> str:
    """Where a file is not UTF-8, and what to do."""
    content = bytes(error.object)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "not a text file in UTF-8 but in UTF-16: save it as CSV in UTF-8"
    line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
    return f"not a text file in UTF-8: line {line} has the byte 0x{byte:02x}; save it as CSV in UTF-8"


def _from_csv(text: str, name: str) -> tuple[list[dict[str, object]], list[int]]:
    """The rows, and their lines in the file. Columns are separated by commas or by semicolons."""
    header = text.partition("\n")[0]
    delimiter = ";" if ";" in header and "," not in header else ","
    rows = csv.DictReader(StringIO(text), delimiter=delimiter, skipinitialspace=True)
    candidates: list[dict[str, object]] = []
    lines = []
    try:
        missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise PlanFileError(
                f"{name}: the CSV header has no {', '.join(missing)}; it needs {', '.join(_COLUMNS)}"
            )
        for row in rows:
            candidates.append({column: _value(column, row[column]) for column in _COLUMNS})
            lines.append(rows.line_num)
    except csv.Error as error:
        raise PlanFileError(f"{name}: after line {rows.line_num}: {error}") from error
    return candidates, lines


def _value(column: str, text: str | None) -> object:
    """A number if the text is one; validation rejects other text."""
    if column == "client_id" or text is None:
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _explain(error: ValidationError, name: str, file_lines: Sequence[int]) -> str:
    """What is wrong; candidates by their lines in the file, or by number if the file is JSON."""
    lines = []
    for problem in error.errors()[:_MAX_ERRORS]:
        path = [*problem["loc"], *problem.get("ctx", {}).get("within", ())]
        if path[0] == "candidates" and len(path) > 1:
            place = int(path[1])
            path[:2] = [f"line {file_lines[place]}" if file_lines else f"candidate {place + 1}"]
        lines.append(": ".join([*map(str, path), problem["msg"]]))
    if error.error_count() > _MAX_ERRORS:
        lines.append(f"and {error.error_count() - _MAX_ERRORS} more")
    return f"{name}: " + "\n  ".join(lines)


_MAX_ROWS = 40
_MAX_CHART_WIDTH = 100


def print_plan(console: Console, request: PlanRequest, plan: PlanResponse) -> None:
    """Print the plan; a long one is cut, and says so."""
    console.print(_headline(request, plan))
    if plan.slots:
        console.print(_table(plan))
        _print_gantt(console, request, plan)
    if len(plan.slots) > _MAX_ROWS:
        console.print(f"… and {len(plan.slots) - _MAX_ROWS} more; --json and --html have them all.")
    if not plan.slots and request.deadline_s is not None:
        needed_s = shortest_deadline_s(request)
        if needed_s is not None:
            console.print(f"The fastest client alone needs a deadline of more than {needed_s:.1f} s.")
    for reason, count in Counter(candidate.reason.value for candidate in plan.not_selected).items():
        console.print(f"{count} not selected: {reason}")


def _headline(request: PlanRequest, plan: PlanResponse) -> Text:
    deadline = "no deadline" if request.deadline_s is None else f"deadline {request.deadline_s:g} s"
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
    for slot in plan.slots[:_MAX_ROWS]:
        table.add_row(
            str(slot.order),
            Text(escape_unprintable(slot.client_id)),
            f"{slot.update_s:.1f}",
            f"{slot.upload_s:.1f}",
            f"{slot.window_start_s:.1f}-{slot.window_end_s:.1f}",
            f"{slot.time_slot_first}+{slot.time_slot_count}",
        )
    return table


def _print_gantt(console: Console, request: PlanRequest, plan: PlanResponse) -> None:
    end_s = max(plan.total_s, request.deadline_s or 0.0)
    number_width = len(str(len(plan.slots)))
    width = min(console.width - number_width - 1, _MAX_CHART_WIDTH)
    legend = Text.assemble(
        ("░", "yellow"), " distribution  ", ("▒", "cyan"), " update  ", ("█", "blue"), " upload"
    )
    console.print(Text("\n").append_text(legend).append(f"   0 to {end_s:g} s"))
    for slot in plan.slots[:_MAX_ROWS]:
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


_templates = Environment(loader=PackageLoader("operator_api"), autoescape=True, trim_blocks=True)


def render_html(request: PlanRequest, plan: PlanResponse) -> str:
    """The page; every name from the reports is escaped."""
    svg = draw_gantt(request, plan, "svg").decode()
    return _templates.get_template("plan.html").render(
        request=request,
        plan=plan,
        chart=Markup(svg[svg.index("<svg") :]),  # noqa: S704 - matplotlib escapes text
        facts=_facts(request, plan),
    )


def _facts(request: PlanRequest, plan: PlanResponse) -> list[tuple[str, str]]:
    deadline = "none" if request.deadline_s is None else f"{request.deadline_s:g} s"
    return [
        ("deadline", deadline),
        ("in all", f"{plan.total_s:.1f} s"),
        ("distribution", f"{plan.distribution_s:.1f} s"),
        ("updates and uploads", f"{plan.elapsed_s:.1f} s"),
        ("most clients possible", str(plan.upper_bound)),
        ("model", f"{request.model_size_bytes / 1e6:g} MB"),
        ("resource blocks", str(request.resource_blocks)),
    ]
