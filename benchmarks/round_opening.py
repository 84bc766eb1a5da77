"""Opening a round with 100,000 clients: database time, compared with raw inserts and one read.

python -m benchmarks.round_opening
"""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.servers import database_urls
from operator_api.server import spare_the_collector
from services.contract.tasks import TaskRequest
from services.domain.radio import Cell
from services.protocol.initialization import set_initial_model, start_task
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.storage.database import Database
from services.storage.migration import migrate
from services.storage.model_store import Blob
from services.storage.sql import to_microseconds

_CLIENTS = 100_000
_BATCH = 10_000
_RUNS = 5


def main() -> None:
    """Measure on both databases, and print the ratios."""
    console = Console()
    table = Table(title=f"POST /rounds, {_CLIENTS:,} clients with reports, C = 0.1", title_justify="left")
    for name in ("database", "database part ms", "insert ms", "read ms", "ratio", "wanted", "the rest ms"):
        table.add_column(name, justify="left" if name == "database" else "right")
    with database_urls() as urls:
        for name, url in urls.items():
            database = Database(url)
            migrate(database)
            with console.status(f"{name}: enrolling"):
                _enrol(database)
            spare_the_collector()
            ours_s, insert_s, read_s, rest_s_of_runs = [], [], [], []
            for run in range(_RUNS):
                with console.status(f"{name}: run {run + 1} of {_RUNS}"):
                    round_serial, database_s, rest_s = _open(database)
                    ours_s.append(database_s)
                    rest_s_of_runs.append(rest_s)
                    insert_s.append(_insert_raw(database, round_serial))
                    read_s.append(_read_raw(database, round_serial))
            database.close()
            ratio = statistics.median(
                ours / (insert + read) for ours, insert, read in zip(ours_s, insert_s, read_s, strict=True)
            )
            milliseconds = [f"{statistics.median(times) * 1e3:.0f}" for times in (ours_s, insert_s, read_s)]
            table.add_row(
                name, *milliseconds, f"{ratio:.2f}", "≤ 3", f"{statistics.median(rest_s_of_runs) * 1e3:.0f}"
            )
    console.print(table)


def _enrol(database: Database) -> None:
    reports = Cell().draw_reports(_CLIENTS, np.random.default_rng(0))
    now = datetime.now(UTC)
    now_us = to_microseconds(now)
    for start in range(0, _CLIENTS, _BATCH):
        places = range(start, start + _BATCH)
        with database.unit_of_work() as uow:
            serials = uow.clients.add({f"client-{place}": {} for place in places}, now)
            uow.reports.add(
                [
                    (
                        serials[f"client-{place}"],
                        None,
                        float(reports.throughput_bps[place]),
                        float(reports.compute_samples_per_s[place]),
                        int(reports.data_samples[place]),
                        10,
                        now_us,
                        now_us,
                        None,
                        None,
                    )
                    for place in places
                ]
            )
            uow.commit()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _open(database: Database) -> tuple[int, float, float]:
    """Open a round; its serial, the time spent in repositories and the commit, and the rest of it."""
    now = datetime.now(UTC)
    terms = TaskRequest(
        round_deadline_s=180, model_size_bytes=18_300_000, seed=time.time_ns() % 2**32
    ).terms()
    with database.unit_of_work() as uow:
        task = start_task(uow, terms, now)
        set_initial_model(uow, task.task_id, Blob("0" * 64, 4), now)
        uow.commit()
    clock = _Clock()
    began = time.perf_counter()
    with database.unit_of_work() as uow:
        for name, repository in list(vars(uow).items()):
            setattr(uow, name, _Timed(repository, clock))
        round_ = open_round(uow, task.task_id, now)
        clock.time(uow.commit)
    total_s = time.perf_counter() - began
    with database.unit_of_work() as uow:
        cancel_task(uow, task.task_id, now)
        uow.commit()
    return round_.serial, clock.seconds, total_s - clock.seconds


class _Clock:
    """How long some calls took together."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    def time(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._running:  # within another
            return call(*arguments, **named)
        self._running = True
        began = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - began
            self._running = False


class _Timed:
    """A repository whose calls are timed."""

    def __init__(self, repository: object, clock: _Clock) -> None:
        self._repository = repository
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return partial(self._clock.time, getattr(self._repository, name))

    def __call__(self, *arguments: Any) -> Any:
        return self._repository(*arguments)  # type: ignore[operator]


def _insert_raw(database: Database, round_serial: int) -> float:
    """Take the candidates of a round out, and put the same rows back straight through the driver."""
    of_round = {"round": round_serial}
    with database.transaction(writing=True) as connection:
        found = connection.execute(text("SELECT * FROM candidates WHERE round_serial = :round"), of_round)
        names = list(found.keys())
        rows = sorted((tuple(row) for row in found), key=itemgetter(names.index("position")))
        connection.execute(text("DELETE FROM slots WHERE round_serial = :round"), of_round)
        connection.execute(text("DELETE FROM candidates WHERE round_serial = :round"), of_round)
        connection.commit()
    mark = "?" if database.is_sqlite else "%s"
    statement = f"INSERT INTO candidates ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"  # noqa: S608
    began = time.perf_counter()
    with database.transaction(writing=True) as connection:
        connection.exec_driver_sql(statement, rows)
        connection.commit()
    return time.perf_counter() - began


def _read_raw(database: Database, round_serial: int) -> float:
    """Read the reports of the same clients through the index."""
    with database.engine.connect() as connection:
        began = time.perf_counter()
        rows = connection.execute(
            text(
                "SELECT r.* FROM candidates c JOIN clients k ON k.client_id = c.client_id "
                "JOIN resource_reports r ON r.client_serial = k.serial WHERE c.round_serial = :round"
            ),
            {"round": round_serial},
        ).all()
        seconds = time.perf_counter() - began
    assert len(rows) == _CLIENTS // 10
    return seconds


if __name__ == "__main__":
    main()
