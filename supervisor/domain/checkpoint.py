"""Checkpoints as they were found on a file system, and the choice among them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path


class CheckpointState(StrEnum):
    """How whole a checkpoint is. Stored; never changes meaning."""

    COMMITTED = "committed"
    """Everything that its metadata describes is there."""
    PARTIAL = "partial"
    """A save that never reached its commit point."""
    CORRUPT = "corrupt"
    """Past its commit point, and what it describes is not there."""
    UNKNOWN = "unknown"
    """It could not be judged; the reasons say why. Never handed to a training, never removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One save."""

    path: Path
    format: str
    """``dcp``, or ``unknown`` where no known layout fits."""
    step: int
    attempt: int | None
    """Number of the run's attempt that wrote it, where its name tells."""
    state: CheckpointState
    reasons: tuple[str, ...] = ()
    """Why it is not committed; for a committed one, what is odd about it all the same."""
    saved_world: int | None = None
    """World size that wrote it as far as its files tell: the highest rank with a file, plus one."""
    committed_at: datetime | None = None
    """When the commit point was written, by the clock of the file system."""
    size_bytes: int | None = None
    """Sum over the files that it consists of; None before it is verified."""

    @property
    def order(self) -> tuple[int, int]:
        """Sort key. Time is not in it: clocks of several writers do not agree, steps do."""
        return (self.step, -1 if self.attempt is None else self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The newest checkpoint that can be handed to a training, and why the newer ones cannot."""

    chosen: Checkpoint | None
    skipped: tuple[tuple[Checkpoint, str], ...]
    """Newest first, each with its reason."""
    unreadable: str = ""
    """Why the directory could not be looked at; "" when it was read, or does not exist."""
    is_blind: bool = False
    """The directory, or a save newer than the chosen one, could not be judged; a later look may see more."""
