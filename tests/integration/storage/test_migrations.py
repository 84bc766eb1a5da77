"""The database's shape: reached from nothing, left again, and the same as the tables in code."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, create_engine, inspect, make_url, select, text
from sqlalchemy.engine.interfaces import ReflectedCheckConstraint, ReflectedIndex

from services.errors import ServiceStartError
from services.storage.database import Database
from services.storage.migration import downgrade, is_up_to_date, migrate
from services.storage.tables import event_counter, metadata
from tests.integration.storage import given

AT_ONCE = 4


def test_an_empty_database_is_out_of_date_until_it_is_migrated(database_url: str) -> None:
    database = Database(database_url)
    assert not is_up_to_date(database)
    migrate(database)
    assert is_up_to_date(database)
    assert set(inspect(database.engine).get_table_names()) == {*metadata.tables, "alembic_version"}
    database.close()


def test_migrating_again_changes_nothing(database: Database) -> None:
    with database.unit_of_work() as uow:
        given.busy_round(uow)
        uow.commit()
        numbered = uow.events.last_number()
    migrate(database)
    assert is_up_to_date(database)
    with database.reading() as store:
        assert store.counts.take().clients == 3
        assert store.events.last_number() == numbered > 0


def test_a_downgrade_leaves_nothing_of_ours_and_the_way_up_is_open_again(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        given.busy_round(uow)
        uow.commit()
    downgrade(own_database, "base")
    assert not is_up_to_date(own_database)
    left = inspect(own_database.engine)
    assert left.get_table_names() == ["alembic_version"]
    if not own_database.is_sqlite:
        assert left.get_sequence_names() == []
    with own_database.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 0

    migrate(own_database)
    assert is_up_to_date(own_database)
    with own_database.unit_of_work() as uow:
        given.busy_round(uow)
        uow.commit()
        assert uow.counts.take().clients == 3


def test_a_database_of_the_version_before_is_brought_up_to_date_with_its_rows(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        busy = given.busy_round(uow)
        uow.commit()
        task = uow.tasks.get(busy.round_.task_id)
    downgrade(own_database, "0001")
    assert "evaluation_parts" not in inspect(own_database.engine).get_table_names()
    migrate(own_database)
    with own_database.reading() as store:
        assert store.tasks.get(task.task_id) == task
        assert store.rounds.get(busy.round_.round_id) == busy.round_
        assert store.models.scores(task.serial, 0) == []


def test_alembic_finds_no_difference_between_the_migrated_database_and_the_tables(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_the_comparison_notices_a_column_that_is_missing(own_database: Database) -> None:
    with own_database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE clients DROP COLUMN enrolled_at"))
    with own_database.engine.connect() as connection:
        ((kind, _, table, column),) = compare_metadata(MigrationContext.configure(connection), metadata)
    assert (kind, table, column.name) == ("add_column", "clients", "enrolled_at")


def test_every_check_constraint_of_the_tables_is_in_the_database(database: Database) -> None:
    expected = {
        table.name: sorted(str(one.name) for one in table.constraints if isinstance(one, CheckConstraint))
        for table in metadata.tables.values()
    }
    assert sum(map(len, expected.values())) > 30
    found = inspect(database.engine)
    assert {name: _names(found.get_check_constraints(name)) for name in metadata.tables} == expected


def test_a_migrated_database_is_the_same_as_one_made_from_the_tables(own_database: Database) -> None:
    migrated = _shape(own_database)
    downgrade(own_database, "base")
    with own_database.engine.begin() as connection:
        metadata.create_all(connection)
    assert migrated == _shape(own_database)


def test_a_database_of_an_unknown_revision_is_refused_and_left_alone(own_database: Database) -> None:
    with own_database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    assert not is_up_to_date(own_database)
    with pytest.raises(ServiceStartError, match=r"made by another version .*from_the_future"):
        migrate(own_database)
    with own_database.engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    assert version == "from_the_future"


def test_a_migration_that_fails_leaves_nothing_behind(database_url: str) -> None:
    database = Database(database_url)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE updates (strange INTEGER)"))  # the last one to be made
    with pytest.raises(ServiceStartError, match=r"the database cannot be used: .*updates.* already exists"):
        migrate(database)
    assert inspect(database.engine).get_table_names() == ["updates"]
    database.close()


def test_a_server_that_does_not_answer_is_named_as_the_reason_not_to_start(postgres_url: str) -> None:
    nobody = make_url(postgres_url).set(database="nobody_made_this").render_as_string(hide_password=False)
    database = Database(nobody)
    with pytest.raises(ServiceStartError, match=r"cannot be used: .*nobody_made_this"):
        migrate(database)
    database.close()


def test_threads_that_migrate_at_the_same_moment_take_turns(database_url: str) -> None:
    barrier = Barrier(AT_ONCE)

    def start() -> bool:
        database = Database(database_url)
        barrier.wait()
        migrate(database)
        done = is_up_to_date(database)
        database.close()
        return done

    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [pool.submit(start) for _ in range(AT_ONCE)]
        assert [one.result() for one in started] == [True] * AT_ONCE
    assert _counters(database_url) == [0]


def test_processes_that_migrate_at_the_same_moment_take_turns(database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    processes = [spawn.Process(target=migrate_at_the_barrier, args=(database_url, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert _counters(database_url) == [0]


def test_the_number_of_the_last_event_is_one_row(database: Database) -> None:
    with database.engine.begin() as connection:
        assert connection.execute(select(event_counter)).all() == [(1, 0)]


def migrate_at_the_barrier(url: str, barrier: Any) -> None:
    """What each of the processes does."""
    database = Database(url)
    barrier.wait(timeout=60)
    migrate(database)


def _counters(url: str) -> list[int]:
    engine = create_engine(make_url(url))
    with engine.connect() as connection:
        numbers = list(connection.execute(select(event_counter.c.last_number)).scalars())
    engine.dispose()
    return numbers


def _names(constraints: list[ReflectedCheckConstraint]) -> list[str]:
    return sorted(str(one["name"]) for one in constraints)


def _shape(database: Database) -> dict[str, object]:
    """All that the database tells about our tables; the order of what has none does not count."""
    found = inspect(database.engine)
    shape: dict[str, object] = {}
    for name in metadata.tables:
        columns = [{**column, "type": str(column["type"])} for column in found.get_columns(name)]
        shape[name] = {
            "columns": columns,
            "primary key": found.get_pk_constraint(name),
            "foreign keys": sorted(map(str, found.get_foreign_keys(name))),
            "unique": sorted(map(str, found.get_unique_constraints(name))),
            "checks": sorted(map(str, found.get_check_constraints(name))),
            "indexes": sorted(_index(one) for one in found.get_indexes(name)),
        }
    return shape


def _index(index: ReflectedIndex) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})
