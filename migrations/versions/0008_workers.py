"""Workers, the jobs that they refused, and evaluation errors."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Add the tables and the column."""
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", JSON, nullable=False),
        sa.Column("problems", JSON, nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("expires_at > seen_at", name=op.f("ck_workers_expires_later")),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "job_refusals",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("refused_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_refusals_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "worker_id", name=op.f("pk_job_refusals")),
    )
    op.add_column("model_versions", sa.Column("evaluation_error", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("model_versions", "evaluation_error")
    op.drop_table("job_refusals")
    op.drop_table("workers")
