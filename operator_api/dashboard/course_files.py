"""How tasks went, for scripts and for spreadsheets."""

import csv
import json
from collections.abc import Sequence
from io import StringIO

from operator_api.dashboard.task_view import Course, TimedRound

_COLUMNS = ("number", "elapsed_s", "accuracy", "loss", "asked", "selected", "received", "state")
_FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""With one of these a spreadsheet takes a cell for a formula; the last four are those of full width."""


def course_json(course: Course, first: int) -> bytes:
    """The rounds of a task from this number on: columns, not objects, for there may be thousands."""
    rows = [_values(one) for one in course.rounds if one.row.number >= first]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    rounds = {name: list(column) for name, column in zip(_COLUMNS, columns, strict=True)}
    return json.dumps({"evaluates": course.task.terms.dataset is not None, **rounds}).encode()


def course_csv(courses: Sequence[Course]) -> str:
    """All rounds of some tasks."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(("task_id", "task", "policy", *_COLUMNS))
    for course in courses:
        terms = course.task.terms
        about = (course.task.task_id, _harmless(terms.name), terms.policy)
        writer.writerows((*about, *_values(one)) for one in course.rounds)
    return text.getvalue()


def _values(one: TimedRound) -> tuple[object, ...]:
    row = one.row
    return (
        row.number,
        one.elapsed_s,
        row.accuracy,
        row.loss,
        row.asked,
        row.selected,
        row.received,
        row.state.value,
    )


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.lstrip().startswith(_FORMULA_STARTS) else name
