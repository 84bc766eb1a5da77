"""What must never be false: each constraint of the tables is broken by hand, on both databases."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from services.domain.rounds import OPEN_STATES, RoundState
from services.storage.database import Database
from services.storage.tables import metadata
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND

TABLES = metadata.tables
WHOLE_NUMBER = 999_999
BROKEN: dict[str, list[dict[str, object]]] = {
    "ck_clients_client_id_not_empty": [{"client_id": ""}],
    "ck_api_keys_scope_known": [{"scope": "admin", "client_serial": None}],
    "ck_api_keys_client_keys_have_a_client": [{"scope": "client", "client_serial": None}, {"scope": "read"}],
    "ck_resource_reports_throughput_positive": [{"throughput_bps": 0.0}],
    "ck_resource_reports_compute_positive": [{"compute_samples_per_s": 0.0}],
    "ck_resource_reports_data_not_negative": [{"data_samples": -1}],
    "ck_resource_reports_blocks_positive": [{"report_resource_blocks": 0}],
    "ck_tasks_state_known": [{"state": "paused"}],
    "ck_tasks_progress_not_negative": [{"rounds": -1}, {"elapsed_s": -0.5}],
    "ck_tasks_end_known": [{"ended_at": NOW}, {"state": "finished"}],
    "ck_tasks_ready_with_model": [{"model_version": None}],
    "ck_model_versions_numbers_in_range": [{"size_bytes": 0}, {"version": -1}],
    "ck_evaluations_numbers_in_range": [{"accuracy": -0.01}, {"accuracy": 1.01}, {"samples": 0}],
    "ck_evaluation_parts_numbers_in_range": [{"correct": -1}, {"correct": 251}],
    "ck_device_evaluations_numbers_in_range": [{"accuracy": -0.01}, {"accuracy": 1.01}, {"samples": 0}],
    "ck_rounds_state_known": [{"state": "paused", "ended_at": NOW}],
    "ck_rounds_counts_nested": [{"received": 4}, {"selected": 4}, {"asked": 4}, {"clients": 2}],
    "ck_rounds_end_known": [{"ended_at": NOW}, {"state": "failed"}],
    "ck_rounds_start_known": [{"started_at": None}],
    "ck_candidates_outcome_known": [{"outcome": "UNLUCKY"}],
    "ck_cells_blocks_positive": [{"resource_blocks": 0}],
    "ck_round_cells_blocks_in_range": [{"resource_block_first": -1}, {"resource_block_count": 0}],
    "ck_held_blocks_block_not_negative": [{"block": -1}],
    "ck_allocations_blocks_in_range": [{"resource_block_first": -1}, {"resource_block_count": 0}],
    "ck_allocations_ends_later": [{"held_until": NOW - SECOND}],
    "ck_waiting_tasks_overtaken_not_negative": [{"overtaken": -1}],
    "ck_slots_outcome_known": [{"outcome": "lost"}],
    "ck_slots_upload_adds_up": [{"upload_start_ns": -1}, {"upload_end_ns": 0}],
    "ck_slots_window_adds_up": [{"window_start_ns": -1}, {"window_end_ns": 0}],
    "ck_slots_received_when": [{"outcome": "received", "uploaded_at": None}],
    "ck_slots_ready_when_granted": [{"granted_ns": 1, "ready_ns": None}],
    "ck_slots_granted_when": [
        {"grant_expires_ns": 1},
        {"grant_expires_ns": 1, "granted_ns": 1, "ready_ns": 1, "outcome": "missed"},
    ],
    "ck_updates_numbers_positive": [{"size_bytes": 0}, {"data_samples": 0}],
    "ck_jobs_kind_known": [{"kind": "make_coffee"}],
    "ck_jobs_state_known": [{"state": "paused"}],
    "ck_jobs_attempts_capped": [{"attempts": 4}, {"attempts": -1}],
    "ck_jobs_lease_known": [{"state": "leased"}, {"lease_expires_at": NOW}],
    "ck_workers_expires_later": [{"expires_at": NOW}],
    "ck_trainings_state_known": [{"state": "paused"}],
    "ck_trainings_done_with_update": [{"state": "done"}, {"digest": "d" * 64}],
    "ck_trainings_partition_not_negative": [{"partition": -1}],
    "ck_event_counter_one_row": [{"counter": 2}],
}
"""For each check, changes to rows that are good: each of them breaks this check and no other."""


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """On a database with rows in every table."""
    with database.unit_of_work() as uow:
        busy = factories.busy_round(uow)
        factories.client_key(uow, "idle", uow.clients.lock("idle"), busy.client_key)
        uow.rounds.change_slot(busy.round_.serial, "idle", ready_ns=1, granted_ns=1, grant_expires_ns=2)
        uow.commit()
    with database.engine.connect() as connection:
        yield connection


def test_there_is_a_row_in_every_table_to_try_constraints_on(connection: Connection) -> None:
    assert [name for name, table in TABLES.items() if not connection.execute(select(table)).first()] == []


def test_every_check_is_broken_here() -> None:
    assert set(BROKEN) == {name for _, name in _checks()}


def test_every_check_refuses_what_breaks_it(connection: Connection) -> None:
    accepted = [
        f"{name}: {changes}"
        for table, name in _checks()
        for changes in BROKEN[name]
        if not _refused(connection, update(table).values(**changes), saying=name)
    ]
    assert accepted == []


def test_every_key_refuses_a_second_row_with_the_same_values(connection: Connection) -> None:
    accepted = []
    for table in TABLES.values():
        keys = list(_keys(table))
        assert keys
        for key in keys:
            twin = _twin(connection, table, key)
            columns = ", ".join(f"{table.name}.{column}" for column in key.columns)
            expected = columns if connection.dialect.name == "sqlite" else f'"{key.name}"'
            if not _refused(connection, insert(table).values(**twin), saying=expected):
                accepted.append(key.name)
    assert accepted == []


def test_every_reference_refuses_what_does_not_exist(connection: Connection) -> None:
    accepted = []
    for table in TABLES.values():
        for reference in table.foreign_key_constraints:
            astray = {column.name: _unheard_of(column) for column in reference.columns}
            stranger = _twin(connection, table, None) | astray
            if not _refused(connection, insert(table).values(**stranger), saying="foreign key"):
                accepted.append(reference.name)
    assert accepted == []


@pytest.mark.parametrize("name", ["tasks", "model_versions", "rounds", "candidates", "slots"])
def test_what_a_round_refers_to_cannot_be_deleted(connection: Connection, name: str) -> None:
    assert _refused(connection, delete(TABLES[name]), saying="foreign key")


def test_what_must_be_known_cannot_be_left_out(connection: Connection) -> None:
    accepted = [
        f"{table.name}.{column.name}"
        for table in TABLES.values()
        for column in table.columns
        if not column.nullable
        and not _refused(
            connection,
            update(table).values({column.name: None}),
            saying=rf"\b{column.name}\b|datatype mismatch",  # the second of SQLite's row numbers
        )
    ]
    assert accepted == []


def test_what_may_be_unknown_can_be_left_out(connection: Connection) -> None:
    """So that it is not some other constraint that refuses above."""
    assert not _refused(connection, update(TABLES["tasks"]).values(outcome=None), saying="")


def test_a_client_is_removed_with_all_that_is_only_its_own(connection: Connection) -> None:
    connection.execute(delete(TABLES["clients"]))
    for name, left in (("client_labels", 0), ("resource_reports", 0), ("api_keys", 1), ("candidates", 3)):
        assert len(connection.execute(select(TABLES[name])).all()) == left, name


def _refused(connection: Connection, statement: Any, *, saying: str) -> bool:
    """Whether the database refuses it, for this reason; it is as if nothing had been tried."""
    try:
        connection.execute(statement)
    except IntegrityError as error:
        return re.search(saying, str(error.orig), re.IGNORECASE) is not None
    else:
        return False
    finally:
        connection.rollback()


def _checks() -> list[tuple[Table, str]]:
    return [
        (table, str(constraint.name))
        for table in TABLES.values()
        for constraint in sorted(table.constraints, key=lambda item: str(item.name))
        if isinstance(constraint, CheckConstraint)
    ]


class _Key:
    """A primary key, a unique constraint or a unique index."""

    def __init__(self, name: str, columns: list[str]) -> None:
        self.name = name
        self.columns = columns


def _keys(table: Table) -> Iterator[_Key]:
    for constraint in table.constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            yield _Key(str(constraint.name), [column.name for column in constraint.columns])
        else:
            assert isinstance(constraint, CheckConstraint | ForeignKeyConstraint)
    for index in table.indexes:
        if index.unique:
            yield _Key(str(index.name), [column.name for column in index.columns])


def _twin(connection: Connection, table: Table, key: _Key | None) -> dict[str, Any]:
    """A row that has this key in common with one that exists, and no other key with any."""
    rows = [dict(row) for row in connection.execute(select(table)).mappings()]
    connection.rollback()
    row = max(rows, key=lambda row: sum(value is not None for value in row.values()))
    if key is not None and key.name == "uq_slots_channel":
        row |= {"outcome": "pending", "ready_ns": 1, "granted_ns": 1, "grant_expires_ns": 2}
    for other in _keys(table):
        free = [column for column in other.columns if key is None or column not in key.columns]
        if free:
            row[free[-1]] = _unheard_of(table.c[free[-1]])
        elif other.name == "uq_slots_channel":
            row["grant_expires_ns"] = None if key is None or key.name != other.name else 2
        elif key is None or other.name != key.name:
            assert other.name == "uq_rounds_open"
            assert row["state"] in OPEN_STATES
            row |= {"state": RoundState.FAILED, "ended_at": NOW}
    return row


def _unheard_of(column: Column[Any]) -> object:
    return WHOLE_NUMBER if isinstance(column.type, Integer | BigInteger) else "unheard-of"
