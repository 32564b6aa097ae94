"""Cancels the job of one allocation, and nothing else."""

from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.facts import Applied, Refused
from supervisor.domain.run import Allocation
from supervisor.ledger.store import Ledger
from supervisor.slurm.client import Slurm


def cancel(ledger: Ledger, slurm: Slurm, allocation: Allocation, *, actor: str) -> tuple[ActionState, str]:
    """Cancel an allocation's job; safe to repeat. Returns how the action stands and a sentence."""
    if allocation.job_id is None:
        return ActionState.REFUSED, "it has no job yet"
    action = ledger.plan_action(
        ActionKind.CANCEL,
        f"cancel:{allocation.token}",
        run_id=allocation.run_id,
        allocation_no=allocation.no,
        payload=str(allocation.job_id),
    )
    if action.state is ActionState.ACTING:
        ledger.settle_action(action.id, ActionState.UNKNOWN, "the process that acted on it is gone")
    elif action.state is ActionState.APPLIED:
        return ActionState.APPLIED, f"job {allocation.job_id} was cancelled before"
    if not ledger.start_action(action.id, actor):
        return ActionState.LOST_RACE, f"somebody else is cancelling job {allocation.job_id}"
    outcome = slurm.cancel(allocation.job_id)
    match outcome:
        case Applied():
            state, text = ActionState.APPLIED, f"job {allocation.job_id} is cancelled"
        case Refused():
            state, text = ActionState.REFUSED, f"Slurm refused to cancel it: {outcome.message}"
        case _:
            state, text = ActionState.UNKNOWN, f"no clear answer from scancel: {outcome.message}"
    ledger.settle_action(action.id, state, text)
    return state, text
