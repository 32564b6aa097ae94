"""Events: the append-only story of every run."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from supervisor.ledger import tables
from supervisor.ledger.base import Store, insert_row
from supervisor.ledger.rows import Event


def add_event(
    connection: sa.Connection,
    *,
    at: datetime,
    kind: str,
    text: str,
    run_id: int | None = None,
    allocation_no: int | None = None,
    node: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> int:
    """Append one event inside the caller's transaction and return its number."""
    return insert_row(
        connection,
        tables.event,
        {
            "at": at,
            "run_id": run_id,
            "allocation_no": allocation_no,
            "node": node,
            "kind": kind,
            "text": text,
            "data": data,
        },
    )


class EventStore(Store):
    """Appends and reads events."""

    def append_event(
        self,
        kind: str,
        text: str,
        run_id: int | None = None,
        *,
        allocation_no: int | None = None,
        node: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Append one event and return its number."""
        with self._write() as connection:
            return add_event(
                connection,
                at=self._clock.now(),
                kind=kind,
                text=text,
                run_id=run_id,
                allocation_no=allocation_no,
                node=node,
                data=data,
            )

    def events(
        self,
        run_id: int | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        *,
        kind: str | None = None,
    ) -> tuple[Event, ...]:
        """Return events, oldest first, of one ``kind`` where given; with ``limit`` the newest that many."""
        table = tables.event
        statement = sa.select(table).order_by(table.c.id.desc())
        if run_id is not None:
            statement = statement.where(table.c.run_id == run_id)
        if kind is not None:
            statement = statement.where(table.c.kind == kind)
        if since is not None:
            statement = statement.where(table.c.at >= since)
        if limit is not None:
            statement = statement.limit(limit)
        with self._read() as connection:
            rows = connection.execute(statement).mappings().all()
        return tuple(Event(**row) for row in reversed(rows))
