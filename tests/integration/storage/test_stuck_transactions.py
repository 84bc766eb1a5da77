"""A process that stands still in a transaction does not keep the others from writing for ever."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from services.protocol.initialization import start_task
from services.storage import database as storage
from services.storage.database import Database, is_database_unavailable
from tests.integration.storage.factories import NOW, terms


@pytest.fixture
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_IDLE_IN_TRANSACTION_TIMEOUT_S", 1)


@pytest.mark.usefixtures("_short_patience")
def test_who_stands_still_in_a_transaction_loses_it(postgresql_database: Database) -> None:
    url = postgresql_database.engine.url.render_as_string(hide_password=False)
    standing, going = Database(url), Database(url)
    with going.unit_of_work() as uow:
        task = start_task(uow, terms(), NOW)
        uow.commit()
    with standing.unit_of_work() as uow:
        uow.tasks.change(uow.tasks.get(task.task_id, lock=True), rounds=7)
        with going.unit_of_work() as other:
            other._connection.execute(text("SET LOCAL lock_timeout = '30s'"))
            found = other.tasks.get(task.task_id, lock=True)
            other.tasks.change(found, rounds=1)
            other.commit()
        with pytest.raises(SQLAlchemyError) as failed:
            uow.commit()
    assert is_database_unavailable(failed.value), "its caller is told to try again"
    with going.reading() as store:
        assert store.tasks.get(task.task_id).rounds == 1
    with standing.reading() as store:
        assert store.tasks.get(task.task_id).rounds == 1, "and it goes on with another connection"
    standing.close()
    going.close()
