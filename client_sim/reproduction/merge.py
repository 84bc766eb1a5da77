"""``fedcs reproduce merge``: add the rounds of other results files to one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client_sim.reproduction.results_file import (
    ResultLine,
    ResultsFileError,
    open_results,
    read_lines,
    runs_of,
)
from client_sim.reproduction.rows import Trial

_ADDED_FIELDS = {
    "deadline_mode": "fixed",
    "update_encoding": "float32",
    "model_encoding": "float32",
    "dispatch": "scheduled",
    "model": "paper-cnn",
    "aggregation": "weighted",
    "changes": [],
}
"""Fields that lines of older versions do not have, with the values that they ran with."""


def merge_results(sources: Sequence[Path], results_path: Path, version: str | None) -> int:
    """Append the rounds that are not in the results file; return their number.

    Lines of older versions are completed if ``version`` says which version wrote them. Nothing is written
    if a round differs from the recorded one, or if two files have different runs of a trial.
    """

    def complete(content: dict[str, Any]) -> None:
        if version is not None and "version" not in content:
            content |= {name: value for name, value in _ADDED_FIELDS.items() if name not in content}
            _move_named_changes(content)
            content["version"] = version

    with open_results(results_path) as results:
        recorded = read_lines(results_path)
        merged = list(recorded)
        for source in sources:
            if not source.is_file():
                raise ResultsFileError(f"{source}: there is no such file")
            merged += _new_lines(merged, read_lines(source, complete), source)
        runs_of(merged, results_path)
        new = merged[len(recorded) :]
        results.append(*new)
    return len(new)


def _move_named_changes(content: dict[str, Any]) -> None:
    """Move changes that have an own field now to that field."""
    changes = dict(text.split("=", 1) for text in content["changes"])
    content |= {name: changes.pop(name) for name in list(changes) if name in _ADDED_FIELDS}
    content["changes"] = sorted(f"{name}={value}" for name, value in changes.items())


def _new_lines(merged: Sequence[ResultLine], lines: Sequence[ResultLine], source: Path) -> list[ResultLine]:
    runs_of(lines, source)
    known = {(line.task_id, line.number): line for line in merged}
    new = []
    for number, line in enumerate(lines, start=1):
        recorded = known.get((line.task_id, line.number))
        if recorded is None:
            new.append(line)
        elif recorded != line:
            raise ResultsFileError(
                f"{source}: line {number} differs from the recorded round {line.number} of {line.trial} "
                f"({line.task_id}): {_difference(recorded, line)}"
            )
    _check_same_runs(merged, lines, source)
    return new


def _difference(recorded: ResultLine, line: ResultLine) -> str:
    name = next(name for name in type(line).model_fields if getattr(line, name) != getattr(recorded, name))
    return f"{name} is {getattr(line, name)}, not {getattr(recorded, name)}"


def _check_same_runs(merged: Sequence[ResultLine], lines: Sequence[ResultLine], source: Path) -> None:
    """Check that no trial is in both as different runs of the same version."""
    here: dict[tuple[Trial, str], set[str]] = {}
    for line in lines:
        here.setdefault((line.trial, line.version), set()).add(line.task_id)
    for line in merged:
        tasks = here.get((line.trial, line.version))
        if tasks is not None and line.task_id not in tasks:
            raise ResultsFileError(
                f"{source}: {line.trial}, version {line.version}, is already recorded as another run: "
                f"{line.task_id} there, {', '.join(sorted(tasks))} here; remove the lines of one of them"
            )
