"""Which key a new key of a client replaces."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    op.add_column("api_keys", sa.Column("replaces", sa.String(32), nullable=True))
    op.create_index(op.f("ix_api_keys_replaces"), "api_keys", ["replaces"], unique=True)


def downgrade() -> None:
    """Drop it; the keys stay."""
    op.drop_index(op.f("ix_api_keys_replaces"), table_name="api_keys")
    op.drop_column("api_keys", "replaces")
