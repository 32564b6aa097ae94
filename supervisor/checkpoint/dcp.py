"""The layout of torch.distributed.checkpoint: ``.metadata`` and the ``*.distcp`` files that it names.

torch writes the shards, waits for all ranks, and renames ``.metadata`` into place last, so in a fresh
directory that file is the commit point. In a directory that is written a second time it is not: the old
``.metadata`` stays while the shards are overwritten, and a checkpoint that is part old and part new loads
without an error (torch 2.13). Files that ``.metadata`` does not name are dead weight, and a rank may have
none (replicated tensors are written by one rank only), so nothing is asked of files by rank.
"""

import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from supervisor.checkpoint.pickles import MAX_METADATA_BYTES, Description, UnreadablePickle, describe_metadata
from supervisor.checkpoint.verdict import Verdict
from supervisor.domain.checkpoint import CheckpointState

MARKER = ".metadata"
_SHARD = re.compile(r"__(\d{1,9})_\d{1,9}\.distcp")
_OURS = re.compile(r".*\.distcp|\.metadata|\.metadata\.tmp|__\d+\.metadata(\.tmp)?", re.DOTALL)
_MAX_REASONS = 8


class DcpFormat:
    """Judges directories in this layout."""

    name = "dcp"

    def recognises(self, path: Path) -> bool:
        """Say whether ``path`` is committed, or holds nothing but what an unfinished DCP save leaves."""
        names = [item.name for item in path.iterdir()]
        return MARKER in names or all(_OURS.fullmatch(name) for name in names)

    def glance(self, path: Path) -> Verdict:
        """Look for the commit point only."""
        names = [item.name for item in path.iterdir()]
        if MARKER in names:
            return Verdict(state=CheckpointState.UNKNOWN, reasons=("not verified yet",))
        if any(_OURS.fullmatch(name) and name.endswith(MARKER) for name in names):
            # Nobody can tell from the directory how many ranks there were.
            reason = (
                "metadata per rank only (use_collectives=False): cannot be checked or loaded at another size"
            )
            return Verdict(state=CheckpointState.UNKNOWN, reasons=(reason,))
        num_shards = sum(name.endswith(".distcp") for name in names)
        reason = f"no {MARKER}: the save was not finished ({num_shards} shard files)"
        return Verdict(state=CheckpointState.PARTIAL, reasons=(reason,))

    def verify(self, path: Path, *, skew: timedelta) -> Verdict:
        """Check that every file that the metadata describes is there, long enough and not younger than it."""
        first = self.glance(path)
        if not (path / MARKER).is_symlink() and not (path / MARKER).exists():
            return first
        try:
            # Not through a link, and not waiting on a FIFO.
            fd = os.open(path / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if (path / MARKER).is_symlink():
                return Verdict(state=CheckpointState.CORRUPT, reasons=(f"{MARKER} is a symbolic link",))
            return Verdict(state=CheckpointState.UNKNOWN, reasons=(f"{MARKER}: {error.strerror}",))
        try:
            marker = os.fstat(fd)
            return _verify_described(path, fd, marker, skew)
        finally:
            os.close(fd)


def _verify_described(path: Path, fd: int, marker: os.stat_result, skew: timedelta) -> Verdict:
    committed_at = datetime.fromtimestamp(marker.st_mtime, UTC)
    state, reason = CheckpointState.CORRUPT, ""
    if not stat.S_ISREG(marker.st_mode):
        reason = f"{MARKER} is not a regular file"
    elif marker.st_size == 0:
        reason = f"{MARKER} is empty"
    elif marker.st_size > MAX_METADATA_BYTES:
        state = CheckpointState.UNKNOWN
        reason = f"{MARKER} has {marker.st_size} bytes, more than the {MAX_METADATA_BYTES} that are read"
    if reason:
        return Verdict(state=state, reasons=(reason,), committed_at=committed_at)
    try:
        description = describe_metadata(fd, marker.st_size)
    except UnreadablePickle as error:
        state = CheckpointState.CORRUPT if error.is_malformed else CheckpointState.UNKNOWN
        return Verdict(state=state, reasons=(str(error),), committed_at=committed_at)
    faults, size = _check_files(path, description, marker, skew)
    faults = [*description.problems, *faults]
    if not description.files:
        faults.append(f"{MARKER} names no file")
    notes = [f"{MARKER} names {name}, which DCP does not write" for name in description.foreign]
    if faults:
        state = CheckpointState.CORRUPT
    elif description.called:
        # torch.load's rule for weights, kept for metadata too: what runs code when loaded is not handed on.
        state = CheckpointState.UNKNOWN
        notes.insert(
            0,
            f"loading {MARKER} would call or change {', '.join(description.called)}: look at it first",
        )
    else:
        state = CheckpointState.COMMITTED
    return Verdict(
        state=state,
        reasons=_shorten([*faults, *notes]),
        saved_world=_saved_world(description),
        committed_at=committed_at,
        size_bytes=size + marker.st_size,
    )


def _check_files(
    path: Path, description: Description, marker: os.stat_result, skew: timedelta
) -> tuple[list[str], int]:
    """Return what is wrong with the files, and their bytes together."""
    faults: list[str] = []
    total = 0
    latest = marker.st_mtime_ns + skew // timedelta(microseconds=1) * 1000
    for name, needed in sorted(description.files.items()):
        label = _printable(name)
        if not _is_inside(name):
            faults.append(f"{label}: lies outside of the checkpoint")
            continue
        try:
            found = _lstat_without_links(path, name)
        except OSError as error:
            faults.append(f"{label}: {error.strerror or error}")
            continue
        total += found.st_size
        if not stat.S_ISREG(found.st_mode):
            faults.append(f"{label}: not a regular file")
        elif found.st_size < needed:
            faults.append(f"{label}: {needed - found.st_size} of {needed} bytes are missing")
        elif found.st_mtime_ns > latest:
            late = (found.st_mtime_ns - marker.st_mtime_ns) / 1e9
            faults.append(
                f"{label}: written {late:.1f} s after {MARKER}: re-saved over an older checkpoint, "
                "or copied without its times (cp -p keeps them)"
            )
    return faults, total


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def _lstat_without_links(path: Path, name: str) -> os.stat_result:
    """Return the file's status; a directory on the way that is a link counts as "not a directory"."""
    parts = PurePosixPath(name).parts
    for index in range(1, len(parts)):
        if not stat.S_ISDIR(os.lstat(path.joinpath(*parts[:index])).st_mode):
            raise NotADirectoryError(20, f"{'/'.join(parts[:index])} is not a directory")
    found = os.lstat(path / name)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(40, "is a symbolic link")
    return found


def _saved_world(description: Description) -> int | None:
    ranks = [int(match[1]) for match in map(_SHARD.fullmatch, description.files) if match]
    return max(ranks) + 1 if ranks else None


def _shorten(reasons: list[str]) -> tuple[str, ...]:
    """Keep the first few; a checkpoint with 2000 short shards needs no 2000 lines."""
    more = len(reasons) - _MAX_REASONS
    return tuple(_printable(item) for item in reasons[:_MAX_REASONS]) + (
        (f"and {more} more",) if more > 0 else ()
    )


def _printable(text: str) -> str:
    """Return hostile text fit for a terminal and a table."""
    return "".join(char if char.isprintable() else "?" for char in text)[:400]
