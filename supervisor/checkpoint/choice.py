"""Finds the saves under a run's checkpoint directory and chooses the newest that can be handed on."""

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from supervisor.checkpoint.formats import NO_FORMAT, SKEW, format_of
from supervisor.checkpoint.names import parse_name
from supervisor.checkpoint.verdict import Verdict
from supervisor.domain.checkpoint import Checkpoint, CheckpointState, Choice

MARGIN = timedelta(seconds=5)
"""How long after the end of its allocation an attempt's checkpoint is still taken as written before it."""


def find(directory: Path) -> tuple[Checkpoint, ...]:
    """Return the saves directly under ``directory``, newest first, cheaply: none is verified.

    A save with its commit point in place is UNKNOWN ("not verified yet"). Links, files and names that
    tell no step (``names.parse_name``) are no saves. A directory that does not exist holds none.

    Raises:
        OSError: if the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            paths = [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return ()
    found = (_judge(path, skew=None) for path in paths if parse_name(path.name) is not None)
    return tuple(sorted(found, key=lambda item: (item.order, item.path.name), reverse=True))


def verify(path: Path, *, skew: timedelta = SKEW) -> Checkpoint:
    """Judge the save at ``path``; raises nothing about what is in it.

    Args:
        path: a directory whose name tells a step.
        skew: how much younger than the commit point a shard may be.

    Raises:
        ValueError: if the name of ``path`` tells no step.
    """
    return _judge(path, skew=skew)


def choose(
    directory: Path,
    *,
    ended: Mapping[int, datetime] | None = None,
    before_step: int | None = None,
    margin: timedelta = MARGIN,
    skew: timedelta = SKEW,
) -> Choice:
    """Choose the newest committed save, verifying from the newest down and no further than needed.

    Args:
        directory: holds one directory for each save; missing means that nothing was saved yet.
        ended: attempt to the end of its allocation. Processes on a lost node live on until its slurmd
            returns (promise P1), so what an attempt commits later than ``margin`` after that is not
            accepted. It says nothing about saves whose name tells no attempt.
        before_step: only saves of an earlier step, to step back behind one that proved bad.
        margin: allowance for clocks that differ, and for saves in the grace time after SIGTERM.
        skew: see ``verify``.
    """
    skipped: list[tuple[Checkpoint, str]] = []
    try:
        found = find(directory)
    except OSError as error:
        reason = f"{directory}: {error.strerror or error}"
        return Choice(chosen=None, skipped=(), unreadable=reason, is_blind=True)
    chosen, is_blind = None, False
    for candidate in found:
        if before_step is not None and candidate.step >= before_step:
            skipped.append((candidate, f"not before step {before_step}"))
            continue
        checkpoint = verify(candidate.path, skew=skew)
        reason = why_not(checkpoint, ended or {}, margin)
        if not reason:
            chosen = checkpoint
            break
        skipped.append((checkpoint, reason))
        is_blind = is_blind or checkpoint.state is CheckpointState.UNKNOWN
    return Choice(chosen=chosen, skipped=tuple(skipped), is_blind=is_blind)


def why_not(checkpoint: Checkpoint, ended: Mapping[int, datetime], margin: timedelta = MARGIN) -> str:
    """Return why a verified checkpoint cannot be handed on; "" when it can."""
    if checkpoint.state is not CheckpointState.COMMITTED:
        return f"{checkpoint.state}: {'; '.join(checkpoint.reasons)}"
    end = ended.get(checkpoint.attempt) if checkpoint.attempt is not None else None
    if end is None or checkpoint.committed_at is None or checkpoint.committed_at <= end + margin:
        return ""
    late = (checkpoint.committed_at - end).total_seconds()
    return f"written by attempt {checkpoint.attempt} {late:.0f} s after its allocation ended"


def _judge(path: Path, *, skew: timedelta | None) -> Checkpoint:
    """Verify, or with no ``skew`` only glance."""
    name = parse_name(path.name)
    if name is None:
        raise ValueError(f"{path}: the name tells no step (expected a name such as step-120 or step-120-a7)")
    format_name = "unknown"
    try:
        layout = format_of(path)
        if layout is None:
            verdict = NO_FORMAT
        else:
            format_name = layout.name
            verdict = layout.glance(path) if skew is None else layout.verify(path, skew=skew)
    except OSError as error:
        # A read that failed is no fact about the checkpoint (promise P3).
        verdict = Verdict(state=CheckpointState.UNKNOWN, reasons=(f"{path}: {error.strerror or error}",))
    return Checkpoint(
        path=path,
        format=format_name,
        step=name.step,
        attempt=name.attempt,
        state=verdict.state,
        reasons=verdict.reasons,
        saved_world=verdict.saved_world,
        committed_at=verdict.committed_at,
        size_bytes=verdict.size_bytes,
    )
