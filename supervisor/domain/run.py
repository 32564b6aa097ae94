"""Runs and allocations, their states, and the tables that say which state may follow which."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from supervisor.domain.ids import AllocationNo, JobId, NodeName, RunId, Token


class RunState(StrEnum):
    """Where a run stands. Stored; never changes meaning."""

    QUEUED = "queued"
    RUNNING = "running"
    RECOVERING = "recovering"
    WAITING = "waiting"
    HELD = "held"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED_RUNS = frozenset({RunState.DONE, RunState.FAILED, RunState.CANCELLED})
SUPERVISED_RUNS = frozenset(RunState) - FINISHED_RUNS - {RunState.HELD}
"""Runs that a sweep has to look at."""

RUN_TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset(
        {
            RunState.RUNNING,
            RunState.RECOVERING,
            RunState.HELD,
            RunState.CANCELLING,
            RunState.DONE,
            RunState.FAILED,
            RunState.CANCELLED,
        }
    ),
    RunState.RUNNING: frozenset(
        {
            RunState.QUEUED,  # a site may force a requeue in spite of --no-requeue
            RunState.RECOVERING,
            RunState.HELD,
            RunState.CANCELLING,
            RunState.DONE,
            RunState.FAILED,
            RunState.CANCELLED,
        }
    ),
    RunState.RECOVERING: frozenset(
        {
            RunState.QUEUED,
            RunState.RUNNING,  # the sweep that submitted was killed before it could say so
            RunState.WAITING,
            RunState.HELD,
            RunState.CANCELLING,
            RunState.DONE,
            RunState.FAILED,
            RunState.CANCELLED,
        }
    ),
    RunState.WAITING: frozenset(
        {RunState.RECOVERING, RunState.QUEUED, RunState.HELD, RunState.CANCELLING, RunState.CANCELLED}
    ),
    RunState.HELD: frozenset({RunState.RECOVERING, RunState.CANCELLING, RunState.CANCELLED}),
    RunState.CANCELLING: frozenset({RunState.CANCELLED, RunState.DONE}),
    RunState.FAILED: frozenset({RunState.RECOVERING}),  # `supervise resume` after the user's fix
    RunState.DONE: frozenset(),
    RunState.CANCELLED: frozenset({RunState.RECOVERING}),
}


class AllocationState(StrEnum):
    """Where an allocation stands. Stored; never changes meaning."""

    PLANNED = "planned"
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"
    LOST = "lost"


LIVE_ALLOCATIONS = frozenset({AllocationState.PLANNED, AllocationState.PENDING, AllocationState.RUNNING})

ALLOCATION_TRANSITIONS: dict[AllocationState, frozenset[AllocationState]] = {
    AllocationState.PLANNED: frozenset(
        {AllocationState.PENDING, AllocationState.RUNNING, AllocationState.ENDED, AllocationState.REFUSED}
    ),
    AllocationState.PENDING: frozenset(
        {AllocationState.RUNNING, AllocationState.ENDED, AllocationState.LOST}
    ),
    AllocationState.RUNNING: frozenset(
        {AllocationState.PENDING, AllocationState.ENDED, AllocationState.LOST}
    ),
    AllocationState.LOST: frozenset({AllocationState.ENDED, AllocationState.RUNNING}),
    AllocationState.ENDED: frozenset(),
    AllocationState.REFUSED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training that somebody wants finished."""

    id: RunId
    uid: str
    """Part of the run folder's name; unique over ledgers."""
    name: str
    owner: str
    cluster: str
    state: RunState
    reason: str
    """One sentence for a person: why it is in this state."""
    spec_json: str
    """The validated job file as JSON."""
    folder: Path
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One Slurm job of a run, keyed by (cluster, job id, submit time, restart count)."""

    run_id: RunId
    no: AllocationNo
    token: Token
    cluster: str
    state: AllocationState
    num_nodes: int
    excluded: tuple[NodeName, ...]
    resume_from: str | None
    """Path of the checkpoint handed to the training, or None for a start at step 0."""
    resume_step: int | None
    planned_at: datetime
    job_id: JobId | None = None
    submitted_at: datetime | None = None
    restart_count: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """When Slurm says that it ended."""
    noticed_at: datetime | None = None
    """When a sweep saw that it had ended."""
    nodes: tuple[NodeName, ...] = ()
    slurm_state: str = ""
    slurm_reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    first_step_at: datetime | None = None
    """When the training reported its first new step."""
    last_step: int | None = None
    last_step_at: datetime | None = None
    failure_class: str | None = None
