"""Bringing a database to the shape this version of the code expects."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

import migrations
from services.errors import ServiceStartError
from services.storage.database import Database, describe_failure

_LOCK_NUMBER = 0x0FED_C5
"""Of the PostgreSQL advisory lock under which one process at a time migrates."""


def migrate(database: Database) -> None:
    """Bring the database to the newest shape; processes that start together take turns."""
    try:
        with database.transaction(writing=True) as connection, connection.begin():
            if not database.is_sqlite:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})"))
            _run(connection, "head")
    except SQLAlchemyError as error:
        raise ServiceStartError(f"the database cannot be used: {describe_failure(error)}") from error
    except CommandError as error:
        raise ServiceStartError(
            f"the database was made by another version of this service: {error}"
        ) from error


def downgrade(database: Database, revision: str) -> None:
    """Take the database back to an older shape."""
    with database.transaction(writing=True) as connection, connection.begin():
        command.downgrade(_config(connection), revision)


def is_up_to_date(database: Database) -> bool:
    """Whether the database has the shape this code expects."""
    with database.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    return current == ScriptDirectory.from_config(_config(None)).get_current_head()


def _run(connection: Connection, revision: str) -> None:
    command.upgrade(_config(connection), revision)


def _config(connection: Connection | None) -> Config:
    config = Config()
    scripts = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", scripts.replace("%", "%%"))  # a single % would be expanded
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
