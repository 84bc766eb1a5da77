"""How Alembic reaches the database: through a connection that is handed in."""

from alembic import context

from services.storage.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
