"""Named admin queries: plain SQL files in ``sql/admin`` that run unchanged on both dialects and by hand."""

import difflib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from supervisor.errors import LedgerError, NothingMatched, UsageError
from supervisor.ledger.base import Store
from supervisor.ledger.failures import database_errors
from supervisor.ledger.types import format_time
from supervisor.resources import resource_dir


def _query_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted((resource_dir("sql") / "admin").glob("*.sql"))}


class QueryStore(Store):
    """Runs named queries; they can read and nothing else."""

    def queries(self) -> list[tuple[str, str]]:
        """Return the name and the title (the first comment line) of every query."""
        found = []
        for name, path in _query_files().items():
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            found.append((name, first.removeprefix("--").strip()))
        return found

    def run_named_query(
        self, name: str, params: Mapping[str, object] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Run the query ``name`` and return its columns and rows; times are UTC text, numbers plain.

        Raises:
            NothingMatched: if there is no such query.
            UsageError: if a parameter is missing or unknown.
            LedgerError: if it fails or tries to write.
        """
        files = _query_files()
        if name not in files:
            near = difflib.get_close_matches(name, files, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(files)}"
            raise NothingMatched(f"no query is called {name!r}; {hint}")
        text = files[name].read_text(encoding="utf-8")
        wanted, given = set(sa.text(text).compile().params), dict(params or {})
        if wanted != given.keys():
            raise UsageError(
                f"query {name} takes {', '.join(sorted(wanted)) or 'no parameter'}, "
                f"given: {', '.join(sorted(given)) or 'none'}"
            )
        return self._run_read_only(text, given)

    def _run_read_only(
        self, text: str, params: Mapping[str, object]
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        statement = text.strip().removesuffix(";")
        # With a second statement in it, COMMIT would end the read-only transaction on PostgreSQL.
        bare = "\n".join(line.partition("--")[0] for line in statement.splitlines())
        if ";" in bare:
            raise LedgerError(f"{self._where}: an admin query is one statement; this one has several")
        with database_errors(self._where), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            else:
                connection.exec_driver_sql("PRAGMA query_only = ON")
            result = connection.execute(sa.text(statement), dict(params))
            return tuple(result.keys()), [tuple(_plain(value) for value in row) for row in result]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
