"""What every part of the ledger stands on: transactions, and the tables' two ways to write once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from supervisor.clock import Clock
from supervisor.ledger.engine import WRITES
from supervisor.ledger.failures import database_errors


class Store:
    """Transactions over one database; an error inside rolls back everything of that transaction."""

    def __init__(self, engine: sa.Engine, clock: Clock, where: str) -> None:
        self._engine = engine
        self._writer = engine.execution_options(**WRITES)
        self._clock = clock
        self._where = where

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        with database_errors(self._where), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with database_errors(self._where), self._writer.begin() as connection:
            yield connection


def insert_into(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that knows ON CONFLICT in the connection's dialect."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def insert_row(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> int:
    """Insert one row into a table that numbers its rows, and return the number."""
    result = connection.execute(sa.insert(table).values(**values).returning(table.c.id))
    return int(result.scalar_one())


def change_rows(
    connection: sa.Connection,
    table: sa.Table,
    where: Sequence[sa.ColumnElement[bool]],
    values: Mapping[str, Any],
) -> int:
    """Update the rows that match every condition and return how many did: the compare-and-swap."""
    return connection.execute(sa.update(table).where(*where).values(**values)).rowcount
