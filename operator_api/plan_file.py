"""Resource reports from a file: CSV with a header, a JSON list, or JSON as ``POST /plans`` takes it."""

import csv
import json
from collections.abc import Mapping
from io import StringIO
from typing import Any, TextIO

from pydantic import ValidationError

from services.contract.plans import Candidate, PlanRequest
from services.domain.cell import PAPER_MODEL_SIZE_BYTES
from services.errors import PlanFileError

_COLUMNS = tuple(Candidate.model_fields)
_DEFAULTS = {"round_deadline_s": 180, "model_size_bytes": PAPER_MODEL_SIZE_BYTES["cifar10"]}
_MOST_ERRORS = 5


def read_plan_request(file: TextIO, terms: Mapping[str, object]) -> PlanRequest:
    """Read the candidates; ``terms`` from the command line win over those in the file."""
    try:
        text = file.read()
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{file.name}: not a text file ({error.reason})") from error
    if text.lstrip().startswith(("{", "[")):
        content = _from_json(text, file.name)
        row_name = "candidate"
    else:
        content = {"candidates": _from_csv(text, file.name)}
        row_name = "row"
    try:
        # Validated as JSON, for complaints in words of JSON, not of Python.
        return PlanRequest.model_validate_json(json.dumps({**_DEFAULTS, **content, **terms}))
    except ValidationError as error:
        raise PlanFileError(_explain(error, file.name, row_name)) from error


def _from_json(text: str, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{name}: not JSON: {error}") from error
    return content if isinstance(content, dict) else {"candidates": content}


def _from_csv(text: str, name: str) -> list[dict[str, object]]:
    rows = csv.DictReader(StringIO(text), skipinitialspace=True)
    try:
        missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise PlanFileError(
                f"{name}: the CSV header has no {', '.join(missing)}; it needs {', '.join(_COLUMNS)}"
            )
        return [{column: _value(column, row[column]) for column in _COLUMNS} for row in rows]
    except csv.Error as error:
        raise PlanFileError(f"{name}: after line {rows.line_num}: {error}") from error


def _value(column: str, text: str | None) -> object:
    """CSV knows text only; what is no number is left for validation to refuse."""
    if column == "client_id" or text is None:
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _explain(error: ValidationError, name: str, row_name: str) -> str:
    lines = []
    for problem in error.errors()[:_MOST_ERRORS]:
        path = [*problem["loc"], *problem.get("ctx", {}).get("within", ())]
        if len(path) > 1:
            path[:2] = [f"{row_name} {int(path[1]) + 1}"]
        lines.append(": ".join([*map(str, path), problem["msg"]]))
    if error.error_count() > _MOST_ERRORS:
        lines.append(f"and {error.error_count() - _MOST_ERRORS} more")
    return f"{name}: " + "\n  ".join(lines)
