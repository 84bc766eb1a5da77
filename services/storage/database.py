"""The database: read transactions, and the unit of work, the only place that commits.

SQLite allows one writer at a time. A transaction that reads before it writes fails if another transaction
wrote in between. Every write transaction therefore starts with ``BEGIN IMMEDIATE``, and the writers of this
process wait for a lock instead of polling SQLite.
"""

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from services.errors import SettingsError, StorageFullError
from services.storage.cells import Allocations, Cells, WaitingTasks
from services.storage.clients import Clients, Keys
from services.storage.coordination import IdempotencyKeys, Leases, SharedClock
from services.storage.events import Events
from services.storage.jobs import Jobs, Refusals, Workers
from services.storage.models import Models
from services.storage.past_slots import SlotHistory
from services.storage.reports import Reports
from services.storage.round_lists import RoundLists, Selections
from services.storage.rounds import Rounds
from services.storage.searches import Searches
from services.storage.statistics import Counts, Overview, Progress
from services.storage.tasks import Tasks
from services.storage.updates import Trainings, Updates

_MAX_CONNECTIONS = {"sqlite": 8, "postgresql": 64}
"""PostgreSQL: one connection for each API thread, and some for the reconciler and the writers.
SQLite: few, because each has its own cache and is used briefly; threads wait for a free one.
"""
_POOL_SIZE = {"sqlite": 8, "postgresql": 16}
"""Connections above this number are closed after use: each holds a PostgreSQL process."""

_POSTGRES_DISK_FULL = "53100"
_IDLE_IN_TRANSACTION_TIMEOUT_S = 15
"""PostgreSQL ends a transaction that is idle for longer: it may hold locks that block all writers."""
_IDLE_IN_TRANSACTION_SQLSTATE = "25P03"
"""The error code of a transaction that was ended for this reason."""
_POSTGRES_CONNECT_ARGS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""In seconds, the last one in milliseconds: bounds the wait for a host that no longer answers."""

_SQLITE_DRIVERS = ("sqlite", "sqlite+pysqlite")
_IN_MEMORY = (None, "", ":memory:")
_SQLITE_BUSY_TIMEOUT_S = 60
_SQLITE_PRAGMAS = (
    f"busy_timeout={_SQLITE_BUSY_TIMEOUT_S * 1000}",
    "synchronous=FULL",
    "foreign_keys=ON",
)


class Store:
    """All repositories, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.cells = Cells(connection)
        self.allocations = Allocations(connection)
        self.waiting_tasks = WaitingTasks(connection)
        self.clients = Clients(connection)
        self.keys = Keys(connection)
        self.reports = Reports(connection)
        self.tasks = Tasks(connection)
        self.models = Models(connection)
        self.rounds = Rounds(connection)
        self.updates = Updates(connection)
        self.trainings = Trainings(connection)
        self.jobs = Jobs(connection)
        self.workers = Workers(connection)
        self.refusals = Refusals(connection)
        self.events = Events(connection)
        self.idempotency = IdempotencyKeys(connection)
        self.leases = Leases(connection)
        self.counts = Counts(connection)
        self.overview = Overview(connection)
        self.progress = Progress(connection)
        self.selections = Selections(connection)
        self.round_lists = RoundLists(connection)
        self.slot_history = SlotHistory(connection)
        self.searches = Searches(connection)


class UnitOfWork(Store):
    """A transaction that is rolled back unless it is committed explicitly."""

    def __init__(self, connection: Connection, committed: Callable[[Counter[str]], None]) -> None:
        super().__init__(connection)
        self._connection = connection
        self._committed = committed

    def commit(self) -> None:
        """Commit the transaction together with its events."""
        kinds = self.events.write()
        self._connection.commit()
        if self._connection.dialect.name == "sqlite":
            _begin_sqlite(self._connection, "BEGIN")  # later reads are not part of the transaction
        if kinds:
            self._committed(kinds)


class Database:
    """A SQLite or PostgreSQL database."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise SettingsError(f"FEDCS_DATABASE_URL: not a database URL: {error}") from error
        backend = parsed.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise SettingsError(f"FEDCS_DATABASE_URL: {backend} is not supported; use sqlite or postgresql")
        self.is_sqlite = backend == "sqlite"
        if self.is_sqlite and (parsed.drivername not in _SQLITE_DRIVERS or parsed.database in _IN_MEMORY):
            raise SettingsError("FEDCS_DATABASE_URL: SQLite needs a file; use sqlite:///path/to/a/file")
        if self.is_sqlite:
            _create_file(parsed.database or "")
        else:
            parsed = parsed.set(drivername="postgresql+psycopg")
        kept = _POOL_SIZE[backend]
        self.engine = create_engine(
            parsed,
            pool_pre_ping=not self.is_sqlite,
            pool_size=kept,
            max_overflow=_MAX_CONNECTIONS[backend] - kept,
            pool_timeout=60,
            pool_use_lifo=True,  # few active connections mean few filled caches
            connect_args={} if self.is_sqlite else _POSTGRES_CONNECT_ARGS,
        )
        # A read transaction sees one snapshot, as on SQLite.
        self._reading = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        self._writer: AbstractContextManager[Any] = Lock() if self.is_sqlite else nullcontext()
        self._listeners: list[Callable[[Counter[str]], None]] = []
        self._clock = SharedClock()
        self._inode: int | None = None
        if self.is_sqlite:
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "first_connect", self._note_file)
        else:
            event.listen(self.engine, "connect", _set_up_postgres)

    def add_event_listener(self, listener: Callable[[Counter[str]], None]) -> None:
        """Call the listener after each commit with events, in the committing thread.

        It gets the number of events of each kind.
        """
        self._listeners.append(listener)

    def now(self) -> datetime:
        """The current time by the shared clock of all processes on this database."""
        return self._clock.now()

    def set_clock(self) -> None:
        """Synchronize the shared clock with PostgreSQL if this is due. SQLite uses the clock of the host."""
        if not self.is_sqlite and self._clock.is_due:
            with self.engine.connect() as connection:
                self._clock.synchronize(connection)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """A read transaction on one snapshot; it is always rolled back."""
        with self.transaction(writing=False) as connection:
            yield Store(connection)

    @contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        """A write transaction; without ``commit()`` it is rolled back."""
        try:
            with self._writer, self.transaction(writing=True) as connection:
                yield UnitOfWork(connection, self._notify)
        except OperationalError as error:
            if _is_disk_full(error.orig):
                raise StorageFullError from error
            raise

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[Connection]:
        """A connection in a transaction that is rolled back unless it is committed."""
        with (self.engine if writing else self._reading).connect() as connection:
            if self.is_sqlite:
                _begin_sqlite(connection, "BEGIN IMMEDIATE" if writing else "BEGIN")
            yield connection

    def is_same_file(self) -> bool:
        """Whether the file of a SQLite database is still the one that was opened.

        Connections to a file that was deleted go on working, and what they write is lost.
        """
        return self._inode == self._find_inode()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _note_file(self, connection: object, record: object) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        self._inode = self._find_inode()

    def _find_inode(self) -> int | None:
        if not self.is_sqlite or not self.engine.url.database:
            return None
        try:
            return Path(self.engine.url.database).stat().st_ino
        except FileNotFoundError:
            return None

    def _notify(self, kinds: Counter[str]) -> None:
        for listener in self._listeners:
            listener(kinds)


def is_database_unavailable(error: SQLAlchemyError) -> bool:
    """Whether the database is temporarily unavailable, rather than the statement being wrong."""
    if isinstance(error, (OperationalError, InterfaceError, NoConnectionFreeError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    return (
        error.connection_invalidated or getattr(error.orig, "sqlstate", None) == _IDLE_IN_TRANSACTION_SQLSTATE
    )


def describe_failure(error: Exception) -> str:
    """The first line of the database's message; the rest is SQL."""
    return str(error.__cause__ or error).strip().splitlines()[0]


def _is_disk_full(error: BaseException | None) -> bool:
    return (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL
    )


def _create_file(path: str) -> None:
    """Create the database file with mode 0600; SQLite gives its other files the same mode."""
    with suppress(OSError):  # it exists, or connecting reports the error
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def _set_up_sqlite(connection: Any, record: object) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    connection.isolation_level = None  # sqlite3 must not begin transactions implicitly
    for pragma in _SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    _enable_wal(connection)


def _enable_wal(connection: Any) -> None:
    """Switch to write-ahead logging.

    If two processes do this to a new database, SQLite fails at once in spite of the busy timeout: each holds
    a read lock that the other one waits for.
    """
    give_up_at = time.monotonic() + _SQLITE_BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return


def _set_up_postgres(connection: Any, record: object) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_IN_TRANSACTION_TIMEOUT_S}s'")
    connection.commit()


def _begin_sqlite(connection: Connection, statement: str) -> None:
    """Begin on the driver connection: an SQLAlchemy event for this makes every statement 50 % slower."""
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return  # SQLAlchemy did not pass an empty commit on to SQLite
    try:
        driver.execute(statement)
    except sqlite3.Error:
        connection.exec_driver_sql(statement)  # retry through SQLAlchemy, which wraps the error
