"""Reads what a run left in its folder. The files are written by jobs: bounded, checked, never trusted."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.domain.evidence import ExitMarker, LogLine, ProgressFacts
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo, JobId, Token

MARKER_BYTES = 64 * 1024
LOG_TAIL_BYTES = 512 * 1024
LINE_CHARACTERS = 2000
PROGRESS_TAIL_BYTES = 64 * 1024

_SECRETS = re.compile(
    r"(?i)\b((?:[A-Za-z0-9_]*(?:token|secret|passw(?:or)?d|api[_-]?key|authorization))['\"]?\s*[=:]\s*['\"]?)"
    r"(?:bearer\s+)?[^\s'\",;]{4,}"
    r"|\b(hf_|ghp_|gho_|sk-|xox[bp]-|AKIA)[A-Za-z0-9_-]{8,}"
    r"|://([^/\s:@]+):[^/\s@]+@"
)


def mask_secrets(text: str) -> str:
    """Return ``text`` with what looks like a token or a password replaced by ``***``."""

    def hide(match: re.Match[str]) -> str:
        if match.group(3):
            return f"://{match.group(3)}:***@"
        return (match.group(1) or match.group(2)) + "***"

    return _SECRETS.sub(hide, text)


def read_exit_marker(folder: RunFolder, no: AllocationNo) -> ExitMarker | None:
    """Return the exit marker of an allocation; None where there is none or it makes no sense."""
    data = _read_json(folder.exit_marker(no))
    try:
        return ExitMarker(
            rc=int(data["rc"]),
            reason=str(data["reason"])[:100],
            at=datetime.fromtimestamp(float(data["at"]), UTC),
            job_id=int(data["job_id"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def read_claim(folder: RunFolder, no: AllocationNo) -> tuple[JobId, Token] | None:
    """Return the job that claimed an allocation and the token that it carried."""
    data = _read_json(folder.claim(no) / "job")
    try:
        return JobId(int(data["job_id"])), Token(str(data["token"]))
    except (KeyError, TypeError, ValueError):
        return None


def read_progress(folder: RunFolder, no: AllocationNo) -> ProgressFacts | None:
    """Return first and last step that rank 0 reported; a torn last line is passed over."""
    path = folder.progress(no)
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            file.seek(max(0, os.fstat(file.fileno()).st_size - PROGRESS_TAIL_BYTES))
            tail = file.read(PROGRESS_TAIL_BYTES)
    except OSError:
        return None
    first = next(filter(None, map(_progress_line, head.split(b"\n"))), None)
    last = next(filter(None, map(_progress_line, reversed(tail.split(b"\n")))), None)
    if first is None or last is None:
        return None
    return ProgressFacts(first_step=first[0], first_at=first[1], last_step=last[0], last_at=last[1])


def read_log_tail(folder: RunFolder, no: AllocationNo) -> tuple[LogLine, ...]:
    """Return the last lines of an allocation's log, masked and cut, with their true line numbers."""
    path = folder.log(no)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            skipped = max(0, size - LOG_TAIL_BYTES)
            before = _count_newlines(file, skipped)
            tail = file.read(LOG_TAIL_BYTES)
    except OSError:
        return ()
    lines = tail.decode("utf-8", "replace").split("\n")
    return tuple(
        LogLine(
            source=path.name, number=before + index, text=mask_secrets(line[:LINE_CHARACTERS].rstrip("\r"))
        )
        for index, line in enumerate(lines, start=1)
        if line.strip()
    )


def _count_newlines(file: Any, num_bytes: int) -> int:
    """Read ``num_bytes`` from the start and return the number of line ends in them."""
    count = 0
    while num_bytes > 0:
        block = file.read(min(num_bytes, 1 << 20))
        if not block:
            break
        count += block.count(b"\n")
        num_bytes -= len(block)
    return count


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small regular file, or an empty one."""
    try:
        # O_NOFOLLOW and O_NONBLOCK: the folder is writable by jobs, and a link or a pipe is not an answer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = json.loads(file.read(MARKER_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _progress_line(line: bytes) -> tuple[int, datetime] | None:
    try:
        data = json.loads(line)
        return int(data["step"]), datetime.fromtimestamp(float(data["time"]), UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError, RecursionError):
        return None
