"""Actions: side effects stored before they are done and settled after."""

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from supervisor.domain.action import ACTION_TRANSITIONS, OPEN_ACTIONS, Action, ActionKind, ActionState
from supervisor.domain.ids import Token
from supervisor.ledger import tables
from supervisor.ledger.base import Store, change_rows, insert_into
from supervisor.ledger.events import add_event


def add_action(
    connection: sa.Connection,
    *,
    kind: ActionKind,
    key: str,
    run_id: int | None,
    allocation_no: int | None,
    node: str | None,
    token: Token | None,
    payload: str,
    now: datetime,
) -> Action:
    """Store an intent inside the caller's transaction; the one that is there when ``key`` is taken."""
    table = tables.action
    planned = insert_into(connection, table).values(
        key=key,
        kind=kind,
        state=ActionState.PLANNED,
        run_id=run_id,
        allocation_no=allocation_no,
        node=node,
        token=token,
        payload=payload,
        detail="",
        planned_at=now,
        actor="",
    )
    added = connection.execute(
        planned.on_conflict_do_nothing(index_elements=[table.c.key]).returning(table.c.id)
    )
    is_new = added.first() is not None
    action = Action(**connection.execute(sa.select(table).where(table.c.key == key)).mappings().one())
    if is_new:
        add_event(
            connection,
            at=now,
            kind="action_planned",
            text=f"{kind} planned",
            run_id=run_id,
            allocation_no=allocation_no,
            node=node,
            data={"action": action.id, "key": key},
        )
    return action


class ActionStore(Store):
    """Reads and writes actions."""

    def plan_action(
        self,
        kind: ActionKind,
        key: str,
        run_id: int | None = None,
        *,
        node: str | None = None,
        payload: str = "",
        allocation_no: int | None = None,
        token: Token | None = None,
    ) -> Action:
        """Store the intent to do something; the same ``key`` again gives the action that is there."""
        with self._write() as connection:
            return add_action(
                connection,
                kind=kind,
                key=key,
                run_id=run_id,
                allocation_no=allocation_no,
                node=node,
                token=token,
                payload=payload,
                now=self._clock.now(),
            )

    def start_action(self, action_id: int, actor: str) -> bool:
        """Claim a planned or doubtful action for ``actor`` (host:pid); False when somebody else has it."""
        now = self._clock.now()
        startable = [ActionState.PLANNED, ActionState.UNKNOWN]
        table = tables.action
        with self._write() as connection:
            changed = change_rows(
                connection,
                table,
                [table.c.id == action_id, table.c.state.in_(startable)],
                {"state": ActionState.ACTING, "acted_at": now, "actor": actor},
            )
            if changed:
                self._tell(connection, action_id, now, ActionState.ACTING, actor)
            return bool(changed)

    def settle_action(
        self,
        action_id: int,
        to: ActionState,
        detail: str,
        expected: ActionState = ActionState.ACTING,
    ) -> bool:
        """Store how an action ended, or that it is in doubt (``UNKNOWN``); False when it is not ``expected``.

        Raises:
            ValueError: if ``to`` may not follow ``expected`` (``ACTION_TRANSITIONS``), or is no end.
        """
        if to == ActionState.ACTING or to not in ACTION_TRANSITIONS[expected]:
            raise ValueError(f"an action that is {expected} cannot be settled as {to}")
        now = self._clock.now()
        table = tables.action
        with self._write() as connection:
            changed = change_rows(
                connection,
                table,
                [table.c.id == action_id, table.c.state == expected],
                {"state": to, "detail": detail, "settled_at": None if to in OPEN_ACTIONS else now},
            )
            if changed:
                self._tell(connection, action_id, now, to, detail)
            return bool(changed)

    def _tell(
        self, connection: sa.Connection, action_id: int, now: datetime, to: ActionState, detail: str
    ) -> None:
        table = tables.action
        row = connection.execute(sa.select(table).where(table.c.id == action_id)).mappings().one()
        add_event(
            connection,
            at=now,
            kind="action_state",
            text=f"{row['kind']} {to}: {detail}" if detail else f"{row['kind']} {to}",
            run_id=row["run_id"],
            allocation_no=row["allocation_no"],
            node=row["node"],
            data={"action": action_id, "to": to},
        )

    def open_actions(self, kinds: Collection[ActionKind] | None = None) -> tuple[Action, ...]:
        """Return the actions whose end is not known yet, oldest first."""
        table = tables.action
        statement = sa.select(table).where(table.c.state.in_(sorted(OPEN_ACTIONS))).order_by(table.c.id)
        if kinds is not None:
            statement = statement.where(table.c.kind.in_(sorted(kinds)))
        with self._read() as connection:
            return tuple(Action(**row) for row in connection.execute(statement).mappings())

    def actions(self, run_id: int) -> tuple[Action, ...]:
        """Return every action of a run, oldest first."""
        table = tables.action
        statement = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.id)
        with self._read() as connection:
            return tuple(Action(**row) for row in connection.execute(statement).mappings())
