"""Results of runs: ``rounds.csv``, ``summary.json``, ``uploads.csv``, and tables for the terminal."""

import csv
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, ClassVar, Self, get_type_hints

from rich.table import Table

from client_sim.device import MeasuredUpload
from client_sim.experiment import label_of
from client_sim.scenario import Scenario
from services.errors import FedCSError
from services.escaping import escape_formula


def write_uploads(path: Path, uploads: Mapping[str, Sequence[MeasuredUpload]]) -> None:
    """Write all uploads as CSV."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["policy", *(column.name for column in fields(MeasuredUpload))])
    for policy, sent in uploads.items():
        rows.writerows([policy, *asdict(upload).values()] for upload in sent)
    write_file(path, text.getvalue().encode())


def upload_accuracy(uploads: Mapping[str, Sequence[MeasuredUpload]]) -> Table:
    """Compare measured upload times with size ÷ throughput."""
    table = Table(title="Uploads: measured time ÷ (size ÷ throughput)", title_justify="left")
    table.add_column("")
    for heading in ("uploads", "synthetic", "min", "median", "max"):
        table.add_column(heading, justify="right")
    for policy, sent in uploads.items():
        ratios = [upload.measured_s / upload.expected_s for upload in sent if upload.measured_s is not None]
        shown = [f"{value(ratios):.3f}" for value in (min, median, max)] if ratios else ["–"] * 3
        table.add_row(policy, str(len(sent)), str(sum(upload.is_synthetic for upload in sent)), *shown)
    return table


_RECORDED_VERSIONS = ("fedcs-operator", "httpx", "numpy")
_RUN_COLUMNS = ("task_id", "scenario", "seed", "policy", "swept")


class ResultsError(FedCSError):
    """The results cannot be written."""

    cause: ClassVar[str] = "RESULTS_NOT_WRITTEN"


@dataclass(frozen=True)
class RoundRecord:
    """The result of a round."""

    number: int
    asked: int
    selected: int
    received: int
    late: int
    dropped: int
    rejected: int
    elapsed_s: float | None
    """The task's elapsed time at the end of the round."""
    duration_s: float | None
    accuracy: float | None
    loss: float | None
    wall_s: float
    """The real time that the round took."""
    round_deadline_s: float | None = None
    """The deadline of its schedule; None: it has none, or an older version recorded it."""
    noise_scale: float | None = None
    """By which an adaptive deadline was chosen."""


@dataclass(frozen=True)
class RunRecord:
    """One task from its first round to its last."""

    scenario: Scenario
    """As it was run: with this run's policy and seed."""
    task_id: str
    rounds: Sequence[RoundRecord]
    outcome: str | None
    """Why the run ended; None while it is running, and if it was interrupted."""
    wall_s: float
    initial_accuracy: float | None = None
    """The accuracy of version 0 of the model."""
    swept: str = ""
    """The value of the sweep, as ``field=value``."""

    @property
    def label(self) -> str:
        """What the trials of this policy and value have in common."""
        return label_of(self.scenario, self.swept)

    @property
    def policy(self) -> str:
        """The selection policy."""
        return self.scenario.task.policy

    @property
    def clients_per_round(self) -> float | None:
        """The mean number of updates received in a round."""
        return fmean(record.received for record in self.rounds) if self.rounds else None

    @property
    def late_share(self) -> float | None:
        """The share of selected clients that were late."""
        selected = sum(record.selected for record in self.rounds)
        return sum(record.late for record in self.rounds) / selected if selected else None

    @property
    def final_accuracy(self) -> float | None:
        """The accuracy of the last evaluated model."""
        return self._accuracies[-1] if self._accuracies else None

    @property
    def best_accuracy(self) -> float | None:
        """The accuracy of the best model."""
        return max(self._accuracies, default=None)

    def time_to_s(self, accuracy: float) -> float | None:
        """The task's elapsed time when a model first reached an accuracy."""
        for record in self.rounds:
            if record.accuracy is not None and record.accuracy >= accuracy:
                return record.elapsed_s
        return None

    @property
    def selected_nobody(self) -> bool:
        """Whether no client was selected in any round."""
        return bool(self.rounds) and not any(record.selected for record in self.rounds)

    @property
    def _accuracies(self) -> list[float]:
        return [record.accuracy for record in self.rounds if record.accuracy is not None]


def trials_of(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of each policy and value of the sweep."""
    trials: dict[str, list[RunRecord]] = {}
    for run in runs:
        trials.setdefault(run.label, []).append(run)
    return trials


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a figure over the trials that have it."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean."""
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the sample; None with fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """The spread of the known values; None if there is none."""
        known = [value for value in values if value is not None]
        return cls(known) if known else None

    def text(self, pattern: str, trials: int) -> str:
        """The mean, with ± standard deviation; in parentheses how many of the trials have a value."""
        shown = pattern.format(self.mean)
        if self.deviation is not None:
            shown += f" ± {pattern.format(self.deviation)}"
        return shown if len(self.values) == trials else f"{shown} ({len(self.values)} of {trials})"


def write_results(out: Path, runs: Sequence[RunRecord], accuracies: Sequence[float] = (0.5, 0.75)) -> None:
    """Write ``rounds.csv`` and ``summary.json`` with the times to these accuracies."""
    write_file(out / "rounds.csv", _rounds_csv(runs).encode())
    summary = {
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _RECORDED_VERSIONS},
        "runs": [_summarized(run, accuracies) for run in runs],
        "trials": [_trials_summarized(trials, accuracies) for trials in trials_of(runs).values()],
    }
    write_file(out / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def check_writable(out: Path) -> None:
    """Raise `ResultsError` if files cannot be written to the directory."""
    probe = out / ".probe"
    write_file(probe, b"")
    probe.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically."""
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
    """A table that compares policies and values of the sweep: mean ± standard deviation over the trials."""
    compared = trials_of(runs)
    table = Table(title="Summary", title_justify="left")
    table.add_column("")
    for label in compared:
        table.add_column(label, justify="right")
    if any(len(trials) > 1 for trials in compared.values()):
        table.add_row("trials", *(str(len(trials)) for trials in compared.values()))
    for name, (pattern, figure) in _figures(accuracies).items():
        cells = [_cell([figure(run) for run in trials], pattern) for trials in compared.values()]
        if set(cells) != {_NO_VALUE}:
            table.add_row(name, *cells)
    return table


def _figures(
    accuracies: Sequence[float],
) -> dict[str, tuple[str, Callable[[RunRecord], float | None]]]:
    """What is compared: a format, and the figure of a run."""

    def minutes_to(run: RunRecord, accuracy: float) -> float | None:
        time_s = run.time_to_s(accuracy)
        return None if time_s is None else time_s / 60

    return {
        "rounds": ("{:g}", lambda run: len(run.rounds)),
        "clients per round": ("{:.2f}", lambda run: run.clients_per_round),
        "late": ("{:.1%}", lambda run: run.late_share),
        "initial accuracy": ("{:.3f}", lambda run: run.initial_accuracy),
        "final accuracy": ("{:.3f}", lambda run: run.final_accuracy),
        "best accuracy": ("{:.3f}", lambda run: run.best_accuracy),
        **{
            f"minutes to {accuracy:g}": ("{:.1f}", partial(minutes_to, accuracy=accuracy))
            for accuracy in accuracies
        },
        "real time": ("{:.1f} s", lambda run: run.wall_s),
    }


def _cell(values: Sequence[float | None], pattern: str) -> str:
    spread = Spread.of(values)
    return _NO_VALUE if spread is None else spread.text(pattern, len(values))


_NO_VALUE = "–"


def format_or_dash(value: float | None, pattern: str) -> str:
    """A formatted value; a dash if there is none."""
    return _NO_VALUE if value is None else pattern.format(value)


def _rounds_csv(runs: Sequence[RunRecord]) -> str:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*_RUN_COLUMNS, *(column.name for column in fields(RoundRecord))])
    for run in runs:
        run_columns = (
            run.task_id,
            escape_formula(run.scenario.name),
            run.scenario.seed,
            run.policy,
            run.swept,
        )
        rows.writerows([*run_columns, *asdict(record).values()] for record in run.rounds)
    return text.getvalue()


def _summarized(run: RunRecord, accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        "task_id": run.task_id,
        "policy": run.policy,
        "seed": run.scenario.seed,
        "swept": run.swept,
        "rounds": len(run.rounds),
        "outcome": run.outcome,
        "clients_per_round": run.clients_per_round,
        "late_share": run.late_share,
        "initial_accuracy": run.initial_accuracy,
        "final_accuracy": run.final_accuracy,
        "best_accuracy": run.best_accuracy,
        "time_to_accuracy_s": {f"{accuracy:g}": run.time_to_s(accuracy) for accuracy in accuracies},
        "wall_s": run.wall_s,
        "scenario": run.scenario.model_dump(mode="json"),
    }


def _trials_summarized(trials: Sequence[RunRecord], accuracies: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation over the trials of a policy and value of the sweep."""
    figures: dict[str, Any] = {}
    for name, (_, figure) in _figures(accuracies).items():
        spread = Spread.of(figure(run) for run in trials)
        figures[name] = None if spread is None else {"mean": spread.mean, "std": spread.deviation}
    first = trials[0]
    return {"policy": first.policy, "swept": first.swept, "trials": len(trials), "figures": figures}


def check_unused(out: Path) -> None:
    """Raise `ResultsError` if the directory has results, which would be overwritten."""
    if any((out / name).exists() for name in _RESULT_FILES):
        raise ResultsError(
            f"{out} has results of an earlier run: use another directory for --out, or --resume to add "
            "the runs that are missing"
        )


def remove_results(out: Path) -> bool:
    """Remove the results in a directory; return whether there were any."""
    found = [out / name for name in _RESULT_FILES if (out / name).exists()]
    for path in found:
        path.unlink()
    return bool(found)


def read_finished(out: Path) -> list[RunRecord]:
    """The runs in a directory of results that were not interrupted."""
    try:
        summary = json.loads((out / "summary.json").read_bytes())
        with (out / "rounds.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            _run_read(run, [row for row in rows if row["task_id"] == run["task_id"]])
            for run in summary["runs"]
            if run["outcome"] is not None
        ]
    except FileNotFoundError as error:
        raise ResultsError(f"{out} has no results to resume: {error.filename} is missing") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{out} has results that cannot be read: {error}") from error


def _run_read(run: dict[str, Any], rows: Sequence[dict[str, str]]) -> RunRecord:
    types = get_type_hints(RoundRecord)
    rounds = []
    for row in rows:
        values: dict[str, Any] = {
            name: None if row[name] == "" else _NUMBERS[kind](row[name]) for name, kind in types.items()
        }
        rounds.append(RoundRecord(**values))
    if len(rounds) != run["rounds"]:
        raise ValueError(f"rounds.csv has {len(rounds)} of the {run['rounds']} rounds of {run['task_id']}")
    return RunRecord(
        Scenario.model_validate_json(json.dumps(run["scenario"])),
        run["task_id"],
        rounds,
        run["outcome"],
        run["wall_s"],
        run["initial_accuracy"],
        run["swept"],
    )


_NUMBERS: Mapping[Any, Callable[[str], Any]] = {int: int, float: float, float | None: float}
_RESULT_FILES = ("summary.json", "rounds.csv")
