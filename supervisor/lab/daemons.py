"""The daemons of a lab as values: how each is called, started and known to be ready."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from supervisor.clock import Clock
from supervisor.errors import LabError
from supervisor.lab.host import Host, clean_environ
from supervisor.lab.layout import Layout
from supervisor.lab.processes import (
    MARKER,
    NODE_MARKER,
    ProcessKey,
    is_alive,
    read_pid_file,
    read_process,
    reap,
    spawn,
    write_pid_file,
)

_POLL = timedelta(milliseconds=50)
_LOG_LINES = 8
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One daemon: ``name`` names its pid file and logs, ``argv`` starts it in the foreground."""

    name: str
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()


def munged(layout: Layout, host: Host) -> Daemon:
    """Return the private munged (munged(8)); --force: its folder is owned by the lab's account, not root."""
    folder = layout.munge
    return Daemon(
        name="munged",
        argv=(
            host.programs["munged"],
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={folder / 'munge.key'}",
            f"--seed-file={folder / 'munge.seed'}",
            f"--pid-file={layout.pids / 'munged.munge-pid'}",
            f"--log-file={layout.log / 'munged.log'}",
            f"--socket={layout.munge_socket}",
        ),
    )


def slurmctld(host: Host) -> Daemon:
    """Return the controller."""
    return Daemon(name="slurmctld", argv=(host.programs["slurmctld"], "-D"))


def slurmd(host: Host, node: str) -> Daemon:
    """Return the slurmd that plays ``node``."""
    return Daemon(
        name=f"slurmd.{node}",
        argv=(host.programs["slurmd"], "-D", "-N", node),
        environ=((NODE_MARKER, node),),
    )


def pid_file(layout: Layout, name: str) -> Path:
    """Return the pid file of the daemon called ``name``."""
    return layout.pids / f"{name}.pid"


def launch(daemon: Daemon, layout: Layout) -> ProcessKey:
    """Start ``daemon`` with the lab's marker in its environment and write its pid file.

    Raises:
        LabError: the program cannot be started.
    """
    environ = clean_environ(
        {"SLURM_CONF": str(layout.conf), MARKER: str(layout.root), **dict(daemon.environ)}
    )
    key = spawn(list(daemon.argv), environ, layout.log / f"{daemon.name}.out")
    write_pid_file(pid_file(layout, daemon.name), key)
    return key


def daemon_key(layout: Layout, name: str) -> ProcessKey | None:
    """Return the living process of the daemon called ``name``, if there is one and it is the lab's own.

    Since a reboot starts pids and start times anew, the marker in its environment is asked for as well.
    """
    key = read_pid_file(pid_file(layout, name))
    process = read_process(key.pid) if key else None
    if process is None or process.key != key or process.environ.get(MARKER) != str(layout.root):
        return None
    return key


def wait_ready(
    name: str, layout: Layout, ready: Callable[[], bool], clock: Clock, patience: timedelta
) -> None:
    """Wait until ``ready`` holds for the daemon called ``name``.

    Raises:
        LabError: it died or was not ready after ``patience``; its last log lines are quoted.
    """
    deadline = clock.now() + patience
    while not ready():
        key = read_pid_file(pid_file(layout, name))
        if key is not None:
            reap(key.pid)
        if key is None or not is_alive(key):
            raise LabError(f"lab: {name} ended at its start\n{last_lines(layout, name)}")
        if clock.now() >= deadline:
            seconds = patience.total_seconds()
            raise LabError(f"lab: {name} was not ready after {seconds:g} s\n{last_lines(layout, name)}")
        clock.sleep(_POLL)


def last_lines(layout: Layout, name: str) -> str:
    """Return the last lines of both logs of a daemon, for an error message."""
    quoted = []
    for path in (layout.log / f"{name}.log", layout.log / f"{name}.out"):
        lines = _tail(path)
        if lines:
            quoted.append(f"last lines of {path}:")
            quoted += [f"  {line}" for line in lines]
    return "\n".join(quoted) or f"it left no log in {layout.log}"


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-_LOG_LINES:]
