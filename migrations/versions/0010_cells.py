"""Cells, resource blocks held in them, and tasks that wait for some.

All clients are put into the cell ``default``; it has at least 100 blocks, and as many as any task wants. Rounds that
are open hold no blocks.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
CELL_ID = sa.String(64)
BLOCKS_IN_RANGE = "resource_block_first >= 0 AND resource_block_count > 0"
OUTCOMES = ("ASKED", "SELECTED", "DEADLINE", "NO_DATA", "TOO_SLOW", "NOT_CHOSEN", "NO_REPORT")
ADDED_OUTCOME = "BUSY"
TASK_TERMS = ("cells", "min_resource_blocks", "priority", "allow_busy_clients")
NO_ROWID: dict[str, Any] = {"sqlite_with_rowid": False}

cells = sa.table("cells", *map(sa.column, ("cell_id", "name", "resource_blocks")), sa.column("radio", JSON))
candidates = sa.table("candidates", sa.column("outcome"), sa.column("cell_id"))
tasks = sa.table("tasks", sa.column("serial"), sa.column("terms", JSON))
rounds = sa.table(
    "rounds", *map(sa.column, ("serial", "distribution_ns", "elapsed_ns")), sa.column("terms", JSON)
)
round_cells = sa.table(
    "round_cells",
    *map(sa.column, ("round_serial", "cell_id", "resource_block_first", "resource_block_count")),
    *map(sa.column, ("distribution_ns", "elapsed_ns")),
)


def upgrade() -> None:
    """Put everything into the cell ``default``."""
    _create_tables()
    wanted = sa.func.max(tasks.c.terms["resource_blocks"].as_integer())
    most = op.get_bind().execute(sa.select(wanted)).scalar_one()
    default: dict[str, Any] = {
        "cell_id": "default",
        "name": "",
        "resource_blocks": max(100, most or 0),
        "radio": {},
    }
    op.execute(sa.insert(cells).values(**default))
    blocks = rounds.c.terms["resource_blocks"].as_integer()
    of_rounds = sa.select(
        rounds.c.serial, sa.literal("default"), sa.literal(0), blocks, rounds.c.distribution_ns,
        rounds.c.elapsed_ns,
    )  # fmt: skip
    op.execute(sa.insert(round_cells).from_select([column.name for column in round_cells.columns], of_rounds))
    op.add_column("resource_reports", sa.Column("cell_id", CELL_ID, nullable=True))
    for table in ("clients", "candidates", "slots"):
        op.add_column(table, sa.Column("cell_id", CELL_ID, nullable=True))
        op.execute(sa.update(sa.table(table, sa.column("cell_id"))).values(cell_id="default"))
    with op.batch_alter_table("clients", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.alter_column("cell_id", existing_type=CELL_ID, nullable=False)
        batch.create_foreign_key(op.f("fk_clients_cell_id"), "cells", ["cell_id"], ["cell_id"])
        batch.create_index(op.f("ix_clients_cell_id"), ["cell_id"])
    known = op.f("ck_candidates_outcome_known")
    with op.batch_alter_table("candidates", table_kwargs=NO_ROWID) as batch:
        batch.alter_column("cell_id", existing_type=CELL_ID, nullable=False)
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, _one_of(*OUTCOMES, ADDED_OUTCOME))
    with op.batch_alter_table("slots") as batch:
        batch.alter_column("cell_id", existing_type=CELL_ID, nullable=False)
        batch.drop_constraint(op.f("uq_slots_round_serial_order"), type_="unique")
        batch.create_unique_constraint(
            op.f("uq_slots_round_serial_cell_id_order"), ["round_serial", "cell_id", "order"]
        )
        batch.create_foreign_key(
            op.f("fk_slots_round_serial_cell_id"),
            "round_cells",
            ["round_serial", "cell_id"],
            ["round_serial", "cell_id"],
        )


def downgrade() -> None:
    """Forget the cells. Slots of all cells of a round are numbered one after another."""
    connection = op.get_bind()
    with op.batch_alter_table("slots") as batch:
        batch.drop_constraint(op.f("fk_slots_round_serial_cell_id"), type_="foreignkey")
        batch.drop_constraint(op.f("uq_slots_round_serial_cell_id_order"), type_="unique")
    op.execute(
        sa.text(
            'UPDATE slots SET "order" = numbered.number FROM (SELECT round_serial, client_id, row_number() '
            'OVER (PARTITION BY round_serial ORDER BY window_end_ns, cell_id, "order") AS number FROM slots) '
            "AS numbered WHERE numbered.round_serial = slots.round_serial "
            "AND numbered.client_id = slots.client_id"
        )
    )
    with op.batch_alter_table("slots") as batch:
        batch.drop_column("cell_id")
        batch.create_unique_constraint(op.f("uq_slots_round_serial_order"), ["round_serial", "order"])
    op.execute(
        sa.update(candidates).where(candidates.c.outcome == ADDED_OUTCOME).values(outcome="NOT_CHOSEN")
    )
    known = op.f("ck_candidates_outcome_known")
    with op.batch_alter_table("candidates", table_kwargs=NO_ROWID) as batch:
        batch.drop_column("cell_id")
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, _one_of(*OUTCOMES))
    with op.batch_alter_table("clients", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.drop_index(op.f("ix_clients_cell_id"))
        batch.drop_constraint(op.f("fk_clients_cell_id"), type_="foreignkey")
        batch.drop_column("cell_id")
    op.drop_column("resource_reports", "cell_id")
    for name in ("waiting_tasks", "allocations", "held_blocks", "round_cells", "cells"):
        op.drop_table(name)
    for task in connection.execute(sa.select(tasks)).all():
        terms = {name: value for name, value in task.terms.items() if name not in TASK_TERMS}
        connection.execute(sa.update(tasks).where(tasks.c.serial == task.serial).values(terms=terms))


def _create_tables() -> None:
    op.create_table(
        "cells",
        sa.Column("cell_id", CELL_ID, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("resource_blocks", sa.Integer(), nullable=False),
        sa.Column("radio", JSON, nullable=False),
        sa.CheckConstraint("resource_blocks > 0", name=op.f("ck_cells_blocks_positive")),
        sa.PrimaryKeyConstraint("cell_id", name=op.f("pk_cells")),
    )
    op.create_table(
        "round_cells",
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("cell_id", CELL_ID, nullable=False),
        sa.Column("resource_block_first", sa.Integer(), nullable=False),
        sa.Column("resource_block_count", sa.Integer(), nullable=False),
        sa.Column("distribution_ns", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_ns", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(BLOCKS_IN_RANGE, name=op.f("ck_round_cells_blocks_in_range")),
        sa.ForeignKeyConstraint(
            ["round_serial"],
            ["rounds.serial"],
            name=op.f("fk_round_cells_round_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("round_serial", "cell_id", name=op.f("pk_round_cells")),
    )
    op.create_table(
        "held_blocks",
        sa.Column("cell_id", CELL_ID, nullable=False),
        sa.Column("block", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.CheckConstraint("block >= 0", name=op.f("ck_held_blocks_block_not_negative")),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.cell_id"], name=op.f("fk_held_blocks_cell_id")),
        sa.ForeignKeyConstraint(
            ["round_serial"],
            ["rounds.serial"],
            name=op.f("fk_held_blocks_round_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("cell_id", "block", name=op.f("pk_held_blocks")),
        **NO_ROWID,
    )
    op.create_index(op.f("ix_held_blocks_round_serial"), "held_blocks", ["round_serial"])
    op.create_table(
        "allocations",
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("cell_id", CELL_ID, nullable=False),
        sa.Column("resource_block_first", sa.Integer(), nullable=False),
        sa.Column("resource_block_count", sa.Integer(), nullable=False),
        sa.Column("held_from", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(BLOCKS_IN_RANGE, name=op.f("ck_allocations_blocks_in_range")),
        sa.CheckConstraint("held_until >= held_from", name=op.f("ck_allocations_ends_later")),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["cells.cell_id"], name=op.f("fk_allocations_cell_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["round_serial"],
            ["rounds.serial"],
            name=op.f("fk_allocations_round_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("round_serial", "cell_id", name=op.f("pk_allocations")),
    )
    op.create_index(op.f("ix_allocations_cell_id_held_until"), "allocations", ["cell_id", "held_until"])
    live = sa.text("held_until IS NULL")
    op.create_index(
        "ix_allocations_live", "allocations", ["round_serial"], sqlite_where=live, postgresql_where=live
    )
    op.create_table(
        "waiting_tasks",
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("overtaken", sa.Integer(), nullable=False),
        sa.Column("cell_ids", JSON, nullable=False),
        sa.CheckConstraint("overtaken >= 0", name=op.f("ck_waiting_tasks_overtaken_not_negative")),
        sa.ForeignKeyConstraint(
            ["task_serial"],
            ["tasks.serial"],
            name=op.f("fk_waiting_tasks_task_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("task_serial", name=op.f("pk_waiting_tasks")),
    )


def _one_of(*outcomes: str) -> str:
    return f"outcome IN ({', '.join(map(repr, outcomes))})"
