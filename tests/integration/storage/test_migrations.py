"""The database's shape: reached from nothing, left again, and the same as the tables in code."""

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, create_engine, delete, inspect, make_url, select, text
from sqlalchemy.engine.interfaces import ReflectedCheckConstraint, ReflectedIndex
from sqlalchemy.exc import IntegrityError

from services.domain.rounds import Round, RoundState
from services.domain.tasks import Clock, SlotEnforcement
from services.errors import ServiceStartError
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.protocol.transitions import end_round
from services.storage.database import Database, UnitOfWork
from services.storage.migration import downgrade, has_content, is_up_to_date, migrate
from services.storage.tables import event_counter, metadata
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND

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
        factories.busy_round(uow)
        uow.commit()
        numbered = uow.events.last_number()
    migrate(database)
    assert is_up_to_date(database)
    with database.reading() as store:
        assert store.counts.take().clients == 3
        assert store.events.last_number() == numbered > 0


def test_a_downgrade_leaves_nothing_of_ours_and_the_way_up_is_open_again(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        factories.busy_round(uow)
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
        factories.busy_round(uow)
        uow.commit()
        assert uow.counts.take().clients == 3


def test_a_database_of_the_version_before_is_brought_up_to_date_with_its_rows(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        busy = factories.busy_round(uow)
        uow.commit()
        task = uow.tasks.get(busy.round_.task_id)
    downgrade(own_database, "0001")
    assert "evaluation_parts" not in inspect(own_database.engine).get_table_names()
    migrate(own_database)
    with own_database.reading() as store:
        assert store.tasks.get(task.task_id) == task
        assert store.rounds.get(busy.round_.round_id) == busy.round_
        assert store.models.scores(task.serial, 0) == []


def test_the_way_back_from_terms_in_one_column_and_up_again_keeps_every_row(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        factories.busy_round(uow)
        factories.ready_task(
            uow,
            name="Köln",
            dataset=None,
            final_deadline_s=400.1,
            model_size_bytes=2**40,
            auto_advance=True,
            seed=2**53 - 1,
            labels={"class": "car", "city": "Århus"},
            slot_enforcement=SlotEnforcement.STRICT,
            learning_rate=1e-7,
            max_update_norm=1e12,
        )
        uow.commit()
    rows = _rows(own_database)
    downgrade(own_database, "0002")
    with own_database.engine.connect() as connection:
        columns = connection.execute(text("SELECT name, seed, clock FROM tasks ORDER BY serial")).all()
        reports = connection.execute(text("SELECT count(*) FROM resource_reports")).scalar_one()
    assert columns == [("digits", 7, "simulated"), ("Köln", 2**53 - 1, "simulated")]
    assert reports == len(rows["resource_reports"]) == 4
    with pytest.raises(IntegrityError), own_database.engine.begin() as connection:
        connection.execute(text("UPDATE tasks SET min_clients = 0"))
    migrate(own_database)
    assert _rows(own_database) == rows


@pytest.mark.parametrize(("wanted", "blocks"), [(None, 100), (100, 100), (400, 400)])
def test_the_default_cell_has_as_many_blocks_as_any_task_wants(
    sqlite_url: str, wanted: int | None, blocks: int
) -> None:
    database = Database(sqlite_url)
    migrate(database)
    if wanted is not None:
        with database.unit_of_work() as uow:
            factories.reporting_clients(uow, "a")
            task = factories.ready_task(uow, resource_blocks=wanted)
            uow.commit()
    downgrade(database, "0009")
    migrate(database)
    with database.unit_of_work() as uow:
        assert uow.cells.get("default").resource_blocks == blocks
        if wanted is not None:
            assert open_round(uow, task.task_id, NOW).selected == 1
    database.close()


def test_clients_of_rounds_that_are_open_during_the_migration_are_busy(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        factories.scheduled_round(uow, "a", clock=Clock.WALL)
        uow.commit()
    downgrade(own_database, "0009")
    migrate(own_database)
    with own_database.unit_of_work() as uow:
        assert uow.allocations.held() == {}
        other = open_round(uow, factories.ready_task(uow, clock=Clock.WALL).task_id, NOW)
        assert [candidate.outcome.value for candidate in uow.rounds.candidates(other.serial)] == ["BUSY"]


def test_the_way_back_from_key_rotation_keeps_both_keys(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        serial = factories.clients(uow, "a")["a"]
        old = factories.client_key(uow, "a", serial)
        new = factories.client_key(uow, "a", serial, old)
        uow.commit()
    downgrade(own_database, "0003")
    assert "replaces" not in {key["name"] for key in inspect(own_database.engine).get_columns("api_keys")}
    migrate(own_database)
    with own_database.reading() as store:
        assert store.keys.find(old.key_id) is not None
        assert store.keys.find(new.key_id) is not None


def test_rounds_get_their_terms_from_their_tasks(own_database: Database) -> None:
    def fail(uow: UnitOfWork, round_: Round, now: datetime) -> Round:
        task = uow.tasks.get(round_.task_id, lock=True)
        return end_round(uow, task, uow.rounds.get(round_.round_id), RoundState.FAILED, now)

    with own_database.unit_of_work() as uow:
        requesting = factories.scheduled_round(uow, "a", report_window_s=60.0, model_size_bytes=2**40)
        simulated = fail(uow, factories.scheduled_round(uow, "b", aggregation_s=0.5), NOW)
        again = fail(uow, open_round(uow, simulated.task_id, NOW), NOW)
        cancelled = open_round(uow, simulated.task_id, NOW)
        cancel_task(uow, simulated.task_id, NOW)
        everyone = factories.scheduled_round(uow, "c", policy="fl", aggregation_s=0.25)
        factories.received_update(uow, everyone, "c")
        everyone = fail(uow, everyone, NOW)
        wall = fail(uow, factories.scheduled_round(uow, "d", clock=Clock.WALL), NOW + 7 * SECOND)
        uow.commit()
        kept = [
            uow.rounds.get(item.round_id)
            for item in (requesting, simulated, again, cancelled, everyone, wall)
        ]
    elapsed_s = [item.task_elapsed_s for item in kept]
    assert elapsed_s == [None, 180.0, 360.0, 360.0, 10.25, 7.0]
    downgrade(own_database, "0004")
    assert "terms" not in {item["name"] for item in inspect(own_database.engine).get_columns("rounds")}
    migrate(own_database)
    with own_database.reading() as store:
        assert [store.rounds.get(item.round_id) for item in kept] == kept


def test_outcomes_of_candidates_before_they_were_told_apart(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        busy = factories.busy_round(uow)
        uow.commit()
    with own_database.engine.begin() as connection:
        connection.execute(text("UPDATE candidates SET outcome = 'NOT_CHOSEN' WHERE client_id = 'idle'"))
    downgrade(own_database, "0005")
    with pytest.raises(IntegrityError), own_database.engine.begin() as connection:
        connection.execute(text("UPDATE candidates SET outcome = 'TOO_SLOW'"))
    migrate(own_database)
    with own_database.reading() as store:
        outcomes = {
            candidate.client_id: candidate.outcome.value
            for candidate in store.rounds.candidates(busy.round_.serial)
        }
        assert outcomes == {"done": "SELECTED", "trained": "SELECTED", "idle": "DEADLINE"}
        assert len(store.rounds.slots(busy.round_.serial)) == 3
    with own_database.engine.begin() as connection:
        connection.execute(text("UPDATE candidates SET outcome = 'TOO_SLOW'"))


def test_the_way_back_from_workers_and_up_again_keeps_every_other_row(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        factories.busy_round(uow)
        uow.commit()
    rows = _rows(own_database)
    downgrade(own_database, "0007")
    assert not {"workers", "job_refusals"} & set(inspect(own_database.engine).get_table_names())
    migrate(own_database)
    assert _rows(own_database) == rows
    with own_database.reading() as store:
        assert store.workers.live(NOW) == []


def test_foreign_keys_hold_again_after_a_migration(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        factories.busy_round(uow)
        uow.commit()
    downgrade(own_database, "0002")
    migrate(own_database)
    with pytest.raises(IntegrityError), own_database.engine.begin() as connection:
        connection.execute(delete(metadata.tables["tasks"]))


def test_a_database_with_terms_of_a_newer_version_is_refused(own_database: Database) -> None:
    with own_database.unit_of_work() as uow:
        terms = factories.terms()
        uow.tasks.add(terms, NOW)
        uow.commit()
    newer = json.dumps(vars(terms) | {"antennas": 2})
    with own_database.engine.begin() as connection:
        as_json = ":terms" if own_database.is_sqlite else "CAST(:terms AS jsonb)"
        connection.execute(text(f"UPDATE tasks SET terms = {as_json}"), {"terms": newer})
    with pytest.raises(ServiceStartError, match=r"another version .*TaskTerms has no field antennas"):
        migrate(own_database)


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
        table.name: sorted(
            str(constraint.name)
            for constraint in table.constraints
            if isinstance(constraint, CheckConstraint)
        )
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
        assert [item.result() for item in started] == [True] * AT_ONCE
    assert _counters(database_url) == [0]


def test_processes_that_migrate_at_the_same_moment_take_turns(database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    processes = [spawn.Process(target=migrate_at_the_barrier, args=(database_url, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
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


_NEW_TABLES = {"workers", "job_refusals", "held_blocks", "allocations", "waiting_tasks", "device_evaluations"}
"""Tables that older versions do not have: the way back drops them."""


def _rows(database: Database) -> dict[str, list[Any]]:
    """What no way back may lose; workers report themselves again, and open rounds hold no blocks."""
    with database.engine.connect() as connection:
        return {
            name: sorted(map(repr, connection.execute(select(table)).all()))
            for name, table in metadata.tables.items()
            if name not in _NEW_TABLES
        }


def _counters(url: str) -> list[int]:
    engine = create_engine(make_url(url))
    with engine.connect() as connection:
        numbers = list(connection.execute(select(event_counter.c.last_number)).scalars())
    engine.dispose()
    return numbers


def _names(constraints: list[ReflectedCheckConstraint]) -> list[str]:
    return sorted(str(constraint["name"]) for constraint in constraints)


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
            "indexes": sorted(_index(item) for item in found.get_indexes(name)),
        }
    return shape


def _index(index: ReflectedIndex) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def test_a_database_has_content_once_something_was_recorded(own_database: Database) -> None:
    assert not has_content(own_database)
    with own_database.unit_of_work() as uow:
        factories.clients(uow, "a")
        uow.events.record("clients.enrolled", factories.NOW)
        uow.commit()
    assert has_content(own_database)


def test_an_empty_database_has_no_content(database_url: str) -> None:
    database = Database(database_url)
    assert not has_content(database)
    database.close()
