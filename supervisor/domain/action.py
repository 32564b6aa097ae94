"""Side effects as values: an intent is stored before it is done and settled after."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from supervisor.domain.ids import AllocationNo, NodeName, RunId, Token


class ActionKind(StrEnum):
    """What is done to the outside world. Stored; never changes meaning."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    DRAIN = "drain"
    NOTIFY = "notify"


class ActionState(StrEnum):
    """Where an action stands. Stored; never changes meaning."""

    PLANNED = "planned"
    ACTING = "acting"
    APPLIED = "applied"
    REFUSED = "refused"
    LOST_RACE = "lost_race"
    UNKNOWN = "unknown"


OPEN_ACTIONS = frozenset({ActionState.PLANNED, ActionState.ACTING, ActionState.UNKNOWN})
"""Not settled: a sweep has to find out what became of them."""

ACTION_TRANSITIONS: dict[ActionState, frozenset[ActionState]] = {
    ActionState.PLANNED: frozenset({ActionState.ACTING, ActionState.REFUSED, ActionState.LOST_RACE}),
    ActionState.ACTING: frozenset(
        {ActionState.APPLIED, ActionState.REFUSED, ActionState.LOST_RACE, ActionState.UNKNOWN}
    ),
    # Searched for and not found: the same intent, with the same token, is tried again.
    ActionState.UNKNOWN: frozenset(
        {ActionState.ACTING, ActionState.APPLIED, ActionState.REFUSED, ActionState.LOST_RACE}
    ),
    ActionState.APPLIED: frozenset(),
    ActionState.REFUSED: frozenset(),
    ActionState.LOST_RACE: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One side effect; ``key`` is unique, so the same intent is never stored twice."""

    id: int
    key: str
    kind: ActionKind
    state: ActionState
    run_id: RunId | None
    allocation_no: AllocationNo | None = None
    node: NodeName | None = None
    token: Token | None = None
    payload: str = ""
    """JSON with what is needed to carry it out after a crash."""
    detail: str = ""
    """How it was settled, in Slurm's words."""
    planned_at: datetime
    acted_at: datetime | None = None
    settled_at: datetime | None = None
    actor: str = ""
    """host:pid of the process that last acted on it."""
