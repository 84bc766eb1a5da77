"""The results file: a line of JSON for every round, appended and synced when the round has ended.

An incomplete last line, left by a crash, is removed when the file is opened for writing. ``fedcs reproduce
merge`` adds the rounds of other results files to one.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client_sim.reproduction.rows import Row, Trial
from client_sim.results import RoundRecord
from client_sim.scenario import first_error
from services.errors import FedCSError

CURRENT_VERSION = version("fedcs-operator")


class ResultsFileError(FedCSError):
    """The results file is invalid or in use."""

    cause: ClassVar[str] = "BAD_RESULTS_FILE"


class ResultLine(BaseModel):
    """A round of a trial."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    dataset: str
    setting: str
    policy: str
    round_minutes: int
    uncertainty: float
    seed: int
    task_id: str
    """Identifies the run: a trial that was restarted has several."""
    number: int
    asked: int
    selected: int
    received: int
    late: int
    dropped: int
    rejected: int
    elapsed_s: float
    duration_s: float | None
    accuracy: float | None
    loss: float | None
    wall_s: float
    deadline_mode: str
    update_encoding: str
    model_encoding: str
    dispatch: str
    model: str
    aggregation: str
    changes: Annotated[tuple[str, ...], Field(strict=False)]
    version: str
    """The version of the code that ran the round."""
    round_deadline_s: float | None = None
    """The deadline of the round's schedule; lines of older versions do not have it."""
    noise_scale: float | None = None

    @classmethod
    def of(cls, trial: Trial, task_id: str, record: RoundRecord) -> Self:
        """The line of a round."""
        return cls(
            **asdict(trial.row),
            seed=trial.seed,
            task_id=task_id,
            **asdict(record),
            version=CURRENT_VERSION,
        )

    @property
    def trial(self) -> Trial:
        """The trial of this round."""
        row = Row(**{field.name: getattr(self, field.name) for field in fields(Row)})
        return Trial(row, self.seed)


@dataclass(frozen=True)
class TrialRun:
    """The rounds of a trial, from the first."""

    trial: Trial
    task_id: str
    rounds: Sequence[ResultLine]

    @property
    def version(self) -> str:
        """The version of the code; of a run that was continued with another one, all of them."""
        return " and ".join(sorted({line.version for line in self.rounds}))

    @property
    def elapsed_s(self) -> float:
        """Simulated time: fixed rounds take their full deadline, adaptive ones the time that they took."""
        return self.rounds[-1].elapsed_s

    @property
    def best_accuracy(self) -> float | None:
        """The accuracy of the best model."""
        return max((line.accuracy for line in self.rounds if line.accuracy is not None), default=None)

    def deadlines_until(self, accuracy: float) -> float | None:
        """The minutes until an accuracy was first reached, if every round takes its own full deadline.

        None if it was not reached, or if the deadlines of adaptive rounds were not recorded.
        """
        total_s = before_s = 0.0
        for line in self.rounds:
            if line.round_deadline_s is None and line.deadline_mode != "fixed":
                return None
            total_s += line.round_deadline_s or line.elapsed_s - before_s
            before_s = line.elapsed_s
            if line.accuracy is not None and line.accuracy >= accuracy:
                return total_s / 60
        return None

    def first_reached(self, accuracy: float) -> tuple[float, float] | None:
        """The minutes until an accuracy was first reached: by the task's time, and by actual ends."""
        ends_s = accumulate(line.duration_s or 0.0 for line in self.rounds)
        for line, end_s in zip(self.rounds, ends_s, strict=True):
            if line.accuracy is not None and line.accuracy >= accuracy:
                return line.elapsed_s / 60, end_s / 60
        return None


def read_lines(path: Path, complete: Callable[[dict[str, Any]], None] | None = None) -> list[ResultLine]:
    """All lines; ``complete`` can add fields that lines of older versions do not have."""
    lines = []
    for number, text in enumerate(_whole_lines(path), start=1):
        try:
            content = json.loads(text)
            if complete is not None and isinstance(content, dict):
                complete(content)
            lines.append(ResultLine.model_validate_json(json.dumps(content)))
        except ValidationError as error:
            raise ResultsFileError(
                f"{path}: line {number} is not a valid result: {first_error(error)}{_advice(error)}"
            ) from error
        except ValueError as error:
            raise ResultsFileError(f"{path}: line {number} is not a valid result: not JSON") from error
    return lines


def _advice(error: ValidationError) -> str:
    missing = {str(item["loc"][-1]) for item in error.errors() if item["type"] == "missing"}
    if "version" not in missing or "task_id" in missing:
        return ""
    return "; an older version wrote it: complete it with `fedcs reproduce merge --version`"


def read_runs(path: Path) -> list[TrialRun]:
    """All runs; a trial that was restarted has several."""
    return runs_of(read_lines(path), path)


def runs_of(lines: Iterable[ResultLine], path: Path) -> list[TrialRun]:
    """The runs of the lines of a file."""
    by_task: dict[tuple[Trial, str], list[ResultLine]] = {}
    for number, line in enumerate(lines, start=1):
        rounds = by_task.setdefault((line.trial, line.task_id), [])
        if line.number != len(rounds) + 1:
            raise ResultsFileError(f"{path}: line {number} is round {line.number} after {len(rounds)} rounds")
        rounds.append(line)
    return [TrialRun(trial, task_id, rounds) for (trial, task_id), rounds in by_task.items()]


def longest_runs(runs: Iterable[TrialRun]) -> dict[Trial, TrialRun]:
    """The longest run of every trial."""
    found: dict[Trial, TrialRun] = {}
    for run in runs:
        if run.trial not in found or len(found[run.trial].rounds) <= len(run.rounds):
            found[run.trial] = run
    return found


def read_results(path: Path) -> dict[Trial, TrialRun]:
    """Read the longest run of every trial."""
    return longest_runs(read_runs(path))


def current_runs(runs: Iterable[TrialRun]) -> dict[Trial, TrialRun]:
    """The longest run of every trial, of those that this version of the code ran."""
    return longest_runs(run for run in runs if run.version == CURRENT_VERSION)


def _whole_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


class ResultsFile:
    """The results file, open for writing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, *lines: ResultLine) -> None:
        """Append lines and sync them to the disk."""
        left = memoryview(b"".join(line.model_dump_json().encode() + b"\n" for line in lines))
        while left:  # a full disk may write a part
            left = left[os.write(self._descriptor, left) :]
        os.fsync(self._descriptor)


@contextmanager
def open_results(path: Path) -> Iterator[ResultsFile]:
    """Open the file for writing, with a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsFileError(f"{path}: another `fedcs reproduce` is writing to it") from error
        os.ftruncate(descriptor, sum(len(line) + 1 for line in _whole_lines(path)))
        yield ResultsFile(descriptor)
    finally:
        os.close(descriptor)


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
