import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.databases import KINDS, MOSTLY_SQLITE, new_database, postgres_server
from tests.running_service import running_service, widen_default_cell

if TYPE_CHECKING:
    from tests.in_process_service import TimedService
    from tests.s3_server import S3Server

NO_RATE_LIMIT = "1000000000/second"
# Every process that a test starts inherits these; only the tests of rate limits set others.
os.environ["FEDCS_CLIENT_RATE_LIMIT"] = NO_RATE_LIMIT
os.environ["FEDCS_OPERATOR_RATE_LIMIT"] = NO_RATE_LIMIT

# A shell ignores interrupts in what it starts in the background; what the tests start must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COVERING_THE_DOMAIN = ("tests/unit/domain/", "tests/unit/protocol/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that must cover the domain to the last branch."""
    for item in items:
        if item.nodeid.startswith(_COVERING_THE_DOMAIN) and not item.get_closest_marker("exhaustive"):
            item.add_marker("domain")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for all tests; ``new_database`` makes databases in it."""
    with postgres_server() as url:
        yield url


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    return new_database(request.param, tmp_path, url)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service on SQLite that tests share: each makes its own clients and tasks."""
    with running_service(tmp_path_factory.mktemp("data")) as client:
        widen_default_cell(client)
        yield client


@pytest.fixture(scope="session", params=MOSTLY_SQLITE)
def service_on_each(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A shared service on each kind of database."""
    if request.param == "sqlite":
        yield request.getfixturevalue("service")
        return
    directory = tmp_path_factory.mktemp("data")
    url = new_database(request.param, directory, request.getfixturevalue("postgres_url"))
    with running_service(directory, database_url=url) as client:
        widen_default_cell(client)
        yield client


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[TimedService]":
    """A service whose clock the test moves."""
    from tests.in_process_service import timed_service  # noqa: PLC0415 - takes seconds, and few need it

    with timed_service(tmp_path_factory.mktemp("data")) as found:
        widen_default_cell(found.client)
        yield found


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """An S3-compatible server for all tests; each has a prefix of its own in its bucket."""
    from tests.s3_server import s3_server  # noqa: PLC0415 - takes a second, and few need it

    with s3_server() as server:
        yield server
