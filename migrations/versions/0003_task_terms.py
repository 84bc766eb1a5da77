"""The terms of a task in one JSON column."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
CHECKS = {
    "aggregation_known": "aggregation IN ('weighted', 'uniform')",
    "clock_known": "clock IN ('wall', 'simulated')",
    "partition_scheme_known": "partition_scheme IN ('iid', 'non_iid')",
    "slot_enforcement_known": "slot_enforcement IN ('deadline', 'strict')",
    "minima_positive": "min_clients >= 1 AND min_updates >= 1",
    "fraction_in_range": "request_fraction > 0 AND request_fraction <= 1",
    "deadline_positive": "round_deadline_s > 0",
}


def upgrade() -> None:
    """Move the columns into one."""
    op.add_column("tasks", sa.Column("terms", JSON, nullable=True))
    columns = list(_columns())
    names = [column.name for column in columns]
    tasks = sa.table("tasks", sa.column("serial"), sa.column("terms", JSON), *_plain(columns))
    for row in op.get_bind().execute(sa.select(tasks)).mappings().all():
        terms = {name: row[name] for name in names}
        op.execute(sa.update(tasks).where(tasks.c.serial == row["serial"]).values(terms=terms))
    with op.batch_alter_table("tasks") as batch:
        batch.alter_column("terms", existing_type=JSON, nullable=False)
        for name in CHECKS:
            batch.drop_constraint(op.f(f"ck_tasks_{name}"), type_="check")
        for name in names:
            batch.drop_column(name)


def downgrade() -> None:
    """Make columns of them again. What has no column is lost."""
    columns = list(_columns())
    for column in columns:
        op.add_column("tasks", sa.Column(column.name, column.type, nullable=True))
    tasks = sa.table("tasks", sa.column("serial"), sa.column("terms", JSON), *_plain(columns))
    for row in op.get_bind().execute(sa.select(tasks.c.serial, tasks.c.terms)).all():
        values = {column.name: row.terms[column.name] for column in columns}
        op.execute(sa.update(tasks).where(tasks.c.serial == row.serial).values(**values))
    with op.batch_alter_table("tasks") as batch:
        for column in columns:
            if not column.nullable:
                batch.alter_column(column.name, existing_type=column.type, nullable=False)
        for name, condition in CHECKS.items():
            batch.create_check_constraint(op.f(f"ck_tasks_{name}"), condition)
        batch.drop_column("terms")


def _plain(columns: list[sa.Column[Any]]) -> Iterator[sa.ColumnClause[Any]]:
    return (sa.column(column.name, column.type) for column in columns)


def _columns() -> Iterator[sa.Column[Any]]:
    """The columns that held the terms before."""
    yield sa.Column("name", sa.String(length=128), nullable=False)
    yield sa.Column("model", sa.String(length=128), nullable=False)
    yield sa.Column("dataset", sa.String(length=128), nullable=True)
    yield sa.Column("partition_scheme", sa.String(32), nullable=False)
    yield sa.Column("local_epochs", sa.Integer(), nullable=False)
    yield sa.Column("batch_size", sa.Integer(), nullable=False)
    yield sa.Column("learning_rate", sa.Float(), nullable=False)
    yield sa.Column("learning_rate_decay", sa.Float(), nullable=False)
    yield sa.Column("aggregation", sa.String(32), nullable=False)
    yield sa.Column("policy", sa.String(length=32), nullable=False)
    yield sa.Column("round_deadline_s", sa.Float(), nullable=False)
    yield sa.Column("final_deadline_s", sa.Float(), nullable=True)
    yield sa.Column("request_fraction", sa.Float(), nullable=False)
    yield sa.Column("target_accuracy", sa.Float(), nullable=True)
    yield sa.Column("clock", sa.String(32), nullable=False)
    yield sa.Column("report_max_age_s", sa.Float(), nullable=False)
    yield sa.Column("report_window_s", sa.Float(), nullable=False)
    yield sa.Column("model_size_bytes", sa.BigInteger(), nullable=True)
    yield sa.Column("selection_s", sa.Float(), nullable=False)
    yield sa.Column("aggregation_s", sa.Float(), nullable=False)
    yield sa.Column("resource_blocks", sa.Integer(), nullable=False)
    yield sa.Column("auto_advance", sa.Boolean(), nullable=False)
    yield sa.Column("seed", sa.BigInteger(), nullable=False)
    yield sa.Column("labels", JSON, nullable=False)
    yield sa.Column("min_clients", sa.Integer(), nullable=False)
    yield sa.Column("min_updates", sa.Integer(), nullable=False)
    yield sa.Column("slot_enforcement", sa.String(32), nullable=False)
    yield sa.Column("slot_grace_s", sa.Float(), nullable=False)
    yield sa.Column("idle_timeout_s", sa.Float(), nullable=False)
    yield sa.Column("max_update_norm", sa.Float(), nullable=True)
