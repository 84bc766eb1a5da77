"""The database: connections for reading, and the unit of work, which alone commits.

SQLite takes one writer at a time. A transaction that reads first and then writes fails at once when another
wrote in between, so every writing transaction begins as one (``BEGIN IMMEDIATE``), and the writers of this
process queue up for a lock of their own rather than poll for SQLite's.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from services.storage.clients import Clients
from services.storage.clock import SharedClock
from services.storage.counts import Counts
from services.storage.events import Events
from services.storage.idempotency import IdempotencyKeys
from services.storage.jobs import Jobs
from services.storage.keys import Keys
from services.storage.leases import Leases
from services.storage.overview import Overview
from services.storage.progress import Progress
from services.storage.reports import Reports
from services.storage.round_lists import RoundLists
from services.storage.rounds import Rounds
from services.storage.selections import Selections
from services.storage.tasks import Models, Tasks
from services.storage.trainings import Trainings
from services.storage.updates import Updates

_MOST_CONNECTIONS = {"sqlite": 8, "postgresql": 64}
"""On PostgreSQL as many as the API has threads, and some for the keeper and the writer. On SQLite each fills
caches of its own, and they are wanted for moments: whoever finds none free waits for one.
"""
_KEPT_CONNECTIONS = {"sqlite": 8, "postgresql": 16}
"""Others are closed after use: a process of PostgreSQL costs much to keep."""

_POSTGRES_DISK_FULL = "53100"
_LONGEST_IDLE_S = 15
"""In a transaction, before PostgreSQL ends it: who stands still in one keeps everybody from writing."""
_STOOD_STILL = "25P03"
"""What PostgreSQL says then."""
_POSTGRES_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Seconds, the last in milliseconds: a host that has gone without a word is not waited for."""

_SQLITE_DRIVERS = ("sqlite", "sqlite+pysqlite")
_IN_MEMORY = (None, "", ":memory:")
_SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=60000")


class Store:
    """All repositories, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.clients = Clients(connection)
        self.keys = Keys(connection)
        self.reports = Reports(connection)
        self.tasks = Tasks(connection)
        self.models = Models(connection)
        self.rounds = Rounds(connection)
        self.updates = Updates(connection)
        self.trainings = Trainings(connection)
        self.jobs = Jobs(connection)
        self.events = Events(connection)
        self.idempotency = IdempotencyKeys(connection)
        self.leases = Leases(connection)
        self.counts = Counts(connection)
        self.overview = Overview(connection)
        self.progress = Progress(connection)
        self.selections = Selections(connection)
        self.round_lists = RoundLists(connection)


class UnitOfWork(Store):
    """A transaction. What is not committed explicitly has not happened."""

    def __init__(self, connection: Connection, committed: Callable[[Collection[str]], None]) -> None:
        super().__init__(connection)
        self._connection = connection
        self._committed = committed

    def commit(self) -> None:
        """Make it true, together with its events."""
        kinds = self.events.write()
        self._connection.commit()
        if self._connection.dialect.name == "sqlite":
            _begin_sqlite(self._connection, "BEGIN")  # what follows is not part of it
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
        if not self.is_sqlite:
            parsed = parsed.set(drivername="postgresql+psycopg")
        kept = _KEPT_CONNECTIONS[backend]
        self.engine = create_engine(
            parsed,
            pool_pre_ping=not self.is_sqlite,
            pool_size=kept,
            max_overflow=_MOST_CONNECTIONS[backend] - kept,
            pool_timeout=60,
            pool_use_lifo=True,  # the fewer are in use, the fewer fill a cache of their own
            connect_args={} if self.is_sqlite else _POSTGRES_PATIENCE,
        )
        # As on SQLite, a reading transaction sees one state, not the newest with each statement.
        self._reading = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        self._writer: AbstractContextManager[Any] = Lock() if self.is_sqlite else nullcontext()
        self._listeners: list[Callable[[Collection[str]], None]] = []
        self._clock = SharedClock()
        self._inode: int | None = None
        if self.is_sqlite:
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "first_connect", self._note_file)
        else:
            event.listen(self.engine, "connect", _set_up_postgres)

    def when_events(self, listener: Callable[[Collection[str]], None]) -> None:
        """Have this called with their kinds, in the thread that commits, after a unit of work with events."""
        self._listeners.append(listener)

    def now(self) -> datetime:
        """What time it is, by the clock of all who share this database."""
        return self._clock.now()

    def set_clock(self) -> None:
        """See to it that ``now`` is right: now and then PostgreSQL is asked. SQLite has our own clock."""
        if not self.is_sqlite and self._clock.is_due:
            with self.engine.connect() as connection:
                self._clock.ask(connection)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Look at one consistent state; nothing can be changed for good."""
        with self.transaction(writing=False) as connection:
            yield Store(connection)

    @contextmanager
    def unit_of_work(self) -> Iterator[UnitOfWork]:
        """Change something; without ``commit()`` it is as if nothing had been done."""
        try:
            with self._writer, self.transaction(writing=True) as connection:
                yield UnitOfWork(connection, self._notify)
        except OperationalError as error:
            if _says_full(error.orig):
                raise StorageFullError from error
            raise

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[Connection]:
        """A connection, in a transaction that comes to nothing unless it is committed."""
        with (self.engine if writing else self._reading).connect() as connection:
            if self.is_sqlite:
                _begin_sqlite(connection, "BEGIN IMMEDIATE" if writing else "BEGIN")
            yield connection

    def is_in_place(self) -> bool:
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

    def _notify(self, kinds: Collection[str]) -> None:
        for listener in self._listeners:
            listener(kinds)


def is_away(error: SQLAlchemyError) -> bool:
    """Whether it is the database that fails, for now, and not what was asked of it."""
    if isinstance(error, (OperationalError, InterfaceError, NoConnectionFreeError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) == _STOOD_STILL


def describe_failure(error: Exception) -> str:
    """The first line of what the database said; the rest is SQL."""
    return str(error.__cause__ or error).strip().splitlines()[0]


def _says_full(error: BaseException | None) -> bool:
    return (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL
    )


def _set_up_sqlite(connection: Any, record: object) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    connection.isolation_level = None  # transactions begin where we say, not where sqlite3 thinks
    for pragma in _SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _set_up_postgres(connection: Any, record: object) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_LONGEST_IDLE_S}s'")
    connection.commit()


def _begin_sqlite(connection: Connection, statement: str) -> None:
    """Begin, past SQLAlchemy: an event for this would make every statement half as long again."""
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return  # a commit of nothing, of which SQLAlchemy told SQLite nothing
    try:
        driver.execute(statement)
    except sqlite3.Error:
        connection.exec_driver_sql(statement)  # it may go well now; if not, it fails as all statements do
