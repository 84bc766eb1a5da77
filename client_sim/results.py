"""What came of a run: ``rounds.csv`` and ``summary.json`` for machines, a table for people."""

import csv
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from rich.table import Table

from client_sim.scenario import Scenario
from services.errors import FedCSError

_MEASURED = ("fedcs-operator", "httpx", "numpy")
_RUN_COLUMNS = ("task_id", "scenario", "seed", "policy")


class ResultsError(FedCSError):
    """Results cannot be written."""

    cause: ClassVar[str] = "RESULTS_NOT_WRITTEN"


@dataclass(frozen=True)
class RoundRecord:
    """One round, as it went."""

    number: int
    asked: int
    selected: int
    received: int
    late: int
    dropped: int
    rejected: int
    elapsed_s: float | None
    """Of the task's clock at the end of the round; None for a round that failed before it had one."""
    duration_s: float | None
    accuracy: float | None
    loss: float | None
    wall_s: float
    """How long it took the simulator and the service to play it."""


@dataclass(frozen=True)
class RunRecord:
    """One task from its first round to its last."""

    scenario: Scenario
    """As it was run: with this run's policy and seed."""
    task_id: str
    rounds: Sequence[RoundRecord]
    outcome: str
    """Why it ended, in a sentence."""
    wall_s: float

    @property
    def policy(self) -> str:
        """How clients were selected."""
        return self.scenario.task.policy

    @property
    def clients_per_round(self) -> float | None:
        """Whose updates counted, on average."""
        return fmean(record.received for record in self.rounds) if self.rounds else None

    @property
    def late_share(self) -> float | None:
        """How many of the selected were late."""
        selected = sum(record.selected for record in self.rounds)
        return sum(record.late for record in self.rounds) / selected if selected else None

    @property
    def final_accuracy(self) -> float | None:
        """Of the newest model that was evaluated."""
        return self._accuracies[-1] if self._accuracies else None

    @property
    def best_accuracy(self) -> float | None:
        """Of the best of the models."""
        return max(self._accuracies, default=None)

    def time_to_s(self, accuracy: float) -> float | None:
        """By the task's clock, when a model was first as good as this."""
        for record in self.rounds:
            if record.accuracy is not None and record.accuracy >= accuracy:
                return record.elapsed_s
        return None

    @property
    def _accuracies(self) -> list[float]:
        return [record.accuracy for record in self.rounds if record.accuracy is not None]


def write_results(out: Path, runs: Sequence[RunRecord], accuracies: Sequence[float] = (0.5, 0.75)) -> None:
    """Write ``rounds.csv`` and ``summary.json``, with the times it took to reach these accuracies."""
    write_file(out / "rounds.csv", _rounds_csv(runs).encode())
    summary = {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _MEASURED},
        "runs": [_summarized(run, accuracies) for run in runs],
    }
    write_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def check_writable(out: Path) -> None:
    """Find out before a long run, not after it, whether there will be a place for its results."""
    probe = out / ".probe"
    write_file(probe, b"?")
    probe.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write all of a file or nothing, so that nobody finds half of one."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ResultsError(f"{path} cannot be written: {error.strerror}") from error


def summary_table(runs: Sequence[RunRecord], accuracies: Sequence[float] = (0.5, 0.75)) -> Table:
    """The runs beside each other."""
    table = Table(title="How it went", title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(run.policy, justify="right")
    rows = {
        "rounds": [str(len(run.rounds)) for run in runs],
        "clients per round": [_shown(run.clients_per_round, "{:.2f}") for run in runs],
        "late": [_shown(run.late_share, "{:.1%}") for run in runs],
        "final accuracy": [_shown(run.final_accuracy, "{:.3f}") for run in runs],
        "best accuracy": [_shown(run.best_accuracy, "{:.3f}") for run in runs],
    }
    for accuracy in accuracies:
        times = (run.time_to_s(accuracy) for run in runs)
        rows[f"minutes to {accuracy:g}"] = [_shown(s and s / 60, "{:.1f}") for s in times]
    rows["simulated in"] = [f"{run.wall_s:.1f} s" for run in runs]
    for name, cells in rows.items():
        if set(cells) != {_NOTHING}:
            table.add_row(name, *cells)
    return table


_NOTHING = "–"


def _shown(value: float | None, pattern: str) -> str:
    return _NOTHING if value is None else pattern.format(value)


def _rounds_csv(runs: Sequence[RunRecord]) -> str:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*_RUN_COLUMNS, *(column.name for column in fields(RoundRecord))])
    for run in runs:
        of_run = (run.task_id, run.scenario.name, run.scenario.seed, run.policy)
        rows.writerows([*of_run, *asdict(record).values()] for record in run.rounds)
    return text.getvalue()


def _summarized(run: RunRecord, accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        "task_id": run.task_id,
        "policy": run.policy,
        "seed": run.scenario.seed,
        "rounds": len(run.rounds),
        "outcome": run.outcome,
        "clients_per_round": run.clients_per_round,
        "late_share": run.late_share,
        "final_accuracy": run.final_accuracy,
        "best_accuracy": run.best_accuracy,
        "time_to_accuracy_s": {f"{accuracy:g}": run.time_to_s(accuracy) for accuracy in accuracies},
        "wall_s": run.wall_s,
        "scenario": run.scenario.model_dump(mode="json"),
    }
