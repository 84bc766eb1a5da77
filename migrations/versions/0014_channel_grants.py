"""Grants of the channel, and clients selected in the place of others."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

BEFORE = ("pending", "received", "late", "rejected", "missed", "declined")
HELD = sa.text("grant_expires_ns IS NOT NULL")
READY_KNOWN = "granted_ns IS NULL OR ready_ns IS NOT NULL"
GRANT_KNOWN = "grant_expires_ns IS NULL OR (granted_ns IS NOT NULL AND outcome = 'pending')"


def upgrade() -> None:
    """Add the columns, and allow the outcome."""
    op.add_column("rounds", sa.Column("latest_ns", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("slots") as batch:
        for name in ("ready_ns", "fresh_upload_ns", "granted_ns", "grant_expires_ns"):
            batch.add_column(sa.Column(name, sa.BigInteger(), nullable=True))
        batch.add_column(sa.Column("lapses", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("replaces", sa.String(128), nullable=True))
    with op.batch_alter_table("slots") as batch:
        batch.alter_column("lapses", existing_type=sa.Integer(), server_default=None)
        batch.create_check_constraint(op.f("ck_slots_ready_when_granted"), READY_KNOWN)
        batch.create_check_constraint(op.f("ck_slots_granted_when"), GRANT_KNOWN)
    _allow(*BEFORE, "refused")
    op.create_index(
        "uq_slots_channel",
        "slots",
        ["round_serial", "cell_id"],
        unique=True,
        sqlite_where=HELD,
        postgresql_where=HELD,
    )


def downgrade() -> None:
    """Drop the columns; a refused slot becomes a missed one."""
    op.drop_index("uq_slots_channel", "slots")
    slots = sa.table("slots", sa.column("outcome"))
    op.execute(sa.update(slots).where(slots.c.outcome == "refused").values(outcome="missed"))
    _allow(*BEFORE)
    with op.batch_alter_table("slots") as batch:
        batch.drop_constraint(op.f("ck_slots_granted_when"), type_="check")
        batch.drop_constraint(op.f("ck_slots_ready_when_granted"), type_="check")
        for name in ("replaces", "lapses", "grant_expires_ns", "granted_ns", "fresh_upload_ns", "ready_ns"):
            batch.drop_column(name)
    op.drop_column("rounds", "latest_ns")


def _allow(*outcomes: str) -> None:
    known = op.f("ck_slots_outcome_known")
    listed = ", ".join(f"'{outcome}'" for outcome in outcomes)
    with op.batch_alter_table("slots") as batch:
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, f"outcome IN ({listed})")
