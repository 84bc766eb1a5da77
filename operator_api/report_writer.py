"""Reports are stored by one thread, as many as are waiting in one transaction.

Each request is answered after the commit that holds its report. While one transaction reaches the disk the
next batch gathers, so the cost of a commit is shared by all who wait.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Thread

import structlog
from sqlalchemy.exc import IntegrityError

from operator_api.reporting import add_reports
from services.contract.reports import ReportRequest
from services.storage.database import Database

_LARGEST_BATCH = 1000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Waiting:
    report: ReportRequest
    done: asyncio.Future[datetime]
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

    async def store(self, report: ReportRequest) -> datetime:
        """Store a report; when it was received, once it is on the disk. Its client or task may be unknown."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[datetime] = loop.create_future()
        self._queue.put(_Waiting(report, done, loop))
        return await done

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

    def _store_all(self, batch: Sequence[_Waiting]) -> list[datetime | Exception]:
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


def _commit(database: Database, reports: Sequence[ReportRequest]) -> list[datetime | Exception]:
    now = database.now()
    with database.unit_of_work() as uow:
        outcomes = add_reports(uow, reports, now)
        uow.commit()
    return [now if outcome is None else outcome for outcome in outcomes]


def _answer(batch: Sequence[_Waiting], outcomes: Sequence[datetime | Exception]) -> None:
    for waiting, outcome in zip(batch, outcomes, strict=True):
        if waiting.done.done():  # whoever asked has gone
            continue
        if isinstance(outcome, datetime):
            waiting.done.set_result(outcome)
        else:
            waiting.done.set_exception(outcome)
