"""Leases: the right to do something alone, for a limited time.

Times are those of the caller's clock: hosts that share a ledger need clocks that agree to well
within a lease's length, as Slurm and munge demand anyway.
"""

from datetime import timedelta

import sqlalchemy as sa

from supervisor.ledger import tables
from supervisor.ledger.base import Store, change_rows, insert_into
from supervisor.ledger.events import add_event
from supervisor.ledger.rows import Lease


class LeaseStore(Store):
    """Reads and writes leases."""

    def acquire_lease(self, name: str, holder: str, ttl: timedelta) -> bool:
        """Take the lease if it is free, over, or held by ``holder`` already; False when another has it."""
        table, now = tables.lease, self._clock.now()
        with self._write() as connection:
            before = self._find(connection, name)
            wanted = insert_into(connection, table).values(
                name=name, holder=holder, acquired_at=now, expires_at=now + ttl
            )
            # One statement decides: of two that saw the same expired lease, the second finds it fresh.
            taken = connection.execute(
                wanted.on_conflict_do_update(
                    index_elements=[table.c.name],
                    set_={"holder": holder, "acquired_at": now, "expires_at": now + ttl},
                    where=sa.or_(table.c.expires_at <= now, table.c.holder == holder),
                ).returning(table.c.name)
            ).first()
            if taken is not None and before is not None and before.holder != holder:
                text = f"lease {name} was left by {before.holder} and taken over by {holder}"
                add_event(connection, at=now, kind="lease_taken_over", text=text)
            return taken is not None

    def renew_lease(self, name: str, holder: str, ttl: timedelta) -> bool:
        """Prolong the lease from now on; False when ``holder`` lost it, then it must stop at once."""
        table = tables.lease
        with self._write() as connection:
            mine = [table.c.name == name, table.c.holder == holder]
            return bool(change_rows(connection, table, mine, {"expires_at": self._clock.now() + ttl}))

    def release_lease(self, name: str, holder: str) -> bool:
        """Give the lease back; False when ``holder`` did not have it any more."""
        with self._write() as connection:
            return self._delete(connection, name, holder)

    def break_lease(self, name: str, holder_expected: str) -> bool:
        """Take the lease from a holder that a person knows to be gone; False when another has it by now."""
        with self._write() as connection:
            broken = self._delete(connection, name, holder_expected)
            if broken:
                text = f"lease {name} of {holder_expected} was broken by hand"
                add_event(connection, at=self._clock.now(), kind="lease_broken", text=text)
            return broken

    def lease(self, name: str) -> Lease | None:
        """Return the lease, over or not; None when nobody has it."""
        with self._read() as connection:
            return self._find(connection, name)

    @staticmethod
    def _find(connection: sa.Connection, name: str) -> Lease | None:
        table = tables.lease
        row = connection.execute(sa.select(table).where(table.c.name == name)).mappings().first()
        return Lease(**row) if row is not None else None

    @staticmethod
    def _delete(connection: sa.Connection, name: str, holder: str) -> bool:
        table = tables.lease
        gone = connection.execute(sa.delete(table).where(table.c.name == name, table.c.holder == holder))
        return bool(gone.rowcount)
