"""Two more reasons why a candidate was not selected."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

BEFORE = ("ASKED", "SELECTED", "DEADLINE", "NO_DATA", "NO_REPORT")
ADDED = ("TOO_SLOW", "NOT_CHOSEN")


def upgrade() -> None:
    """Allow them."""
    _allow(*BEFORE[:4], *ADDED, BEFORE[4])


def downgrade() -> None:
    """Remove them; recorded ones become DEADLINE."""
    candidates = sa.table("candidates", sa.column("outcome"))
    op.execute(sa.update(candidates).where(candidates.c.outcome.in_(ADDED)).values(outcome="DEADLINE"))
    _allow(*BEFORE)


def _allow(*outcomes: str) -> None:
    known = op.f("ck_candidates_outcome_known")
    listed = ", ".join(f"'{outcome}'" for outcome in outcomes)
    with op.batch_alter_table("candidates", table_kwargs={"sqlite_with_rowid": False}) as batch:
        batch.drop_constraint(known, type_="check")
        batch.create_check_constraint(known, f"outcome IN ({listed})")
