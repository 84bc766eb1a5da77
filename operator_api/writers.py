"""Group-commit writers: reports, times of arrival and updates that come at once share a transaction."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

import structlog
from sqlalchemy.exc import IntegrityError

from operator_api.resource_reports import add_reports
from services.contract.reports import ReportRequest
from services.protocol.upload import ReceivedUpdate, accept_updates, record_arrivals
from services.storage.database import Database

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_BATCH = 1000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    done: asyncio.Future[Result]
    loop: asyncio.AbstractEventLoop


class BatchWriter(Generic[Item, Result]):
    """A thread that stores items in batches; ``store`` returns a result or an error for each item."""

    def __init__(self, name: str, store: Callable[[Sequence[Item]], Sequence[Result | Exception]]) -> None:
        self._store = store
        self._queue: SimpleQueue[_Waiting[Item, Result] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store the waiting items, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    async def write(self, item: Item) -> Result:
        """Store an item; return its result after the commit."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        self._queue.put(_Waiting(item, done, loop))
        return await done

    def _run(self) -> None:
        while True:
            batch, more = self._next_batch()
            if batch:
                results = self._store_all([waiting.item for waiting in batch])
                batch[0].loop.call_soon_threadsafe(_answer, batch, results)
            if not more:
                return

    def _next_batch(self) -> tuple[list[_Waiting[Item, Result]], bool]:
        """All waiting items, at least one, and whether the writer goes on."""
        batch: list[_Waiting[Item, Result]] = []
        try:
            waiting = self._queue.get()
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == _MAX_BATCH:
                    return batch, True
                waiting = self._queue.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _store_all(self, items: Sequence[Item]) -> Sequence[Result | Exception]:
        try:
            return self._store(items)
        except Exception as error:
            _log.exception("storing a batch failed", writer=self._thread.name)
            return [error] * len(items)


def _answer(batch: Sequence[_Waiting[Item, Result]], results: Sequence[Result | Exception]) -> None:
    for waiting, result in zip(batch, results, strict=True):
        if waiting.done.done():  # the request was cancelled
            continue
        if isinstance(result, Exception):
            waiting.done.set_exception(result)
        else:
            waiting.done.set_result(result)


@dataclass(frozen=True)
class _Arrived:
    round_id: str
    client_id: str
    at: datetime


class ArrivalWriter(BatchWriter[_Arrived, None]):
    """Records times of arrival."""

    def __init__(self, database: Database) -> None:
        super().__init__("arrival-writer", self._record_all)
        self._database = database
        self._lock = Lock()
        self._unrecorded: Counter[str] = Counter()
        """The number of arrivals of each round that have a time and are not committed."""

    async def record(self, round_id: str, client_id: str) -> datetime:
        """Take the time, and record it as the time of arrival of a client's upload."""
        with self._lock:  # if nothing is unrecorded, every earlier time is in the database
            at = self._database.now()
            self._unrecorded[round_id] += 1
        try:
            await self.write(_Arrived(round_id, client_id, at))
        finally:
            with self._lock:
                self._unrecorded[round_id] -= 1
                if not self._unrecorded[round_id]:
                    del self._unrecorded[round_id]
        return at

    def has_unrecorded(self, round_id: str) -> bool:
        """Whether this process has arrivals of a round that are not in the database."""
        with self._lock:
            return self._unrecorded[round_id] > 0

    def _record_all(self, arrived: Sequence[_Arrived]) -> list[Exception | None]:
        of_round: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        for arrival in arrived:
            of_round[arrival.round_id][arrival.client_id] = arrival.at
        errors = {round_id: self._commit(round_id, times) for round_id, times in of_round.items()}
        return [errors[arrival.round_id] for arrival in arrived]

    def _commit(self, round_id: str, times: Mapping[str, datetime]) -> Exception | None:
        try:
            with self._database.unit_of_work() as uow:
                record_arrivals(uow, round_id, times, self._database.now())
                uow.commit()
        except Exception as error:
            return error
        return None


class ReportWriter(BatchWriter[ReportRequest, datetime]):
    """Stores reports; the result is the time of receipt, or an error if the client or task is unknown."""

    def __init__(self, database: Database) -> None:
        super().__init__("report-writer", partial(_store, database))


def _store(database: Database, reports: Sequence[ReportRequest]) -> list[datetime | Exception]:
    try:
        return _commit(database, reports)
    except IntegrityError:  # a client was removed between the query and the insert
        return _commit(database, reports)


def _commit(database: Database, reports: Sequence[ReportRequest]) -> list[datetime | Exception]:
    now = database.now()
    with database.unit_of_work() as uow:
        outcomes = add_reports(uow, reports, now)
        uow.commit()
    return [now if outcome is None else outcome for outcome in outcomes]


@dataclass
class _WaitingUpdate:
    round_id: str
    received: ReceivedUpdate
    outcome: bool | Exception | None = None


class UpdateWriter:
    """Records updates; safe for concurrent threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._waiting: deque[_WaitingUpdate] = deque()

    def accept(self, round_id: str, received: ReceivedUpdate) -> bool:
        """Record an update that was received and checked; false if it had been recorded before."""
        own = _WaitingUpdate(round_id, received)
        self._waiting.append(own)
        with self._lock:
            if own.outcome is None:
                self._accept_all()
        assert own.outcome is not None, "it was in the batch"
        if isinstance(own.outcome, Exception):
            raise own.outcome
        return own.outcome

    def _accept_all(self) -> None:
        """Record the updates that wait now; later ones wait for the next batch."""
        of_round: defaultdict[str, list[_WaitingUpdate]] = defaultdict(list)
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            of_round[waiting.round_id].append(waiting)
        for round_id, batch in of_round.items():
            for waiting, outcome in zip(batch, self._commit(round_id, batch), strict=True):
                waiting.outcome = outcome

    def _commit(self, round_id: str, batch: list[_WaitingUpdate]) -> list[bool | Exception]:
        try:
            with self._database.unit_of_work() as uow:
                now = self._database.now()
                outcomes = accept_updates(uow, round_id, [waiting.received for waiting in batch], now)
                uow.commit()
        except Exception as error:
            return [error] * len(batch)
        return [*outcomes]
