"""The ledger: every read and write that the supervisor does on its memory."""

import sqlite3
from datetime import timedelta
from types import TracebackType
from typing import Self

from supervisor.clock import Clock
from supervisor.errors import LedgerError
from supervisor.ledger.actions import ActionStore
from supervisor.ledger.allocations import AllocationStore
from supervisor.ledger.checks import CheckStore, check_place
from supervisor.ledger.decisions import DecisionStore
from supervisor.ledger.engine import ledger_path, open_engine, parse_url
from supervisor.ledger.events import EventStore
from supervisor.ledger.failures import mask_url
from supervisor.ledger.leases import LeaseStore
from supervisor.ledger.nodes import NodeStore
from supervisor.ledger.queries import QueryStore
from supervisor.ledger.rows import Finding, Severity
from supervisor.ledger.runs import RunStore

DEFAULT_TIMEOUT = timedelta(seconds=10)
"""How long a writer waits for another before it gives up."""


class Ledger(
    RunStore,
    AllocationStore,
    ActionStore,
    DecisionStore,
    EventStore,
    NodeStore,
    LeaseStore,
    QueryStore,
    CheckStore,
):
    """Runs, allocations, actions, decisions, events, nodes and leases in one database.

    Every method is one transaction. Each raises LedgerError, with nothing of its step stored, when
    the database is out of reach, locked for longer than the timeout, full or damaged. Naive times
    are a ValueError. Threads may share a ledger; each call uses a connection of its own.
    """

    warnings: tuple[Finding, ...] = ()
    """What is doubtful about the place where the ledger lies."""

    @classmethod
    def open(
        cls, url: str, clock: Clock, *, create: bool = True, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> Self:
        """Open the ledger at ``url`` and bring its schema to this version.

        Args:
            url: ``sqlite:////path/ledger.db`` or ``postgresql://user@host/database``.
            clock: Tells the time of every row that is written.
            create: Make the file (0600), its folder (0700) and the tables where missing.
            timeout: How long to wait for another writer.

        Raises:
            LedgerError: if it cannot be opened, is no ledger, or is newer than this code.
        """
        parsed = parse_url(url)
        path = ledger_path(parsed)
        engine = open_engine(parsed, timeout=timeout, create=create)
        ledger = cls(engine, clock, f"ledger {path or mask_url(url)}")
        try:
            if path is not None:
                place = check_place(path)
                ledger.warnings = () if place.severity == Severity.OK else (place,)
                ledger._leave_wal()
            ledger.migrate(create=create)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _leave_wal(self) -> None:
        # Somebody's tool may have switched the file to WAL, which is wrong on shared file systems and
        # sticks to the file. Outside a transaction, so not through _read.
        with self._read() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        if mode != "wal":
            return
        raw = self._engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("PRAGMA journal_mode = DELETE")
            mode = next(iter(cursor.fetchall()))[0]
        except sqlite3.Error as error:
            raise LedgerError(f"{self._where}: its write-ahead log cannot be turned off: {error}") from error
        finally:
            raw.close()
        if mode != "delete":
            raise LedgerError(
                f"{self._where}: its write-ahead log cannot be turned off while others have it open; "
                "close them, then try again"
            )

    def close(self) -> None:
        """Give every connection back; the ledger is not usable afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
