"""Alembic environment: uses the connection in the configuration."""

from alembic import context

from services.storage.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
