"""Runs ``inert`` on a ``.metadata`` as a limited child process, so that no pickle can hurt the caller."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_READER = Path(__file__).with_name("inert.py")
_MIB = 1 << 20

MAX_METADATA_BYTES = 256 * _MIB
"""About two million chunks (142 bytes each in torch 2.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a metadata says about its checkpoint."""

    files: dict[str, int]
    """File name to the bytes that it must at least have."""
    problems: tuple[str, ...]
    """Where the metadata contradicts itself."""
    foreign: tuple[str, ...]
    """Globals that DCP does not write."""
    called: tuple[str, ...]
    """Those of them that loading the metadata for real would call."""


class UnreadablePickle(Exception):
    """The metadata could not be described. ``is_malformed`` tells broken from "stopped by a limit"."""

    def __init__(self, reason: str, *, is_malformed: bool) -> None:
        super().__init__(reason)
        self.is_malformed = is_malformed


def describe_metadata(fd: int, size: int, *, timeout: float | None = None) -> Description:
    """Describe the metadata that ``fd`` reads.

    Args:
        fd: open for reading, at the start of the file.
        size: bytes in it; the limits grow with it, so that a small bomb stays small (a real metadata
            takes 13 times its size in memory and a second for each 60 MiB).
        timeout: seconds on the wall; by default twice the processor time that is allowed, plus 30 for
            a slow file system.

    Raises:
        UnreadablePickle: with the reason.
    """
    max_cpu = 10 + size // (4 * _MIB)
    limits = (size, 256 * _MIB + 24 * size, max_cpu)
    try:
        child = subprocess.run(
            # No environment, no site directory, no current directory: nothing but the standard library.
            [sys.executable, "-I", "-S", "-B", str(_READER), *map(str, limits)],
            stdin=fd,
            capture_output=True,
            timeout=2 * max_cpu + 30 if timeout is None else timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadablePickle(
            f".metadata: not read within {error.timeout:g} s", is_malformed=False
        ) from error
    except OSError as error:
        raise UnreadablePickle(f".metadata: its reader cannot start ({error})", is_malformed=False) from error
    if child.returncode not in {0, 3}:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise UnreadablePickle(
            f".metadata: reading it was stopped, by a memory or processor limit ({how}) {last}".rstrip(),
            is_malformed=False,
        )
    answer = json.loads(child.stdout)
    if child.returncode == 3:
        raise UnreadablePickle(f".metadata {answer['malformed']}", is_malformed=True)
    return Description(
        files=answer["files"],
        problems=tuple(answer["problems"]),
        foreign=tuple(answer["foreign"]),
        called=tuple(answer["called"]),
    )
