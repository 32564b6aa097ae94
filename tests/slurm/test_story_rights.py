"""The whole supervisor as an ordinary account, on a Slurm of root: it recovers without the right to drain."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from supervisor.cli.app import App
from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.run import RunState
from supervisor.domain.spec import JobSpec
from supervisor.lab import Lab, LabSpec
from supervisor.sweep.begin import Beginning, begin_run, plan_beginning
from tests.slurm.accounts import ACCOUNT, as_ordinary_account
from tests.unit.world import World

COMMAND = 'test "$SUPERVISE_ATTEMPT" = 2 || sleep 300'


def plan(home: Path) -> Beginning:
    """Plan the run, which asks nobody and writes nothing."""
    spec = JobSpec.model_validate(
        {
            "name": "run",
            "nodes": {"min": 2, "want": 3},
            "slurm": {"time": 10, "exclusive": True},
            "launch": {"template": "srun", "command": COMMAND},
        }
    )
    return plan_beginning(spec, cwd=home, template_dirs=())


def recover(lab: Lab, home: Path) -> dict[str, Any]:
    """Submit, wait for the loss of a node, recover; return what is known then."""
    environ = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(home),
        "SUPERVISE_LEDGER": f"sqlite:///{home}/ledger.db",
        "SUPERVISE_NODES_MODE": "act",
        "SUPERVISE_SLURM_USER": ACCOUNT,
        **lab.env(),
    }
    app = App(environ=environ, site_file=home / "no-site.toml")
    run, _ = begin_run(
        plan(home),
        app.ledger,
        app.slurm,
        owner=ACCOUNT,
        actor=app.actor,
        environ=environ,
    )
    sweep_until(app, run.id, RunState.RUNNING)
    (home / "running").touch()
    sweep_until(app, run.id, RunState.DONE)
    drains = [a for a in app.ledger.actions(run.id) if a.kind is ActionKind.DRAIN]
    return {
        "uid": os.getuid(),
        "classes": [item.failure_class for item in app.ledger.allocations(run.id)],
        "excluded": list(app.ledger.allocations(run.id)[-1].excluded),
        "avoided": [row.node for row in app.ledger.avoided(app.clock.now())],
        "drains": [(action.node, action.state, action.detail) for action in drains],
        "requests": [e.node for e in app.ledger.events(run.id) if e.kind == "drain_requested"],
    }


def sweep_until(app: App, run_id: int, state: RunState) -> None:
    until = time.monotonic() + 60
    while app.ledger.run(run_id).state is not state:
        report = app.sweep().run()
        assert not report.errors, report.errors
        run = app.ledger.run(run_id)
        assert time.monotonic() < until, f"{run.state}: {run.reason}"
        time.sleep(0.3)


def test_without_the_right_to_drain_the_node_is_avoided_and_a_drain_is_requested() -> None:
    if os.geteuid() != 0:
        # An ordinary account is the SlurmUser of its own labs and may drain; nobody else is served by them.
        return
    root = Path(tempfile.mkdtemp(prefix="rights-", dir="/tmp"))
    try:
        root.chmod(0o755)
        home = root / "home"
        home.mkdir()
        shutil.chown(home, ACCOUNT)
        with Lab.up(root / "lab", LabSpec(nodes=3, slurmd_timeout_s=4, shared=True)) as lab:
            load_everything(root / "rehearsal")
            victim = fell_when_running(lab, home)
            found = as_ordinary_account(lambda: recover(lab, home), home)
            os.waitpid(victim, 0)
            state = (lab.status().nodes or {})["node002"]
    finally:
        shutil.rmtree(root)
    assert found["uid"] != 0
    assert found["classes"] == ["node_fail", None]
    assert found["excluded"] == ["node002"]
    assert found["avoided"] == ["node002"]
    ((node, outcome, detail),) = found["drains"]
    assert (node, outcome) == ("node002", ActionState.REFUSED)
    assert "Invalid user id" in detail
    assert "node002" in found["requests"]
    assert "DRAIN" not in state


def load_everything(folder: Path) -> None:
    """Rehearse on a simulated Slurm: what Python loads late may be closed to the ordinary account."""
    folder.mkdir()
    assert App(environ={"HOME": str(folder)}).signatures
    world = World(folder)
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(30)
    world.sweep()
    assert len(world.ledger.allocations(run.id)) == 2
    world.ledger.close()


def fell_when_running(lab: Lab, home: Path) -> int:
    """Start a child, as root, that takes the power from node002 once the run runs; return its pid."""
    child = os.fork()
    if child == 0:
        until = time.monotonic() + 60
        while not (home / "running").exists() and time.monotonic() < until:
            time.sleep(0.1)
        lab.kill_node("node002")
        os._exit(0)
    return child
