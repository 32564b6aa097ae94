"""Drains one node once, and only where it changes nobody else's drain or reason (promises P4 and P5)."""

from dataclasses import dataclass
from datetime import datetime

from supervisor.decide.nodes import is_free_to_drain
from supervisor.domain.action import Action, ActionKind, ActionState
from supervisor.domain.decision import NodeDecision
from supervisor.domain.facts import Applied, Known, NodeRow, Refused
from supervisor.domain.ids import AllocationNo, NodeName, RunId
from supervisor.ledger.store import Ledger
from supervisor.slurm.client import Slurm


def plan_drain(
    ledger: Ledger, decision: NodeDecision, *, cluster: str, run_id: RunId, no: AllocationNo
) -> Action:
    """Store the intent; planning the same drain again returns the one that is stored."""
    return ledger.plan_action(
        ActionKind.DRAIN,
        f"drain:{cluster}:{decision.node}:{run_id}.{no}",
        run_id=run_id,
        allocation_no=no,
        node=decision.node,
        payload=decision.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drainer:
    """Carries out drains on one cluster."""

    ledger: Ledger
    slurm: Slurm
    cluster: str
    actor: str
    now: datetime

    def drain(self, action: Action) -> str:
        """Carry out or settle one drain and return a sentence about it.

        The node is read just before, since ``scontrol update`` overwrites without comparing, and after,
        since its return code says little (a partial success returns 1, 22.05).
        """
        row = self._read(action.node)
        if row is None:
            return f"{action.node} could not be read; its drain stays open"
        if row.drained and row.reason == action.payload:
            self._record(action, row)
            return self._settle(action, ActionState.APPLIED, f"{row.name} is drained")
        if not is_free_to_drain(row):
            state = "+".join([row.base, *sorted(row.flags)])
            text = f"{row.name} is left alone: it is {state} with somebody else's reason {row.reason!r}"
            return self._settle(action, ActionState.LOST_RACE, text)
        if action.state is ActionState.ACTING:
            self.ledger.settle_action(action.id, ActionState.UNKNOWN, "the process that acted on it is gone")
        if not self.ledger.start_action(action.id, self.actor):
            return f"somebody else is draining {row.name}"
        return self._change(action, row)

    def _change(self, action: Action, row: NodeRow) -> str:
        match self.slurm.drain(row.name, action.payload):
            case Applied():
                self._record(action, self._read(row.name))
                return self._finish(action, ActionState.APPLIED, f"{row.name} is drained")
            case Refused() as refusal:
                text = f"Slurm refused to drain {row.name}: {refusal.message}"
                return self._finish(action, ActionState.REFUSED, text)
            case doubt:
                text = f"no clear answer about draining {row.name}: {doubt.message}"
                return self._finish(action, ActionState.UNKNOWN, text)

    def _settle(self, action: Action, state: ActionState, text: str) -> str:
        if action.state is not ActionState.ACTING:
            self.ledger.start_action(action.id, self.actor)
        return self._finish(action, state, text)

    def _finish(self, action: Action, state: ActionState, text: str) -> str:
        node = action.node
        if state is ActionState.REFUSED:
            request = f"an admin is asked to drain {node}: {action.payload}"
            self.ledger.append_event("drain_requested", request, run_id=action.run_id, node=node)
        self.ledger.settle_action(action.id, state, text)
        return text

    def _record(self, action: Action, row: NodeRow | None) -> None:
        """Store the drain as Slurm shows it: an undrain must find reason, time and user unchanged (P4)."""
        if row is None or row.reason != action.payload:
            return
        self.ledger.record_drain(
            row.name,
            self.cluster,
            action.payload,
            row.reason_at or self.now,
            run_id=action.run_id,
            reason_user=row.reason_user,
        )

    def _read(self, node: NodeName | None) -> NodeRow | None:
        reading = self.slurm.nodes()
        rows = reading.value if isinstance(reading, Known) else ()
        return next((row for row in rows if row.name == node), None)
