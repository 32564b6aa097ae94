"""Measures the recovery from a lost node, next to the same fault under Slurm's own --requeue on the same lab.

    make bench-recovery RUNS=5

Both run the same training (examples/train.py) on four of six nodes and lose one of them at a random step.
The lab has SlurmdTimeout=15 and Slurm's default delay of 120 s for requeued jobs. Printed are medians of the
times from the fault to: noticed (the supervisor judged it; Slurm requeued it), queued again, first new step.
"""

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from examples.demo import REPOSITORY, TRAIN, Drill, Failed

STEPS = 60
LAB = ("--slurmd-timeout", "15", "--requeue-delay", "120")

# What a careful user writes today: --requeue, append, and resume from the newest save that has its marker.
BASELINE = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --nodes=4 --ntasks-per-node=1 --exclusive --time=30
export SUPERVISE_ATTEMPT=${{SLURM_RESTART_COUNT:-0}} SUPERVISE_PROGRESS={directory}/progress.jsonl
newest=$(ls -d {directory}/ckpt/*/.metadata 2>/dev/null | sort | tail -n 1)
export SUPERVISE_RESUME_FROM=${{newest%/.metadata}}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) OMP_NUM_THREADS=1
date +%s.%N >>{directory}/starts
exec srun --kill-on-bad-exit=1 {python} {train} --steps {steps} --checkpoint-dir {directory}/ckpt \\
    --checkpoint-every 5 --step-time 0.25 --global-batch 24 --done-file {directory}/done.json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from the fault."""

    noticed: float
    queued: float
    first_step: float


def measure_supervised(drill: Drill, name: str, rng: random.Random) -> Recovery:
    """Lose a node under the supervisor."""
    run_id = drill.submit(name, steps=STEPS, nodes="{min: 2, want: 4, step: 1}")
    step = drill.wait_for_step(run_id, name, rng.randint(12, 30))
    fault = kill_one(drill, drill.history(run_id)[0]["job_id"], rng)
    drill.wait_for_state(run_id, "done", 300)
    first, last = drill.history(run_id)[0], drill.history(run_id)[-1]
    stages = [first["noticed_at"], last["accepted_at"], last["first_step_at"]]
    noticed, queued, first_step = (datetime.fromisoformat(str(stage)).timestamp() - fault for stage in stages)
    print(f"  {name}: killed at step {step}: {noticed:.1f} {queued:.1f} {first_step:.1f} s", flush=True)
    return Recovery(noticed=noticed, queued=queued, first_step=first_step)


def measure_requeued(drill: Drill, name: str, rng: random.Random) -> Recovery:
    """Lose a node under sbatch --requeue."""
    directory = drill.root / name
    directory.mkdir()
    script = directory / "job.sh"
    script.write_text(BASELINE.format(directory=directory, python=sys.executable, train=TRAIN, steps=STEPS))
    job_id = int(drill.command("sbatch", "--parsable", f"--output={directory}/out", str(script)))
    target = rng.randint(12, 30)
    wait(lambda: requeued_step(directory) >= target and any((directory / "ckpt").glob("*/.metadata")), 180)
    step, before = requeued_step(directory), len(progress(directory))
    fault = kill_one(drill, job_id, rng)
    noticed = wait(lambda: drill.job_field(job_id, "Restarts") == "1", 120) - fault
    wait(lambda: new_step_at(directory, before, fault) is not None, 400)
    first_step = (new_step_at(directory, before, fault) or 0.0) - fault
    done = directory / "done.json"
    wait(done.exists, 200)
    print(f"  {name}: killed at step {step}: {noticed:.1f} {noticed:.1f} {first_step:.1f} s", flush=True)
    return Recovery(noticed=noticed, queued=noticed, first_step=first_step)


def progress(directory: Path) -> list[str]:
    """Return the progress lines of a baseline job."""
    path = directory / "progress.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def requeued_step(directory: Path) -> int:
    """Return the newest step of a baseline job."""
    lines = [line for line in progress(directory) if line.endswith("}")]
    return int(json.loads(lines[-1])["step"]) if lines else -1


def new_step_at(directory: Path, before: int, fault: float) -> float | None:
    """Return when the restarted script took its first step: its second start is in the file of starts."""
    starts = (directory / "starts").read_text().split()
    if len(starts) < 2:
        return None
    times = [float(json.loads(line)["time"]) for line in progress(directory)[before:] if line.endswith("}")]
    return next((moment for moment in times if moment > max(fault, float(starts[1]))), None)


def kill_one(drill: Drill, job_id: int, rng: random.Random) -> float:
    """Take the power from a node of the job that is not the batch host; return when."""
    listed = drill.job_field(int(job_id), "NodeList")
    nodes = drill.command("scontrol", "show", "hostnames", listed).split()
    fault = time.time()
    drill.supervise("lab", "kill-node", rng.choice(nodes[1:]), "--dir", str(drill.root / "lab"))
    return fault


def repair(drill: Drill) -> None:
    """Bring every node back for the next round."""
    for number in range(1, 7):
        node = f"node{number:03d}"
        fields = drill.node_fields(node)
        if "DRAIN" in fields or "DOWN" in fields:
            drill.supervise("lab", "return-node", node, "--dir", str(drill.root / "lab"))
            if "DRAIN" in fields:
                drill.command("scontrol", "update", f"nodename={node}", "state=resume")
                drill.supervise("nodes", "clear", node)
    wait(lambda: drill.command("sinfo", "-h", "-o", "%T").split() == ["idle"], 60)


def wait(condition: Callable[[], bool], timeout_s: float) -> float:
    """Wait until ``condition`` holds and return the time."""
    until = time.time() + timeout_s
    while time.time() < until:
        if condition():
            return time.time()
        time.sleep(0.25)
    raise Failed(f"nothing happened within {timeout_s:.0f} s")


def print_table(runs: int, supervised: list[Recovery], requeued: list[Recovery]) -> None:
    """Print medians and ratios."""
    print(f"\n{platform.platform()}, {os.cpu_count()} cores, n={runs}, medians in seconds from the fault")
    print(f"{'stage':<12}{'supervise':>12}{'--requeue':>12}{'ratio':>8}")
    for stage in ("noticed", "queued", "first_step"):
        ours = statistics.median(getattr(item, stage) for item in supervised)
        theirs = statistics.median(getattr(item, stage) for item in requeued)
        print(f"{stage:<12}{ours:>12.1f}{theirs:>12.1f}{theirs / ours:>8.1f}")
    gap = statistics.median(item.queued - item.noticed for item in supervised)
    print(f"noticed to queued, supervise: {gap:.1f} s")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".bench")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311 - repeatable, not secret
    drill = Drill.up(arguments.dir.resolve(), lab_options=LAB)
    supervised: list[Recovery] = []
    requeued: list[Recovery] = []
    try:
        for index in range(arguments.runs):
            watcher = drill.watch()
            try:
                supervised.append(measure_supervised(drill, f"supervised{index}", rng))
            finally:
                watcher.send_signal(signal.SIGINT)
                watcher.wait(timeout=30)
            repair(drill)
            requeued.append(measure_requeued(drill, f"requeued{index}", rng))
            repair(drill)
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"the benchmark FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        drill.down()
    print_table(arguments.runs, supervised, requeued)
    return 0


if __name__ == "__main__":
    sys.exit(main())
