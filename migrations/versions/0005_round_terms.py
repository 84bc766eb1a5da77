"""Terms of rounds, and the elapsed time of the task at the end of a round."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
COPIED = (
    "policy",
    "round_deadline_s",
    "selection_s",
    "aggregation_s",
    "resource_blocks",
    "slot_enforcement",
    "slot_grace_s",
)
"""Terms that a round copies from its task."""

tasks = sa.table("tasks", *map(sa.column, ("serial", "first_round_at")), sa.column("terms", JSON))
models = sa.table("model_versions", *map(sa.column, ("task_serial", "version", "size_bytes")))
rounds = sa.table(
    "rounds",
    *map(sa.column, ("serial", "task_serial", "number", "model_version", "ended_at", "duration_s")),
    sa.column("task_elapsed_s"),
    sa.column("terms", JSON),
)


def upgrade() -> None:
    """Copy the terms of each task to its rounds."""
    op.add_column("rounds", sa.Column("task_elapsed_s", sa.Float(), nullable=True))
    op.add_column("rounds", sa.Column("terms", JSON, nullable=True))
    connection = op.get_bind()
    for task in connection.execute(sa.select(tasks)).all():
        _fill(connection, task)
    with op.batch_alter_table("rounds") as batch:
        batch.alter_column("terms", existing_type=JSON, nullable=False)


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("rounds", "terms")
    op.drop_column("rounds", "task_elapsed_s")


def _fill(connection: sa.Connection, task: sa.Row[Any]) -> None:
    has_deadline = task.terms["policy"] != "fl"
    simulated_s = 0.0
    of_model = (models.c.task_serial == rounds.c.task_serial) & (models.c.version == rounds.c.model_version)
    query = sa.select(rounds, models.c.size_bytes).join_from(rounds, models, of_model)
    of_task = query.where(rounds.c.task_serial == task.serial).order_by(rounds.c.number)
    for round_ in connection.execute(of_task).all():
        if round_.duration_s is not None:
            simulated_s += task.terms["round_deadline_s"] if has_deadline else round_.duration_s
        elapsed_s = None
        if round_.ended_at is not None:
            is_simulated = task.terms["clock"] == "simulated"
            elapsed_s = simulated_s if is_simulated else (round_.ended_at - task.first_round_at) / 1e6
        size_bytes = task.terms["model_size_bytes"] or round_.size_bytes
        sizes = {"upload_size_bytes": size_bytes, "download_size_bytes": size_bytes}
        terms = {"has_deadline": has_deadline, **sizes, **{name: task.terms[name] for name in COPIED}}
        change = sa.update(rounds).where(rounds.c.serial == round_.serial)
        connection.execute(change.values(terms=terms, task_elapsed_s=elapsed_s))
