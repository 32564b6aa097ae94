"""Brings a ledger to this version's schema, under a lock, with Alembic over ``sql/migrations``."""

import sqlalchemy as sa

from supervisor.errors import LedgerError
from supervisor.ledger.base import Store
from supervisor.resources import resource_dir

VERSIONS = ("0001",)
"""Every schema version that this code knows, oldest first; the revisions in ``sql/migrations/versions``."""

VERSION_TABLE = "ledger_version"
_ADVISORY_LOCK = 0x5375_7065_7276  # "Superv": any number that nobody else uses in this database


class MigrationStore(Store):
    """Reads and raises the schema version."""

    def schema_version(self) -> str | None:
        """Return the version that the ledger is at; None for an empty database."""
        with self._read() as connection:
            return self._version(connection)

    @staticmethod
    def _version(connection: sa.Connection) -> str | None:
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            return None
        version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - our constant
        return None if version is None else str(version)

    def migrate(self, *, create: bool) -> None:
        """Bring the schema to this code's version; a ledger that is there already costs one small read.

        Raises:
            LedgerError: if the ledger is newer than this code, or empty and ``create`` is False.
        """
        if not self._is_behind(self.schema_version(), create=create):
            return
        with self._write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            # Another process may have done it while this one waited for the lock.
            if self._is_behind(self._version(connection), create=create):
                upgrade(connection)

    def _is_behind(self, version: str | None, *, create: bool) -> bool:
        if version is None and not create:
            raise LedgerError(f"{self._where}: it is empty, there is no ledger in it yet; submit a run first")
        if version is not None and version not in VERSIONS:
            raise LedgerError(
                f"{self._where}: its schema is version {version}, this installation knows {VERSIONS[0]} to "
                f"{VERSIONS[-1]}; a newer supervisor wrote it: upgrade this installation, or set "
                "SUPERVISE_LEDGER to another ledger"
            )
        return version != VERSIONS[-1]


def upgrade(connection: sa.Connection) -> None:
    """Run the missing migrations inside the caller's transaction: all of them or none."""
    # Alembic takes 0.1 s to import and is needed once in a ledger's life.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    folder = resource_dir("sql") / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
