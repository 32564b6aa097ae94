"""Migrations, tables and the printed schema say the same."""

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from supervisor.clock import ManualClock
from supervisor.ledger import Ledger
from supervisor.ledger.migrate import VERSION_TABLE, VERSIONS
from supervisor.ledger.schema import SCHEMA_FILES, render_schema
from supervisor.ledger.tables import metadata
from supervisor.resources import resource_dir


def test_migrating_an_empty_database_gives_exactly_the_tables_of_the_code(ledger: Ledger) -> None:
    with ledger._engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True},
        )
        assert compare_metadata(context, metadata) == []


def test_the_code_knows_every_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(resource_dir("sql") / "migrations"))
    config.set_main_option("path_separator", "os")
    revisions = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(reversed([script.revision for script in revisions])) == VERSIONS


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_the_printed_schema_is_the_one_of_the_code(name: str) -> None:
    dialect = sa.make_url(f"{SCHEMA_FILES[name]}://").get_dialect()()
    assert (resource_dir("sql") / name).read_text(encoding="utf-8") == render_schema(dialect)


def _objects(connection: sa.Connection) -> set[tuple[str, ...]]:
    if connection.dialect.name == "sqlite":
        query = "SELECT type, name, COALESCE(sql, '') FROM sqlite_master WHERE type != 'table'"
    else:
        query = (
            "SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
            "UNION ALL SELECT 'view', viewname, definition FROM pg_views WHERE schemaname = 'public' "
            "UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger "
            "WHERE NOT tgisinternal "
            "UNION ALL SELECT 'function', proname, prosrc FROM pg_proc WHERE proname = 'forbid_change'"
        )
    rows = connection.exec_driver_sql(query).all()
    return {tuple(" ".join(str(part).split()) for part in row) for row in rows}


def test_the_printed_schema_makes_the_same_ledger_as_the_migrations(
    ledger: Ledger, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ledger._engine.connect() as connection:
        migrated = {item for item in _objects(connection) if VERSION_TABLE not in str(item)}
        name = connection.dialect.name
    if name == "sqlite":
        engine = sa.create_engine(f"sqlite:///{tmp_path}/printed.db")
        text = (resource_dir("sql") / "schema.sql").read_text(encoding="utf-8")
        raw = engine.raw_connection()
        raw.driver_connection.executescript(text)  # type: ignore[union-attr]
        raw.close()
    else:
        url = sa.make_url(request.getfixturevalue("postgres_server").create_database())
        engine = sa.create_engine(url.set(drivername="postgresql+psycopg"))
        text = (resource_dir("sql") / "schema.postgresql.sql").read_text(encoding="utf-8")
        raw = engine.raw_connection()
        raw.driver_connection.execute(text)  # type: ignore[union-attr]
        raw.driver_connection.commit()  # type: ignore[union-attr]
        raw.close()
    with engine.connect() as connection:
        printed = _objects(connection)
    engine.dispose()
    assert len(printed) > 10
    assert printed == migrated


def test_opening_and_migrating_prints_nothing(ledger_url: str, clock: ManualClock) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        for _ in range(2):
            Ledger.open(ledger_url, clock).close()
    assert (out.getvalue(), err.getvalue()) == ("", "")
    assert logging.getLogger().level == logging.WARNING


def test_times_in_an_sqlite_ledger_read_and_sort_as_text(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.append_event("sweep", "x")
    with sqlite_ledger._read() as connection:
        assert (
            connection.exec_driver_sql("SELECT at FROM event").scalar_one() == "2026-12-01T08:00:00.000000Z"
        )
