import asyncio
import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_sim.load_report import (
    CallRecorder,
    LoadReport,
    MemorySample,
    Operation,
    load_table,
    summarize_latency,
    summarize_memory,
    summarize_operations,
    write_report,
)
from client_sim.load_test import LoadSettings
from client_sim.results import ResultsError
from fedcs_client.api import AsyncApi


def make_report() -> LoadReport:
    async def measure() -> CallRecorder:
        return CallRecorder(AsyncApi("http://test", "key", retry_timeout_s=0), 10)

    recorder = asyncio.run(measure())
    for number in range(1, 101):
        recorder.record_response(Operation.REPORT, number / 1000)
    recorder.record_response(Operation.AGGREGATION, 0.25)
    recorder.record_error(Operation.UPLOAD, "ConnectError")
    recorder.record_error(Operation.UPLOAD, "ConnectError")
    recorder.record_error(Operation.REPORT, "429 Too Many Requests")
    samples = [MemorySample(float(at_s), 100 + at_s / 60) for at_s in range(11)]
    return LoadReport(
        asdict(LoadSettings()),
        10.0,
        False,
        1,
        summarize_operations(recorder, 10.0),
        summarize_latency([0.004]),
        summarize_memory(samples, 10.0),
        7,
    )


def shown(report: LoadReport) -> str:
    text = StringIO()
    Console(width=150, file=text).print(load_table(report))
    return text.getvalue()


def test_percentiles() -> None:
    figures = summarize_latency([number / 1000 for number in range(101)])
    assert figures is not None
    assert asdict(figures) == pytest.approx(
        {"p50_s": 0.05, "p90_s": 0.09, "p95_s": 0.095, "p99_s": 0.099, "max_s": 0.1}
    )
    assert summarize_latency([]) is None


def test_what_occurred_is_told_by_operation() -> None:
    report = make_report()
    assert set(report.operations) == {Operation.REPORT, Operation.AGGREGATION, Operation.UPLOAD}
    reports = report.operations[Operation.REPORT]
    assert (reports.count, reports.per_s, list(reports.per_10_s)) == (100, 10, [100])
    uploads = report.operations[Operation.UPLOAD]
    assert (uploads.count, uploads.latency, uploads.errors) == (0, None, {"ConnectError": 2})
    assert (report.errors, report.requests_per_s) == (3, 10)


def test_the_table_tells_times_errors_and_memory() -> None:
    text = shown(make_report())
    row = next(line for line in text.splitlines() if "│ report" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")[:4]] == ["report", "100", "1", "10.0"]
    assert "5000 clients for 10 s; times in ms" in text
    assert "errors: 2 × ConnectError, 1 × 429 Too Many Requests" in text
    words = " ".join(text.split())
    assert "service memory: 100 MB after warm-up, 100 MB at the end (+1.0 MB/min)" in words
    assert "7 clients are still enrolled" in text


def test_the_table_of_a_test_that_was_ended_at_once() -> None:
    report = replace(
        make_report(), ended_early=True, duration_s=0.0, operations={}, lag=None, memory=None, clients_left=0
    )
    text = shown(report)
    assert "(ended early)" in text
    assert "errors: none" in text
    assert "memory" not in text
    assert "still enrolled" not in text


def test_the_file_says_it_to_machines(tmp_path: Path) -> None:
    write_report(tmp_path / "new" / "load.json", make_report())
    told = json.loads((tmp_path / "new" / "load.json").read_text())
    assert (told["errors"], told["requests_per_s"], told["settings"]["clients"]) == (3, 10, 5000)
    assert told["operations"]["report"]["latency"]["max_s"] == 0.1
    assert told["memory"]["slope_mb_per_min"] == pytest.approx(1)
    with pytest.raises(ResultsError, match="cannot be written"):
        write_report(tmp_path / "new" / "load.json" / "below", make_report())
