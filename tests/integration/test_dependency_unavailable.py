"""What callers are told when the database or the disk fails: to try again, and nothing more."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from psycopg.errors import IdleInTransactionSessionTimeout, InFailedSqlTransaction
from pydantic import SecretStr
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from operator_api.app import create_app
from operator_api.service import bootstrap
from services.settings import Settings
from tests.databases import new_database
from tests.faults.chaos.disk import small_disk
from tests.integration.cell import assert_problem, enrol, make_model, resources
from tests.integration.rounds_setup import quick_round, upload_as
from tests.running_service import OPERATOR_KEY, running_service

_SECRET = Exception("secret detail")
FOR_NOW = [
    OperationalError("SELECT 1", {}, _SECRET),
    DBAPIError("SELECT 1", {}, _SECRET, connection_invalidated=True),
    InternalError("COMMIT", {}, IdleInTransactionSessionTimeout("secret detail")),
    NoConnectionFreeError("secret detail"),
]
BUGS = [
    InternalError("COMMIT", {}, InFailedSqlTransaction("secret detail")),
    ProgrammingError("SELECT 1", {}, _SECRET),
    IntegrityError("SELECT 1", {}, _SECRET),
    OSError(errno.EACCES, "secret detail"),
]


Ask = Callable[[Exception], httpx.Response]


@pytest.fixture(scope="module")
def answer_to(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """The service with a route that fails as it is told to."""
    settings = Settings(operator_key=SecretStr(OPERATOR_KEY), data_dir=tmp_path_factory.mktemp("data"))
    app = create_app(bootstrap(settings))
    errors: list[Exception] = []

    @app.get("/fails")
    def fail() -> None:
        raise errors.pop()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/fails")

    def answer(error: Exception) -> httpx.Response:
        errors.append(error)
        return asyncio.run(ask())

    return answer


@pytest.mark.parametrize("error", FOR_NOW, ids=repr)
def test_what_fails_for_now_is_to_be_tried_again(error: Exception, answer_to: Ask) -> None:
    response = answer_to(error)
    assert_problem(response, 503, "NOT_READY")
    assert response.headers["Retry-After"] == "1"
    assert "secret" not in response.text


@pytest.mark.parametrize("error", BUGS, ids=repr)
def test_what_would_fail_again_is_a_bug(error: Exception, answer_to: Ask) -> None:
    response = answer_to(error)
    assert_problem(response, 500, "INTERNAL_ERROR")
    assert "Retry-After" not in response.headers
    assert "secret" not in response.text


def test_without_its_database_the_service_asks_for_patience(tmp_path: Path, postgres_url: str) -> None:
    url = new_database("postgresql", tmp_path, postgres_url)
    with running_service(tmp_path, database_url=url) as service:
        ((client_id, _),) = enrol(service).items()
        server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))
        server.dispose()
        for response in (service.post("/reports", json=resources(client_id)), service.get("/tasks")):
            assert_problem(response, 503, "NOT_READY")
            assert response.headers["Retry-After"] == "1"


def test_an_update_without_room_on_the_disk_can_be_sent_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        if not disk.is_small:
            pytest.skip("a file system of its own cannot be mounted here")
        with running_service(tmp_path, model_store=str(disk.directory / "store")) as service:
            opened, keys = quick_round(service)
            ((client_id, key),) = keys.items()
            given = {"update": make_model(seed=1), "fedcs_elapsed_s": None}
            disk.fill()
            full = upload_as(service, key, opened["round_id"], client_id, **given)
            assert_problem(full, 507, "STORAGE_FULL")
            disk.empty()
            assert upload_as(service, key, opened["round_id"], client_id, **given).status_code == 201
