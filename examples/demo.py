"""The main job, shown on a real Slurm on this machine: a node dies in the middle of a training, nobody helps.

    make demo

brings up a lab of six nodes, lets one training run undisturbed, starts the same training again, takes the
power from one of its nodes, and watches. It then reads back from Slurm and from the ledger what the
supervisor did, compares the final losses, prints the recovery as a timeline, and fails loudly if any stage
is missing. It uses the command line as a user would; all that it does behind the curtain is to pull the plug.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
TRAIN = Path(__file__).resolve().parent / "train.py"
STEPS = 60
TOLERANCE = 1e-5
"""Largest relative difference of the final losses."""

JOB = """\
name: {name}
nodes: {nodes}
slurm: {{partition: main, time: 30, exclusive: true}}
launch:
  template: torchrun
  command: >-
    {python} {train} --steps {steps} --checkpoint-dir {directory}/ckpt --checkpoint-every 5
    --step-time 0.25 --done-file {directory}/done.json
  env: {{OMP_NUM_THREADS: 1}}
batch: {{global: 24}}
checkpoint: {{dir: {directory}/ckpt}}
done: {{file: {directory}/done.json}}
"""


class Failed(Exception):
    """A stage of the story did not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A place to run the story in: a lab, a ledger, a working directory."""

    root: Path
    environment: Mapping[str, str]

    @classmethod
    def up(cls, root: Path, *, nodes: int = 6, lab_options: Sequence[str] = ()) -> "Drill":
        """Bring a lab up in ``root`` and return the drill in it."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700, parents=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        plain |= {
            "SUPERVISE_LEDGER": f"sqlite:///{root}/ledger.db",
            "SUPERVISE_NODES_MODE": "act",
            "SUPERVISE_PYTHON": sys.executable,
            "SUPERVISE_CONFIG": str(root / "config.toml"),
        }
        drill = cls(root=root, environment=plain)
        drill.supervise("lab", "up", "--nodes", str(nodes), "--dir", str(root / "lab"), *lab_options)
        exports = drill.supervise("lab", "env", "--dir", str(root / "lab"))
        for line in exports.splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            plain.setdefault(name, value.strip("'\""))
        return drill

    def down(self) -> None:
        """Take the lab down."""
        self.supervise("lab", "down", "--dir", str(self.root / "lab"))

    def command(self, *argv: str, timeout_s: float = 120) -> str:
        """Run a command and return what it printed.

        Raises:
            Failed: if it ended with an error or took too long.
        """
        try:
            done = subprocess.run(
                argv,
                env=dict(self.environment),
                cwd=self.root,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{' '.join(argv)} took longer than {timeout_s:.0f} s") from error
        if done.returncode != 0:
            raise Failed(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def supervise(self, *argv: str, timeout_s: float = 120) -> str:
        """Run ``supervise``."""
        return self.command(sys.executable, "-m", "supervisor", *argv, timeout_s=timeout_s)

    def submit(self, name: str, *, steps: int = STEPS, nodes: str = "{min: 2, want: 6, step: 2}") -> int:
        """Write a job file, submit it, and return the run's number."""
        directory = self.root / name
        directory.mkdir()
        job = directory / "job.yaml"
        job.write_text(
            JOB.format(
                name=name, nodes=nodes, python=sys.executable, train=TRAIN, steps=steps, directory=directory
            )
        )
        out = self.supervise("submit", str(job), "--parsable")
        return int(out.strip().rpartition(";")[2])

    def watch(self) -> "subprocess.Popen[bytes]":
        """Start ``supervise watch`` in the background, as a user without cron would."""
        with (self.root / "watch.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "supervisor", "watch", "--interval", "5s"],
                env=dict(self.environment),
                cwd=self.root,
                stdout=log,
                stderr=log,
            )

    def history(self, run_id: int) -> list[dict[str, Any]]:
        """Return the run's allocations as the ledger tells them."""
        rows = self.supervise("ledger", "query", "recovery_timeline", f"run={run_id}", "--json")
        return list(json.loads(rows))

    def state(self, run_id: int) -> str:
        """Return the run's state."""
        rows = json.loads(self.supervise("status", "--all", "--json"))
        return next(str(row["state"]) for row in rows if row["run"] == run_id)

    def wait_for_state(self, run_id: int, wanted: str, timeout_s: float) -> None:
        """Wait until the run is in the state ``wanted``."""
        until = time.monotonic() + timeout_s
        while (state := self.state(run_id)) != wanted:
            if state in {"failed", "held", "cancelled"} or time.monotonic() > until:
                raise Failed(
                    f"run {run_id} is {state}, not {wanted}:\n{self.supervise('explain', str(run_id))}"
                )
            time.sleep(1)

    def wait_for_step(self, run_id: int, name: str, step: int, timeout_s: float = 180) -> int:
        """Wait until the training has reached ``step`` and saved a checkpoint; return the step it is at."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            reached = last_step(self.root / name)
            if reached >= step and any((self.root / name / "ckpt").glob("*/.metadata")):
                return reached
            time.sleep(0.2)
        raise Failed(f"step {step} was not reached:\n{self.supervise('logs', str(run_id))}")

    def job_field(self, job_id: int, field: str) -> str:
        """Return a field of ``scontrol show job``."""
        words = self.command("scontrol", "show", "job", "-o", str(job_id)).split()
        return next((w.partition("=")[2] for w in words if w.startswith(f"{field}=")), "")

    def node_fields(self, node: str) -> str:
        """Return what Slurm says of a node."""
        return self.command("scontrol", "show", "node", "-o", node).strip()


def last_step(directory: Path) -> int:
    """Return the newest step in the progress files of the run named like ``directory``; -1 before any."""
    steps = [-1]
    for path in directory.parent.glob(f".supervise/{directory.name}-*/progress/*.jsonl"):
        lines = path.read_text().splitlines()
        if lines and lines[-1].endswith("}"):
            steps.append(int(json.loads(lines[-1])["step"]))
    return max(steps)


def expect(condition: bool, what: str) -> None:
    """Print a stage that happened, or fail."""
    if not condition:
        raise Failed(f"did not happen: {what}")
    print(f"  ok  {what}")


def parse(moment: str | None, what: str) -> datetime:
    """Read a time of the ledger."""
    if moment is None:
        raise Failed(f"the ledger has no time for: {what}")
    return datetime.fromisoformat(moment)


def tell_story(drill: Drill) -> None:
    """Run the training twice, once disturbed, and check everything."""
    watcher = drill.watch()
    try:
        print("1. an undisturbed training of 60 steps on 6 nodes")
        reference = drill.submit("undisturbed")
        drill.wait_for_state(reference, "done", 240)
        undisturbed = json.loads((drill.root / "undisturbed" / "done.json").read_text())
        print(f"     final loss {undisturbed['final_loss']:.10f}")
        print("2. the same training again; one of its nodes loses power in the middle")
        run_id = drill.submit("disturbed")
        step = drill.wait_for_step(run_id, "disturbed", 20)
        victim = "node003"
        fault_at = time.time()
        drill.supervise("lab", "kill-node", victim, "--dir", str(drill.root / "lab"))
        print(f"     {victim} is dead at step {step}; nobody helps")
        drill.wait_for_state(run_id, "done", 240)
        check_story(drill, run_id, victim, fault_at, float(undisturbed["final_loss"]))
    finally:
        watcher.send_signal(signal.SIGINT)
        try:
            watcher.wait(timeout=30)
        except subprocess.TimeoutExpired:
            watcher.kill()


def check_story(drill: Drill, run_id: int, victim: str, fault_at: float, undisturbed: float) -> None:
    """Read back what happened, from Slurm and from the ledger."""
    print("3. what happened, read back from Slurm and the ledger")
    history = drill.history(run_id)
    first, last = history[0], history[-1]
    expect(len(history) == 2, "two allocations, not more")
    expect(first["failure_class"] == "node_fail", "the ledger calls it node_fail")
    node = drill.node_fields(victim)
    expect(
        "DRAIN" in node and f"supervise: node_fail run {run_id}.1" in node,
        f"{victim} is drained with our reason",
    )
    job_id = int(last["job_id"])
    expect(drill.job_field(job_id, "ExcNodeList") == victim, f"job {job_id} excludes {victim}")
    expect(drill.job_field(job_id, "NumNodes").startswith("4"), f"job {job_id} has 4 nodes instead of 6")
    expect(int(last["resume_step"]) > 0, f"it resumed from the checkpoint of step {last['resume_step']}")
    disturbed = json.loads((drill.root / "disturbed" / "done.json").read_text())
    difference = abs(disturbed["final_loss"] - undisturbed) / abs(undisturbed)
    expect(disturbed["final_step"] == STEPS, f"all {STEPS} steps are done")
    expect(
        difference <= TOLERANCE,
        f"final loss {disturbed['final_loss']:.10f}, off by {difference:.1e} relative",
    )
    print("4. the recovery")
    fault = datetime.fromtimestamp(fault_at).astimezone()
    stages = {
        "fault": fault,
        "noticed": parse(first["noticed_at"], "noticed"),
        "drained": parse(first["drained_at"], "drained"),
        "resubmitted": parse(last["accepted_at"], "resubmitted"),
        "started": parse(last["started_at"], "started"),
        "first new step": parse(last["first_step_at"], "first new step"),
    }
    for name, moment in stages.items():
        print(f"  {(moment - fault).total_seconds():7.1f} s  {name}")
    print("5. the story, as the ledger tells it")
    print(drill.supervise("explain", str(run_id)))


def main() -> int:
    """Tell the story and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".demo", help="where everything is kept")
    parser.add_argument("--keep", action="store_true", help="leave the lab running")
    arguments = parser.parse_args()
    began = time.monotonic()
    root = arguments.dir.resolve()
    if (root / "lab").exists():
        subprocess.run(
            [sys.executable, "-m", "supervisor", "lab", "down", "--dir", str(root / "lab")],
            check=False,
            timeout=60,
            capture_output=True,
        )
    drill = None
    try:
        drill = Drill.up(root)
        tell_story(drill)
    except Failed as error:
        print(f"\nThe demo FAILED: {error}\nEverything is kept in {root}", file=sys.stderr)
        return 1
    finally:
        if drill is not None and not arguments.keep:
            drill.down()
    print(f"The demo went well, in {time.monotonic() - began:.0f} s. Everything is kept in {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
