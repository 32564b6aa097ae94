"""Slurm's words, numbers and times as values; a word that is not known is kept, never an error."""

import re
from datetime import UTC, datetime

from supervisor.domain.facts import JobState, NodeBase, NodeFlag
from supervisor.domain.ids import JobId, NodeName
from supervisor.domain.nodeset import unfold

NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "UNKNOWN", "none"})
"""How Slurm writes that a field has no value."""

_SUFFIX_FLAGS = {
    "*": NodeFlag.NOT_RESPONDING,
    "~": NodeFlag.POWERED_DOWN,
    "#": NodeFlag.POWERING_UP,
    "!": NodeFlag.POWER_DOWN,
    "%": NodeFlag.POWERING_DOWN,
    "$": NodeFlag.MAINTENANCE,
    "@": NodeFlag.REBOOT_REQUESTED,
    "^": NodeFlag.REBOOT_ISSUED,
    "-": NodeFlag.PLANNED,
}
"""NODE STATE CODES of sinfo(1)."""

_CANCELLED_BY = re.compile(r"^CANCELLED\s+by\s+(\d{1,10})\b")
_WORD = re.compile(r"^[A-Za-z_]+")
_JOB_ID = re.compile(r"^(\d{1,10})$")
_EXIT_CODE = re.compile(r"^(\d{1,5}):(\d{1,5})$")
_WAIT_STATUS = re.compile(r"^\d{1,10}$")
_EPOCH = re.compile(r"^\d{1,12}$")
_ISO = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$")
_STAMP = re.compile(r"\s\[([^\[\]@\s]+)@([^\[\]\s]+)\]")
_LAST_STAMP = re.compile(_STAMP.pattern + r"(?=\s*$|\s{2,}|\s(?:Comment|Extra|ReservationName)=)")
NO_TIME = 4294967294
"""NO_VAL of slurm.h, printed as a number where a time or a count is not set."""


def read_job_id(text: str) -> JobId | None:
    """Return the id of a plain job; None for array ranges and components (``13_[2-3%1]``, ``15+1``)."""
    match = _JOB_ID.match(text.strip())
    return JobId(int(match.group(1))) if match else None


def read_job_state(text: str) -> JobState:
    """Read ``RUNNING``, ``CANCELLED by 1000``, ``NODE_FAIL+`` (cut by a column) and words yet unknown."""
    match = _WORD.match(text.strip())
    try:
        return JobState(match.group().upper()) if match else JobState.UNKNOWN
    except ValueError:
        return JobState.UNKNOWN


def read_canceller(text: str) -> int | None:
    """Return the uid in ``CANCELLED by 1000``."""
    match = _CANCELLED_BY.match(text.strip())
    return int(match.group(1)) if match else None


def read_exit(text: str) -> tuple[int | None, int | None]:
    """Return exit code and signal from ``3:0``, or from a wait status (``768``, as squeue 22.05 prints)."""
    text = text.strip()
    match = _EXIT_CODE.match(text)
    if match:
        return int(match.group(1)), int(match.group(2))
    if _WAIT_STATUS.match(text) and int(text) < 1 << 16:
        status = int(text)
        return status >> 8, status & 0x7F
    return None, None


def read_time(text: str) -> datetime | None:
    """Read seconds since 1970 (``SLURM_TIME_FORMAT=%s``) or an ISO time in UTC; None for ``Unknown``."""
    text = text.strip()
    try:
        if _EPOCH.match(text):
            seconds = int(text)
            return None if seconds in {0, NO_TIME} else datetime.fromtimestamp(seconds, UTC)
        if _ISO.match(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def read_count(text: str) -> int:
    """Return the number at the start of ``4``, ``4-4`` or ``1000M``; 0 where there is none."""
    match = re.match(r"\d{1,12}", text.strip())
    count = int(match.group()) if match else 0
    return 0 if count == NO_TIME else count


def read_nodes(text: str) -> tuple[NodeName, ...]:
    """Unfold a node list.

    Raises:
        ValueError: if it is malformed or too wide.
    """
    text = text.strip()
    if text in NOTHING:
        return ()
    return unfold(text)


def read_node_state(text: str) -> tuple[NodeBase, frozenset[str]]:
    """Split ``IDLE+DRAIN``, ``DOWN*`` or ``MIXED+CLOUD+NEWWORD`` into base and flags.

    A base that is not known becomes ``UNKNOWN`` and its word is kept among the flags, so that no rule
    takes the node for usable.
    """
    words = text.strip().upper().split("+")
    flags: set[str] = set()
    bare: list[str] = []
    for word in words:
        stem = word.rstrip("".join(_SUFFIX_FLAGS))
        flags.update(_SUFFIX_FLAGS[sign] for sign in word[len(stem) :])
        if stem:
            bare.append(stem)
    if not bare:
        return NodeBase.UNKNOWN, frozenset(flags)
    try:
        base = NodeBase(bare[0])
    except ValueError:
        base = NodeBase.UNKNOWN
        flags.add(bare[0])
    flags.update(bare[1:])
    return base, frozenset(flags)


def split_reason(text: str) -> tuple[str, str, datetime | None]:
    """Split a node's reason into text, user and time; the last `` [user@time]`` is Slurm's own stamp.

    scontrol puts the stamp behind the first line of a reason and other fields behind that; what
    follows the stamp is not ours to read.
    """
    stamp = _LAST_STAMP.search(text)
    if stamp is None:
        return text.strip(), "", None
    return text[: stamp.start()].strip(), stamp.group(1), read_time(stamp.group(2))


def read_text(text: str) -> str:
    """Return free text; ``(null)`` means none."""
    return "" if text == "(null)" else text
