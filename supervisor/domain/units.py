"""Times and memory sizes, read and printed as Slurm reads and prints them."""

import re
from datetime import timedelta

UNLIMITED_WORDS = frozenset({"UNLIMITED", "INFINITE"})

# So many digits are more than anybody means, and few enough for timedelta.
_SLURM_TIME = re.compile(r"(?:(?P<days>[0-9]{1,8})-)?(?P<rest>[0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_SUFFIXED_TIME = re.compile(r"(?P<number>[0-9]{1,8}(?:\.[0-9]+)?)(?P<unit>[smhd])")
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MEMORY = re.compile(r"(?P<number>[0-9]{1,18})(?P<unit>[KMGT]?)B?", re.IGNORECASE | re.ASCII)
_KIB_PER_UNIT = {"K": 1, "": 1024, "M": 1024, "G": 1024**2, "T": 1024**3}


def parse_slurm_time(text: str) -> timedelta | None:
    """Read a time limit; None means unlimited.

    The forms are those of sbatch(1) ``--time``: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours, days-hours:minutes, days-hours:minutes:seconds. ``1:30`` is a minute and a half.

    Raises:
        ValueError: if the text is none of these.
    """
    if text.upper() in UNLIMITED_WORDS:
        return None
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a Slurm time (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS)"
        )
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return timedelta(days=int(match["days"]), hours=hours, minutes=minutes, seconds=seconds)
    if len(parts) == 3:
        return timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2])
    minutes, seconds = (*parts, 0)[:2]
    return timedelta(minutes=minutes, seconds=seconds)


def format_slurm_time(duration: timedelta | None) -> str:
    """Print a duration as ``[D-]HH:MM:SS``, or ``UNLIMITED`` for None; fractions of a second are cut."""
    if duration is None:
        return "UNLIMITED"
    total = max(0, int(duration.total_seconds()))
    days, rest = divmod(total, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_duration(text: str) -> timedelta:
    """Read one of our own durations: ``90s``, ``5m``, ``1.5h``, ``2d``, or any finite Slurm time.

    Raises:
        ValueError: if the text is neither, or unlimited.
    """
    match = _SUFFIXED_TIME.fullmatch(text)
    if match is not None:
        return timedelta(seconds=float(match["number"]) * _SECONDS_PER_UNIT[match["unit"]])
    duration = parse_slurm_time(text)
    if duration is None:
        raise ValueError(f"{text!r} must be a finite duration such as 30s, 5m, 2h, 1d or 01:30:00")
    return duration


def parse_memory(text: str) -> int:
    """Read a memory size and return MiB, rounded down; a bare number is MiB as in sbatch(1) ``--mem``.

    Raises:
        ValueError: if the text is no memory size.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a memory size (a number with K, M, G or T; bare numbers are MiB)")
    return int(match["number"]) * _KIB_PER_UNIT[match["unit"].upper()] // 1024
