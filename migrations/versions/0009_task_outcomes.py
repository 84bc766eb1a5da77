"""Why a task ended: a code, and the sentence that was there before as its detail."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

CANCELLED = "An operator cancelled the task."


def upgrade() -> None:
    """Add the detail, and put codes where sentences were."""
    op.add_column("tasks", sa.Column("detail", sa.Text(), nullable=True))
    tasks = sa.table("tasks", sa.column("state"), sa.column("outcome"), sa.column("detail"))
    state, outcome = tasks.c.state, tasks.c.outcome
    op.execute(sa.update(tasks).where(state == "cancelled", outcome.is_(None)).values(outcome=CANCELLED))
    op.execute(
        sa.update(tasks)
        .where(outcome.is_not(None))
        .values(
            detail=outcome,
            outcome=sa.case(
                (state == "cancelled", "CANCELLED_BY_OPERATOR"),
                ((state == "finished") & outcome.like("The target%"), "TARGET_ACCURACY"),
                (state == "finished", "FINAL_DEADLINE"),
                (outcome.like("evaluate_model%"), "EVALUATION_FAILED"),
                else_="INITIALIZATION_FAILED",
            ),
        )
    )
    with op.batch_alter_table("tasks") as batch:
        batch.alter_column("outcome", existing_type=sa.Text(), type_=sa.String(32))


def downgrade() -> None:
    """Put the sentences back; the codes are lost."""
    with op.batch_alter_table("tasks") as batch:
        batch.alter_column("outcome", existing_type=sa.String(32), type_=sa.Text())
    tasks = sa.table("tasks", sa.column("outcome"), sa.column("detail"))
    op.execute(sa.update(tasks).values(outcome=tasks.c.detail))
    op.drop_column("tasks", "detail")
