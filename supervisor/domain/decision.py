"""Diagnoses and decisions: opinions and their consequences, with the reasons that a person can check."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import AllocationNo, NodeName, RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was seen and speaks for a diagnosis."""

    source: str
    """A file with line (``0001.out:120``) or the part of Slurm that said it (``squeue``, ``node``)."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an attempt ended."""

    failure_class: FailureClass
    nodes: tuple[NodeName, ...] = ()
    """Nodes proven at fault; empty where nothing is proven."""
    summary: str
    evidence: tuple[Evidence, ...] = ()
    confidence: float
    """0 to 1."""
    runner_up: str = ""
    """The next best explanation and why it lost."""


class Verdict(StrEnum):
    """What a sweep decides for one run. Stored; never changes meaning."""

    KEEP = "keep"
    RESUBMIT = "resubmit"
    WAIT = "wait"
    HOLD = "hold"
    STOP = "stop"
    FINISH = "finish"
    ACCEPT_CANCEL = "accept_cancel"
    BLIND = "blind"


class NodeMeasure(StrEnum):
    """What is done about a node that is at fault."""

    DRAIN = "drain"
    AVOID = "avoid"
    REQUEST = "request"
    """Avoided by us, and a drain is asked of the admins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDecision:
    """What to do about one node, and why not more."""

    node: NodeName
    measure: NodeMeasure
    reason: str
    avoid_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next with one run."""

    run_id: RunId
    allocation_no: AllocationNo | None
    """The allocation that was judged."""
    verdict: Verdict
    rule: str
    """Id of the rule that chose it, as ``supervise explain`` prints it."""
    text: str
    """One sentence for the terminal and the ledger."""
    num_nodes: int | None = None
    exclude: tuple[NodeName, ...] = ()
    resume_from: str | None = None
    resume_step: int | None = None
    nodes: tuple[NodeDecision, ...] = ()
    budget_left: int | None = None
    expected_start: datetime | None = None
