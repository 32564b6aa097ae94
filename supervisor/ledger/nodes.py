"""Nodes that runs keep away from, and nodes that were drained by us."""

from datetime import datetime

import sqlalchemy as sa

from supervisor.domain.ids import NodeName
from supervisor.ledger import tables
from supervisor.ledger.base import Store, change_rows, insert_row
from supervisor.ledger.events import add_event
from supervisor.ledger.rows import AvoidRow, DrainRecord, DrainState


class NodeStore(Store):
    """Reads and writes avoids and drains."""

    def avoid(self, node: str, run_id: int | None, until: datetime, reason: str) -> None:
        """Keep a run (None: every run of this ledger) away from ``node`` until then.

        Saying it again for no longer changes nothing; for longer, it extends it.
        """
        table, now = tables.avoid, self._clock.now()
        same_run = table.c.run_id.is_(None) if run_id is None else table.c.run_id == run_id
        with self._write() as connection:
            active = sa.select(sa.func.count()).where(
                table.c.node == node, same_run, table.c.until >= until, table.c.lifted_at.is_(None)
            )
            if connection.execute(active.select_from(table)).scalar_one():
                return
            insert_row(
                connection,
                table,
                {"node": node, "run_id": run_id, "until": until, "reason": reason, "created_at": now},
            )
            add_event(
                connection,
                at=now,
                kind="avoid",
                text=f"{node} is avoided: {reason}",
                run_id=run_id,
                node=node,
                data={"until": until},
            )

    def avoided(self, now: datetime) -> tuple[AvoidRow, ...]:
        """Return what is avoided at ``now``: per node and run the one that lasts longest, by node."""
        table = tables.avoid
        statement = (
            sa.select(table.c.node, table.c.run_id, table.c.until, table.c.reason, table.c.created_at)
            .where(table.c.until > now, table.c.lifted_at.is_(None))
            .order_by(table.c.node, table.c.until, table.c.id)
        )
        with self._read() as connection:
            rows = [AvoidRow(**row) for row in connection.execute(statement).mappings()]
        return tuple({(row.node, row.run_id): row for row in rows}.values())

    def lift_avoid(self, node: str) -> int:
        """End every avoid of ``node`` now and return how many there were."""
        table, now = tables.avoid, self._clock.now()
        with self._write() as connection:
            lifted = change_rows(
                connection,
                table,
                [table.c.node == node, table.c.until > now, table.c.lifted_at.is_(None)],
                {"lifted_at": now},
            )
            if lifted:
                add_event(
                    connection, at=now, kind="avoid_lifted", text=f"{node} may be used again", node=node
                )
            return lifted

    def record_drain(
        self,
        node: str,
        cluster: str,
        reason: str,
        drained_at: datetime,
        *,
        run_id: int | None = None,
        reason_user: str = "",
    ) -> DrainRecord:
        """Store a drain of ours with what Slurm shows about it; the same drain twice is stored once."""
        table, now = tables.drain_record, self._clock.now()
        values = {
            "node": node,
            "cluster": cluster,
            "reason": reason,
            "drained_at": drained_at,
            "run_id": run_id,
            "reason_user": reason_user,
            "state": DrainState.DRAINED,
        }
        same = [
            table.c[name] == values[name]
            for name in ("node", "cluster", "reason", "drained_at", "reason_user")
        ]
        with self._write() as connection:
            row = connection.execute(sa.select(table).where(*same)).mappings().first()
            if row is None:
                drain_id = insert_row(connection, table, values)
                add_event(
                    connection,
                    at=now,
                    kind="drain",
                    text=f"{node} drained: {reason}",
                    run_id=run_id,
                    node=node,
                    data={
                        "drain": drain_id,
                        "cluster": cluster,
                        "drained_at": drained_at,
                        "user": reason_user,
                    },
                )
                row = connection.execute(sa.select(table).where(table.c.id == drain_id)).mappings().one()
            return DrainRecord(**row)

    def our_drains(self, cluster: str) -> tuple[DrainRecord, ...]:
        """Return the drains of ours in ``cluster`` that are not over, oldest first."""
        table = tables.drain_record
        statement = (
            sa.select(table)
            .where(table.c.cluster == cluster, table.c.state == DrainState.DRAINED)
            .order_by(table.c.id)
        )
        with self._read() as connection:
            return tuple(DrainRecord(**row) for row in connection.execute(statement).mappings())

    def end_drain(self, drain_id: int, to: DrainState) -> bool:
        """Store that a drain of ours is over; False when it already was.

        Raises:
            ValueError: if ``to`` is no end.
        """
        if to == DrainState.DRAINED:
            raise ValueError("a drain ends as returned or taken over")
        table, now = tables.drain_record, self._clock.now()
        mine = table.c.id == drain_id
        with self._write() as connection:
            changed = change_rows(
                connection, table, [mine, table.c.state == DrainState.DRAINED], {"state": to}
            )
            if changed:
                node = NodeName(connection.execute(sa.select(table.c.node).where(mine)).scalar_one())
                add_event(
                    connection,
                    at=now,
                    kind="drain_ended",
                    text=f"{node}: our drain is over ({to})",
                    node=node,
                    data={"drain": drain_id},
                )
            return bool(changed)
