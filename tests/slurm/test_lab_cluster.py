"""The lab on the real Slurm of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.clock import SystemClock
from supervisor.errors import LabError
from supervisor.lab import Lab, LabSpec, PartitionSpec, Vital
from supervisor.lab.processes import is_alive, read_process, send, snapshot

_CLOCK = SystemClock()


def slurm(lab: Lab, *argv: str, timeout_s: float = 30) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": "/tmp", **lab.env()}
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=timeout_s, check=True, cwd="/tmp"
    )
    return done.stdout.strip()


def wait_for(condition: Callable[[], object], seconds: float = 20) -> float:
    started = _CLOCK.now()
    while not condition():
        waited = (_CLOCK.now() - started).total_seconds()
        assert waited < seconds, "waited in vain"
        _CLOCK.sleep(timedelta(milliseconds=100))
    return (_CLOCK.now() - started).total_seconds()


def submit(lab: Lab, folder: Path, command: str, *options: str) -> str:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\n{command}\n")
    output = f"--output={folder}/job-%j.out"
    return slurm(lab, "sbatch", "--parsable", "--no-requeue", output, *options, str(script))


def job_state(lab: Lab, job: str) -> str:
    return slurm(lab, "squeue", "-h", "-t", "all", "-j", job, "-o", "%T")


def node_state(lab: Lab, node: str) -> str:
    return (lab.status().nodes or {})[node]


def traces(root: Path) -> list[str]:
    """Return every living process with the lab's folder in its arguments or environment."""
    found = []
    for process in snapshot():
        proc = Path("/proc") / str(process.key.pid)
        try:
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        except OSError:
            continue
        if str(root).encode() in text and process.key.pid != os.getpid():
            found.append(f"{process.key.pid} {process.name}")
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(tmp_path_factory.mktemp("lab"), LabSpec(nodes=4, gpus_per_node=2)) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_a_new_lab_is_idle_and_runs_a_job_on_all_nodes(lab: Lab) -> None:
    status = lab.status()
    assert status.all_idle
    assert {daemon.vital for daemon in status.daemons} == {Vital.ALIVE}
    names = slurm(
        lab, "srun", "-N4", "--gpus-per-node=2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_JOB_NUM_NODES"
    )
    assert sorted(names.splitlines()) == [f"{node} 4" for node in lab.nodes]


def test_the_lab_keeps_its_folder_closed_and_listens_on_loopback_only(lab: Lab) -> None:
    assert lab.root.stat().st_mode & 0o777 == 0o700
    assert (lab.root / "munge" / "munge.key").stat().st_mode & 0o777 == 0o600
    ours = set(lab.processes())
    sockets = Path("/proc/net/tcp").read_text()
    inodes = {
        str(link.readlink())
        for pid in ours
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink()
    }
    addresses = [
        fields[1]
        for fields in map(str.split, sockets.splitlines()[1:])
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes
    ]
    assert len(addresses) >= 5
    assert all(address.startswith("0100007F:") for address in addresses)


def test_a_folder_holds_one_lab(lab: Lab) -> None:
    with pytest.raises(LabError, match="lives in"):
        Lab.up(lab.root, LabSpec(nodes=1))
    assert lab.status().all_idle


def test_a_killed_node_takes_its_tasks_along_and_comes_back(lab: Lab, folder: Path) -> None:
    job = submit(lab, folder, "srun sleep 300", "-N3", "-w", "node[001-003]")
    wait_for(lambda: all(len(lab.processes(node)) >= 3 for node in ("node001", "node002", "node003")))
    bystanders = set(lab.processes("node001")) | set(lab.processes("node003"))
    victims = lab.processes("node002")
    assert lab.kill_node("2") == len(victims)
    assert [read_process(pid) for pid in victims] == [None] * len(victims)
    assert bystanders <= set(lab.processes())
    assert wait_for(lambda: job_state(lab, job) == "NODE_FAIL") < 14
    assert "DOWN" in node_state(lab, "node002")
    lab.return_node("node002")
    wait_for(lambda: lab.status().all_idle)
    assert len(lab.processes("node002")) == 1


def test_a_hung_node_and_an_isolated_one_are_lost_and_their_leftovers_end_on_return(
    lab: Lab, folder: Path
) -> None:
    beat = "srun sh -c 'while :; do date +%s.%N >> BEAT.$SLURMD_NODENAME; sleep 0.2; done'"
    command = beat.replace("BEAT", str(folder / "beat"))
    hung = submit(lab, folder, command, "-N2", "-w", "node[001-002]")
    cut = submit(lab, folder, command, "-N2", "-w", "node[003-004]")
    beats = {node: folder / f"beat.{node}" for node in lab.nodes}
    wait_for(lambda: all(beat.exists() for beat in beats.values()))
    lab.hang_node("node002")
    lab.isolate_node("node004")
    stopped = beats["node002"].read_text()
    wait_for(lambda: job_state(lab, hung) == job_state(lab, cut) == "NODE_FAIL")
    assert beats["node002"].read_text() == stopped
    written = beats["node004"].read_text()
    wait_for(lambda: beats["node004"].read_text() != written)
    status = {daemon.name: daemon.vital for daemon in lab.status().daemons}
    assert status["slurmd.node002"] is status["slurmd.node004"] is Vital.FROZEN
    lab.return_node("node002")
    lab.return_node("node004")
    wait_for(lambda: lab.status().all_idle)
    wait_for(lambda: all(len(lab.processes(node)) == 1 for node in lab.nodes))


def test_a_frozen_controller_is_silent_and_a_killed_one_remembers(lab: Lab, folder: Path) -> None:
    job = submit(lab, folder, "sleep 300", "-N1")
    wait_for(lambda: job_state(lab, job) == "RUNNING")
    lab.freeze_controller()
    try:
        status = lab.status()
    finally:
        lab.thaw_controller()
    assert status.nodes is None
    assert {daemon.name: daemon.vital for daemon in status.daemons}["slurmctld"] is Vital.FROZEN
    assert job_state(lab, job) == "RUNNING"
    lab.kill_controller()
    with pytest.raises(LabError, match="dead"):
        lab.freeze_controller()
    lab.start_controller()
    wait_for(lambda: job_state(lab, job) == "RUNNING")
    slurm(lab, "scancel", job)
    wait_for(lambda: lab.status().all_idle)


def test_a_node_that_the_lab_lacks_is_named(lab: Lab) -> None:
    with pytest.raises(LabError, match="node001 to node004"):
        lab.kill_node("9")


def test_two_labs_live_side_by_side(lab: Lab, folder: Path) -> None:
    gpu = PartitionSpec(name="gpu", nodes="node001", max_time="1:00:00", max_nodes=1)
    with Lab.up(folder / "other", LabSpec(nodes=2, partitions=(gpu,), cluster_name="other")) as other:
        assert other.status().all_idle
        assert slurm(other, "sinfo", "-h", "-o", "%R %l %N") == "gpu 1:00:00 node001"
        other.kill_node("node002")
        assert set(lab.processes()).isdisjoint(other.processes())
        assert lab.status().all_idle
        with pytest.raises(LabError, match="no node '3'"):
            other.kill_node("3")
    assert lab.status().all_idle


def test_down_leaves_nothing_after_a_crash_with_a_running_job(folder: Path) -> None:
    lab = Lab.up(folder / "lab", LabSpec(nodes=2))
    job = submit(lab, folder, "srun env -i /bin/sleep 300", "-N2")
    wait_for(lambda: job_state(lab, job) == "RUNNING")
    wait_for(lambda: len(lab.processes("node002")) >= 3)
    waiting = subprocess.Popen(
        ["srun", "-N2", "sleep", "300"],
        env={"PATH": os.environ["PATH"], **lab.env()},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(lab.processes("node002")) >= 5)
    # srun would notice a dead slurmctld only after a while; it must be ended, and its parent must see how.
    lab.kill_controller()
    (lab.root / "run" / "slurmd.node001.pid").unlink()
    everything = lab.processes()
    Lab.open(lab.root).down()
    assert waiting.wait(timeout=10) == -signal.SIGKILL
    assert [read_process(pid) for pid in everything] == [None] * len(everything)
    assert traces(lab.root) == []
    assert {entry.name for entry in lab.root.iterdir()} == {"log", "lab.lock"}
    lab.down()
    with pytest.raises(LabError, match="no lab"):
        Lab.open(lab.root)


def test_a_lab_whose_processes_all_died_is_replaced(folder: Path) -> None:
    lab = Lab.up(folder, LabSpec(nodes=1))
    for process in lab._own.processes():
        send(process.key, signal.SIGKILL)
        wait_for(lambda key=process.key: not is_alive(key))  # type: ignore[misc]
    with Lab.up(folder, LabSpec(nodes=2)) as again:
        assert again.status().all_idle
        assert len(again.nodes) == 2


def test_a_start_that_is_killed_half_way_leaves_nothing_that_down_does_not_find(folder: Path) -> None:
    root = folder / "lab"
    # Accounting makes the start long enough to be hit in its middle.
    code = (
        "import sys; from pathlib import Path; from supervisor.lab import Lab, LabSpec; "
        "Lab.up(Path(sys.argv[1]), LabSpec(nodes=1, accounting=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(root)]) as starter:
        wait_for((root / "db" / "ibdata1").exists)
        with pytest.raises(LabError, match="another command"):
            Lab.open(root).down()
        starter.kill()
    assert traces(root) != []
    Lab.open(root).down()
    assert traces(root) == []
    assert not (root / "munge").exists()


def test_a_folder_with_other_peoples_files_is_left_alone(folder: Path) -> None:
    (folder / "thesis.tex").write_text("precious")
    with pytest.raises(LabError, match=r"thesis\.tex"):
        Lab.up(folder, LabSpec(nodes=1))
    assert (folder / "thesis.tex").read_text() == "precious"


def test_a_daemon_that_fails_is_quoted_and_everything_started_is_stopped(folder: Path) -> None:
    root = folder / "lab"
    with pytest.raises(LabError, match=r"slurmctld ended at its start\n(?s:.*)select/nonsense"):
        Lab.up(root, LabSpec(nodes=1, extra_conf=("SelectType=select/nonsense",)))
    assert traces(root) == []
    assert not (root / "lab.json").exists()


def test_a_folder_too_deep_for_sockets_works_and_leaves_nothing_in_tmp(folder: Path) -> None:
    root = folder / ("deep" * 20) / "lab"
    with Lab.up(root, LabSpec(nodes=1)) as lab:
        short = lab._layout.short
        assert short.parent == Path("/tmp")
        assert short.stat().st_mode & 0o777 == 0o700
        assert slurm(lab, "srun", "-N1", "echo", "works") == "works"
    assert not short.exists()


def test_accounting_answers_with_a_private_database(folder: Path) -> None:
    with Lab.up(folder / "lab", LabSpec(nodes=1, accounting=True)) as lab:
        job = submit(lab, folder, "exit 3", "--comment=mine")
        argv = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode,Comment")
        wait_for(lambda: slurm(lab, *argv) == "FAILED|3:0|mine")
    assert traces(lab.root) == []
