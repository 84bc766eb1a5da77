"""The time that all processes agree on."""

from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from sqlalchemy import func, select

from services.storage import coordination
from services.storage.database import Database

HOUR = timedelta(hours=1)


class FastDatetime(datetime):
    """The clock of a host that is an hour ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "FastDatetime":
        return super().now(tz) + HOUR


@pytest.fixture
def _host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "datetime", FastDatetime)


@pytest.mark.usefixtures("_host_is_ahead")
def test_a_host_whose_clock_is_wrong_goes_by_postgresql(postgresql_database: Database) -> None:
    database = Database(postgresql_database.engine.url.render_as_string(hide_password=False))
    assert database.now() > datetime.now(UTC) + HOUR / 2, "nobody has been asked"
    database.set_clock()
    for _ in range(3):
        before, shared = _time_of(database), database.now()
        assert abs(shared - before) < timedelta(seconds=30)
        database.set_clock()
    database.close()


@pytest.mark.usefixtures("_host_is_ahead")
def test_sqlite_is_on_the_host_and_has_its_clock(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    database.set_clock()
    assert database.now() > datetime.now(UTC) + HOUR / 2
    database.close()


def test_the_shared_clock_runs(postgresql_database: Database) -> None:
    postgresql_database.set_clock()
    moments = [postgresql_database.now() for _ in range(1000)]
    assert moments == sorted(moments)
    assert moments[0] < moments[-1]
    assert moments[0].tzinfo is UTC


def test_a_slow_answer_does_not_set_a_clock_that_is_set(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = coordination.SharedClock()
    with postgresql_database.engine.connect() as connection:
        shared.synchronize(connection)
        known = shared._known
        monkeypatch.setattr(coordination, "_MAX_QUERY_S", -1.0)
        shared.synchronize(connection)
        assert shared._known == known
        monkeypatch.setattr(coordination, "_MAX_QUERY_S", 60.0)
        shared.synchronize(connection)
        assert shared._known != known


def _time_of(database: Database) -> datetime:
    with database.engine.connect() as connection:
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment
