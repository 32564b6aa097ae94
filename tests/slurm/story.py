"""A supervisor on a real Slurm: a lab, a ledger, cheap trainings, and what Slurm and ledger say."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.cli.app import App
from supervisor.domain.folder import RunFolder
from supervisor.domain.run import Allocation, Run, RunState
from supervisor.lab import Lab, Vital
from supervisor.sweep.circle import SweepReport
from tests.unit.dcp_files import write_checkpoint

TRAINING = """\
import json, os, pathlib, shutil, signal, sys, time
steps, pause, every, first = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
again = int(sys.argv[5])
rank, attempt = int(os.environ["RANK"]), os.environ["SUPERVISE_ATTEMPT"]
saves = pathlib.Path(os.environ["SUPERVISE_CHECKPOINT_DIR"])
here = pathlib.Path(__file__).parent
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append("USR1"))
def save(step):
    path = saves / f"step-{step:08d}-a{attempt}"
    path.mkdir(parents=True)
    for file in sorted((here / "shape").iterdir(), reverse=True):  # .metadata last: it commits
        shutil.copyfile(file, path / file.name)
print(f"rank {rank} of attempt {attempt} starts", flush=True)
time.sleep(first)
start = int(os.environ["SUPERVISE_RESUME_STEP"] or 0)
last = steps if attempt == "1" else min(steps, start + again)
for step in range(start + 1, last + 1):
    time.sleep(pause)
    if rank == 0:
        with open(os.environ["SUPERVISE_PROGRESS"], "a") as file:
            file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
        if step % every == 0 or stop:
            save(step)
    late = here / f"late-{rank}-{attempt}"
    if late.exists():
        save(int(late.read_text()))
        late.unlink()
    if stop:
        print(f"rank {rank} was told {stop[0]}", flush=True)
        sys.exit(85)
if rank == 0:
    (here / "done").write_text(attempt)
"""
"""A training of the standard library; its arguments are named in its first lines."""

JOB = """\
name: {name}
nodes: {nodes}
slurm: {{partition: main, time: {time}{slurm}}}
launch:
  template: srun
  command: {python} {directory}/train.py {steps} {pause} {every} {first} {again}
  signal_before: {signal_before}
checkpoint: {{dir: {directory}/ckpt, format: dcp}}
{more}
"""

FAST = {"SUPERVISE_SLURM_TIMEOUT": "3s", "SUPERVISE_SUBMIT_GRACE": "5s"}


def wait(condition: Callable[[], object], what: str, seconds: float = 40) -> None:
    """Wait until ``condition`` holds, or fail."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.1)


class Story:
    """One user's supervisor in ``root`` on a lab."""

    def __init__(self, lab: Lab, root: Path, **settings: str) -> None:
        self.lab = lab
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(root),
            "SUPERVISE_LEDGER": f"sqlite:///{root}/ledger.db",
            "SUPERVISE_NODES_MODE": "act",
            "SUPERVISE_PYTHON": sys.executable,
            "SUPERVISE_CONFIG": str(root / "config.toml"),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            **lab.env(),
            **settings,
        }
        self.app = App(environ=self.environment, site_file=root / "no-site.toml")
        self.ledger = self.app.ledger

    # ---- what the user does

    def cli(self, *argv: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run ``supervise`` as a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *argv],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def write_job(
        self,
        name: str = "run",
        *,
        nodes: str = "{min: 2, want: 4}",
        steps: int = 400,
        pause: float = 0.1,
        every: int = 5,
        first: float = 0,
        again: int = 10,
        time_limit: str = "10",
        slurm: str = ", exclusive: true",
        signal_before: str = "60s",
        more: str = "",
    ) -> Path:
        """Write a job file with its training and return its path."""
        directory = self.root / name
        directory.mkdir()
        write_checkpoint(directory / "shape")
        (directory / "train.py").write_text(TRAINING)
        path = directory / "job.yaml"
        path.write_text(
            JOB.format(
                name=name,
                nodes=nodes,
                time=time_limit,
                slurm=slurm,
                python=sys.executable,
                directory=directory,
                steps=steps,
                pause=pause,
                every=every,
                first=first,
                again=again,
                signal_before=signal_before,
                more=more,
            )
        )
        return path

    def submit(self, name: str = "run", **job: object) -> Run:
        """Write a job file, submit it and return the run."""
        path = self.write_job(name, **job)  # type: ignore[arg-type]
        done = self.cli("submit", str(path), "--parsable")
        assert done.returncode == 0, done.stderr
        return self.ledger.run(int(done.stdout.strip().rpartition(";")[2]))

    def sweep(self) -> SweepReport:
        """Make one pass in this process, with the same settings as the command line."""
        report = self.app.sweep().run()
        assert not report.errors, report.errors
        return report

    def sweep_until(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Sweep again and again until ``condition`` holds, or fail with the story so far."""
        until = time.monotonic() + seconds
        while True:
            report = self.sweep()
            if condition():
                return
            if time.monotonic() > until:
                raise AssertionError(f"{seconds:.0f} s in vain: {what}\n" + "\n".join(report.lines))
            time.sleep(0.3)

    def sweep_until_state(self, run: Run, state: RunState, seconds: float = 60) -> None:
        """Sweep until the run is in ``state``."""
        self.sweep_until(lambda: self.state(run) is state, f"run {run.id} {state}", seconds)

    # ---- what the ledger says

    def state(self, run: Run) -> RunState:
        """Return the run's state."""
        return self.ledger.run(run.id).state

    def reason(self, run: Run) -> str:
        """Return why the run is in its state."""
        return self.ledger.run(run.id).reason

    def history(self, run: Run) -> tuple[Allocation, ...]:
        """Return the run's allocations."""
        return self.ledger.allocations(run.id)

    def last(self, run: Run) -> Allocation:
        """Return the run's newest allocation."""
        return self.history(run)[-1]

    def explain(self, run: Run) -> str:
        """Return what ``supervise explain`` prints."""
        done = self.cli("explain", str(run.id))
        assert done.returncode == 0, done.stderr
        return done.stdout

    # ---- what the run's folder says

    def log(self, run: Run) -> str:
        """Return the output of all allocations."""
        return "".join(path.read_text() for path in sorted((run.folder / "logs").glob("*.out")))

    def step(self, run: Run) -> int:
        """Return the newest step that the newest attempt reported; 0 before any."""
        path = RunFolder(run.folder).progress(self.last(run).no)
        lines = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def saves(self, run: Run) -> list[Path]:
        """Return the committed checkpoints, oldest first."""
        return sorted(path.parent for path in (self.root / run.name / "ckpt").glob("*/.metadata"))

    def train(self, run: Run, *, step: int = 6) -> tuple[str, ...]:
        """Sweep until the newest attempt has reached ``step`` with a checkpoint; return its nodes."""
        self.sweep_until(
            lambda: self.state(run) is RunState.RUNNING and self.step(run) >= step and self.saves(run),
            f"step {step}",
        )
        return tuple(map(str, self.last(run).nodes))

    # ---- what Slurm says

    def slurm(self, *argv: str, check: bool = True) -> str:
        """Run a command of Slurm's."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0 or not check, (argv, done.stdout, done.stderr)
        return done.stdout.strip()

    def job(self, job_id: int | None) -> Mapping[str, str]:
        """Return the fields of ``scontrol show job``."""
        return _fields(self.slurm("scontrol", "show", "job", "-o", str(job_id)))

    def node(self, name: str) -> str:
        """Return what ``scontrol show node`` says in one line."""
        return self.slurm("scontrol", "show", "node", "-o", name)

    def jobs(self, *states: str) -> list[tuple[int, str]]:
        """Return (job id, comment) of the jobs in ``states``, of all without any."""
        words = ("-t", ",".join(states) if states else "all")
        text = self.slurm("squeue", "-h", *words, "-o", "%i %k")
        return [(int(line.split()[0]), line.partition(" ")[2]) for line in text.splitlines()]

    def jobs_of(self, allocation: Allocation) -> list[int]:
        """Return the ids of the jobs that carry the allocation's token."""
        return [job_id for job_id, comment in self.jobs() if str(allocation.token) in comment]

    def lose(self, *nodes: str) -> None:
        """Take the power from ``nodes`` at once."""
        for node in nodes:
            self.lab.kill_node(node)

    def end(self) -> None:
        """Cancel all jobs, bring every node back, close the ledger: the lab is as new."""
        self.ledger.close()
        for name in list(self.bin.iterdir()):
            name.unlink()
        heal(self.lab, self)

    def shim(self, program: str, body: str) -> None:
        """Put a script in front of ``program``; in it ``real`` is the true one."""
        real = shutil.which(program)
        path = self.bin / program
        path.write_text(f"#!/bin/bash\nreal={real}\n{body}\n")
        path.chmod(0o755)


def heal(lab: Lab, story: Story) -> None:
    """Make the lab as new: no jobs, all nodes idle."""
    ours = [str(job_id) for job_id, _ in story.jobs("PD", "R", "CF", "S", "CG")]
    if ours:
        story.slurm("scancel", *ours, check=False)
    status = lab.status()
    missing = {fact.name.removeprefix("slurmd.") for fact in status.daemons if fact.vital is not Vital.ALIVE}
    for name, state in (status.nodes or {}).items():
        # First back, then undrained: a node that is down for a reason that is not Slurm's own stays down.
        if name in missing or "*" in state or "NOT_RESPONDING" in state:
            lab.return_node(name)
    for name, state in (lab.status().nodes or {}).items():
        if "DRAIN" in state:
            story.slurm("scontrol", "update", f"nodename={name}", "state=undrain", check=False)
        if "DOWN" in state:
            story.slurm("scontrol", "update", f"nodename={name}", "state=resume", check=False)
    wait(lambda: lab.status().all_idle, f"all nodes idle: {lab.status().nodes}")


def _fields(line: str) -> Mapping[str, str]:
    words = (word.partition("=") for word in line.split())
    return {name: value for name, equals, value in words if equals}
