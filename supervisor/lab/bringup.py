"""Bringing a lab up: claim the folder, write its files, start its daemons, wait until every node is idle."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from supervisor.clock import Clock
from supervisor.errors import LabError
from supervisor.lab.accounting import start_accounting
from supervisor.lab.daemons import last_lines, launch, munged, slurmctld, slurmd, wait_ready
from supervisor.lab.host import Host, accepts, inspect_host, listens, make_devices, reserve_ports
from supervisor.lab.layout import (
    Layout,
    Ports,
    check_root,
    fits_sockets,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
)
from supervisor.lab.processes import Ownership, kill
from supervisor.lab.record import SHORT_PARENT, SHORT_PREFIX, Phase, Record, read_record, write_record
from supervisor.lab.spec import LabSpec
from supervisor.lab.status import Vital, read_daemon, read_nodes

_DAEMON_PATIENCE = timedelta(seconds=20)
_NODES_PATIENCE = timedelta(seconds=30)
_KILL_PATIENCE = timedelta(seconds=15)
_POLL = timedelta(milliseconds=100)
_LOCK = "lab.lock"


@contextlib.contextmanager
def at_work(root: Path) -> Iterator[None]:
    """Keep other commands from bringing up or taking down the same lab meanwhile.

    Raises:
        LabError: another command is at it, or the folder cannot be used.
    """
    try:
        handle = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LabError(f"lab: {root} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError(
            f"lab: another command is bringing the lab in {root} up or down; wait for it"
        ) from None
    else:
        yield
    finally:
        os.close(handle)


def layout_of(root: Path, record: Record) -> Layout:
    """Return the paths of a lab that was brought up."""
    return Layout(root=root, short=record.short)


def ownership_of(layout: Layout) -> Ownership:
    """Return the proof by which processes are known to be this lab's."""
    return Ownership(root=layout.root, conf=layout.conf)


def bring_up(root: Path, spec: LabSpec, clock: Clock) -> Record:
    """Bring up a lab in ``root`` and return its record once all nodes are idle.

    Leftovers of a lab that crashed there are cleaned first. When anything fails, or the caller is
    interrupted, everything that was started is stopped again and only the logs stay.

    Raises:
        LabError: a lab lives there already, something is in the way, or a daemon did not come up.
    """
    check_root(root)
    host = inspect_host(accounting=spec.accounting)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"lab: {root} cannot be made: {error.strerror}") from error
    with at_work(root):
        _make_room(root, clock)
        layout = Layout(root=root, short=_short_folder(root))
        try:
            return _start_all(layout, spec, host, clock)
        except BaseException:
            clear_away(layout, clock)
            raise


def clear_away(layout: Layout, clock: Clock) -> None:
    """End every process of the lab and remove what it made; its logs stay for reading.

    Raises:
        LabError: a process survives SIGKILL.
    """
    own = ownership_of(layout)
    kill(lambda: [*own.processes(), *own.clients()], clock, _KILL_PATIENCE)
    for folder in layout.folders():
        if folder != layout.log:
            shutil.rmtree(folder, ignore_errors=True)
    if layout.short != layout.root:
        shutil.rmtree(layout.short, ignore_errors=True)
    layout.record.with_suffix(".draft").unlink(missing_ok=True)
    layout.record.unlink(missing_ok=True)


def _make_room(root: Path, clock: Clock) -> None:
    record = read_record(root)
    if record is None:
        strangers = sorted(entry.name for entry in root.iterdir() if entry.name not in (_LOCK, "log"))
        if strangers:
            raise LabError(
                f"lab: {root} holds {strangers[0]!r} and is not a lab; choose an empty folder with --dir"
            )
        shutil.rmtree(root / "log", ignore_errors=True)
        return
    layout = layout_of(root, record)
    alive = ownership_of(layout).processes()
    # The lock is ours, so a lab that is still starting has lost the command that started it.
    if alive and record.phase is Phase.UP:
        raise LabError(
            f"lab: a lab lives in {root} already ({len(alive)} processes); "
            f"end it with: supervise lab down --dir {root}"
        )
    clear_away(layout, clock)
    shutil.rmtree(layout.log, ignore_errors=True)


def _short_folder(root: Path) -> Path:
    return root if fits_sockets(root) else Path(tempfile.mkdtemp(prefix=SHORT_PREFIX, dir=SHORT_PARENT))


def _start_all(layout: Layout, spec: LabSpec, host: Host, clock: Clock) -> Record:
    with reserve_ports(spec.nodes + 2) as numbers:
        ports = Ports(controller=numbers[0], database=numbers[1], nodes=numbers[2:])
        record = Record(
            phase=Phase.STARTING,
            spec=spec,
            ports=ports,
            short=layout.short,
            slurm_version=host.version,
        )
        # Before the first process: after a crash at any later line, down finds this record.
        write_record(layout, record)
        _write_files(layout, record, host)
        launch(munged(layout, host), layout)
        wait_ready("munged", layout, lambda: listens(layout.munge_socket), clock, _DAEMON_PATIENCE)
        if spec.accounting:
            start_accounting(layout, ports, host, clock)
        launch(slurmctld(host), layout)
        wait_ready("slurmctld", layout, lambda: accepts(ports.controller), clock, _DAEMON_PATIENCE)
        for node in spec.node_names():
            launch(slurmd(host, node), layout)
        _wait_idle(layout, spec, clock)
    up = Record(phase=Phase.UP, spec=spec, ports=ports, short=layout.short, slurm_version=host.version)
    write_record(layout, up)
    return up


def _write_files(layout: Layout, record: Record, host: Host) -> None:
    spec = record.spec
    outer = 0o711 if spec.shared else 0o700
    layout.root.chmod(outer)
    for folder in layout.folders():
        folder.mkdir(mode=0o700)
    if spec.shared:
        # Other accounts read slurm.conf, talk to munged's socket, and reach the batch scripts of their own
        # jobs in slurmd's spool; keys, state and logs stay closed.
        layout.conf.parent.chmod(0o755)
        layout.short.chmod(outer)
        layout.sockets.chmod(outer)
        layout.spool.chmod(outer)
    key = layout.munge / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    devices = make_devices(layout.root / "dev", spec.gpus_per_node)
    conf = render_slurm_conf(layout, spec, record.ports, user=host.user, host=host.name, version=host.version)
    layout.conf.write_text(conf, encoding="utf-8")
    layout.conf.with_name("cgroup.conf").write_text(render_cgroup_conf(host.version), encoding="utf-8")
    layout.conf.with_name("gres.conf").write_text(render_gres_conf(devices), encoding="utf-8")


def _wait_idle(layout: Layout, spec: LabSpec, clock: Clock) -> None:
    patience = _NODES_PATIENCE + timedelta(seconds=0.2 * spec.nodes)
    deadline = clock.now() + patience
    while True:
        states = read_nodes(layout) or {}
        waiting = [node for node in spec.node_names() if states.get(node) != "IDLE"]
        if not waiting:
            return
        for daemon in ("slurmctld", *(f"slurmd.{node}" for node in waiting)):
            if read_daemon(layout, daemon).vital is Vital.DEAD:
                raise LabError(f"lab: {daemon} ended at its start\n{last_lines(layout, daemon)}")
        if clock.now() >= deadline:
            state = states.get(waiting[0], "unknown to the controller")
            raise LabError(
                f"lab: {len(waiting)} of {spec.nodes} nodes not idle after {patience.total_seconds():g} s; "
                f"{waiting[0]} is {state}\n{last_lines(layout, f'slurmd.{waiting[0]}')}"
            )
        clock.sleep(_POLL)
