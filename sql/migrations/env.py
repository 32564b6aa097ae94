"""Runs migrations on the connection that supervisor/ledger/migrate.py hands over, in its transaction."""

from alembic import context

from supervisor.ledger.migrate import VERSION_TABLE
from supervisor.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # SQLite cannot change a column in place: later migrations use op.batch_alter_table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
