"""Says whether the place of a ledger can be trusted: file system, locks, journal, schema."""

import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from supervisor.errors import LedgerError
from supervisor.ledger.engine import ledger_path
from supervisor.ledger.filesystem import find_mount
from supervisor.ledger.migrate import VERSIONS, MigrationStore
from supervisor.ledger.rows import Finding, Severity


def check_place(path: Path) -> Finding:
    """Name the file system that holds ``path`` and say whether SQLite is safe on it."""
    mount = find_mount(path.parent)
    if mount is None:
        return Finding(severity=Severity.WARN, subject="file system", text=f"{path}: file system not known")
    where = f"{path} lies on {mount.kind} (mounted at {mount.point})"
    if mount.networked:
        text = (
            f"{where}, which several hosts share: run sweeps on one host only, or move the ledger to a local "
            "disk or to PostgreSQL (SUPERVISE_LEDGER)"
        )
        return Finding(severity=Severity.WARN, subject="file system", text=text)
    if mount.volatile:
        text = f"{where}: it is lost at the next reboot; move the ledger to a disk (SUPERVISE_LEDGER)"
        return Finding(severity=Severity.WARN, subject="file system", text=text)
    return Finding(severity=Severity.OK, subject="file system", text=where)


def probe_locks(folder: Path) -> Finding:
    """Write a temporary database beside the ledger and see that a second writer is kept out."""
    try:
        with tempfile.TemporaryDirectory(prefix=".ledger-probe-", dir=folder) as probe:
            file = Path(probe) / "probe.db"
            first = sqlite3.connect(file, timeout=0, isolation_level=None)
            second = sqlite3.connect(file, timeout=0, isolation_level=None)
            try:
                first.execute("CREATE TABLE probe (x INTEGER)").close()
                first.execute("BEGIN IMMEDIATE").close()
                first.execute("INSERT INTO probe VALUES (1)").close()
                kept_out = _is_kept_out(second)
                first.execute("COMMIT").close()
            finally:
                first.close()
                second.close()
    except (OSError, sqlite3.Error) as error:
        text = f"{folder}: a test database cannot be written: {error}; check quota, owner and mode"
        return Finding(severity=Severity.FAIL, subject="locks", text=text)
    if not kept_out:
        text = f"{folder}: two writers at once were let in; move the ledger to a local disk or to PostgreSQL"
        return Finding(severity=Severity.FAIL, subject="locks", text=text)
    return Finding(severity=Severity.OK, subject="locks", text="a second writer is kept out")


def _is_kept_out(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE").close()
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    return False


class CheckStore(MigrationStore):
    """Checks the ledger itself."""

    def check(self) -> list[Finding]:
        """Return what was looked at, good and bad; a ledger that cannot be read is a finding too."""
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        path = ledger_path(self._engine.url)
        if path is not None:
            yield check_place(path)
            yield probe_locks(path.parent)
            yield self._check_mode(path)
        try:
            if path is not None:
                yield from self._check_sqlite()
            version = self.schema_version()
        except LedgerError as error:
            yield Finding(severity=Severity.FAIL, subject="ledger", text=str(error))
            return
        good = version == VERSIONS[-1]
        text = f"version {version}" + ("" if good else f", this installation wants {VERSIONS[-1]}")
        yield Finding(severity=Severity.OK if good else Severity.FAIL, subject="schema", text=text)

    @staticmethod
    def _check_mode(path: Path) -> Finding:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            text = (
                f"{path} has mode {mode:04o}: others can read job files and reasons; chmod 600 unless meant"
            )
            return Finding(severity=Severity.WARN, subject="mode", text=text)
        return Finding(severity=Severity.OK, subject="mode", text=f"{mode:04o}")

    def _check_sqlite(self) -> Iterator[Finding]:
        with self._read() as connection:
            journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
            damage = connection.exec_driver_sql("PRAGMA quick_check").scalar_one()
        good = journal == "delete" and synchronous >= 2
        yield Finding(
            severity=Severity.OK if good else Severity.FAIL,
            subject="journal",
            text=f"journal_mode {journal}, synchronous {synchronous}"
            + (
                ""
                if good
                else ": expected delete and 2 (FULL); close every user of the file and open it again"
            ),
        )
        yield Finding(
            severity=Severity.OK if damage == "ok" else Severity.FAIL,
            subject="pages",
            text="no damage found" if damage == "ok" else f"{damage}: restore a backup",
        )
