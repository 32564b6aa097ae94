"""Finds out how far an allocation has come: live list, single job, accounting, folder, in that order.

An answer that lacks a job never means that the job has ended: slurmctld forgets after MinJobAge, accounting
lags, ids are reused. Only a source that shows the job's end says so (promise P3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from supervisor.domain.evidence import ExitMarker, Phase
from supervisor.domain.facts import ENDED_JOBS, WAITING_JOBS, JobRow, JobState, Known, NodeRow, Reading
from supervisor.domain.ids import JobId, NodeName, Token, find_token
from supervisor.domain.run import Allocation
from supervisor.slurm.client import Slurm

# Clocks of two hosts, and of a database, are not one.
_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What Slurm said at the start of a sweep: one job list and one node list for all runs."""

    jobs: Reading[tuple[JobRow, ...]]
    nodes: Reading[tuple[NodeRow, ...]]

    def blind(self) -> str:
        """Return why nothing may be concluded, or an empty string."""
        for name, reading in (("jobs", self.jobs), ("nodes", self.nodes)):
            if not isinstance(reading, Known):
                return f"the list of {name} could not be read: {reading.why}"
        return ""

    def node_map(self) -> Mapping[NodeName, NodeRow]:
        """Return the nodes by name; empty when blind."""
        return {row.name: row for row in self.nodes.value} if isinstance(self.nodes, Known) else {}


def is_same_job(allocation: Allocation, row: JobRow) -> bool:
    """Say whether ``row`` is the job of ``allocation`` and not a later job with a reused id.

    The token in the comment decides. A site's submit plugin may rewrite comments; then the submit time does.
    """
    token = find_token(row.comment)
    if token is not None:
        return token == allocation.token
    if allocation.job_id != row.job_id:
        return False
    if allocation.submitted_at is not None and row.submit_at is not None:
        return abs(allocation.submitted_at - row.submit_at) <= _SKEW
    return row.submit_at is None or row.submit_at >= allocation.planned_at - _SKEW


def find_by_token(rows: Iterable[JobRow], token: Token) -> tuple[JobRow, ...]:
    """Return the jobs that carry ``token``, the newest last."""
    return tuple(
        sorted((row for row in rows if find_token(row.comment) == token), key=lambda row: row.job_id)
    )


def phase_of(row: JobRow, marker: ExitMarker | None) -> Phase:
    """Return the phase that a job row shows."""
    if row.state is JobState.COMPLETING:
        # Until the script is over (its marker says so), a COMPLETING job may still be training.
        return Phase.COMPLETING if marker is not None else Phase.RUNNING
    if row.state in ENDED_JOBS:
        return Phase.ENDED
    if row.state in WAITING_JOBS:
        return Phase.PENDING
    return Phase.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where an allocation's job was found, if anywhere."""

    phase: Phase
    row: JobRow | None
    why: str


def locate(allocation: Allocation, *, view: ClusterView, slurm: Slurm, marker: ExitMarker | None) -> Located:
    """Look an allocation's job up, source by source, until one knows it.

    Args:
        allocation: one with a job id.
        view: the job list of this sweep.
        slurm: asked for the single job and for accounting only when the list lacks the job.
        marker: the exit marker in the run folder, the last witness.
    """
    if allocation.job_id is None:
        return Located(phase=Phase.UNSEEN, row=None, why="no job id yet")
    if not isinstance(view.jobs, Known):
        return Located(phase=Phase.BLIND, row=None, why=view.jobs.why)
    row = _pick(allocation, view.jobs.value)
    if row is not None:
        return Located(phase=phase_of(row, marker), row=row, why="squeue")
    return _locate_vanished(allocation, allocation.job_id, slurm=slurm, marker=marker)


def _locate_vanished(
    allocation: Allocation, job_id: JobId, *, slurm: Slurm, marker: ExitMarker | None
) -> Located:
    single = slurm.job(job_id)
    if not isinstance(single, Known):
        return Located(phase=Phase.BLIND, row=None, why=single.why)
    if single.value is not None and is_same_job(allocation, single.value):
        return Located(phase=phase_of(single.value, marker), row=single.value, why="scontrol")
    accounting = slurm.accounting([job_id], allocation.planned_at - timedelta(days=1))
    if isinstance(accounting, Known):
        row = _pick(allocation, accounting.value)
        # Accounting may call a job running that was lost while slurmdbd was down: only its end is believed.
        if row is not None and row.state in ENDED_JOBS:
            return Located(phase=Phase.ENDED, row=row, why="sacct")
    if marker is not None:
        return Located(phase=Phase.ENDED, row=None, why="exit marker")
    return Located(
        phase=Phase.MISSING, row=None, why="squeue, scontrol, sacct and the run folder know nothing of it"
    )


def _pick(allocation: Allocation, rows: Iterable[JobRow]) -> JobRow | None:
    """Return the newest row that is this allocation's job.

    A requeued job has several accounting rows. A doubtful submission may have left two jobs with one token:
    the claim lets only one train, and the one whose id the ledger holds is looked at first.
    """
    mine = [row for row in rows if is_same_job(allocation, row)]
    own = [row for row in mine if row.job_id == allocation.job_id] or mine
    return max(own, key=lambda row: (row.submit_at or allocation.planned_at, row.restart_count), default=None)
