"""Looks at one allocation from all sides; the only part of a sweep that reads for a single run."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from supervisor.domain.evidence import ExitMarker, Phase, ProgressFacts, Sighting
from supervisor.domain.facts import NodeRow
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import NodeName
from supervisor.domain.run import Allocation, Run, RunState
from supervisor.domain.spec import JobSpec
from supervisor.observe.folder import read_claim, read_exit_marker, read_log_tail, read_progress
from supervisor.observe.scheduler import ClusterView, Located, locate
from supervisor.slurm.client import Slurm

_OVER = frozenset({Phase.ENDED, Phase.COMPLETING})


def look(
    run: Run, spec: JobSpec, allocation: Allocation, *, view: ClusterView, slurm: Slurm, now: datetime
) -> Sighting:
    """Return everything that is known of ``allocation`` at ``now``."""
    folder = RunFolder(run.folder)
    allocation = with_claim_holder(folder, allocation)
    marker = read_exit_marker(folder, allocation.no)
    if marker is not None and allocation.job_id is not None and marker.job_id != allocation.job_id:
        marker = None
    located = locate(allocation, view=view, slurm=slurm, marker=marker)
    if _is_of_an_earlier_start(marker, located):
        marker = None
        located = locate(allocation, view=view, slurm=slurm, marker=None)
    progress = read_progress(folder, allocation.no)
    nodes = allocation.nodes or (located.row.nodes if located.row else ())
    over = located.phase in _OVER
    ended_at = located.row.end_at if located.row and over else None
    return Sighting(
        phase=located.phase,
        at=now,
        job=located.row,
        why=located.why,
        nodes=nodes,
        node_rows=_rows(located, nodes, view.node_map()),
        marker=marker if over else None,
        progress=progress,
        log=read_log_tail(folder, allocation.no) if over else (),
        done=is_done(run, spec, progress) if over else None,
        cancel_asked=run.state is RunState.CANCELLING,
        job_ended_at=ended_at or (marker.at if marker is not None and over else None),
    )


def with_claim_holder(folder: RunFolder, allocation: Allocation) -> Allocation:
    """Return the allocation as the one of the job that holds its claim.

    Should a doubtful submission have left two jobs with one token, only the holder trains, and that may be
    the one that the ledger does not name.
    """
    claim = read_claim(folder, allocation.no)
    if claim is None or claim[1] != allocation.token or claim[0] == allocation.job_id:
        return allocation
    return replace(allocation, job_id=claim[0], submitted_at=None)


def _is_of_an_earlier_start(marker: ExitMarker | None, located: Located) -> bool:
    """Say whether the marker was left before the job's present start: a forced requeue keeps the job id."""
    row = located.row
    if marker is None or row is None or row.start_at is None or row.restart_count == 0:
        return False
    return marker.at < row.start_at


def is_done(run: Run, spec: JobSpec, progress: ProgressFacts | None) -> bool | None:
    """Say whether the spec's ``done`` condition holds; None without one. Relative files are of the chdir."""
    if spec.done is None:
        return None
    chdir = run.folder.parent.parent
    if spec.done.file is not None and not (chdir / Path(spec.done.file)).exists():
        return False
    return spec.done.step is None or (progress is not None and progress.last_step >= spec.done.step)


def _rows(
    located: Located, nodes: tuple[NodeName, ...], rows: Mapping[NodeName, NodeRow]
) -> tuple[NodeRow, ...]:
    """Return the node rows of the allocation, in its order; a node that Slurm does not list has none."""
    names = dict.fromkeys((*nodes, *(located.row.nodes if located.row else ())))
    return tuple(rows[name] for name in names if name in rows)
