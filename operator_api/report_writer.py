"""Reports are stored by one thread, as many as are waiting in one transaction.

Each request is answered after the commit that holds its report. While one transaction reaches the disk the
next batch gathers, so the cost of a commit is shared by all who wait.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

import structlog
from sqlalchemy.exc import IntegrityError

from services.contract.reports import ReportResponse
from services.errors import ClientNotFoundError, FedCSError, TaskNotFoundError
from services.storage.database import Database, UnitOfWork

_LARGEST_BATCH = 1000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Waiting:
    report: ReportResponse
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class ReportWriter:
    """The thread that stores reports."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="report-writer", daemon=True)

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is waiting, and end."""
        self._queue.put(None)
        self._thread.join()

    async def store(self, report: ReportResponse) -> None:
        """Store a report; returns when it is on the disk, raises if its client or task is unknown."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Waiting(report, done, loop))
        await done

    def _run(self) -> None:
        while True:
            batch, more = self._next_batch()
            if batch:
                outcomes = self._store_all(batch)
                batch[0].loop.call_soon_threadsafe(_answer, batch, outcomes)
            if not more:
                return

    def _next_batch(self) -> tuple[list[_Waiting], bool]:
        """All who are waiting, at least one; and whether others may come."""
        batch: list[_Waiting] = []
        try:
            waiting = self._queue.get()
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == _LARGEST_BATCH:
                    return batch, True
                waiting = self._queue.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _store_all(self, batch: Sequence[_Waiting]) -> list[Exception | None]:
        reports = [waiting.report for waiting in batch]
        try:
            return _commit(self._database, reports)
        except IntegrityError:  # a client was removed between the look and the insert
            try:
                return _commit(self._database, reports)
            except Exception as error:
                return [error] * len(batch)
        except Exception as error:
            _log.exception("reports cannot be stored")
            return [error] * len(batch)


def _commit(database: Database, reports: Sequence[ReportResponse]) -> list[Exception | None]:
    with database.unit_of_work() as uow:
        outcomes: list[Exception | None] = list(add_reports(uow, reports))
        uow.commit()
    return outcomes


def add_reports(uow: UnitOfWork, reports: Sequence[ReportResponse]) -> list[FedCSError | None]:
    """Add those whose client and task are known; for each the reason why not, or none."""
    clients = uow.clients.serials_of(list({report.client_id for report in reports}))
    tasks = uow.tasks.serials_of(list({report.task_id for report in reports if report.task_id}))
    outcomes: list[FedCSError | None] = []
    rows: list[dict[str, object]] = []
    for report in reports:
        if report.client_id not in clients:
            outcomes.append(ClientNotFoundError(report.client_id))
        elif report.task_id and report.task_id not in tasks:
            outcomes.append(TaskNotFoundError(report.task_id))
        else:
            outcomes.append(None)
            rows.append(
                {
                    "client_serial": clients[report.client_id],
                    "task_serial": tasks[report.task_id] if report.task_id else None,
                    "throughput_bps": report.throughput_bps,
                    "compute_samples_per_s": report.compute_samples_per_s,
                    "data_samples": report.data_samples,
                    "report_resource_blocks": report.report_resource_blocks,
                    "observed_at": report.observed_at,
                    "received_at": report.received_at,
                    "radio": report.radio,
                }
            )
    if rows:
        uow.reports.add(rows)
    return outcomes


def _answer(batch: Sequence[_Waiting], outcomes: Sequence[Exception | None]) -> None:
    for waiting, outcome in zip(batch, outcomes, strict=True):
        if waiting.done.done():  # whoever asked has gone
            continue
        if outcome is None:
            waiting.done.set_result(None)
        else:
            waiting.done.set_exception(outcome)
