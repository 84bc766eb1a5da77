"""For the trainer: the maximum update norm of a task, and evaluations in parts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column and the table."""
    op.add_column("tasks", sa.Column("max_update_norm", sa.Float(), nullable=True))
    op.create_table(
        "evaluation_parts",
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("correct", sa.BigInteger(), nullable=False),
        sa.Column("loss_sum", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "0 <= correct AND correct <= samples", name=op.f("ck_evaluation_parts_numbers_in_range")
        ),
        sa.ForeignKeyConstraint(
            ["task_serial", "version"],
            ["model_versions.task_serial", "model_versions.version"],
            name=op.f("fk_evaluation_parts_task_serial_version"),
        ),
        sa.PrimaryKeyConstraint("task_serial", "version", "part", name=op.f("pk_evaluation_parts")),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("evaluation_parts")
    op.drop_column("tasks", "max_update_norm")
