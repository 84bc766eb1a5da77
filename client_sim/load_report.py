"""Results of a load test: latencies, errors and memory of the service; JSON and a table."""

import asyncio
import json
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.table import Table

from client_sim.results import write_file
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from fedcs_client.endpoints import Call
from fedcs_client.retry import BrokenAnswerError
from services.errors import FedCSError

BUCKET_S = 10.0
_NO_ANSWER = "no answer by the end"

Answer = TypeVar("Answer")


class Operation(StrEnum):
    """The operations that are recorder."""

    REPORT = "report"
    LONG_POLL = "long poll"
    """The delay of the response after the poll's timeout or after the round was opened."""
    DOWNLOAD = "model download"
    UPLOAD = "upload"
    OPEN_ROUND = "open round"
    CLOSE_ROUND = "close round"
    """Of rounds with failed uploads, which do not end by themselves."""
    AGGREGATION = "aggregation"
    """From the response to the last upload to the event of the new model."""
    EVENTS = "events"
    METRICS = "metrics"


class OperationStats:
    """The latencies and errors of an operation."""

    def __init__(self) -> None:
        self.latencies_s = array("d")
        self.errors: Counter[str] = Counter()
        self.per_bucket: Counter[int] = Counter()
        """Responses in each 10 s since the start."""


class CallRecorder:
    """Sends calls, and records their latencies and errors."""

    def __init__(self, api: AsyncApi, duration_s: float) -> None:
        self._api = api
        self.starts_s = time.monotonic()
        self.ends_s = self.starts_s + duration_s
        self.stats = {operation: OperationStats() for operation in Operation}
        self.lags_s = array("d")
        """The delays of this process's timers: large values mean that the load generator was too busy."""

    async def send(
        self, operation: Operation, call: Call[Answer], key: str | None = None, due_s: float | None = None
    ) -> Answer | None:
        """Send a call and record its latency since ``due_s`` (default: now); None after an error."""
        since_s = time.monotonic() if due_s is None else due_s
        answer = await self.send_untimed(operation, call, key)
        if answer is not None:
            self.record_response(operation, time.monotonic() - since_s)
        return answer

    async def send_untimed(
        self, operation: Operation, call: Call[Answer], key: str | None = None
    ) -> Answer | None:
        """Send a call without recording its latency; None after an error, which is recorded."""
        with self.recording_timeouts(operation):
            try:
                return await self._api.send(call, key)
            except FedCSError as error:
                self.record_error(operation, error_kind(error))
                return None

    def record_response(self, operation: Operation, latency_s: float) -> None:
        """Record a response."""
        stats = self.stats[operation]
        stats.latencies_s.append(latency_s)
        stats.per_bucket[int((time.monotonic() - self.starts_s) // BUCKET_S)] += 1

    def record_error(self, operation: Operation, kind: str) -> None:
        """Record an error."""
        self.stats[operation].errors[kind] += 1

    @contextmanager
    def recording_timeouts(self, operation: Operation) -> Iterator[None]:
        """Record an error if the call is cancelled after the end of the test; before, the user did it."""
        try:
            yield
        except asyncio.CancelledError:
            if time.monotonic() >= self.ends_s:
                self.record_error(operation, _NO_ANSWER)
            raise

    async def wait_until(self, due_s: float) -> None:
        """Sleep until a time, and record the delay of the timer."""
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
            self.lags_s.append(time.monotonic() - due_s)

    @property
    def answers(self) -> int:
        """The number of responses."""
        return sum(len(stats.latencies_s) for stats in self.stats.values())

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(stats.errors.total() for stats in self.stats.values())


def error_kind(error: FedCSError) -> str:
    """The kind of an error, to count errors by."""
    if isinstance(error, ApiError):
        return f"{error.status} {error.problem.cause}"
    failure: BaseException = error
    while (
        failure.__cause__ is not None
    ):  # the first cause is the most specific, such as ConnectionRefusedError
        failure = failure.__cause__
        if isinstance(failure, BrokenAnswerError):
            reason = str(failure).partition(":")[0]
            return reason if reason[:3].isdecimal() else "invalid response"
    return type(failure).__name__


_SAMPLE_EVERY_S = 2.0
_WARM_UP_SHARE = 0.25
_MAX_WARM_UP_S = 30.0
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
_MEGABYTE = 1e6


@dataclass(frozen=True)
class MemorySample:
    """The service's resident memory at a time of the test."""

    at_s: float
    resident_mb: float


@dataclass(frozen=True)
class MemorySummary:
    """The service's memory after the warm-up, in which caches and pools fill."""

    first_mb: float
    last_mb: float
    most_mb: float
    slope_mb_per_min: float | None
    """By least squares; None with fewer than three samples."""
    samples: Sequence[MemorySample]
    """All samples, including the warm-up."""


async def sample_memory(recorder: CallRecorder, samples: list[MemorySample]) -> None:
    """Sample the service's memory until the end; there are no samples if it does not expose it."""
    due_s = recorder.starts_s
    while due_s <= recorder.ends_s:
        await recorder.wait_until(due_s)
        metrics = await recorder.send(Operation.METRICS, endpoints.server_metrics())
        if metrics is not None and (found := _RESIDENT.search(metrics)):
            at_s = time.monotonic() - recorder.starts_s
            samples.append(MemorySample(at_s, float(found[1]) / _MEGABYTE))
        due_s = max(due_s + _SAMPLE_EVERY_S, time.monotonic())


def summarize_memory(samples: Sequence[MemorySample], duration_s: float) -> MemorySummary | None:
    """Summarize the samples; None if there are none after the warm-up."""
    warm_up_s = min(_WARM_UP_SHARE * duration_s, _MAX_WARM_UP_S)
    warm = [sample for sample in samples if sample.at_s >= warm_up_s]
    if not warm:
        return None
    minutes = np.array([sample.at_s for sample in warm]) / 60
    resident_mb = np.array([sample.resident_mb for sample in warm])
    slope = float(np.polyfit(minutes, resident_mb, 1)[0]) if len(warm) >= 3 else None
    return MemorySummary(
        float(resident_mb[0]), float(resident_mb[-1]), float(resident_mb.max()), slope, list(samples)
    )


_PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class LatencySummary:
    """The distribution of latencies, in seconds."""

    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class OperationSummary:
    """The results of an operation."""

    count: int
    """The number of successful calls."""
    errors: Mapping[str, int]
    """The number of errors by kind."""
    per_s: float
    latency: LatencySummary | None
    """Of successful calls, from the time each was due."""
    per_10_s: Sequence[int]
    """Responses in each 10 s."""


@dataclass(frozen=True)
class LoadReport:
    """The report of a load test."""

    settings: Mapping[str, Any]
    duration_s: float
    """The duration of the load; shorter than set if the test was ended early."""
    ended_early: bool
    rounds: int
    """The number of aggregated rounds."""
    operations: Mapping[Operation, OperationSummary]
    """Only operations that occurred."""
    lag: LatencySummary | None
    """The delays of timers in the load generator."""
    memory: MemorySummary | None
    clients_left: int
    """Clients that are still enrolled."""

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(sum(figures.errors.values()) for figures in self.operations.values())

    @property
    def requests_per_s(self) -> float:
        """Responses per second, without aggregations."""
        return sum(
            figures.per_s
            for operation, figures in self.operations.items()
            if operation is not Operation.AGGREGATION
        )


def summarize_latency(latencies_s: Sequence[float]) -> LatencySummary | None:
    """Percentiles; None if there are no values."""
    if not latencies_s:
        return None
    p50_s, p90_s, p95_s, p99_s, max_s = np.percentile(np.asarray(latencies_s), (*_PERCENTS, 100)).tolist()
    return LatencySummary(p50_s, p90_s, p95_s, p99_s, max_s)


def summarize_operations(recorder: CallRecorder, duration_s: float) -> dict[Operation, OperationSummary]:
    """Summarize every operation that occurred."""
    return {
        operation: _summarize(stats, duration_s)
        for operation, stats in recorder.stats.items()
        if stats.latencies_s or stats.errors
    }


def write_report(path: Path, report: LoadReport) -> None:
    """Write the report as JSON."""
    content = asdict(report) | {"errors": report.errors, "requests_per_s": report.requests_per_s}
    write_file(path, (json.dumps(content, indent=2) + "\n").encode())


def load_table(report: LoadReport) -> Table:
    """A table with a row for each operation, and remarks below it."""
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


def _summarize(stats: OperationStats, duration_s: float) -> OperationSummary:
    count = len(stats.latencies_s)
    buckets = range(max(stats.per_bucket, default=-1) + 1)
    return OperationSummary(
        count,
        dict(stats.errors.most_common()),
        count / duration_s if duration_s else 0.0,
        summarize_latency(stats.latencies_s),
        [stats.per_bucket[bucket] for bucket in buckets],
    )


def _remarks(report: LoadReport) -> list[str]:
    remarks = [f"{report.requests_per_s:.0f} requests/s; {report.rounds} rounds aggregated"]
    kinds: Counter[str] = Counter()
    for figures in report.operations.values():
        kinds.update(figures.errors)
    listed = ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common())
    remarks.append(f"errors: {listed or 'none'}")
    if report.memory is not None:
        slope = report.memory.slope_mb_per_min
        growth = "" if slope is None else f" ({slope:+.1f} MB/min)"
        remarks.append(
            f"service memory: {report.memory.first_mb:.0f} MB after warm-up, "
            f"{report.memory.last_mb:.0f} MB at the end{growth}"
        )
    if report.lag is not None:
        remarks.append(
            f"timer delay in the load generator, p99: {1000 * report.lag.p99_s:.0f} ms "
            "(latencies may include it)"
        )
    if report.clients_left:
        remarks.append(f"{report.clients_left} clients are still enrolled")
    return remarks
