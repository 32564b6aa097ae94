"""Runs: created with their first allocation, moved by compare-and-swap, found by what a person types."""

from collections.abc import Collection
from pathlib import Path

import sqlalchemy as sa

from supervisor.domain.action import Action
from supervisor.domain.ids import AllocationNo, RunId
from supervisor.domain.run import RUN_TRANSITIONS, Allocation, Run, RunState
from supervisor.errors import NothingMatched
from supervisor.ledger import tables
from supervisor.ledger.allocations import plan_submission
from supervisor.ledger.base import Store, change_rows, insert_row
from supervisor.ledger.events import add_event
from supervisor.ledger.rows import NewAllocation

_MAX_ID = 2**63 - 1


class RunStore(Store):
    """Reads and writes runs."""

    def create_run(
        self,
        *,
        uid: str,
        name: str,
        owner: str,
        cluster: str,
        spec_json: str,
        folder: Path,
        allocation: NewAllocation,
        action_payload: str,
    ) -> tuple[Run, Allocation, Action]:
        """Store a run, its first allocation and the intent to submit it, all or nothing (promise P1).

        Raises:
            LedgerError: if it cannot be stored; nothing is stored then.
        """
        now = self._clock.now()
        values = {
            "uid": uid,
            "name": name,
            "owner": owner,
            "cluster": cluster,
            "state": RunState.QUEUED,
            "reason": "the first allocation is being submitted",
            "spec_json": spec_json,
            "folder": folder,
            "created_at": now,
            "changed_at": now,
        }
        with self._write() as connection:
            run_id = RunId(insert_row(connection, tables.run, values))
            add_event(
                connection,
                at=now,
                kind="run_created",
                text=f"run {name} of {owner} created",
                run_id=run_id,
                data={"uid": uid, "cluster": cluster, "folder": folder},
            )
            planned, action = plan_submission(
                connection,
                run_id=run_id,
                no=AllocationNo(1),
                cluster=cluster,
                allocation=allocation,
                payload=action_payload,
                now=now,
            )
            row = connection.execute(sa.select(tables.run).where(tables.run.c.id == run_id)).mappings().one()
            return Run(**row), planned, action

    def run(self, run_id: int) -> Run:
        """Return one run.

        Raises:
            NothingMatched: if there is none with this number.
        """
        with self._read() as connection:
            row = (
                connection.execute(sa.select(tables.run).where(tables.run.c.id == run_id)).mappings().first()
            )
        if row is None:
            raise NothingMatched(f"the ledger has no run {run_id}; `supervise status` lists those it has")
        return Run(**row)

    def runs(self, states: Collection[RunState] | None = None, owner: str | None = None) -> tuple[Run, ...]:
        """Return runs by number, all or those in ``states`` and of ``owner``."""
        statement = sa.select(tables.run).order_by(tables.run.c.id)
        if states is not None:
            statement = statement.where(tables.run.c.state.in_(sorted(states)))
        if owner is not None:
            statement = statement.where(tables.run.c.owner == owner)
        with self._read() as connection:
            return tuple(Run(**row) for row in connection.execute(statement).mappings())

    def find_runs(self, text: str) -> tuple[Run, ...]:
        """Return the runs that ``text`` names, newest first; empty when none does.

        The first reading that fits wins: a run's number, its uid, its name, a Slurm job id of it.
        """
        run, allocation = tables.run, tables.allocation
        readings: list[sa.ColumnElement[bool]] = [run.c.uid == text, run.c.name == text]
        if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_ID:
            number = int(text)
            of_job = sa.select(allocation.c.run_id).where(allocation.c.job_id == number)
            readings = [run.c.id == number, *readings, run.c.id.in_(of_job)]
        with self._read() as connection:
            for reading in readings:
                rows = (
                    connection.execute(sa.select(run).where(reading).order_by(run.c.id.desc()))
                    .mappings()
                    .all()
                )
                if rows:
                    return tuple(Run(**row) for row in rows)
        return ()

    def advance_run(self, run_id: int, *, expected: RunState, to: RunState, reason: str) -> bool:
        """Move a run on if it still is where the caller saw it; False when somebody else moved it first.

        Raises:
            ValueError: if ``to`` may not follow ``expected`` (``RUN_TRANSITIONS``).
        """
        if to not in RUN_TRANSITIONS[expected]:
            raise ValueError(f"a run that is {expected} cannot become {to}")
        return self._change_run(run_id, expected, to, reason)

    def set_run_reason(self, run_id: int, expected: RunState, reason: str) -> bool:
        """Say anew why a run is in the state it is in; False when it is in another one by now."""
        return self._change_run(run_id, expected, expected, reason)

    def _change_run(self, run_id: int, expected: RunState, to: RunState, reason: str) -> bool:
        table, now = tables.run, self._clock.now()
        condition = [table.c.id == run_id, table.c.state == expected]
        if to == expected:
            condition.append(table.c.reason != reason)
        with self._write() as connection:
            changed = change_rows(
                connection, table, condition, {"state": to, "reason": reason, "changed_at": now}
            )
            if changed:
                add_event(
                    connection,
                    at=now,
                    kind="run_reason" if to == expected else "run_state",
                    text=f"{expected} -> {to}: {reason}" if to != expected else f"{to}: {reason}",
                    run_id=run_id,
                    data={"from": expected, "to": to},
                )
                return True
            if to != expected:
                return False
            # The same reason again is no change and no lost race either.
            state = connection.execute(
                sa.select(table.c.state).where(table.c.id == run_id)
            ).scalar_one_or_none()
            return state == expected
