"""One and two API processes on PostgreSQL: report ingest, and rounds per second of two cells.

PostgreSQL, Redis, the worker and the load generator run on the same machine, so a second process on its own
host gains more. The second process always runs; in the measurement of one process it gets no requests.

python -m benchmarks.scale_out
"""

import asyncio
import json
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.http_load import generate_spread, prepare
from benchmarks.servers import OPERATOR_KEY, database_urls
from benchmarks.simulation import untrained
from benchmarks.stack import services_with_worker
from client_sim.simulated_run import run_simulated
from fedcs_client.api import AsyncApi

_RUNS = 5
_CONNECTIONS = 64
_SECONDS = 4.0
_CELLS = 2
_CLIENTS = 1_000
_ROUNDS = 15


def main() -> None:
    """Measure alternately, and print the ratios."""
    console = Console()
    table = Table(title="One and two API processes on PostgreSQL", title_justify="left")
    for name in ("measure", "1 process", "2 processes", "ratio"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    with database_urls() as urls, services_with_worker(2, database_url=urls["PostgreSQL"]) as services:
        addresses = [str(service.base_url) for service in services]
        requests = _reports(services[0])
        measures = {
            f"reports/s, {_CONNECTIONS} connections": lambda spread: _ingest(spread, requests),
            f"rounds/s, {_CELLS} cells of {_CLIENTS} clients, 1 MB": _simulate,
        }
        for label, measure in measures.items():
            one_service, two_services = [], []
            for run in range(_RUNS):
                console.print(f"{label}: run {run + 1} of {_RUNS}")
                one_service.append(measure(addresses[:1]))
                two_services.append(measure(addresses))
            ratio = statistics.median(
                after / before for before, after in zip(one_service, two_services, strict=True)
            )
            table.add_row(
                label,
                f"{statistics.median(one_service):.1f}",
                f"{statistics.median(two_services):.1f}",
                f"{ratio:.2f}",
            )
    console.print(table)


def _reports(service: httpx.Client) -> list[bytes]:
    clients = [{"client_id": f"c{number}"} for number in range(_CONNECTIONS)]
    enrolled = service.post("/clients/batch", json={"clients": clients}).raise_for_status().json()["clients"]
    resources = {"throughput_bps": 1_400_000.5, "compute_samples_per_s": 51.25, "data_samples": 512}
    return [
        prepare(
            "POST",
            "/reports",
            client["api_key"],
            json.dumps({"client_id": client["client_id"], **resources}).encode(),
        )
        for client in enrolled
    ]


def _ingest(urls: Sequence[str], requests: Sequence[bytes]) -> float:
    load = generate_spread(urls, requests, _SECONDS)
    assert set(load.statuses) == {201}, load.statuses
    return load.per_second


def _simulate(urls: Sequence[str]) -> float:
    """Rounds per second of several cells, each simulated in its own process."""
    with ProcessPoolExecutor(_CELLS, multiprocessing.get_context("spawn")) as simulators:
        times = list(simulators.map(_simulate_cell, [urls[cell % len(urls)] for cell in range(_CELLS)]))
    return _CELLS * _ROUNDS / (max(ended for _, ended in times) - min(began for began, _ in times))


def _simulate_cell(url: str) -> tuple[float, float]:
    """Simulate a cell; return when its rounds began and ended."""
    return asyncio.run(_run_cell(url))


async def _run_cell(url: str) -> tuple[float, float]:
    async with AsyncApi(url, OPERATOR_KEY) as api:
        run = await run_simulated(
            api,
            untrained(_CLIENTS, _ROUNDS),
            name=f"bench-{secrets.token_hex(4)}",
            training=False,
            on_round=lambda _: None,
        )
    ended = time.time()
    return ended - sum(record.wall_s for record in run.record.rounds), ended


if __name__ == "__main__":
    main()
