"""Removes checkpoints that nobody needs any more: a plan as a value, and its application."""

import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from supervisor.checkpoint.choice import MARGIN, find, verify, why_not
from supervisor.checkpoint.dcp import MARKER
from supervisor.checkpoint.formats import SKEW
from supervisor.domain.checkpoint import Checkpoint, CheckpointState

MIN_KEEP = 2
"""One is no reserve: the newest may prove bad only when it is loaded."""
QUIET = timedelta(hours=1)
"""An unfinished save that was touched more recently may still be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One save to remove, and which directory was meant by that name."""

    checkpoint: Checkpoint
    reason: str
    identity: tuple[int, int]
    """Device and inode when the plan was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What would be removed under ``root``, and what stays with the reason."""

    root: Path
    removals: tuple[Removal, ...]
    kept: tuple[tuple[Checkpoint, str], ...]


def prune(
    directory: Path,
    *,
    keep: int,
    now: datetime,
    protect: Collection[Path] = (),
    ended: Mapping[int, datetime] | None = None,
    margin: timedelta = MARGIN,
    skew: timedelta = SKEW,
) -> PrunePlan:
    """Plan what can go; touches nothing.

    The newest ``keep`` (at least 2) that could be handed to a training stay, and so does whatever
    ``protect`` or a symbolic link in ``directory`` points to, and whatever could not be judged or is
    corrupt (somebody may want to look at it). Unfinished saves, and those that ``ended`` rules out
    (see ``choose``), go when they are older than the newest good one and were left alone for an hour.

    Raises:
        OSError: if the directory cannot be read.
    """
    root = directory.resolve()
    guarded = {path.resolve() for path in protect} | _link_targets(root)
    removals: list[Removal] = []
    kept: list[tuple[Checkpoint, str]] = []
    num_good = 0
    for candidate in find(root):
        checkpoint = verify(candidate.path, skew=skew)
        late = why_not(checkpoint, ended or {}, margin)
        num_good += not late
        stays = _why_kept(checkpoint, late, num_good, max(keep, MIN_KEEP), now)
        if checkpoint.path in guarded:
            stays = "protected"
        if stays:
            kept.append((checkpoint, stays))
        else:
            found = checkpoint.path.lstat()
            reason = late or f"older than the newest {max(keep, MIN_KEEP)}"
            removals.append(
                Removal(checkpoint=checkpoint, reason=reason, identity=(found.st_dev, found.st_ino))
            )
    return PrunePlan(root=root, removals=tuple(removals), kept=tuple(kept))


def apply_prune(plan: PrunePlan) -> tuple[Path, ...]:
    """Remove what the plan says and return what was removed.

    The commit point goes first, so a crash at any line leaves an unfinished save and never one that looks
    whole. Then the directory leaves the root (names inside it are searched by unanchored patterns in
    other programs) and is taken apart. A directory that was replaced since the plan was made stays.

    Raises:
        OSError: if something cannot be removed.
    """
    removed: list[Path] = []
    for removal in plan.removals:
        path = removal.checkpoint.path
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if (found.st_dev, found.st_ino) != removal.identity:
            continue
        (path / MARKER).unlink(missing_ok=True)
        _sync_directory(path)
        shutil.rmtree(_move_to_trash(plan.root, path))
        removed.append(path)
    return tuple(removed)


def _why_kept(checkpoint: Checkpoint, late: str, num_good: int, keep: int, now: datetime) -> str:
    """Return why the checkpoint stays; "" when it can go. Called from the newest to the oldest."""
    if checkpoint.state in {CheckpointState.CORRUPT, CheckpointState.UNKNOWN}:
        return str(checkpoint.state)
    if not late:
        return f"one of the newest {keep}" if num_good <= keep else ""
    if num_good == 0:
        return "newer than every good one"
    return "touched within the hour" if now - _last_touched(checkpoint.path) <= QUIET else ""


def _last_touched(path: Path) -> datetime:
    times = [path.stat().st_mtime, *(item.lstat().st_mtime for item in path.iterdir())]
    return datetime.fromtimestamp(max(times), UTC)


def _link_targets(root: Path) -> set[Path]:
    try:
        return {item.resolve() for item in root.iterdir() if item.is_symlink()}
    except FileNotFoundError:
        return set()


def _move_to_trash(root: Path, path: Path) -> Path:
    """Move ``path`` beside the root; where that is no place of ours or another file system, leave it."""
    trash = root.parent / f".{root.name}.trash"
    target = trash / f"{path.name}.{uuid.uuid4().hex}"
    try:
        trash.mkdir(mode=0o700, exist_ok=True)
        if trash.is_symlink():
            return path
        path.rename(target)
    except OSError:
        return path
    return target


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
