import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.clock import SystemClock
from supervisor.errors import LabError
from supervisor.lab import Lab, LabSpec
from supervisor.lab.cluster import default_directory
from supervisor.lab.daemons import daemon_key
from supervisor.lab.host import accepts, reserve_ports
from supervisor.lab.layout import Layout, Ports
from supervisor.lab.processes import (
    MARKER,
    NODE_MARKER,
    Ownership,
    ProcessKey,
    is_alive,
    kill,
    read_pid_file,
    read_process,
    send,
    spawn,
    wait_gone,
    write_pid_file,
)
from supervisor.lab.record import Phase, Record, write_record

_CLOCK = SystemClock()
_PATIENCE = timedelta(seconds=10)
Spawn = Callable[..., ProcessKey]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Spawn]:
    started: list[ProcessKey] = []

    def spawn_one(*argv: str, **environ: str) -> ProcessKey:
        environ.setdefault("PATH", "/usr/bin:/bin")
        key = spawn(list(argv) or ["/bin/sleep", "60"], environ, tmp_path / "output")
        started.append(key)
        return key

    yield spawn_one
    for key in started:
        send(key, signal.SIGKILL)
    wait_gone(started, _CLOCK, _PATIENCE)


@pytest.fixture
def own(tmp_path: Path) -> Ownership:
    return Ownership(root=tmp_path, conf=tmp_path / "etc" / "slurm.conf")


def test_only_what_carries_the_marker_is_the_labs(start: Spawn, own: Ownership) -> None:
    ours = start(**{MARKER: str(own.root)})
    start(**{MARKER: str(own.root) + "-other"})
    start()
    assert {each.key for each in own.processes()} == {ours}


def test_a_login_shell_that_uses_the_lab_is_not_the_labs_but_a_task_is(start: Spawn, own: Ownership) -> None:
    start(SLURM_CONF=str(own.conf))
    task = start(SLURM_CONF=str(own.conf), SLURMD_NODENAME="node001")
    assert {each.key for each in own.processes()} == {task}
    assert own.processes("node002") == []


def test_children_that_wiped_their_environment_still_belong(start: Spawn, own: Ownership) -> None:
    script = "env -i /bin/sleep 60 & wait"
    parent = start("/bin/sh", "-c", script, **{MARKER: str(own.root), NODE_MARKER: "node001"})
    found = kill_until_seen(own, parent, 2)
    assert len(found) == 2


def kill_until_seen(own: Ownership, parent: ProcessKey, count: int) -> set[ProcessKey]:
    deadline = _CLOCK.now() + _PATIENCE
    while len(own.processes("node001")) < count and _CLOCK.now() < deadline:
        _CLOCK.sleep(timedelta(milliseconds=10))
    killed = kill(lambda: own.processes("node001"), _CLOCK, _PATIENCE)
    assert not any(is_alive(key) for key in killed)
    assert parent in killed
    return killed


def test_an_orphan_is_known_by_its_session(start: Spawn, own: Ownership) -> None:
    # The middle shell ends, so that sleep has neither our environment nor a parent of ours.
    script = "(env -i /bin/sleep 60 &) ; exec /bin/sleep 60"
    parent = start("/bin/sh", "-c", script, **{MARKER: str(own.root), NODE_MARKER: "node001"})
    assert len(kill_until_seen(own, parent, 2)) == 2


def test_a_session_whose_leader_is_a_stranger_is_left_alone(start: Spawn, own: Ownership) -> None:
    # As a terminal in which somebody starts one program that carries the marks of a task.
    marks = f"SLURM_CONF={own.conf} SLURMD_NODENAME=node001"
    terminal = start("/bin/sh", "-c", f"env {marks} /bin/sleep 60 & wait; exec /bin/sleep 60")
    deadline = _CLOCK.now() + _PATIENCE
    while not own.processes() and _CLOCK.now() < deadline:
        _CLOCK.sleep(timedelta(milliseconds=10))
    (task,) = own.processes()
    assert task.session == terminal.pid
    kill(own.processes, _CLOCK, _PATIENCE)
    assert is_alive(terminal)


def test_our_own_session_is_never_taken_along(own: Ownership) -> None:
    environ = {"PATH": "/usr/bin:/bin", MARKER: str(own.root), NODE_MARKER: "node001"}
    with subprocess.Popen(["/bin/sleep", "60"], env=environ) as child:
        assert [each.key.pid for each in own.processes()] == [child.pid]
        child.kill()


def test_everything_forked_while_killing_dies_too(start: Spawn, own: Ownership) -> None:
    script = "while :; do /bin/sleep 60 & sleep 0.01; done"
    start("/bin/sh", "-c", script, **{MARKER: str(own.root)})
    _CLOCK.sleep(timedelta(milliseconds=100))
    kill(own.processes, _CLOCK, _PATIENCE)
    assert own.processes() == []


def test_a_recycled_pid_is_not_signalled(start: Spawn) -> None:
    stranger = start()
    recycled = ProcessKey(pid=stranger.pid, started=stranger.started - 1)
    assert not send(recycled, signal.SIGKILL)
    assert is_alive(stranger)


def test_down_leaves_a_process_alone_whose_pid_a_stale_pid_file_names(start: Spawn, tmp_path: Path) -> None:
    stranger = start()
    layout = Layout(root=tmp_path, short=tmp_path)
    layout.pids.mkdir()
    write_pid_file(layout.pids / "slurmctld.pid", ProcessKey(pid=stranger.pid, started=1))
    write_pid_file(layout.pids / "munged.pid", stranger)
    write_lab_record(tmp_path, short=tmp_path)
    assert daemon_key(layout, "slurmctld") is None
    assert daemon_key(layout, "munged") is None
    Lab.open(tmp_path).down()
    assert is_alive(stranger)
    assert not (tmp_path / "lab.json").exists()


def test_a_torn_pid_file_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "x.pid"
    assert read_pid_file(path) is None
    path.write_text("123")
    assert read_pid_file(path) is None
    write_pid_file(path, ProcessKey(pid=1, started=2))
    assert read_pid_file(path) == ProcessKey(pid=1, started=2)


def test_a_name_with_blanks_and_brackets_does_not_confuse_the_reader(tmp_path: Path, start: Spawn) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    key = start(str(program), "60")
    process = read_process(key.pid)
    assert process is not None
    assert process.parent == os.getpid()
    assert process.key == key


def test_a_daemon_leads_its_own_session_and_takes_no_ignored_signal_along(start: Spawn) -> None:
    key = start()
    assert os.getsid(key.pid) == key.pid
    status = Path(f"/proc/{key.pid}/status").read_text()
    ignored = re.search(r"^SigIgn:\t([0-9a-f]+)$", status, re.MULTILINE)
    assert ignored is not None
    # glibc keeps its own signals 32 and 33 (bits 31 and 32) ignored across posix_spawn.
    assert int(ignored[1], 16) & ~(3 << 31) == 0


def test_reserved_ports_are_refused_to_the_next_lab() -> None:
    with reserve_ports(50) as first, reserve_ports(50) as second:
        assert len(set(first) | set(second)) == 100
        assert not accepts(first[0])


def test_a_missing_program_is_a_lab_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be started"):
        spawn([str(tmp_path / "nothing")], {}, tmp_path / "output")


def test_missing_programs_name_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.lab import host

    monkeypatch.setattr(host, "search_path", lambda: "/nowhere")
    with pytest.raises(LabError, match=r"apt-get install .*munge slurm-client slurmctld slurmd"):
        host.inspect_host(accounting=False)


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "supervisor" / "lab"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_directory() == Path.home() / ".local" / "state" / "supervisor" / "lab"


def test_a_process_that_ended_is_gone_although_nobody_reaped_it() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_process(child.pid) is None


def write_lab_record(root: Path, *, short: Path) -> None:
    record = Record(
        phase=Phase.UP,
        spec=LabSpec(nodes=1),
        ports=Ports(controller=20001, database=20002, nodes=(20003,)),
        short=short,
        slurm_version=(22, 5),
    )
    write_record(Layout(root=root, short=short), record)


def test_a_record_cannot_make_down_remove_a_strangers_folder(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    root = tmp_path / "lab"
    root.mkdir()
    for short in (victim, Path("/tmp/supervise-lab-x/../.."), Path("/etc")):
        write_lab_record(root, short=short)
        with pytest.raises(LabError, match="not the record of a lab"):
            Lab.open(root)
    assert victim.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2}', "\x00"])
def test_a_record_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text)
    with pytest.raises(LabError, match=r"lab\.json"):
        Lab.open(tmp_path)
