"""Facts for tests, with defaults that a healthy cluster would show."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from supervisor.domain.decision import Diagnosis
from supervisor.domain.evidence import ExitMarker, LogLine, Phase, Sighting
from supervisor.domain.facts import JobRow, JobState, NodeBase, NodeRow
from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import AllocationNo, JobId, NodeName, RunId, Token
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.domain.spec import JobSpec

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TOKEN = Token("abcdefghijklmnop")


def names(*numbers: int) -> tuple[NodeName, ...]:
    """Return node names."""
    return tuple(NodeName(f"n{number}") for number in numbers)


def node(name: str, base: NodeBase = NodeBase.IDLE, *flags: str, **facts: Any) -> NodeRow:
    """Return a node."""
    facts.setdefault("partitions", ("main",))
    return NodeRow(name=NodeName(name), base=base, flags=frozenset(flags), **facts)


def job(state: JobState, **facts: Any) -> JobRow:
    """Return a job row with our token."""
    facts.setdefault("job_id", JobId(7))
    facts.setdefault("comment", f"supervise:{TOKEN}")
    facts.setdefault("submit_at", NOW - 600 * SECOND)
    return JobRow(state=state, raw_state=str(state), **facts)


def spec(**parts: Any) -> JobSpec:
    """Return a job file."""
    parts.setdefault("name", "demo")
    parts.setdefault("nodes", {"min": 2, "want": 6})
    parts.setdefault("launch", {"command": "python train.py"})
    return JobSpec.model_validate(parts)


def run(state: RunState = RunState.RUNNING, **facts: Any) -> Run:
    """Return a run."""
    facts.setdefault("folder", Path("/scratch/.supervise/demo-abcdefgh"))
    return Run(
        id=RunId(1),
        uid="abcdefgh",
        name="demo",
        owner="alice",
        cluster="lab",
        state=state,
        reason="",
        spec_json=spec().model_dump_json(by_alias=True),
        created_at=NOW,
        changed_at=NOW,
        **facts,
    )


def allocation(no: int = 1, **facts: Any) -> Allocation:
    """Return an allocation."""
    facts.setdefault("state", AllocationState.RUNNING)
    facts.setdefault("num_nodes", 4)
    facts.setdefault("job_id", JobId(7))
    facts.setdefault("resume_from", None)
    facts.setdefault("resume_step", None)
    facts.setdefault("token", TOKEN)
    facts.setdefault("excluded", ())
    facts.setdefault("planned_at", NOW - 700 * SECOND)
    return Allocation(run_id=RunId(1), no=AllocationNo(no), cluster="lab", **facts)


def sighting(phase: Phase = Phase.ENDED, **facts: Any) -> Sighting:
    """Return a sighting."""
    return Sighting(phase=phase, at=facts.pop("at", NOW), **facts)


def marker(rc: int, *, reason: str = "step_ended", at: datetime = NOW) -> ExitMarker:
    """Return an exit marker."""
    return ExitMarker(rc=rc, reason=reason, at=at, job_id=7)


def diagnosis(failure_class: FailureClass, *nodes: NodeName, confidence: float = 0.95) -> Diagnosis:
    """Return a diagnosis."""
    return Diagnosis(failure_class=failure_class, nodes=nodes, summary="why", confidence=confidence)


def log(*lines: str) -> tuple[LogLine, ...]:
    """Return the lines of a log."""
    return tuple(LogLine(source="0001.out", number=n, text=text) for n, text in enumerate(lines, start=1))
