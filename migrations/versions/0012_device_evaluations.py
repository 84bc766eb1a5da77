"""Slots that clients declined, and evaluations by devices."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

BEFORE = ("pending", "received", "late", "rejected", "missed")


def upgrade() -> None:
    """Allow the outcome, and add the table."""
    _allow(*BEFORE, "declined")
    op.create_table(
        "device_evaluations",
        sa.Column("task_serial", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.String(128), nullable=False),
        sa.Column("accuracy", sa.Float(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "accuracy >= 0 AND accuracy <= 1 AND samples > 0",
            name=op.f("ck_device_evaluations_numbers_in_range"),
        ),
        sa.ForeignKeyConstraint(
            ["task_serial", "version"],
            ["model_versions.task_serial", "model_versions.version"],
            name=op.f("fk_device_evaluations_task_serial_version"),
        ),
        sa.PrimaryKeyConstraint("task_serial", "version", "client_id", name=op.f("pk_device_evaluations")),
    )


def downgrade() -> None:
    """Drop the table; a declined slot becomes a missed one."""
    op.drop_table("device_evaluations")
    slots = sa.table("slots", sa.column("outcome"))
    op.execute(sa.update(slots).where(slots.c.outcome == "declined").values(outcome="missed"))
    _allow(*BEFORE)


def _allow(*outcomes: str) -> None:
    known = op.f("ck_slots_outcome_known")
    listed = ", ".join(f"'{outcome}'" for outcome in outcomes)
    with op.batch_alter_table("slots") as batch:
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, f"outcome IN ({listed})")
