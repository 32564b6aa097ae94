"""Opens the database: SQLite as a careful user of shared homes must, PostgreSQL by URL."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from supervisor.errors import LedgerError
from supervisor.ledger.failures import mask_url

WRITES = {"supervise_writes": True}
"""Execution option of a connection whose transaction takes the write lock at its start."""


def parse_url(url: str) -> sa.URL:
    """Return the URL with the driver that is used.

    Raises:
        LedgerError: if it is no URL of SQLite or PostgreSQL.
    """
    try:
        parsed = sa.make_url(url)
    except (SQLAlchemyError, ValueError):
        parsed = None
    name = parsed.drivername.partition("+")[0] if parsed is not None else ""
    if parsed is not None and name in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed is not None and name == "sqlite":
        if parsed.database in {None, "", ":memory:"} or str(parsed.database).startswith("file:"):
            raise LedgerError(
                f"ledger URL {mask_url(url)}: a ledger outlives its process; give a file: sqlite:////path/ledger.db"
            )
        return parsed.set(drivername="sqlite+pysqlite", query={})
    raise LedgerError(
        f"ledger URL {mask_url(url)}: not understood; write sqlite:////absolute/path/ledger.db or "
        "postgresql://user@host/database (SUPERVISE_LEDGER)"
    )


def ledger_path(url: sa.URL) -> Path | None:
    """Return the file of an SQLite ledger, None for PostgreSQL."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path(str(url.database)).expanduser().absolute()


def open_engine(url: sa.URL, *, timeout: timedelta, create: bool) -> sa.Engine:
    """Return an engine; for SQLite the folder (0700) and the file (0600) are made where missing.

    Raises:
        LedgerError: if the file cannot be made or found, or the driver is missing.
    """
    path = ledger_path(url)
    if path is None:
        return _open_postgresql(url, timeout)
    _prepare_file(path, create=create)
    engine = sa.create_engine(
        url.set(database=str(path)),
        # A connection per transaction: nothing is inherited over fork, and no lock outlives its statement.
        poolclass=NullPool,
        connect_args={"timeout": timeout.total_seconds(), "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_file(path: Path, *, create: bool) -> None:
    try:
        if path.exists():
            if not path.is_file():
                raise LedgerError(f"ledger {path}: not a regular file; set SUPERVISE_LEDGER to a file")
            return
        if not create:
            raise LedgerError(
                f"ledger {path}: there is none; submit a run first, or set SUPERVISE_LEDGER to yours"
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Job files and reasons may hold what is nobody else's business: never readable in between.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise LedgerError(
            f"ledger {path}: {error.strerror}: it cannot be created; check owner, mode and quota of "
            f"{path.parent}, or set SUPERVISE_LEDGER to another place"
        ) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver's own guesses about when to BEGIN are off: _begin_sqlite says it.
    connection.isolation_level = None
    for pragma in ("foreign_keys = ON", "synchronous = FULL", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # IMMEDIATE: of two transactions that read first and write later, one would otherwise fail half-way.
    writes = connection.get_execution_options().get("supervise_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _open_postgresql(url: sa.URL, timeout: timedelta) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            pool_size=2,
            max_overflow=8,
            pool_pre_ping=True,
            connect_args={"connect_timeout": max(2, int(timeout.total_seconds()))},
        )
    except ModuleNotFoundError as error:
        raise LedgerError(
            f"ledger {mask_url(str(url))}: the PostgreSQL driver is missing; "
            "pip install 'slurm-supervisor[pg]' in the environment of supervise"
        ) from error
    milliseconds = max(1, int(timeout.total_seconds() * 1000))

    def prepare(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")
            cursor.execute(f"SET lock_timeout = {milliseconds}")
        connection.commit()

    event.listen(engine, "connect", prepare)
    return engine
