"""The unit of work and the connections of both kinds of database."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import StatementError

from services.errors import ClientNotFoundError, SettingsError
from services.storage.database import Database
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW

THREADS, UNITS = 8, 100


class GivenUpError(Exception):
    """What goes wrong in these tests."""


def test_nothing_happens_without_a_commit(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.busy_round(uow)
        assert uow.counts.take().clients == 3
    with database.reading() as store:
        assert store.counts.take().clients == 0
        assert store.events.last_number() == 0


def test_an_exception_undoes_all_of_it_and_the_next_unit_begins_afresh(database: Database) -> None:
    with pytest.raises(GivenUpError), database.unit_of_work() as uow:  # noqa: PT012
        factories.clients(uow, "a")
        raise GivenUpError
    with database.unit_of_work() as uow:
        factories.clients(uow, "b")
        uow.commit()
    with database.reading() as store:
        assert store.clients.serials_of(["a", "b"]).keys() == {"b"}


def test_what_follows_the_commit_is_not_part_of_it(database: Database) -> None:
    with pytest.raises(GivenUpError), database.unit_of_work() as uow:  # noqa: PT012
        factories.clients(uow, "a")
        uow.commit()
        factories.clients(uow, "b")
        raise GivenUpError
    with database.reading() as store:
        assert store.clients.serials_of(["a", "b"]).keys() == {"a"}


def test_nothing_is_seen_by_others_before_the_commit(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.clients(uow, "a")
        with database.reading() as store, pytest.raises(ClientNotFoundError):
            store.clients.get("a")
        uow.commit()
        with database.reading() as store:
            assert store.clients.get("a").client_id == "a"


def test_a_reader_sees_one_state_however_often_it_looks(database: Database) -> None:
    with database.reading() as store:
        assert len(store.clients.serials_with({})) == 0
        with database.unit_of_work() as uow:
            factories.clients(uow, "a")
            uow.commit()
        assert len(store.clients.serials_with({})) == 0
    with database.reading() as store:
        assert len(store.clients.serials_with({})) == 1


def test_listeners_are_called_after_the_commit_of_events_and_for_nothing_else(own_database: Database) -> None:
    heard: list[tuple[int, Collection[str]]] = []

    def listen(kinds: Collection[str]) -> None:
        with own_database.reading() as store:
            heard.append((store.events.last_number(), kinds))

    own_database.add_event_listener(listen)
    with own_database.unit_of_work() as uow:
        uow.events.record("lost", NOW)
    with own_database.unit_of_work() as uow:
        factories.clients(uow, "a")
        uow.commit()
    assert heard == []
    with own_database.unit_of_work() as uow:
        uow.events.record("kept", NOW)
        uow.commit()
    assert heard == [(1, {"kept": 1})]


def test_threads_that_read_and_then_write_lose_nothing_and_are_never_locked_out(database_url: str) -> None:
    databases = [Database(database_url), Database(database_url)]  # as two processes would have
    with databases[0].engine.begin() as connection:
        connection.execute(text("CREATE TABLE tally (number INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO tally VALUES (0)"))

    def count_up(database: Database) -> None:
        for _ in range(UNITS):
            with database.unit_of_work() as uow:
                lock = "" if database.is_sqlite else " FOR UPDATE"
                number = uow._connection.execute(text(f"SELECT number FROM tally{lock}")).scalar_one()
                uow._connection.execute(text("UPDATE tally SET number = :next"), {"next": number + 1})
                uow.commit()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(count_up, databases[place % 2]) for place in range(THREADS)]:
            done.result()
    with databases[0].engine.connect() as connection:
        assert connection.execute(text("SELECT number FROM tally")).scalar_one() == THREADS * UNITS
    for database in databases:
        database.close()


def test_readers_are_not_held_up_by_a_writer(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.clients(uow, "a")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: _number_of_clients(database)).result(timeout=60) == 0


def test_sqlite_has_eight_connections_and_whoever_finds_none_free_waits_for_one(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    opened: list[object] = []
    event.listen(database.engine, "connect", lambda *connected: opened.append(connected))
    with ExitStack() as readers, ThreadPoolExecutor(1) as pool:
        held = [readers.enter_context(ExitStack()) for _ in range(8)]
        for item in held:
            item.enter_context(database.engine.connect())
        other = pool.submit(lambda: database.engine.connect().close())
        with pytest.raises(TimeoutError):
            other.result(timeout=0.2)
        held[0].close()
        other.result(timeout=60)
    assert len(opened) == 8
    database.close()


def test_sqlite_is_set_to_lose_nothing_and_to_keep_references(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.engine.connect() as connection:
        settings = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() >= 30_000
    database.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_postgresql_waits_for_the_disk_before_a_commit_counts(postgresql_database: Database) -> None:
    with postgresql_database.engine.connect() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 7, 1, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=9, minutes=30))),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_moments_keep_their_microseconds_and_come_back_in_utc(database: Database, moment: datetime) -> None:
    with database.unit_of_work() as uow:
        factories.clients(uow, "a", now=moment)
        uow.commit()
    with database.reading() as store:
        kept = store.clients.get("a").enrolled_at
    assert kept == moment
    assert kept.tzinfo is UTC


def test_a_moment_without_a_zone_is_refused(database: Database) -> None:
    with database.unit_of_work() as uow, pytest.raises(StatementError, match="offset-naive"):
        factories.clients(uow, "a", now=NOW.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://localhost/fedcs", "mysql is not supported"),
        ("fedcs.sqlite", "not a database URL"),
        ("", "not a database URL"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        ("sqlite+aiosqlite:///fedcs.sqlite", "use sqlite:///"),
    ],
)
def test_other_databases_are_refused_by_name(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=f"FEDCS_DATABASE_URL: .*{complaint}"):
        Database(url)


def test_a_plain_postgresql_url_is_enough(postgres_url: str) -> None:
    database = Database(postgres_url.replace("postgresql+psycopg://", "postgresql://"))
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    database.close()


def _number_of_clients(database: Database) -> int:
    with database.reading() as store:
        return len(store.clients.serials_with({}))
