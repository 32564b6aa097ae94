"""Allocations: planned together with the intent to submit them, moved by compare-and-swap."""

from datetime import datetime
from typing import Any, Unpack, cast

import sqlalchemy as sa

from supervisor.domain.action import Action, ActionKind
from supervisor.domain.decision import Decision, Diagnosis
from supervisor.domain.ids import AllocationNo, RunId
from supervisor.domain.nodeset import fold
from supervisor.domain.run import (
    ALLOCATION_TRANSITIONS,
    LIVE_ALLOCATIONS,
    Allocation,
    AllocationState,
    RunState,
)
from supervisor.errors import NothingMatched
from supervisor.ledger import tables
from supervisor.ledger.actions import add_action
from supervisor.ledger.base import Store, change_rows
from supervisor.ledger.decisions import add_decision
from supervisor.ledger.events import add_event
from supervisor.ledger.rows import AllocationFacts, NewAllocation


def plan_submission(
    connection: sa.Connection,
    *,
    run_id: RunId,
    no: AllocationNo,
    cluster: str,
    allocation: NewAllocation,
    payload: str,
    now: datetime,
) -> tuple[Allocation, Action]:
    """Store an allocation and the intent to submit it inside the caller's transaction."""
    planned = Allocation(
        run_id=run_id,
        no=no,
        token=allocation.token,
        cluster=cluster,
        state=AllocationState.PLANNED,
        num_nodes=allocation.num_nodes,
        excluded=allocation.excluded,
        resume_from=allocation.resume_from,
        resume_step=allocation.resume_step,
        planned_at=now,
    )
    values = {name: getattr(planned, name) for name in Allocation.__dataclass_fields__}
    connection.execute(sa.insert(tables.allocation).values(**values))
    add_event(
        connection,
        at=now,
        kind="allocation_planned",
        text=f"allocation {no} planned with {allocation.num_nodes} nodes",
        run_id=run_id,
        allocation_no=no,
        data={
            "token": allocation.token,
            "num_nodes": allocation.num_nodes,
            "excluded": fold(allocation.excluded),
            "resume_from": allocation.resume_from,
            "resume_step": allocation.resume_step,
        },
    )
    action = add_action(
        connection,
        kind=ActionKind.SUBMIT,
        key=f"submit:{allocation.token}",
        run_id=run_id,
        allocation_no=no,
        node=None,
        token=allocation.token,
        payload=payload,
        now=now,
    )
    return planned, action


class AllocationStore(Store):
    """Reads and writes allocations."""

    def plan_allocation(
        self,
        run_id: int,
        *,
        expected: RunState,
        allocation: NewAllocation,
        action_payload: str,
        decision: Decision | None,
        diagnosis: Diagnosis | None,
    ) -> tuple[Allocation, Action] | None:
        """Store the next allocation of a run with the intent to submit it and the decision behind it.

        None when the run is no longer in the state that the caller saw, or has a live allocation:
        of two sweeps that decide the same at once, one gets None (promise P1).
        """
        table, now = tables.allocation, self._clock.now()
        with self._write() as connection:
            run = _lock_run(connection, run_id)
            if run is None or run["state"] != expected or _live_numbers(connection, run_id):
                return None
            mine = table.c.run_id == run_id
            last = connection.execute(sa.select(sa.func.max(table.c.no)).where(mine)).scalar_one() or 0
            no = AllocationNo(last + 1)
            if decision is not None:
                add_decision(connection, decision, diagnosis, at=now, planned_no=no)
            return plan_submission(
                connection,
                run_id=RunId(run_id),
                no=no,
                cluster=run["cluster"],
                allocation=allocation,
                payload=action_payload,
                now=now,
            )

    def allocation(self, run_id: int, no: int) -> Allocation:
        """Return one allocation.

        Raises:
            NothingMatched: if there is none with these numbers.
        """
        table = tables.allocation
        found = self._allocations(table.c.run_id == run_id, table.c.no == no)
        if not found:
            raise NothingMatched(
                f"run {run_id} has no allocation {no}; `supervise status {run_id}` lists them"
            )
        return found[0]

    def allocations(self, run_id: int) -> tuple[Allocation, ...]:
        """Return the allocations of a run, first to last."""
        return self._allocations(tables.allocation.c.run_id == run_id)

    def live_allocations(self) -> tuple[Allocation, ...]:
        """Return every allocation that is planned, pending or running."""
        return self._allocations(tables.allocation.c.state.in_(sorted(LIVE_ALLOCATIONS)))

    def _allocations(self, *conditions: sa.ColumnElement[bool]) -> tuple[Allocation, ...]:
        table = tables.allocation
        statement = sa.select(table).where(*conditions).order_by(table.c.run_id, table.c.no)
        with self._read() as connection:
            return tuple(Allocation(**row) for row in connection.execute(statement).mappings())

    def advance_allocation(
        self,
        run_id: int,
        no: int,
        *,
        expected: AllocationState,
        to: AllocationState,
        **facts: Unpack[AllocationFacts],
    ) -> bool:
        """Move an allocation on, with the facts that say so, if it still is where the caller saw it.

        False when somebody else moved it first, or when it would become live beside another live
        allocation of its run: a lost job that shows up again after its successor was planned has to
        be cancelled, not taken back (promise P1).

        Raises:
            ValueError: if ``to`` may not follow ``expected`` (``ALLOCATION_TRANSITIONS``).
        """
        if to not in ALLOCATION_TRANSITIONS[expected]:
            raise ValueError(f"an allocation that is {expected} cannot become {to}")
        table, now = tables.allocation, self._clock.now()
        values = cast("dict[str, Any]", dict(facts))
        condition = [table.c.run_id == run_id, table.c.no == no, table.c.state == expected]
        with self._write() as connection:
            if to in LIVE_ALLOCATIONS and expected not in LIVE_ALLOCATIONS:
                _lock_run(connection, run_id)
                if _live_numbers(connection, run_id) - {no}:
                    return False
            changed = change_rows(connection, table, condition, {**values, "state": to})
            if not changed:
                return False
            add_event(
                connection,
                at=now,
                kind="allocation_state",
                text=f"{expected} -> {to}",
                run_id=run_id,
                allocation_no=no,
                data={"from": expected, "to": to, **_told(values)},
            )
            return True

    def record_facts(self, run_id: int, no: int, **facts: Unpack[AllocationFacts]) -> None:
        """Store what was learned about an allocation without moving it; ``first_step_at`` is kept once known.

        Raises:
            NothingMatched: if there is no such allocation.
        """
        table = tables.allocation
        mine = [table.c.run_id == run_id, table.c.no == no]
        values = cast("dict[str, Any]", dict(facts))
        with self._write() as connection:
            row = connection.execute(sa.select(table).where(*mine).with_for_update()).mappings().first()
            if row is None:
                raise NothingMatched(
                    f"run {run_id} has no allocation {no}; `supervise status {run_id}` lists them"
                )
            if row["first_step_at"] is not None:
                values.pop("first_step_at", None)
            changes = {name: value for name, value in values.items() if not _same(row[name], value)}
            if not changes:
                return
            change_rows(connection, table, mine, changes)
            add_event(
                connection,
                at=self._clock.now(),
                kind="allocation_facts",
                text=", ".join(sorted(changes)),
                run_id=run_id,
                allocation_no=no,
                data=_told(changes),
            )


def _lock_run(connection: sa.Connection, run_id: int) -> sa.RowMapping | None:
    """Keep other planners of this run out until the transaction ends, and return state and cluster."""
    table = tables.run
    statement = sa.select(table.c.state, table.c.cluster).where(table.c.id == run_id)
    # NO KEY UPDATE on PostgreSQL lets events about the run in meanwhile; SQLite has locked everything.
    return connection.execute(statement.with_for_update(key_share=True)).mappings().first()


def _live_numbers(connection: sa.Connection, run_id: int) -> set[int]:
    table = tables.allocation
    live = sa.select(table.c.no).where(table.c.run_id == run_id, table.c.state.in_(sorted(LIVE_ALLOCATIONS)))
    return set(connection.execute(live).scalars())


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """Facts as an event holds them: a list of 10,000 nodes in bracket notation."""
    return {name: fold(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _same(stored: object, value: object) -> bool:
    if isinstance(stored, tuple) and isinstance(value, tuple):
        return set(stored) == set(value)
    return stored == value
