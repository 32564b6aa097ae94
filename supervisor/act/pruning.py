"""Removes checkpoints that a run no longer needs, where its job file asks for that (``checkpoint.keep``)."""

from datetime import datetime
from pathlib import Path

from supervisor.checkpoint.choice import find
from supervisor.checkpoint.retention import MIN_KEEP, apply_prune, prune
from supervisor.domain.run import Allocation, Run
from supervisor.domain.spec import JobSpec


def prune_checkpoints(run: Run, spec: JobSpec, allocation: Allocation, *, now: datetime) -> tuple[str, ...]:
    """Prune the checkpoints of a run, and return sentences about what was removed or why it was not.

    What the allocation started from stays: it is the only one that is proven by a resume. The names alone
    tell whether there is anything to do, so that a sweep with nothing to prune costs one directory listing.
    """
    if spec.checkpoint is None or spec.checkpoint.keep == 0:
        return ()
    directory = run.folder.parent.parent / spec.checkpoint.dir
    protected = (Path(allocation.resume_from),) if allocation.resume_from else ()
    try:
        if len(find(directory)) <= max(spec.checkpoint.keep, MIN_KEEP) + len(protected):
            return ()
        plan = prune(directory, keep=spec.checkpoint.keep, now=now, protect=protected)
        removed = apply_prune(plan)
    except OSError as error:
        return (f"checkpoints are not pruned: {error}",)
    return (f"removed {len(removed)} old checkpoints",) if removed else ()
