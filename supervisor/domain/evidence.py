"""What is known about one allocation at one moment: the input of diagnose and decide."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from supervisor.domain.facts import JobRow, NodeRow
from supervisor.domain.ids import NodeName


class Phase(StrEnum):
    """How far an allocation has come, from all sources together."""

    UNSEEN = "unseen"
    """Submitted, but no source shows it yet."""
    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    """The script is over; Slurm still waits for nodes."""
    ENDED = "ended"
    MISSING = "missing"
    """Known to Slurm before, and now to no source."""
    BLIND = "blind"
    """A read failed, so nothing is known."""


SIGNALLED = "signalled"
"""Reason in the exit marker of a script that was told to stop (templates/partials/signals)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitMarker:
    """What the script wrote when it ended."""

    rc: int
    reason: str
    at: datetime
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log and where it stands."""

    source: str
    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressFacts:
    """What the training itself reported."""

    first_step: int
    first_at: datetime
    last_step: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One allocation, looked at from all sides."""

    phase: Phase
    at: datetime
    job: JobRow | None = None
    why: str = ""
    """Which source said so."""
    nodes: tuple[NodeName, ...] = ()
    """All nodes the allocation ever had (a COMPLETING job shows only those that are still busy)."""
    node_rows: tuple[NodeRow, ...] = ()
    marker: ExitMarker | None = None
    progress: ProgressFacts | None = None
    log: tuple[LogLine, ...] = ()
    done: bool | None = None
    """Whether the spec's ``done`` condition holds; None without one."""
    cancel_asked: bool = False
    """We were asked to cancel it."""
    job_ended_at: datetime | None = None
