"""Processes of a lab: start them detached, prove that they are ours, signal and stop them.

A pid proves nothing: pids are recycled (pid_max is 32768 on many machines). A process is a lab's when its
environment carries the lab's marker, which only the lab's daemons get and slurmstepd inherits; when it is a
task that Slurm started for the lab (SLURM_CONF of the lab and SLURMD_NODENAME); or when it descends from
such a one or shares the session of a step (the kernel gives no session's number away while a member
lives). Signals go through a pidfd, and the start time is compared
after it is open, so that a pid that changes hands in between is never hit (pidfd_open(2); start time:
proc(5), field 22 of stat).
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from supervisor.clock import Clock
from supervisor.errors import LabError

MARKER = "SUPERVISE_LAB"
NODE_MARKER = "SUPERVISE_LAB_NODE"

# Commands that talk to the cluster and do nothing else; salloc is none, since a person's shell runs in it.
_CLIENTS = frozenset({"sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sstat"})
_POLL = timedelta(milliseconds=5)
# The daemons that this very process started: to reap anybody else's child would steal its exit status.
_started_here: set[int] = set()
# A process that sleeps in the kernel (a disk that hangs) stops only when it wakes.
_STOP_PATIENCE = timedelta(seconds=2)
_PROC = Path("/proc")
# Fork chains are short; the bound only keeps a fork bomb in a job from holding us for ever.
_MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """One process for all time since boot: its pid and its start time in clock ticks."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as /proc shows it; ``environ`` is empty where it may not be read."""

    key: ProcessKey
    parent: int
    session: int
    state: str
    name: str
    environ: Mapping[str, str]

    @property
    def is_frozen(self) -> bool:
        """Tell whether it is stopped (SIGSTOP)."""
        return self.state == "T"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What marks a process as one of the lab in ``root``, whose slurm.conf is ``conf``."""

    root: Path
    conf: Path

    def claims(self, process: Process) -> bool:
        """Tell whether the environment of ``process`` alone proves that it is the lab's."""
        environ = process.environ
        if environ.get(MARKER) == str(self.root):
            return True
        # A login shell that uses the lab has SLURM_CONF too; only slurmstepd sets the node's name.
        return environ.get("SLURM_CONF") == str(self.conf) and "SLURMD_NODENAME" in environ

    def clients(self) -> list[Process]:
        """Return Slurm's commands that still wait for this lab; srun waits for ever when its cluster goes."""
        return [
            process
            for process in snapshot()
            if process.name in _CLIENTS and process.environ.get("SLURM_CONF") == str(self.conf)
        ]

    def processes(self, node: str | None = None) -> list[Process]:
        """Return the living processes of the lab, or of one node of it, parents before children."""
        everything = snapshot()
        owned = {
            process.key.pid: process
            for process in everything
            if self.claims(process) and (node is None or node_of(process) == node)
        }
        _add_step_mates(owned, everything)
        _add_descendants(owned, everything)
        # A command that runs inside a job of the lab must not stop itself half-way.
        owned.pop(os.getpid(), None)
        return list(owned.values())


def _add_step_mates(owned: dict[int, Process], everything: Iterable[Process]) -> None:
    """Add what shares a session with a step: a task's orphan that wiped its environment.

    A session may be a person's terminal, so only those count whose processes play a node, whose leader is
    ours or has ended (slurmstepd's has), and in which we do not run ourselves.
    """
    living = {process.key.pid for process in everything}
    sessions = {
        process.session
        for process in owned.values()
        if node_of(process) is not None and (process.session in owned or process.session not in living)
    } - {os.getsid(0)}
    for process in everything:
        if process.session in sessions:
            owned.setdefault(process.key.pid, process)


def _add_descendants(owned: dict[int, Process], everything: Iterable[Process]) -> None:
    children: dict[int, list[Process]] = {}
    for process in everything:
        children.setdefault(process.parent, []).append(process)
    pending = list(owned)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.key.pid not in owned:
                owned[child.key.pid] = child
                pending.append(child.key.pid)


def node_of(process: Process) -> str | None:
    """Return the node that ``process`` plays a part of, by its environment."""
    return process.environ.get(NODE_MARKER) or process.environ.get("SLURMD_NODENAME")


def read_process(pid: int) -> Process | None:
    """Read one living process; None when there is none (a process that waits to be reaped is none)."""
    folder = _PROC / str(pid)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in ("Z", "X"):
        return None
    try:
        raw = (folder / "environ").read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError:
        raw = ""
    environ = dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
    key = ProcessKey(pid=pid, started=int(fields[19]))
    return Process(
        key=key, parent=int(fields[1]), session=int(fields[3]), state=fields[0], name=name, environ=environ
    )


def snapshot() -> list[Process]:
    """Return every living process of the machine that can be read, by pid."""
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return [process for pid in pids if (process := read_process(pid)) is not None]


def is_alive(key: ProcessKey) -> bool:
    """Tell whether that very process still runs."""
    process = read_process(key.pid)
    return process is not None and process.key == key


def send(key: ProcessKey, number: signal.Signals) -> bool:
    """Send a signal to that very process; False when it is gone."""
    try:
        handle = os.pidfd_open(key.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(key):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def stop(keys: Iterable[ProcessKey], clock: Clock) -> None:
    """Stop (SIGSTOP) ``keys`` and wait until they have stopped; the signal is sent long before it takes."""
    left = {key for key in keys if send(key, signal.SIGSTOP)}
    deadline = clock.now() + _STOP_PATIENCE
    while left and clock.now() < deadline:
        left = {key for key in left if _still_runs(key)}
        if left:
            clock.sleep(_POLL)


def _still_runs(key: ProcessKey) -> bool:
    process = read_process(key.pid)
    return process is not None and process.key == key and not process.is_frozen


def freeze(find: Callable[[], Iterable[Process]], clock: Clock) -> set[ProcessKey]:
    """Stop (SIGSTOP) everything that ``find`` returns, until it finds nothing new; return what was stopped.

    A stopped process forks no more, so the set is complete when a look brings nothing new.
    """
    stopped: set[ProcessKey] = set()
    for _ in range(_MAX_ROUNDS):
        fresh = [process.key for process in find() if process.key not in stopped]
        if not fresh:
            break
        stop(fresh, clock)
        stopped.update(fresh)
    return stopped


def kill(find: Callable[[], Iterable[Process]], clock: Clock, patience: timedelta) -> set[ProcessKey]:
    """End (SIGKILL) everything that ``find`` returns, children they fork meanwhile included.

    Raises:
        LabError: some of them still live after ``patience`` (stuck in the kernel, or not ours to signal).
    """
    doomed = freeze(find, clock)
    for key in doomed:
        send(key, signal.SIGKILL)
    wait_gone(doomed, clock, patience)
    return doomed


def wait_gone(keys: Iterable[ProcessKey], clock: Clock, patience: timedelta) -> None:
    """Wait until none of ``keys`` lives; reaps those that this process started.

    Raises:
        LabError: some of them still live after ``patience``.
    """
    deadline = clock.now() + patience
    left = set(keys)
    while left:
        for key in left:
            reap(key.pid)
        left = {key for key in left if is_alive(key)}
        if left and clock.now() >= deadline:
            pids = ", ".join(str(key.pid) for key in sorted(left, key=lambda key: key.pid))
            raise LabError(f"lab: processes {pids} do not die of SIGKILL; look at them with ps")
        if left:
            clock.sleep(_POLL)


def reap(pid: int) -> None:
    """Collect the exit status of ``pid`` if it is a daemon that this process started and that has ended."""
    if pid in _started_here:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                return
        _started_here.discard(pid)


def spawn(argv: list[str], environ: Mapping[str, str], output: Path) -> ProcessKey:
    """Start a daemon in a session of its own, with its output appended to ``output``.

    Raises:
        LabError: the program cannot be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            dict(environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            # An ignored signal is inherited: Python ignores SIGPIPE, nohup SIGHUP, a shell's "&" SIGINT.
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        raise LabError(f"lab: {argv[0]} cannot be started: {error.strerror}") from error
    _started_here.add(pid)
    process = read_process(pid)
    # It can already have ended; its log says why, and the wait for its readiness quotes that.
    return process.key if process else ProcessKey(pid=pid, started=0)


def write_pid_file(path: Path, key: ProcessKey) -> None:
    """Keep ``key`` as "pid start-time"."""
    path.write_text(f"{key.pid} {key.started}\n", encoding="ascii")


def read_pid_file(path: Path) -> ProcessKey | None:
    """Read a pid file back; None where there is none or it is torn."""
    try:
        pid, started = path.read_text(encoding="ascii").split()
        return ProcessKey(pid=int(pid), started=int(started))
    except (OSError, ValueError):
        return None
