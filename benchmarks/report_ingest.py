"""Reports per second, on the disk before the answer, beside an endpoint that stores nothing.

python -m benchmarks.report_ingest
"""

import json
import statistics
from datetime import UTC, datetime

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.http_load import Load, generate, prepare
from benchmarks.servers import database_urls, python_server
from benchmarks.timing import median_seconds
from services.storage.database import Database

_CONNECTIONS = 64
_SECONDS = 4.0
_RUNS = 5
_BATCH = 10_000
_MANY_CONNECTIONS = 256
_LONG_SECONDS = 60.0
_LIMITS = {"SQLite": 0.6, "PostgreSQL": 0.5}


def main() -> None:
    """Measure on both databases, and print the ratios."""
    console = Console()
    table = Table(title="Report ingest", title_justify="left")
    for name in ("database", "measure", "ours", "peer", "ratio", "wanted"):
        table.add_column(name, justify="left" if name in ("database", "measure") else "right")
    with database_urls() as urls:
        for database, url in urls.items():
            with python_server("benchmarks.report_server", database_url=url) as (service, _):
                keys = _enrol(service, _MANY_CONNECTIONS)
                _measure_single(console, table, database, service, keys)
                _measure_batch(table, database, url, service, list(keys))
                _measure_many(table, database, service, keys)
    console.print(table)


def _enrol(service: httpx.Client, number: int) -> dict[str, str]:
    clients = [{"client_id": f"c{n}"} for n in range(number)]
    enrolled = service.post("/clients/batch", json={"clients": clients}).raise_for_status().json()["clients"]
    return {client["client_id"]: client["api_key"] for client in enrolled}


def _report(client_id: str) -> dict[str, object]:
    return {
        "client_id": client_id,
        "throughput_bps": 1_400_000.5,
        "compute_samples_per_s": 51.25,
        "data_samples": 512,
    }


def _load(service: httpx.Client, path: str, keys: dict[str, str], seconds: float) -> Load:
    requests = [
        prepare("POST", path, key, json.dumps(_report(client_id)).encode()) for client_id, key in keys.items()
    ]
    return generate(str(service.base_url), requests, seconds)


def _measure_single(
    console: Console, table: Table, database: str, service: httpx.Client, keys: dict[str, str]
) -> None:
    some = dict(list(keys.items())[:_CONNECTIONS])
    stored, checked = [], []
    for run in range(_RUNS):
        with console.status(f"{database}: run {run + 1} of {_RUNS}"):
            stored.append(_load(service, "/reports", some, _SECONDS).per_second)
            checked.append(_load(service, "/not-stored", some, _SECONDS).per_second)
    ratio = statistics.median(s / c for s, c in zip(stored, checked, strict=True))
    table.add_row(
        database,
        f"reports/s, {_CONNECTIONS} connections; peer stores nothing",
        f"{statistics.median(stored):.0f}",
        f"{statistics.median(checked):.0f}",
        f"{ratio:.2f}",
        f"≥ {_LIMITS[database]}",
    )


def _measure_batch(
    table: Table, database: str, url: str, service: httpx.Client, client_ids: list[str]
) -> None:
    rng = np.random.default_rng(0)
    owners = rng.choice(client_ids, _BATCH).tolist()
    body = json.dumps({"reports": [_report(owner) for owner in owners]}).encode()

    def post() -> None:
        answer = service.post("/reports/batch", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 201

    raw = Database(url)  # with the same durability and the same constraints
    with raw.engine.connect() as connection:
        known = connection.execute(text("SELECT client_id, serial FROM clients"))
        serials = {row.client_id: row.serial for row in known}
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    rows = [(serials[owner], 1_400_000.5, 51.25, 512, 10, now_us, now_us) for owner in owners]
    mark = "?" if database == "SQLite" else "%s"
    columns = (
        "client_serial, throughput_bps, compute_samples_per_s, data_samples, report_resource_blocks, "
        "observed_at, received_at"
    )
    statement = f"INSERT INTO resource_reports ({columns}) VALUES ({', '.join([mark] * 7)})"  # noqa: S608

    def insert() -> None:
        connection = raw.engine.raw_connection()
        cursor = connection.cursor()
        if raw.is_sqlite:
            cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(statement, rows)
        connection.commit()
        connection.close()

    seconds = median_seconds({"raw": insert, "ours": post}, _RUNS)
    raw.close()
    table.add_row(
        database,
        f"rows/s, batches of {_BATCH}; peer is a raw executemany",
        f"{_BATCH / seconds['ours']:.0f}",
        f"{_BATCH / seconds['raw']:.0f}",
        f"{seconds['raw'] / seconds['ours']:.2f}",
        "≥ 0.3",
    )


def _measure_many(table: Table, database: str, service: httpx.Client, keys: dict[str, str]) -> None:
    load = _load(service, "/reports", keys, _LONG_SECONDS)
    refused = sum(number for status, number in load.statuses.items() if status != 201)
    table.add_row(
        database,
        f"errors, {_MANY_CONNECTIONS} connections for {_LONG_SECONDS:.0f} s",
        f"{refused} of {len(load.latencies_s)}",
        "",
        f"p99 {load.latency_ms(99):.0f} ms",
        "0",
    )


if __name__ == "__main__":
    main()
