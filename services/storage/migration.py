"""Migration of a database to the schema of this version."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

import migrations
from services.errors import ServiceStartError
from services.storage.database import Database, describe_failure
from services.storage.tables import event_counter, tasks

_LOCK_NUMBER = 0x0FED_C5
"""The PostgreSQL advisory lock that lets one process migrate at a time."""


def migrate(database: Database) -> None:
    """Upgrade the database to the newest revision; concurrent processes wait for each other."""
    try:
        with _changing_tables(database) as connection:
            command.upgrade(_config(connection), "head")
            connection.execute(select(tasks.c.terms)).all()  # fails if this version cannot read them
    except SQLAlchemyError as error:
        raise ServiceStartError(f"the database cannot be used: {describe_failure(error)}") from error
    except (CommandError, ValueError) as error:
        raise ServiceStartError(
            f"the database was made by another version of this service: {error}"
        ) from error


def has_content(database: Database) -> bool:
    """Whether anything was ever recorded in the database."""
    try:
        with database.engine.connect() as connection:
            return (
                inspect(connection).has_table(event_counter.name)
                and connection.execute(select(event_counter.c.last_number)).scalar_one() > 0
            )
    except SQLAlchemyError as error:
        raise ServiceStartError(f"the database cannot be used: {describe_failure(error)}") from error


def downgrade(database: Database, revision: str) -> None:
    """Downgrade the database to an older revision."""
    with _changing_tables(database) as connection:
        command.downgrade(_config(connection), revision)


@contextmanager
def _changing_tables(database: Database) -> Iterator[Connection]:
    """A transaction in which tables may be rebuilt.

    SQLite drops a table by deleting its rows, and with foreign keys also the rows that refer to them.
    Foreign keys are therefore off until the end, when all of them are checked. The connection is closed
    afterwards.
    """
    with database.engine.connect() as connection:
        if database.is_sqlite:
            connection.detach()
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})"))
        before = _revision(connection)
        yield connection
        if database.is_sqlite and _revision(connection) != before:
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            assert broken is None, f"the migration broke a foreign key: {broken}"
        connection.commit()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def is_up_to_date(database: Database) -> bool:
    """Whether the database has the newest revision."""
    with database.engine.connect() as connection:
        current = _revision(connection)
    return current == ScriptDirectory.from_config(_config(None)).get_current_head()


def _config(connection: Connection | None) -> Config:
    config = Config()
    scripts = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", scripts.replace("%", "%%"))  # a single % would be expanded
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
