"""The results file: a line of JSON for every round that was played, appended when the round is over.

A line is written at once and synced before the next round begins. If the machine went down in the middle of
one, the torn end is cut off when the file is opened to go on.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from client_sim.reproduction.rows import Row, Trial
from client_sim.results import RoundRecord
from services.errors import FedCSError


class ResultsFileError(FedCSError):
    """The results file cannot be used."""

    cause: ClassVar[str] = "BAD_RESULTS_FILE"


class Line(BaseModel):
    """One round of one trial."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    dataset: str
    setting: str
    policy: str
    round_minutes: int
    uncertainty: float
    seed: int
    task_id: str
    """Of the run: a trial that was begun anew has lines of two."""
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

    @classmethod
    def of(cls, trial: Trial, task_id: str, record: RoundRecord) -> Self:
        """The line for a round that was played."""
        return cls(**asdict(trial.row), seed=trial.seed, task_id=task_id, **asdict(record))

    @property
    def trial(self) -> Trial:
        """Whose round it is."""
        row = Row(self.dataset, self.setting, self.policy, self.round_minutes, self.uncertainty)
        return Trial(row, self.seed)


@dataclass(frozen=True)
class TrialRun:
    """The rounds of one trial, from its first."""

    trial: Trial
    task_id: str
    rounds: Sequence[Line]

    @property
    def elapsed_s(self) -> float:
        """Of simulated time: every round costs its deadline."""
        return self.rounds[-1].elapsed_s

    @property
    def best_accuracy(self) -> float | None:
        """Of the best model so far."""
        return max((line.accuracy for line in self.rounds if line.accuracy is not None), default=None)


def read_runs(path: Path) -> list[TrialRun]:
    """Every run; a trial that was begun anew has several."""
    by_task: dict[tuple[Trial, str], list[Line]] = {}
    for place, text in enumerate(_whole_lines(path), start=1):
        try:
            line = Line.model_validate_json(text)
        except ValidationError as error:
            raise ResultsFileError(
                f"{path}: line {place} is no result: {error.errors()[0]['msg']}"
            ) from error
        rounds = by_task.setdefault((line.trial, line.task_id), [])
        if line.number != len(rounds) + 1:
            raise ResultsFileError(f"{path}: line {place} is round {line.number} after {len(rounds)} rounds")
        rounds.append(line)
    return [TrialRun(trial, task_id, rounds) for (trial, task_id), rounds in by_task.items()]


def farthest(runs: Iterable[TrialRun]) -> dict[Trial, TrialRun]:
    """The run of every trial; of a trial that was begun anew, the one that got farther."""
    found: dict[Trial, TrialRun] = {}
    for run in runs:
        if run.trial not in found or len(found[run.trial].rounds) <= len(run.rounds):
            found[run.trial] = run
    return found


def read_results(path: Path) -> dict[Trial, TrialRun]:
    """The run of every trial that got farthest."""
    return farthest(read_runs(path))


def _whole_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


class ResultsFile:
    """The file as the one process has it that appends to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, line: Line) -> None:
        """Add a round, durably."""
        left = memoryview(line.model_dump_json().encode() + b"\n")
        while left:  # a disk that fills up may take a part
            left = left[os.write(self._descriptor, left) :]
        os.fsync(self._descriptor)


@contextmanager
def appending_to(path: Path) -> Iterator[ResultsFile]:
    """The file, for one process at a time."""
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
