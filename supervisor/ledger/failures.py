"""Database errors in the words of LedgerError: where, what, what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from supervisor.errors import LedgerError

_LOCKED = (
    "another process is writing and did not finish in time; try again, and if it stays so look for a "
    "hanging `supervise` (on NFS: for a lost lock, run fuser on the file on every login node)"
)
_FULL = "the disk or the quota is full; nothing of this step was stored; free some space and try again"
_BROKEN = (
    "the file system failed (full, quota, a file size limit, or a network file system whose locks do not "
    "work); nothing of this step was stored; check the disk and try again"
)
_DENIED = (
    "this user cannot write there; check the owner and the mode of the file and of its folder, or set "
    "SUPERVISE_LEDGER to another place"
)
_FOREIGN = (
    "this is not a ledger or it is damaged, and nothing was changed; set SUPERVISE_LEDGER to the right file "
    "or restore a backup"
)
_UNREACHABLE = (
    "PostgreSQL cannot be reached with this URL; check that it is up, and host, port, user and password"
)

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("database is locked", "database table is locked", "lock timeout"), _LOCKED),
    (("database or disk is full", "no space left", "could not extend file"), _FULL),
    (("disk i/o error", "locking protocol"), _BROKEN),
    (("readonly database", "read-only", "unable to open database file", "permission denied"), _DENIED),
    (("file is not a database", "malformed"), _FOREIGN),
    (("unique constraint", "duplicate key"), "a row with this key is there already; nothing was stored"),
    (("connection", "could not translate host", "authentication failed"), _UNREACHABLE),
)


def explain_failure(where: str, error: Exception) -> LedgerError:
    """Return the LedgerError for ``error``; ``where`` names the ledger without its password."""
    cause = getattr(error, "orig", None) or error
    what = " ".join(str(cause).split()) or type(cause).__name__
    for marks, advice in _ADVICE:
        if any(mark in what.lower() for mark in marks):
            return LedgerError(f"{where}: {what}: {advice}")
    return LedgerError(f"{where}: {what}: this is not expected; nothing of this step was stored")


@contextmanager
def database_errors(where: str) -> Iterator[None]:
    """Turn what SQLAlchemy raises inside into LedgerError; a refused value stays its own ValueError."""
    try:
        yield
    except StatementError as error:
        # A column type refused a value before any SQL ran: that is the caller's slip, not the database's.
        if not isinstance(error, DBAPIError) and isinstance(error.orig, ValueError | LedgerError):
            raise error.orig from None
        raise explain_failure(where, error) from error
    except SQLAlchemyError as error:
        raise explain_failure(where, error) from error


def mask_url(url: str) -> str:
    """Return ``url`` for messages and logs: the password is replaced, an unreadable URL is not shown."""
    try:
        parsed = sa.make_url(url)
        # libpq takes passwords among the options as well: ?password=, ?sslpassword=
        secrets = [name for name in parsed.query if "password" in name.lower()]
        return parsed.update_query_dict(dict.fromkeys(secrets, "***")).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError):
        return "that cannot be read"
