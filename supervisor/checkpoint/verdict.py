"""What a format's module says about one directory."""

from dataclasses import dataclass
from datetime import datetime

from supervisor.domain.checkpoint import CheckpointState


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A checkpoint without its name; the fields are those of ``Checkpoint``."""

    state: CheckpointState
    reasons: tuple[str, ...] = ()
    saved_world: int | None = None
    committed_at: datetime | None = None
    size_bytes: int | None = None
