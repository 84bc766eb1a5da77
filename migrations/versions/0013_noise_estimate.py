"""The noise of the updates up to each version of a model."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """It is measured from the next aggregation on."""
    kind = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    op.add_column("model_versions", sa.Column("noise_estimate", kind, nullable=True))


def downgrade() -> None:
    """The estimates are lost."""
    op.drop_column("model_versions", "noise_estimate")
