"""Rounds over several cells: how many clients they have, and how long it takes to open one.

python -m benchmarks.cells
"""

import statistics
import time
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.servers import database_urls
from operator_api.round_view import round_response
from operator_api.server import spare_the_collector
from services.access import Principal, Scope
from services.contract.tasks import TaskRequest
from services.domain.cells import CellConfig
from services.domain.radio import Cell
from services.protocol.initialization import set_initial_model, start_task
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.storage.database import Database
from services.storage.migration import migrate
from services.storage.model_store import Blob
from services.storage.sql import to_microseconds

_CELLS = (1, 4, 16)
_CLIENTS_OF_CELL = 1000
_ROUNDS = 20
_MANY_CELLS = 100
_RUNS = 5
_BATCH = 10_000
_OPERATOR = Principal("operator", Scope.MANAGE)


class _Opened(NamedTuple):
    selected: int
    seconds: float
    processor_s: float
    """Of this process alone."""


def main() -> None:
    """Measure on both databases, and print the ratios."""
    console = Console()
    opening = Table(title="POST /rounds, 100,000 clients, C = 0.1", title_justify="left")
    for name in ("database", "one cell ms", "100 cells ms", "ratio", "ratio of processor time", "wanted"):
        opening.add_column(name, justify="left" if name == "database" else "right")
    with database_urls() as urls:
        for name, url in urls.items():
            database = Database(url)
            migrate(database)
            with console.status(f"{name}: enrolling"):
                _enrol(database, _MANY_CELLS * _CLIENTS_OF_CELL)
            if name == "SQLite":
                console.print(_proportion(database))
            spare_the_collector()
            one_cell, many_cells = [], []
            for _ in range(_RUNS):
                _spread(database, 1)
                one_cell.append(_open(database))
                _spread(database, _MANY_CELLS)
                many_cells.append(_open(database))
            database.close()
            seconds = [statistics.median(run.seconds for run in runs) for runs in (one_cell, many_cells)]
            processor_s = [
                statistics.median(run.processor_s for run in runs) for runs in (one_cell, many_cells)
            ]
            opening.add_row(
                name,
                *(f"{value * 1e3:.0f}" for value in seconds),
                f"{seconds[1] / seconds[0]:.2f}",
                f"{processor_s[1] / processor_s[0]:.2f}",
                "≤ 1.3",
            )
    console.print(opening)


def _proportion(database: Database) -> Table:
    """Clients per round of one task over more and more cells of 1,000 clients."""
    table = Table(title=f"Cells of 1,000 clients, C = 0.1, {_ROUNDS} rounds", title_justify="left")
    for name in ("cells", "clients per round", "for each cell", "ratio to one cell", "wanted"):
        table.add_column(name, justify="right")
    for_one = 0.0
    for cells in _CELLS:
        _spread(database, _MANY_CELLS)
        names = tuple(_name(place) for place in range(cells))
        selected = statistics.mean(_open(database, names).selected for _ in range(_ROUNDS))
        for_one = for_one or selected
        ratio = selected / cells / for_one
        table.add_row(
            str(cells), f"{selected:.2f}", f"{selected / cells:.2f}", f"{ratio:.3f}", "0.95 to 1.05"
        )
    return table


def _name(place: int) -> str:
    return f"cell-{place:03}"


def _enrol(database: Database, clients: int) -> None:
    reports = Cell().draw_reports(clients, np.random.default_rng(0))
    columns = (reports.throughput_bps, reports.compute_samples_per_s, reports.data_samples)
    figures = list(zip(*(column.tolist() for column in columns), strict=True))
    now = datetime.now(UTC)
    now_us = to_microseconds(now)
    with database.unit_of_work() as uow:
        for place in range(_MANY_CELLS):
            uow.cells.add(CellConfig(_name(place)))
        uow.commit()
    for start in range(0, clients, _BATCH):
        with database.unit_of_work() as uow:
            serials = uow.clients.add({f"client-{start + place}": {} for place in range(_BATCH)}, now)
            some = figures[start : start + _BATCH]
            uow.reports.add(
                [
                    (serial, None, *own, 10, now_us, now_us, None, None)
                    for serial, own in zip(serials.values(), some, strict=True)
                ]
            )
            uow.commit()


def _spread(database: Database, cells: int) -> None:
    """Put the clients, in the order of enrolment, into so many cells of the same size."""
    size = _MANY_CELLS * _CLIENTS_OF_CELL // cells
    with database.transaction(writing=True) as connection:
        first = connection.execute(text("SELECT min(serial) FROM clients")).scalar_one()
        for place in range(cells):
            own = {"cell": _name(place), "first": first + place * size, "last": first + (place + 1) * size}
            connection.execute(
                text("UPDATE clients SET cell_id = :cell WHERE serial >= :first AND serial < :last"), own
            )
        connection.commit()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _open(database: Database, cells: tuple[str, ...] | None = None) -> _Opened:
    """Open a round of a new task, and make the answer to its caller."""
    now = datetime.now(UTC)
    request = TaskRequest(
        round_deadline_s=180,
        model_size_bytes=18_300_000,
        seed=time.time_ns() % 2**32,
        cells=None if cells is None else list(cells),
    )
    with database.unit_of_work() as uow:
        task = start_task(uow, request.terms(), now)
        set_initial_model(uow, task.task_id, Blob("0" * 64, 4), now)
        uow.commit()
    began, processor_began = time.perf_counter(), time.process_time()
    with database.unit_of_work() as uow:
        round_ = open_round(uow, task.task_id, now)
        round_response(uow, round_, _OPERATOR).model_dump_json()
        uow.commit()
    seconds, processor_s = time.perf_counter() - began, time.process_time() - processor_began
    with database.unit_of_work() as uow:
        cancel_task(uow, task.task_id, now)
        uow.commit()
    return _Opened(round_.selected, seconds, processor_s)


if __name__ == "__main__":
    main()
