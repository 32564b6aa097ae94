"""Submits an allocation exactly once (promise P1).

The intent with its unique token is committed before sbatch is called. Whatever happens after that, the token
is searched for (live list, accounting, claim in the run folder) before the same intent is tried again, and
should two jobs carry one token after all, the claim lets only one of them train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.domain.action import Action, ActionState
from supervisor.domain.facts import Accepted, JobRow, JobState, Known, Reading, Refused
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import JobId
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.domain.submission import SubmissionPlan
from supervisor.intake.files import write_files
from supervisor.ledger.store import Ledger
from supervisor.observe.folder import read_claim
from supervisor.observe.scheduler import find_by_token
from supervisor.slurm.client import Slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of a submission."""

    state: ActionState
    text: str
    job_id: JobId | None = None


def submit(
    ledger: Ledger, slurm: Slurm, *, action: Action, allocation: Allocation, plan: SubmissionPlan, actor: str
) -> Submitted:
    """Write the files, call sbatch, and settle the intent.

    Raises:
        SupervisorError: if the files cannot be written; nothing was asked of Slurm, and the intent stays.
    """
    write_files(plan)
    if not ledger.start_action(action.id, actor):
        return Submitted(state=ActionState.LOST_RACE, text="somebody else is submitting it")
    outcome = slurm.submit(plan.script, plan.options)
    match outcome:
        case Accepted():
            return _adopt(ledger, action, allocation, outcome.job_id, "sbatch accepted it", submitted_at=None)
        case Refused():
            text = f"Slurm refused it: {outcome.message}"
            ledger.advance_allocation(
                allocation.run_id,
                allocation.no,
                expected=AllocationState.PLANNED,
                to=AllocationState.REFUSED,
                slurm_reason=outcome.message,
            )
            ledger.settle_action(action.id, ActionState.REFUSED, outcome.message)
            return Submitted(state=ActionState.REFUSED, text=text)
        case _:
            ledger.settle_action(action.id, ActionState.UNKNOWN, outcome.message)
            return Submitted(
                state=ActionState.UNKNOWN,
                text=f"no clear answer from sbatch ({outcome.message}); it is searched for by its token",
            )


def search(
    run: Run, allocation: Allocation, *, jobs: Reading[tuple[JobRow, ...]], slurm: Slurm
) -> tuple[JobId, datetime | None] | None:
    """Search for an allocation's token where a job that was accepted must have left it.

    Returns:
        The job id, with the submit time where a row showed it; None when no source has the token.
    """
    if isinstance(jobs, Known):
        rows = _real(find_by_token(jobs.value, allocation.token))
        if rows:
            return _first_to_train(rows)
    accounting = slurm.accounting([], allocation.planned_at - timedelta(minutes=10))
    if isinstance(accounting, Known):
        rows = _real(find_by_token(accounting.value, allocation.token))
        if rows:
            return _first_to_train(rows)
    claim = read_claim(RunFolder(run.folder), allocation.no)
    if claim is not None and claim[1] == allocation.token:
        return claim[0], None
    return None


def settle(
    ledger: Ledger,
    slurm: Slurm,
    *,
    run: Run,
    action: Action,
    allocation: Allocation,
    plan: SubmissionPlan,
    jobs: Reading[tuple[JobRow, ...]],
    actor: str,
    grace: timedelta,
    now: datetime,
) -> Submitted:
    """Find out what became of an intent that was left open, and carry it out where it did not happen.

    Args:
        ledger: where the intent is.
        slurm: the cluster.
        run: the run.
        action: the open action.
        allocation: the allocation it would submit.
        plan: what would be submitted; the same as the first time.
        jobs: the job list of this sweep; it must be known.
        actor: host:pid of this process.
        grace: how long a job may still appear after Slurm has answered a first search without it: what a
            frozen slurmctld had received, it accepts when it goes on.
        now: the time of this sweep.
    """
    if allocation.state is not AllocationState.PLANNED:
        _close(ledger, action, ActionState.APPLIED, f"job {allocation.job_id} is known")
        return Submitted(state=ActionState.APPLIED, text="already submitted", job_id=allocation.job_id)
    if action.state is ActionState.PLANNED:
        return submit(ledger, slurm, action=action, allocation=allocation, plan=plan, actor=actor)
    found = search(run, allocation, jobs=jobs, slurm=slurm)
    if found is not None:
        return _adopt(ledger, action, allocation, found[0], "found again by its token", submitted_at=found[1])
    if now - _first_search(ledger, action, now) < grace:
        return Submitted(state=ActionState.UNKNOWN, text="waiting for a doubtful submission to show up")
    if action.state is ActionState.ACTING:
        ledger.settle_action(action.id, ActionState.UNKNOWN, "the process that acted on it is gone")
    if run.state is RunState.CANCELLING:
        return _give_up(ledger, action, allocation)
    return submit(ledger, slurm, action=action, allocation=allocation, plan=plan, actor=actor)


def _give_up(ledger: Ledger, action: Action, allocation: Allocation) -> Submitted:
    text = "its job never showed up, and the run was cancelled meanwhile"
    ledger.settle_action(action.id, ActionState.REFUSED, text, expected=ActionState.UNKNOWN)
    ledger.advance_allocation(
        allocation.run_id, allocation.no, expected=AllocationState.PLANNED, to=AllocationState.REFUSED
    )
    return Submitted(state=ActionState.REFUSED, text=text)


def _first_search(ledger: Ledger, action: Action, now: datetime) -> datetime:
    """Return when Slurm first answered a search for the action since it was last tried; now, if just now."""
    tried_at = action.acted_at or action.planned_at
    for event in ledger.events(action.run_id, since=tried_at, kind="searched"):
        if event.allocation_no == action.allocation_no:
            return event.at
    ledger.append_event(
        "searched",
        "the job of a doubtful submission is not to be found yet",
        action.run_id,
        allocation_no=action.allocation_no,
    )
    return now


def withdraw(ledger: Ledger, action: Action, allocation: Allocation, *, actor: str) -> bool:
    """Give up an intent that was never acted on; False when somebody has begun to act."""
    if action.state is not ActionState.PLANNED or not ledger.start_action(action.id, actor):
        return False
    ledger.settle_action(action.id, ActionState.REFUSED, "withdrawn before it was submitted")
    return ledger.advance_allocation(
        allocation.run_id, allocation.no, expected=AllocationState.PLANNED, to=AllocationState.REFUSED
    )


def _real(rows: Sequence[JobRow]) -> tuple[JobRow, ...]:
    """Leave out what a refused sbatch leaves behind (22.05): FAILED, with our token, and never a node."""
    return tuple(row for row in rows if not (row.state is JobState.FAILED and not row.nodes))


def _first_to_train(rows: Sequence[JobRow]) -> tuple[JobId, datetime | None]:
    """Of several jobs with one token, return the one that can hold the claim."""
    started = [row for row in rows if row.nodes] or list(rows)
    return started[0].job_id, started[0].submit_at


def _adopt(
    ledger: Ledger,
    action: Action,
    allocation: Allocation,
    job_id: JobId,
    how: str,
    *,
    submitted_at: datetime | None,
) -> Submitted:
    # The job id first: a crash between the two writes leaves an open action that the next sweep closes.
    ledger.advance_allocation(
        allocation.run_id,
        allocation.no,
        expected=AllocationState.PLANNED,
        to=AllocationState.PENDING,
        job_id=job_id,
        submitted_at=submitted_at,
    )
    _close(ledger, action, ActionState.APPLIED, f"job {job_id}: {how}")
    return Submitted(state=ActionState.APPLIED, text=f"job {job_id}", job_id=job_id)


def _close(ledger: Ledger, action: Action, state: ActionState, detail: str) -> None:
    if action.state is ActionState.PLANNED:
        ledger.start_action(action.id, "")
    # The row may be in doubt, or be acted on by now: what was read of it before is no longer sure.
    if not ledger.settle_action(action.id, state, detail):
        ledger.settle_action(action.id, state, detail, expected=ActionState.UNKNOWN)
