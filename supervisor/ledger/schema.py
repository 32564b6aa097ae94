"""What tables alone do not say: append-only triggers and the views that admin queries read.

Differences of times, and the current time, are spelled differently on SQLite and PostgreSQL; the views
hide that, so that the queries in ``sql/admin`` are the same text on both.
"""

from collections.abc import Iterator

from sqlalchemy.engine import Dialect, make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from supervisor.ledger.tables import metadata
from supervisor.resources import resource_dir

SCHEMA_FILES = {"schema.sql": "sqlite", "schema.postgresql.sql": "postgresql+psycopg"}

APPEND_ONLY = ("event", "decision", "decision_node")

_SPANS = {
    "queue_wait_s": ("submitted_at", "started_at"),
    "start_up_s": ("started_at", "first_step_at"),
    "detection_s": ("ended_at", "noticed_at"),
}


def _seconds(dialect: str, earlier: str, later: str) -> str:
    if dialect == "sqlite":
        return f"ROUND((julianday({later}) - julianday({earlier})) * 86400.0, 3)"
    return f"CAST(EXTRACT(EPOCH FROM {later} - {earlier}) AS DOUBLE PRECISION)"


def _views(dialect: str) -> Iterator[str]:
    spans = ",\n".join(f"    {_seconds(dialect, *ends)} AS {name}" for name, ends in _SPANS.items())
    yield f"CREATE VIEW allocation_time AS\nSELECT\n    run_id,\n    no,\n{spans}\nFROM allocation"
    now = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')" if dialect == "sqlite" else "CURRENT_TIMESTAMP"
    yield (
        "CREATE VIEW avoided_now AS\nSELECT node, run_id, until, reason, created_at\nFROM avoid\n"
        f"WHERE lifted_at IS NULL AND until > {now}"
    )


def _sqlite_triggers() -> Iterator[str]:
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            yield (
                f"CREATE TRIGGER {table}_forbids_{verb.lower()} BEFORE {verb} ON {table}\n"
                f"BEGIN\n    SELECT RAISE(ABORT, '{table} is append-only');\nEND"
            )


def _postgresql_triggers() -> Iterator[str]:
    yield (
        "CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$\n"
        "BEGIN\n    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only';\nEND\n$$"
    )
    for table in APPEND_ONLY:
        yield (
            f"CREATE TRIGGER {table}_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}\n"
            "FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()"
        )


def extra_statements(dialect: str) -> list[str]:
    """Return the statements for triggers and views, in the order in which they are run."""
    triggers = _sqlite_triggers() if dialect == "sqlite" else _postgresql_triggers()
    return [*triggers, *_views(dialect)]


def render_schema(dialect: Dialect) -> str:
    """Return the whole schema as SQL that sqlite3 or psql can read."""
    statements: list[str] = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        statements += [
            str(CreateIndex(index).compile(dialect=dialect)).strip()
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        ]
    statements += extra_statements(dialect.name)
    body = "\n\n".join(f"{statement};" for statement in statements)
    lines = [line.replace("\t", "    ").rstrip() for line in body.splitlines()]
    header = (
        f"-- The ledger's schema on {dialect.name}, for reading. Generated from supervisor/ledger/tables.py\n"
        "-- by `python -m supervisor.ledger.schema` (a test compares); sql/migrations makes ledgers.\n\n"
    )
    return header + "\n".join(lines) + "\n"


def write_schema() -> None:
    """Write ``sql/schema.sql`` (SQLite) and ``sql/schema.postgresql.sql`` anew."""
    folder = resource_dir("sql")
    for name, dialect in SCHEMA_FILES.items():
        (folder / name).write_text(render_schema(make_url(f"{dialect}://").get_dialect()()), encoding="utf-8")


if __name__ == "__main__":
    write_schema()
