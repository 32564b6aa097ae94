"""A lab of an ordinary account: no root anywhere, and root can still clear it away."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from supervisor.clock import SystemClock
from supervisor.errors import LabError
from supervisor.lab import Lab, LabSpec
from supervisor.lab.processes import is_alive
from tests.slurm.accounts import ACCOUNT, as_ordinary_account

_CLOCK = SystemClock()


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the ordinary account may use; pytest's own ones are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="lab-test-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, ACCOUNT)
    yield folder
    shutil.rmtree(folder)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = _CLOCK.now() + timedelta(seconds=20)
    while not condition():
        assert _CLOCK.now() < deadline, "waited in vain"
        _CLOCK.sleep(timedelta(milliseconds=200))


def run(lab: Lab, *argv: str) -> str:
    environ = {"PATH": os.environ["PATH"], **lab.env()}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=False, cwd="/")
    return (done.stdout + done.stderr).strip()


def test_an_ordinary_account_runs_a_lab_with_gpus_and_accounting(home: Path) -> None:
    root = home / "lab"

    def work() -> dict[str, Any]:
        with Lab.up(root, LabSpec(nodes=2, gpus_per_node=2, accounting=True)) as lab:
            ran = run(lab, "srun", "-N2", "--gpus-per-node=2", "id", "-u")
            killed = lab.kill_node("node002")
            lab.return_node("node002")
            pids = lab.processes()
            accounts = {Path(f"/proc/{pid}").stat().st_uid for pid in pids}
            drained = run(lab, "scontrol", "update", "nodename=node001", "state=drain", "reason=test")
            wait_for(lambda: "COMPLETED" in run(lab, "sacct", "-X", "-n", "-P", "-o", "State"))
            states = lab.status().nodes
        left = [pid for pid in pids if Path(f"/proc/{pid}/environ").exists() and _environ(pid)]
        return {
            "me": os.getuid(),
            "ran": ran,
            "killed": killed,
            "accounts": sorted(accounts),
            "drained": drained,
            "states": states,
            "left": left,
        }

    found = as_ordinary_account(work, home)
    assert found["me"] != 0
    assert found["ran"].splitlines() == [str(found["me"])] * 2
    assert found["killed"] == 1
    assert found["accounts"] == [found["me"]]
    assert found["drained"] == ""
    assert found["states"] == {"node001": "IDLE+DRAIN", "node002": "IDLE"}
    assert found["left"] == []


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_shared_lab_of_root_serves_other_accounts_without_admin_rights() -> None:
    if os.geteuid() != 0:
        # An ordinary account cannot start other people's jobs, so nobody else is served by its labs.
        return
    root = Path(tempfile.mkdtemp(prefix="lab-test-", dir="/tmp"))
    try:
        with Lab.up(root, LabSpec(nodes=1, shared=True)) as lab:

            def work() -> dict[str, Any]:
                drain = ("scontrol", "update", "nodename=node001", "state=drain", "reason=test")
                return {"ran": run(lab, "srun", "-N1", "id", "-un"), "drained": run(lab, *drain)}

            found = as_ordinary_account(work, root)
            assert found["ran"] == ACCOUNT
            assert "Invalid user id" in found["drained"]
            assert lab.status().all_idle
    finally:
        shutil.rmtree(root)


def test_root_clears_away_a_lab_that_an_ordinary_account_left(home: Path) -> None:
    root = home / "lab"

    def work() -> dict[str, Any]:
        return {"pids": Lab.up(root, LabSpec(nodes=1)).processes()}

    pids = as_ordinary_account(work, home)["pids"]
    assert len(pids) >= 3
    lab = Lab.open(root)
    if os.geteuid() == 0:
        with pytest.raises(LabError, match="another account"):
            lab.start_controller()
    keys = [process.key for process in lab._own.processes()]
    assert {key.pid for key in keys} == set(pids)
    lab.down()
    assert not any(is_alive(key) for key in keys)
    with pytest.raises(LabError, match="no lab"):
        Lab.open(root)
