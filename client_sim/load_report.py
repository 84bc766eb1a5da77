"""What a load test found: JSON for machines, a table for people."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from client_sim.load_latency import Measured, Operation, Tally
from client_sim.results import write_file
from client_sim.server_memory import MemoryFigures

_PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class LatencyFigures:
    """The distribution of latencies, in seconds."""

    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class OperationFigures:
    """What became of one operation's calls."""

    count: int
    """Those that were answered as hoped for."""
    errors: Mapping[str, int]
    """The others, by kind."""
    per_s: float
    latency: LatencyFigures | None
    """Of those that were answered, from the moment each was due."""
    per_10_s: Sequence[int]
    """How many were answered in each ten seconds."""


@dataclass(frozen=True)
class LoadReport:
    """What a load test found."""

    settings: Mapping[str, Any]
    duration_s: float
    """How long there was load; less than asked for if it was ended early."""
    ended_early: bool
    rounds: int
    """Those that were aggregated."""
    operations: Mapping[Operation, OperationFigures]
    """Those that occurred."""
    lag: LatencyFigures | None
    """How late clients of this test woke up: where it is much, this machine was too busy."""
    memory: MemoryFigures | None
    clients_left: int
    """Those that are still enrolled."""

    @property
    def errors(self) -> int:
        """How many there were, of any kind."""
        return sum(sum(figures.errors.values()) for figures in self.operations.values())

    @property
    def requests_per_s(self) -> float:
        """How many calls were answered a second; an aggregation is none."""
        return sum(
            figures.per_s
            for operation, figures in self.operations.items()
            if operation is not Operation.AGGREGATION
        )


def latency_figures(latencies_s: Sequence[float]) -> LatencyFigures | None:
    """Their percentiles; None for none."""
    if not latencies_s:
        return None
    p50_s, p90_s, p95_s, p99_s, max_s = np.percentile(np.asarray(latencies_s), (*_PERCENTS, 100)).tolist()
    return LatencyFigures(p50_s, p90_s, p95_s, p99_s, max_s)


def operation_figures(measured: Measured, duration_s: float) -> dict[Operation, OperationFigures]:
    """What became of each operation that occurred."""
    return {
        operation: _figures(tally, duration_s)
        for operation, tally in measured.tallies.items()
        if tally.latencies_s or tally.errors
    }


def write_report(path: Path, report: LoadReport) -> None:
    """Write the report as JSON."""
    content = asdict(report) | {"errors": report.errors, "requests_per_s": report.requests_per_s}
    write_file(path, (json.dumps(content, indent=2) + "\n").encode())


def load_table(report: LoadReport) -> Table:
    """A row for each operation; below them what else there is to say."""
    headline = f"{report.settings['clients']} clients for {report.duration_s:.0f} s"
    table = Table(
        title=f"{headline}{' (ended early)' if report.ended_early else ''}; times in ms",
        title_justify="left",
        caption="\n".join(_remarks(report)),
        caption_justify="left",
    )
    table.add_column("")
    for name in ("count", "errors", "per s", *(f"p{percent}" for percent in _PERCENTS), "max"):
        table.add_column(name, justify="right")
    for operation, figures in report.operations.items():
        times = asdict(figures.latency).values() if figures.latency else ()
        shown = [f"{1000 * time_s:.0f}" for time_s in times] or ["–"] * (len(_PERCENTS) + 1)
        errors = sum(figures.errors.values())
        table.add_row(
            operation.value, str(figures.count), str(errors), f"{figures.per_s:.1f}", *shown,
            style="red" if errors else None,
        )  # fmt: skip
    return table


def _figures(tally: Tally, duration_s: float) -> OperationFigures:
    count = len(tally.latencies_s)
    buckets = range(max(tally.per_bucket, default=-1) + 1)
    return OperationFigures(
        count,
        dict(tally.errors.most_common()),
        count / duration_s if duration_s else 0.0,
        latency_figures(tally.latencies_s),
        [tally.per_bucket[bucket] for bucket in buckets],
    )


def _remarks(report: LoadReport) -> list[str]:
    remarks = [f"{report.requests_per_s:.0f} requests/s; {report.rounds} rounds aggregated"]
    kinds: Counter[str] = Counter()
    for figures in report.operations.values():
        kinds.update(figures.errors)
    told = ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common())
    remarks.append(f"errors: {told or 'none'}")
    if report.memory is not None:
        slope = report.memory.slope_mb_per_min
        grows = "" if slope is None else f" ({slope:+.1f} MB/min)"
        remarks.append(
            f"memory of the service: {report.memory.first_mb:.0f} MB after warming up, "
            f"{report.memory.last_mb:.0f} MB at the end{grows}"
        )
    if report.lag is not None:
        remarks.append(
            f"clients woke up {1000 * report.lag.p99_s:.0f} ms late or less, 99 % of the time: "
            "as much of the times may be this machine's own"
        )
    if report.clients_left:
        remarks.append(f"{report.clients_left} clients are still enrolled")
    return remarks
