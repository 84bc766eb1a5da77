from collections.abc import Iterator
from pathlib import Path

import pytest

from services.storage.database import Database, UnitOfWork
from services.storage.migration import migrate


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A migrated SQLite database in a file, without a service."""
    directory: Path = tmp_path_factory.mktemp("protocol")
    database = Database(f"sqlite:///{directory}/fedcs.sqlite")
    migrate(database)
    yield database
    database.close()


@pytest.fixture
def uow(database: Database) -> Iterator[UnitOfWork]:
    """A transaction that is rolled back after the test."""
    with database.unit_of_work() as found:
        yield found
