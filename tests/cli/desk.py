"""A user at a terminal: the real command line on a simulated Slurm, a ledger in a file, a clock to move."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from supervisor.cli.app import App
from supervisor.cli.main import main
from supervisor.clock import ManualClock
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo
from supervisor.domain.run import Allocation, Run
from supervisor.ledger.store import Ledger
from supervisor.slurm.simulated import SimulatedSlurm
from tests.unit.facts import NOW

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = """\
name: {name}
nodes: {{min: 2, want: 4, step: 2}}
slurm: {{partition: main, time: 1:00:00}}
launch: {{template: torchrun, command: python train.py}}
checkpoint: {{dir: {name}-ckpt}}
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def json(self) -> Any:
        return json.loads(self.out)


class EventfulClock(ManualClock):
    """A clock on which things happen: each pause first lets the next event come."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.events: list[Callable[[], object]] = []

    def sleep(self, duration: timedelta) -> None:
        super().sleep(duration)
        if self.events:
            self.events.pop(0)()


class Desk:
    """One user's terminal; every ``say`` is a new process as far as the command line can see."""

    def __init__(self, root: Path, **slurm: Any) -> None:
        self.root = root
        self.clock = EventfulClock()
        self.slurm = SimulatedSlurm(self.clock, nodes=[f"node{n:03d}" for n in range(1, 7)], **slurm)
        self.environ = {
            "HOME": str(root / "home"),
            "PATH": "/nonexistent",
            "SUPERVISE_LEDGER": f"sqlite:///{root}/ledger.db",
            "SUPERVISE_SLURM_USER": "alice",
        }

    def say(self, *argv: str, **environ: str) -> Said:
        """Type a command; colours and control characters come through as they would on a terminal."""
        app = App(
            environ=self.environ | environ,
            clock=self.clock,
            slurm=self.slurm,
            site_file=self.root / "site.toml",
        )
        with CliRunner().isolation(color=True) as (out, err, _):
            try:
                main(list(argv), app=app)
            except SystemExit as end:
                code = int(end.code or 0)
            return Said(code, _text(out), _text(err))

    def write_job(self, name: str = "demo", **parts: str) -> Path:
        path = self.root / f"{parts.pop('file', name)}.yaml"
        path.write_text(JOB.format(name=name) + "".join(f"{key}: {text}\n" for key, text in parts.items()))
        return path

    def submit(self, name: str = "demo", *argv: str, **parts: str) -> Run:
        """Submit a job file and return its run."""
        said = self.say("submit", str(self.write_job(name, **parts)), "--parsable", *argv)
        assert said.code == 0, said.err
        return self.ledger().run(int(said.out.strip().partition(";")[2]))

    def ledger(self) -> Ledger:
        return Ledger.open(self.environ["SUPERVISE_LEDGER"], self.clock)

    def run(self, run: Run) -> Run:
        return self.ledger().run(run.id)

    def last(self, run: Run) -> Allocation:
        return self.ledger().allocations(run.id)[-1]

    def end_training(self, run: Run, rc: int = 0) -> None:
        """Let the newest allocation's training end with ``rc``, as its script would write it down."""
        last = self.last(run)
        assert last.job_id is not None
        marker = RunFolder(run.folder).exit_marker(last.no)
        marker.parent.mkdir(parents=True, exist_ok=True)
        fields = {"rc": rc, "reason": "step_ended", "at": self.clock.now().timestamp()}
        marker.write_text(json.dumps(fields | {"job_id": last.job_id, "token": last.token}))
        self.slurm.finish(last.job_id, rc)

    def write_log(self, run: Run, text: str | bytes, no: int = 1) -> Path:
        path = RunFolder(run.folder).log(AllocationNo(no))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path


def supervise(*argv: str, cwd: Path, environ: Mapping[str, str], **options: Any) -> Said:
    """Run ``python -m supervisor`` in a process of its own, with no Slurm on its PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", *argv],
        cwd=cwd,
        env={"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "HOME": str(cwd), **environ},
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def _text(stream: io.BytesIO) -> str:
    return stream.getvalue().decode()
