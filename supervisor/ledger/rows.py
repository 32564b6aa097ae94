"""What the ledger gives back beside runs, allocations and actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from supervisor.domain.decision import Decision, Diagnosis
from supervisor.domain.ids import AllocationNo, JobId, NodeName, RunId, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAllocation:
    """What is known of an allocation before Slurm knows of it."""

    token: Token
    num_nodes: int
    excluded: tuple[NodeName, ...] = ()
    resume_from: str | None = None
    resume_step: int | None = None


class AllocationFacts(TypedDict, total=False):
    """What Slurm and the training say about an allocation; only the keys given are written."""

    job_id: JobId | None
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    noticed_at: datetime | None
    nodes: tuple[NodeName, ...]
    slurm_state: str
    slurm_reason: str
    exit_code: int | None
    exit_signal: int | None
    restart_count: int
    failure_class: str | None
    first_step_at: datetime | None
    last_step: int | None
    last_step_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Events are never changed and never deleted."""

    id: int
    at: datetime
    run_id: RunId | None
    allocation_no: AllocationNo | None
    node: NodeName | None
    kind: str
    text: str
    data: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision as it was taken, with the diagnosis behind it."""

    id: int
    at: datetime
    decision: Decision
    diagnosis: Diagnosis | None
    planned_no: AllocationNo | None
    """The allocation that was planned in the same transaction, where it led to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidRow:
    """A node that runs of ours keep away from until a time."""

    node: NodeName
    run_id: RunId | None
    """None means all runs of this ledger."""
    until: datetime
    reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do something alone, for a limited time."""

    name: str
    holder: str
    acquired_at: datetime
    expires_at: datetime


class DrainState(StrEnum):
    """What became of a drain of ours. Stored; never changes meaning."""

    DRAINED = "drained"
    RETURNED = "returned"
    """We undrained it."""
    TAKEN_OVER = "taken_over"
    """Somebody else changed the node's state or reason: it is theirs now (promise P4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRecord:
    """One drain of ours, as it must be found in Slurm before an undrain."""

    id: int
    node: NodeName
    cluster: str
    reason: str
    drained_at: datetime
    run_id: RunId | None
    reason_user: str
    state: DrainState


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check, with what to do where something is wrong."""

    severity: Severity
    subject: str
    text: str
