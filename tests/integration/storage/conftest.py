from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete, insert

from services.domain.cells import DEFAULT_CELL, CellConfig
from services.storage.database import Database
from services.storage.migration import migrate
from services.storage.tables import cells, event_counter, metadata
from tests.databases import KINDS, new_database


@pytest.fixture(scope="session")
def shared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A migrated SQLite database; to make one for every test takes longer than the tests."""
    with _migrated(new_database("sqlite", tmp_path_factory.mktemp("shared"), "")) as database:
        yield database


@pytest.fixture(scope="session")
def shared_postgresql(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A migrated PostgreSQL database."""
    with _migrated(new_database("postgresql", tmp_path_factory.mktemp("shared"), postgres_url)) as database:
        yield database


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    """A migrated database of each kind with nothing in it; its shape is not to be changed."""
    return _emptied(request.getfixturevalue(f"shared_{request.param}"))


@pytest.fixture
def postgresql_database(shared_postgresql: Database) -> Database:
    """The same, for what SQLite with its one writer cannot come to."""
    return _emptied(shared_postgresql)


@pytest.fixture
def own_database(database_url: str) -> Iterator[Database]:
    """A migrated database of each kind that the test does not share."""
    with _migrated(database_url) as database:
        yield database


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite database."""
    return new_database("sqlite", tmp_path, "")


@contextmanager
def _migrated(url: str) -> Iterator[Database]:
    database = Database(url)
    migrate(database)
    try:
        yield database
    finally:
        database.close()


def _emptied(database: Database) -> Database:
    with database.transaction(writing=True) as connection, connection.begin():
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))
        connection.execute(insert(event_counter).values(counter=1, last_number=0))
        connection.execute(insert(cells).values(**vars(CellConfig(DEFAULT_CELL))))
    return database
