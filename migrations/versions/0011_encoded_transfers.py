"""Encoded models beside the versions, and the sizes that are scheduled for encoded transfers."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

SIZES = ("encoded_size_bytes", "upload_size_bytes", "download_size_bytes")


def upgrade() -> None:
    """Versions that are there travel as they are."""
    op.add_column("model_versions", sa.Column("encoded_digest", sa.String(64), nullable=True))
    op.create_index(op.f("ix_model_versions_encoded_digest"), "model_versions", ["encoded_digest"])
    for name in SIZES:
        op.add_column("model_versions", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Encoded models are lost."""
    for name in SIZES:
        op.drop_column("model_versions", name)
    op.drop_index(op.f("ix_model_versions_encoded_digest"), "model_versions")
    op.drop_column("model_versions", "encoded_digest")
