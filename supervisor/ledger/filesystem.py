"""Which file system a ledger lies on, and whether its locks can be trusted."""

import re
from dataclasses import dataclass
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "cifs",
        "smb3",
        "afs",
        "9p",
        "glusterfs",
        "orangefs",
        "pvfs2",
        "panfs",
        "wekafs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.ceph",
    }
)
"""Shared between hosts: SQLite's write-ahead log is wrong there (sqlite.org/wal.html), locks may be."""

VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where a path is mounted and as what."""

    point: Path
    kind: str

    @property
    def networked(self) -> bool:
        """More than one host may have it."""
        return self.kind in NETWORK_FILE_SYSTEMS

    @property
    def volatile(self) -> bool:
        """A reboot empties it."""
        return self.kind in VOLATILE_FILE_SYSTEMS


def find_mount(path: Path, mountinfo: str | None = None) -> Mount | None:
    """Return the mount that holds ``path``, from proc_pid_mountinfo(5); None where that cannot be read."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    target = path.resolve()
    found: Mount | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # A later line of the same depth is mounted on top of an earlier one.
        if target.is_relative_to(point) and (found is None or len(point.parts) >= len(found.point.parts)):
            found = Mount(point=point, kind=right.split()[0])
    return found
