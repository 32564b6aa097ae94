"""What was read from Slurm, with when; a failed read is never a fact (promise P3)."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from supervisor.domain.ids import JobId, NodeName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A read that succeeded."""

    value: T
    at: datetime


@dataclass(frozen=True, slots=True)
class Unknown:
    """A read that failed, timed out or made no sense. It permits no action."""

    why: str
    at: datetime


Reading: TypeAlias = Known[T] | Unknown


class JobState(StrEnum):
    """Slurm's base job states (squeue(1), JOB STATE CODES) and our word for one we do not know."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    COMPLETING = "COMPLETING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"
    """A word of a newer Slurm: keep watching, never act on it."""


ENDED_JOBS = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.DEADLINE,
        JobState.PREEMPTED,
        JobState.NODE_FAIL,
        JobState.BOOT_FAIL,
        JobState.OUT_OF_MEMORY,
    }
)
"""The job is over and will not come back by itself."""

WAITING_JOBS = frozenset(
    {
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.SPECIAL_EXIT,
        JobState.RESV_DEL_HOLD,
        JobState.LAUNCH_FAILED,
        JobState.RECONFIG_FAIL,
    }
)
"""In the queue, held or not."""


class NodeFlag(StrEnum):
    """Node state flags that rules look at (sinfo(1), NODE STATE CODES)."""

    DRAIN = "DRAIN"
    FAIL = "FAIL"
    COMPLETING = "COMPLETING"
    NOT_RESPONDING = "NOT_RESPONDING"
    INVALID_REG = "INVALID_REG"
    MAINTENANCE = "MAINTENANCE"
    RESERVED = "RESERVED"
    PLANNED = "PLANNED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    POWERING_UP = "POWERING_UP"
    POWERING_DOWN = "POWERING_DOWN"
    POWERED_DOWN = "POWERED_DOWN"
    POWER_DOWN = "POWER_DOWN"
    CLOUD = "CLOUD"


class NodeBase(StrEnum):
    """Slurm's base node states."""

    UNKNOWN = "UNKNOWN"
    DOWN = "DOWN"
    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    MIXED = "MIXED"
    ERROR = "ERROR"
    FUTURE = "FUTURE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as Slurm shows it."""

    name: NodeName
    base: NodeBase
    flags: frozenset[str]
    """Upper-case words, known (``NodeFlag``) and unknown alike."""
    reason: str = ""
    """Free text, hostile; without the ``[user@time]`` stamp."""
    reason_user: str = ""
    reason_at: datetime | None = None
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    gres: str = ""
    boot_at: datetime | None = None

    @property
    def down(self) -> bool:
        """The node is lost to its jobs: DOWN, ERROR or FAIL (not merely slow to answer)."""
        return self.base in {NodeBase.DOWN, NodeBase.ERROR} or NodeFlag.FAIL in self.flags

    @property
    def drained(self) -> bool:
        """Somebody keeps new jobs off it."""
        return NodeFlag.DRAIN in self.flags

    @property
    def usable(self) -> bool:
        """A job of ours could start or queue here, now or when others end."""
        barred = {
            NodeFlag.DRAIN,
            NodeFlag.FAIL,
            NodeFlag.NOT_RESPONDING,
            NodeFlag.INVALID_REG,
            NodeFlag.MAINTENANCE,
            NodeFlag.POWERING_DOWN,
            NodeFlag.REBOOT_ISSUED,
        }
        return self.base in {NodeBase.IDLE, NodeBase.ALLOCATED, NodeBase.MIXED} and not barred & self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as squeue, scontrol or sacct shows it; fields that a source lacks keep their defaults."""

    job_id: JobId
    state: JobState
    raw_state: str
    """Slurm's own word, for the ledger."""
    reason: str = ""
    user: str = ""
    name: str = ""
    comment: str = ""
    submit_at: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    nodes: tuple[NodeName, ...] = ()
    num_nodes: int = 0
    partition: str = ""
    restart_count: int = 0
    exit_code: int | None = None
    exit_signal: int | None = None
    cancelled_by: int | None = None
    """The uid in sacct's ``CANCELLED by N``."""
    failed_node: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition and its limits."""

    name: str
    up: bool
    nodes: tuple[NodeName, ...]
    max_nodes: int | None
    """None means no limit of its own."""
    max_time_s: int | None
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Who answers for the cluster."""

    cluster: str
    version: str
    min_job_age_s: int
    slurm_user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Slurm took the job."""

    job_id: JobId
    cluster: str = ""
    warnings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Slurm answered with a definite no."""

    message: str
    denied: bool = False
    """True when the no is about rights (``Invalid user id``, ``Access/permission denied``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """No clean answer: it may or may not have happened."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Slurm took the change, and a read after it showed the effect."""

    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBid:
    """Slurm's prediction for one size (``sbatch --test-only``)."""

    num_nodes: int
    start_at: datetime
    nodes: tuple[NodeName, ...] = ()


SubmitOutcome: TypeAlias = Accepted | Refused | Doubt
ChangeOutcome: TypeAlias = Applied | Refused | Doubt
BidOutcome: TypeAlias = StartBid | Refused | Doubt
