"""The influence of each update, the median norms of a round, and the state of the aggregator."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0007"
down_revision = "0006"

SLOT_COLUMNS: dict[str, TypeEngine[Any]] = {
    "weight": sa.BigInteger(),
    "update_norm": sa.Float(),
    "statistics_norm": sa.Float(),
    "update_scale": sa.Float(),
    "statistics_scale": sa.Float(),
}
ROUND_COLUMNS: dict[str, TypeEngine[Any]] = {
    "median_update_norm": sa.Float(),
    "median_statistics_norm": sa.Float(),
}


def upgrade() -> None:
    """Add the columns; they are null in earlier rounds."""
    for name, kind in SLOT_COLUMNS.items():
        op.add_column("slots", sa.Column(name, kind, nullable=True))
    for name, kind in ROUND_COLUMNS.items():
        op.add_column("rounds", sa.Column(name, kind, nullable=True))
    op.add_column("model_versions", sa.Column("state_digest", sa.String(64), nullable=True))
    op.create_index(op.f("ix_model_versions_state_digest"), "model_versions", ["state_digest"])


def downgrade() -> None:
    """Drop the columns."""
    op.drop_index(op.f("ix_model_versions_state_digest"), "model_versions")
    op.drop_column("model_versions", "state_digest")
    for name in ROUND_COLUMNS:
        op.drop_column("rounds", name)
    for name in SLOT_COLUMNS:
        op.drop_column("slots", name)
