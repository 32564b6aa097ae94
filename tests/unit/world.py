"""A whole supervisor in one process: a simulated Slurm, a ledger in a file, a clock that tests move."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.clock import ManualClock
from supervisor.domain.facts import ENDED_JOBS, JobRow, Known
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo, find_token
from supervisor.domain.policy import Mode, NodePolicy, Policy
from supervisor.domain.run import Allocation, Run
from supervisor.domain.signature import Signature
from supervisor.ledger.store import Ledger
from supervisor.slurm.client import Slurm
from supervisor.slurm.simulated import SimulatedSlurm
from supervisor.sweep.begin import begin_run, plan_beginning
from supervisor.sweep.circle import Sweep, SweepReport
from tests.unit.dcp_files import set_mtime, write_checkpoint
from tests.unit.facts import NOW, spec

NODES = tuple(f"node{number:03d}" for number in range(1, 7))


class Crash(BaseException):
    """The process is killed here; nothing that catches exceptions may catch it."""


class Fused:
    """Stands before an object and ends the process at one of its side effects, before it or after it."""

    def __init__(self, target: object, effects: frozenset[str], fuse: "Fuse") -> None:
        self._target = target
        self._effects = effects
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._effects:
            return found
        return self._fuse.guard(name, found)


class Fuse:
    """Counts side effects and crashes at the one with number ``at`` (from 1); 0 never does."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.count = 0
        self.where = ""

    def guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            self.count += 1
            mine = self.count == self.at
            if mine:
                self.where = f"{'after' if self.after else 'before'} {name} (effect {self.count})"
            if mine and not self.after:
                raise Crash(self.where)
            result = call(*args, **options)
            if mine:
                raise Crash(self.where)
            return result

        return guarded


LEDGER_EFFECTS = frozenset(
    {
        "acquire_lease",
        "advance_allocation",
        "advance_run",
        "append_event",
        "avoid",
        "create_run",
        "plan_action",
        "plan_allocation",
        "record_decision",
        "record_drain",
        "record_facts",
        "release_lease",
        "renew_lease",
        "set_run_reason",
        "settle_action",
        "start_action",
    }
)
SLURM_EFFECTS = frozenset({"submit", "drain", "cancel"})


class World:
    """One user's supervisor and cluster."""

    def __init__(self, root: Path, *, url: str | None = None, **slurm: Any) -> None:
        self.root = root
        self.clock = ManualClock(NOW)
        self.slurm = SimulatedSlurm(self.clock, nodes=NODES, **slurm)
        self.ledger = Ledger.open(url or f"sqlite:///{root}/ledger.db", self.clock)
        self.policy = Policy(nodes=NodePolicy(mode=Mode.ACT))
        self.signatures: tuple[Signature, ...] = ()
        self._actors = 0

    def submit(self, *, fuse: Fuse | None = None, **parts: Any) -> Run:
        parts.setdefault("nodes", {"min": 2, "want": 6, "step": 2})
        beginning = plan_beginning(spec(**parts), cwd=self.root, template_dirs=())
        run, _ = begin_run(
            beginning,
            self._fused(self.ledger, LEDGER_EFFECTS, fuse),
            self._fused(self.slurm, SLURM_EFFECTS, fuse),
            owner="alice",
            actor=self._actor(),
            environ={"PATH": "/bin", "HF_TOKEN": "x"},
        )
        return run

    def sweep(self, *, fuse: Fuse | None = None, dry_run: bool = False) -> SweepReport:
        ledger: Ledger = self._fused(self.ledger, LEDGER_EFFECTS, fuse)
        slurm: Slurm = self._fused(self.slurm, SLURM_EFFECTS, fuse)
        sweep = Sweep(
            ledger,
            slurm,
            self.clock,
            policy=self.policy,
            signatures=self.signatures,
            owner="alice",
            actor=self._actor(),
        )
        return sweep.run(dry_run=dry_run)

    def sweep_for(self, duration: timedelta, *, every: timedelta = timedelta(seconds=5)) -> SweepReport:
        """Sweep repeatedly while the clock runs; return the last report."""
        until = self.clock.now() + duration
        report = self.sweep()
        while self.clock.now() < until:
            self.clock.sleep(every)
            report = self.sweep()
        return report

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(timedelta(seconds=seconds))

    def jobs(self) -> tuple[JobRow, ...]:
        reading = self.slurm.jobs()
        assert isinstance(reading, Known)
        return reading.value

    def live_jobs(self) -> tuple[JobRow, ...]:
        return tuple(row for row in self.jobs() if row.state not in ENDED_JOBS)

    def tokens(self) -> list[str]:
        """Return the tokens of all jobs that are or were real, refused ones left out."""
        return [str(find_token(row.comment)) for row in self.jobs() if row.reason != "BadConstraints"]

    def last(self, run: Run) -> Allocation:
        return self.ledger.allocations(run.id)[-1]

    def leave_marker(self, run: Run, no: int, rc: int, *, job_id: int | None = None) -> None:
        """Write what the script leaves when it ends."""
        folder = RunFolder(run.folder)
        path = folder.exit_marker(AllocationNo(no))
        path.parent.mkdir(parents=True, exist_ok=True)
        owner = job_id if job_id is not None else self.ledger.allocation(run.id, AllocationNo(no)).job_id
        path.write_text(
            json.dumps(
                {
                    "rc": rc,
                    "reason": "step_ended",
                    "at": self.clock.now().timestamp(),
                    "job_id": owner,
                    "token": "",
                }
            )
        )

    def save(self, directory: str, step: int, *, attempt: int = 1, late_s: float = 0) -> Path:
        """Write a whole checkpoint, committed now or ``late_s`` seconds from now."""
        path = write_checkpoint(self.root / directory / f"step-{step}-a{attempt}")
        for file in path.iterdir():
            set_mtime(file, self.clock.now().timestamp() + late_s)
        return path

    def finish(self, run: Run, rc: int = 0) -> None:
        """Let the newest allocation's training end with ``rc``."""
        last = self.last(run)
        assert last.job_id is not None
        self.leave_marker(run, last.no, rc)
        self.slurm.finish(last.job_id, rc)

    def _actor(self) -> str:
        self._actors += 1
        return f"elsewhere:{self._actors}"

    @staticmethod
    def _fused(target: Any, effects: frozenset[str], fuse: Fuse | None) -> Any:
        return Fused(target, effects, fuse) if fuse is not None else target
