"""The decision table: the first move for each failure class and how often it may be made."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.decision import Diagnosis
from supervisor.domain.failure import FailureClass
from supervisor.domain.policy import Policy
from supervisor.domain.run import Allocation
from supervisor.domain.spec import JobSpec


class Move(StrEnum):
    """First moves."""

    OFF_THE_NODE = "off the node, retry"
    RETRY = "retry"
    ROLL_BACK = "previous checkpoint, retry"
    CONTINUE = "continue in a new allocation"
    GROW = "retry on more nodes"
    HOLD = "hold"
    STOP = "stop and explain"
    ACCEPT = "stop supervising"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    move: Move
    budget: int
    """Retries without progress in between."""
    free_with_progress: bool = False


_F = FailureClass
TABLE: dict[FailureClass, Rule] = {
    _F.GPU_HARDWARE: Rule(Move.OFF_THE_NODE, 8),
    _F.GPU_DRIVER: Rule(Move.OFF_THE_NODE, 8),
    _F.NODE_FAIL: Rule(Move.OFF_THE_NODE, 8),
    _F.NCCL_NETWORK: Rule(Move.RETRY, 4),
    _F.NCCL_TIMEOUT_HANG: Rule(Move.RETRY, 4),
    _F.RENDEZVOUS: Rule(Move.RETRY, 4),
    _F.SEGFAULT_NATIVE: Rule(Move.RETRY, 2),
    _F.GPU_OOM: Rule(Move.GROW, 1),
    _F.HOST_OOM: Rule(Move.GROW, 1),
    _F.FILESYSTEM: Rule(Move.RETRY, 3),
    _F.CHECKPOINT_CORRUPT: Rule(Move.ROLL_BACK, 2),
    _F.NUMERICAL: Rule(Move.ROLL_BACK, 2),
    _F.PREEMPTED: Rule(Move.CONTINUE, 5, free_with_progress=True),
    _F.TIME_LIMIT: Rule(Move.CONTINUE, 1, free_with_progress=True),
    _F.USER_CODE: Rule(Move.STOP, 0),
    _F.DATA: Rule(Move.STOP, 0),
    _F.DEPENDENCY_ENV: Rule(Move.STOP, 0),
    _F.SHM: Rule(Move.STOP, 0),
    _F.LICENSE_AUTH: Rule(Move.STOP, 0),
    _F.SCHEDULER: Rule(Move.HOLD, 0),
    _F.CANCELLED: Rule(Move.ACCEPT, 0),
    _F.UNKNOWN: Rule(Move.RETRY, 1),
}

DOUBTFUL_BELOW = 0.8
"""A user's fault that is less sure than this gets one confirming retry (promise P7: two attempts in all)."""


def budget_for(diagnosis: Diagnosis, spec: JobSpec, policy: Policy) -> int:
    """Return how many retries the class allows: the run's word, then the site's, then the table's."""
    failure_class = diagnosis.failure_class
    for budgets in (spec.recovery.budgets, policy.budgets):
        if failure_class in budgets:
            return budgets[failure_class]
    rule = TABLE[failure_class]
    if rule.move is Move.STOP and diagnosis.confidence < DOUBTFUL_BELOW:
        return 1
    return rule.budget


def spent(history: Sequence[Allocation], failure_class: FailureClass, newest_step: int | None) -> int:
    """Return how many earlier attempts ended in ``failure_class`` without progress since.

    Args:
        history: the run's allocations, oldest first, the one that is judged last (it does not count).
        failure_class: the class of the attempt that is judged.
        newest_step: step of the newest committed checkpoint now; None without one.
    """
    count = 0
    reached = newest_step
    judged = history[-1]
    if _made_progress(judged, reached):
        return 0
    for earlier in reversed(history[:-1]):
        if earlier.failure_class == failure_class:
            count += 1
        if _made_progress(earlier, judged.resume_step):
            break
        judged = earlier
    return count


def _made_progress(allocation: Allocation, step_after: int | None) -> bool:
    """Say whether a newer committed checkpoint existed after the allocation than the one it started from."""
    return step_after is not None and step_after > (allocation.resume_step or 0)
