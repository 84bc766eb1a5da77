"""Candidates that were passed over, and what a round was planned with in place of a report."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"

BEFORE = ("ASKED", "SELECTED", "DEADLINE", "NO_DATA", "TOO_SLOW", "NOT_CHOSEN", "NO_REPORT", "BUSY")
ADDED = ("COOLDOWN", "MAX_SHARE")
EXPECTED = ("expected_throughput_bps", "expected_compute_samples_per_s")
TASK_TERMS = ("correct_estimates", "cooldown", "max_share", "cap_reports")
NO_ROWID: dict[str, Any] = {"sqlite_with_rowid": False}
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

tasks = sa.table("tasks", sa.column("serial"), sa.column("terms", JSON))


def upgrade() -> None:
    """Earlier rounds were planned with the reports."""
    for name in EXPECTED:
        op.add_column("candidates", sa.Column(name, sa.Float(), nullable=True))
    _allow(*BEFORE, *ADDED)


def downgrade() -> None:
    """Candidates that were passed over become busy ones; the new terms of tasks are lost."""
    candidates = sa.table("candidates", sa.column("outcome"))
    op.execute(sa.update(candidates).where(candidates.c.outcome.in_(ADDED)).values(outcome="BUSY"))
    _allow(*BEFORE)
    with op.batch_alter_table("candidates", table_kwargs=NO_ROWID) as batch:
        for name in EXPECTED:
            batch.drop_column(name)
    connection = op.get_bind()
    for task in connection.execute(sa.select(tasks)).all():
        terms = {name: value for name, value in task.terms.items() if name not in TASK_TERMS}
        connection.execute(sa.update(tasks).where(tasks.c.serial == task.serial).values(terms=terms))


def _allow(*outcomes: str) -> None:
    known = op.f("ck_candidates_outcome_known")
    listed = ", ".join(f"'{outcome}'" for outcome in outcomes)
    with op.batch_alter_table("candidates", table_kwargs=NO_ROWID) as batch:
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, f"outcome IN ({listed})")
