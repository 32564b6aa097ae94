"""Runs one Slurm command so that it can neither hang, nor flood, nor outlive its caller."""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

MAX_STDOUT = 256 * 1024 * 1024
"""Bytes; squeue of 100,000 jobs with long comments stays far below it."""
MAX_STDERR = 64 * 1024
"""Bytes that are kept; the rest is read and thrown away, so that the command never blocks on it."""

DROPPED_PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
"""Variables that change what a command does or prints (INPUT ENVIRONMENT in each man page)."""
KEPT_NAMES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""They say which cluster is meant and how to log in; without them another cluster would answer."""
PINNED = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}

_CHUNK = 1 << 16
_REAP_S = 1.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command did; ``rc`` is None where it was killed at its timeout or never started."""

    argv: tuple[str, ...]
    rc: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    flooded: bool = False
    """It wrote more than was allowed and was killed; ``stdout`` is cut."""
    not_started: str = ""
    """Why it could not be started (program missing, argument list too long); empty where it was."""

    @property
    def clean(self) -> bool:
        """It ended by itself with 0 and everything it wrote was read."""
        return self.rc == 0 and not self.timed_out and not self.flooded

    def explain(self) -> str:
        """Say in one line what went wrong, for a person."""
        program = " ".join(self.argv[:3])
        if self.not_started:
            return f"{program}: cannot be started: {self.not_started}"
        if self.timed_out:
            return f"{program}: no answer within its timeout"
        if self.flooded:
            return f"{program}: wrote more than {MAX_STDOUT} bytes"
        words = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        return f"{program}: exit code {self.rc}: {words[:500]}"


def clean_environment(
    base: Mapping[str, str], *, pinned: bool = True
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment for a Slurm command, and the names that were dropped from ``base``.

    ``pinned`` fixes locale, time zone and time format, so that replies read the same everywhere. A
    submission is not pinned: sbatch hands its environment on to the job, and the training must not
    find itself in UTC because of us.
    """
    dropped = tuple(
        sorted(name for name in base if name.startswith(DROPPED_PREFIXES) and name not in KEPT_NAMES)
    )
    environment = {name: value for name, value in base.items() if name not in dropped}
    if pinned:
        environment.update(PINNED)
    return environment, dropped


def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    max_stdout: int = MAX_STDOUT,
    max_stderr: int = MAX_STDERR,
) -> CommandResult:
    """Run ``argv`` without a shell and without input, and return within ``timeout_s`` and a moment.

    The command gets a session of its own; whatever of its process group is left at its end or at the
    timeout is killed. Nothing is raised: a program that is missing is a result too.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return CommandResult(argv=tuple(argv), rc=None, not_started=str(error))
    reader = _Reader(process, max_stdout=max_stdout, max_stderr=max_stderr)
    try:
        reader.read(timeout_s)
    finally:
        rc = _end(process)
    killed = reader.timed_out or reader.flooded
    return CommandResult(
        argv=tuple(argv),
        rc=None if killed else rc,
        stdout=reader.stdout.text(),
        stderr=reader.stderr.text(),
        timed_out=reader.timed_out,
        flooded=reader.flooded,
    )


@dataclass(slots=True)
class _Kept:
    """The head of one stream."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def add(self, chunk: bytes) -> None:
        room = self.limit - len(self.data)
        self.cut = self.cut or len(chunk) > room
        self.data += chunk[:room]

    def text(self) -> str:
        # Job names may hold any bytes (seen: Latin-1); a reply must not become unreadable by them.
        return self.data.decode("utf-8", "replace")


class _Reader:
    """Reads both streams until the command ends, its time is over, or it floods us."""

    def __init__(self, process: subprocess.Popen[bytes], *, max_stdout: int, max_stderr: int) -> None:
        self.stdout = _Kept(max_stdout)
        self.stderr = _Kept(max_stderr)
        self.timed_out = False
        self.flooded = False
        self._process = process

    def read(self, timeout_s: float) -> None:
        # A timer that writes to an eventfd bounds the wait without asking the time. Waiting for the
        # leader's pidfd, not for end of file, keeps a grandchild that holds the pipes from holding us.
        pidfd = _open_pidfd(self._process.pid)
        over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        timer = threading.Timer(timeout_s, os.eventfd_write, (over, 1))
        timer.daemon = True
        timer.start()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(over, selectors.EVENT_READ)
                if pidfd is not None:
                    selector.register(pidfd, selectors.EVENT_READ)
                for pipe, kept in self._pipes():
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, selectors.EVENT_READ, kept)
                self._loop(selector, over, pidfd)
        finally:
            timer.cancel()
            timer.join()
            os.close(over)
            if pidfd is not None:
                os.close(pidfd)

    def _pipes(self) -> tuple[tuple[IO[bytes], _Kept], ...]:
        assert self._process.stdout is not None  # noqa: S101 - asked for with PIPE
        assert self._process.stderr is not None  # noqa: S101 - asked for with PIPE
        return (self._process.stdout, self.stdout), (self._process.stderr, self.stderr)

    def _loop(self, selector: selectors.BaseSelector, over: int, pidfd: int | None) -> None:
        while True:
            ready = {key.fd: key for key, _ in selector.select(_POLL_S if pidfd is None else None)}
            if pidfd in ready or (pidfd is None and _has_ended(self._process.pid)):
                for pipe, kept in self._pipes():
                    while _drain(pipe, kept) and not kept.cut:
                        pass
                self.flooded = self.stdout.cut
                return
            if over in ready:
                self.timed_out = True
                return
            for key in ready.values():
                if not _drain(key.fd, key.data):
                    selector.unregister(key.fileobj)
            if self.stdout.cut:
                self.flooded = True
                return


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # kernels before 5.3, which clusters still run: the leader is polled instead


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves the leader unreaped, so that its process group id stays ours until the kill.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _drain(pipe: IO[bytes] | int, kept: _Kept) -> bool:
    """Read one chunk; False at end of file and where nothing is left to read."""
    try:
        chunk = os.read(pipe if isinstance(pipe, int) else pipe.fileno(), _CHUNK)
    except BlockingIOError:
        return False
    kept.add(chunk)
    return bool(chunk)


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Kill what is left of the group and reap the leader.

    The leader is reaped after the kill: until then its process group id cannot be given to strangers.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        return process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        # In uninterruptible sleep (a dead file server); it dies when the kernel lets it.
        return None
