"""What a module for one on-disk format provides, and which formats there are."""

from datetime import timedelta
from pathlib import Path
from typing import Protocol

from supervisor.checkpoint.dcp import DcpFormat
from supervisor.checkpoint.verdict import Verdict
from supervisor.domain.checkpoint import CheckpointState

SKEW = timedelta(seconds=2)
"""How much younger than the commit point a shard may be; raise it where mtimes come from several clocks."""


class Format(Protocol):
    """One layout of a checkpoint on disk. Each method raises OSError where the directory cannot be read."""

    name: str

    def recognises(self, path: Path) -> bool:
        """Say whether ``path`` can be a save in this layout, whole or not; a cheap look at names."""
        ...

    def glance(self, path: Path) -> Verdict:
        """Return PARTIAL where the commit point is missing, else UNKNOWN; cheap."""
        ...

    def verify(self, path: Path, *, skew: timedelta) -> Verdict:
        """Check everything that can be checked without running or loading anything."""
        ...


FORMATS: tuple[Format, ...] = (DcpFormat(),)


def format_of(path: Path) -> Format | None:
    """Return the layout of ``path``, or None where no known one fits."""
    return next((item for item in FORMATS if item.recognises(path)), None)


NO_FORMAT = Verdict(
    state=CheckpointState.UNKNOWN,
    reasons=(f"no known layout ({', '.join(item.name for item in FORMATS)})",),
)
