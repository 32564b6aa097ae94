"""The rendered scripts on a real Slurm: claim, signals, marker, and hostile text."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.folder import RunFolder, run_folder
from supervisor.domain.ids import AllocationNo, RunId, Token
from supervisor.domain.spec import JobSpec
from supervisor.domain.submission import AllocationRequest, SubmissionPlan
from supervisor.intake.plan import plan_submission, write_files, write_private_file
from supervisor.lab import Lab, LabSpec

TRAINING = """\
import os, signal, sys, time
rank, asked = os.environ["RANK"], []
def note(number, frame):
    print(f"rank {rank} was told {signal.Signals(number).name}", flush=True)
    asked.append(number)
if sys.argv[1] == "handles":
    signal.signal(signal.SIGUSR1, note)
    signal.signal(signal.SIGTERM, note)
print(f"rank {rank} of {os.environ['WORLD_SIZE']} is ready", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    time.sleep(0.05)
    if asked:
        time.sleep(0.5)
        print(f"rank {rank} has saved", flush=True)
        sys.exit(0)
print(f"rank {rank} came to its end", flush=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(tmp_path_factory.mktemp("lab"), LabSpec(nodes=4)) as lab:
        yield lab


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


class Submission:
    """One allocation of a run in ``chdir``, written and submitted as the supervisor does it."""

    def __init__(self, lab: Lab, chdir: Path, *, no: int = 1, **spec: Any) -> None:
        parsed = JobSpec.model_validate({"name": "story", "nodes": 1} | spec)
        self.lab = lab
        self.no = AllocationNo(no)
        self.folder = RunFolder(run_folder(chdir, parsed.name, "abcdefgh"))
        request = AllocationRequest(
            run_id=RunId(1),
            uid="abcdefgh",
            spec=parsed,
            folder=self.folder.root,
            chdir=chdir,
            no=self.no,
            token=Token("abcdefgh" + "abcdefg2"),
            num_nodes=parsed.nodes.want,
            excluded=(),
            resume_from=None,
            resume_step=None,
        )
        self.plan: SubmissionPlan = plan_submission(request, template_dirs=())
        write_files(self.plan)
        environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "SUPERVISE_PYTHON": sys.executable}
        data = "".join(f"{name}={value}\0" for name, value in (environment | lab.env()).items())
        write_private_file(self.folder.environment(), data.encode())

    def submit(self, *options: str) -> str:
        return self.slurm("sbatch", "--parsable", *self.plan.options, *options, str(self.plan.script))

    def slurm(self, *argv: str) -> str:
        environ = {"PATH": os.environ["PATH"], "HOME": "/tmp", **self.lab.env()}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        return self.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def finish(self, *jobs: str, seconds: float = 60) -> None:
        for job in jobs:
            wait_for(lambda job=job: self.state(job) not in {"PENDING", "RUNNING", "COMPLETING"}, seconds)

    def log(self) -> str:
        path = self.folder.log(self.no)
        return path.read_text() if path.exists() else ""

    def marker(self) -> dict[str, Any]:
        return dict(json.loads(self.folder.exit_marker(self.no).read_text()))

    def events(self) -> list[str]:
        lines = self.folder.journal(self.no).read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        return [entry["event"] for entry in entries]


def training(tmp_path: Path, mode: str, seconds: float = 40) -> str:
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    return shlex.join([sys.executable, str(program), mode, str(seconds)])


def test_a_command_that_fails_leaves_its_code_in_job_and_marker(lab: Lab, tmp_path: Path) -> None:
    run = Submission(lab, tmp_path, launch={"template": "srun", "command": "exit 3"})
    job = run.submit()
    run.finish(job)
    marker = run.marker()
    assert (marker["rc"], marker["signal"], marker["reason"]) == (3, 0, "step_ended")
    assert (marker["job_id"], marker["token"]) == (int(job), "abcdefghabcdefg2")
    assert run.events() == ["claimed", "step_started", "step_ended"]
    assert "ExitCode=3:0" in run.slurm("scontrol", "show", "job", job)


def test_of_two_jobs_with_one_token_exactly_one_trains(lab: Lab, tmp_path: Path) -> None:
    command = 'echo "$SLURM_JOB_ID trains"; sleep 2'
    run = Submission(lab, tmp_path, launch={"template": "srun", "command": command})
    jobs = [run.submit(), run.submit()]
    run.finish(*jobs)
    claim = json.loads((run.folder.claim(run.no) / "job").read_text())
    winner = str(claim["job_id"])
    (loser,) = {*jobs} - {winner}
    assert run.log().count(" trains") == 1
    assert f"{winner} trains" in run.log()
    assert run.marker()["job_id"] == int(winner)
    assert run.marker()["rc"] == 0
    lost = json.loads((run.folder.root / "exit" / f"0001.lost-{loser}.json").read_text())
    assert (lost["rc"], lost["reason"]) == (77, "claim_lost")
    assert "ExitCode=77:0" in run.slurm("scontrol", "show", "job", loser)


def test_an_older_allocation_does_not_start_after_a_newer_one(lab: Lab, tmp_path: Path) -> None:
    launch = {"template": "srun", "command": 'echo "attempt $SUPERVISE_ATTEMPT trains"'}
    newer = Submission(lab, tmp_path, no=2, launch=launch)
    newer.finish(newer.submit())
    older = Submission(lab, tmp_path, no=1, launch=launch)
    older.finish(older.submit())
    assert "attempt 2 trains" in newer.log()
    assert "trains" not in older.log()
    assert older.marker()["rc"] == 77


def test_a_job_that_slurm_requeued_does_not_train_again(lab: Lab, tmp_path: Path) -> None:
    command = 'echo "start"; sleep 60'
    run = Submission(lab, tmp_path, launch={"template": "srun", "command": command})
    job = run.submit("--requeue")
    wait_for(lambda: "start" in run.log())
    run.slurm("scontrol", "requeue", job)
    wait_for(lambda: run.state(job) == "PENDING")
    # Slurm lets a requeued job wait (cred_expire); StartTime=now right after a requeue may fail it (22.05).
    wait_for(lambda: run.marker()["rc"] == 76, 90)
    run.finish(job)
    assert run.log().count("start\n") == 1
    assert run.marker()["reason"] == "requeued"
    assert json.loads(run.folder.journal(run.no).read_text().splitlines()[-1])["event"] == "requeued"


@pytest.mark.parametrize("template", ["srun", "torchrun"])
def test_the_time_limit_is_announced_once_to_every_rank_that_handles_the_signal(
    lab: Lab, tmp_path: Path, template: str
) -> None:
    command = training(tmp_path, "handles")
    run = Submission(
        lab, tmp_path, nodes=3, launch={"template": template, "command": command, "procs_per_node": 1}
    )
    job = run.submit()
    wait_for(lambda: run.log().count("is ready") == 3)
    run.slurm("scancel", "--batch", "--signal=USR1", job)
    run.finish(job)
    for rank in range(3):
        assert run.log().count(f"rank {rank} was told SIGUSR1") == 1
        assert f"rank {rank} has saved" in run.log()
    assert run.folder.stop_file(run.no).exists()
    assert run.events() == ["claimed", "step_started", "signal", "step_ended"]
    assert (run.marker()["rc"], run.marker()["reason"]) == (0, "signalled")


@pytest.mark.parametrize("template", ["srun", "torchrun"])
def test_a_training_that_handles_no_signal_is_not_ended_before_its_time(
    lab: Lab, tmp_path: Path, template: str
) -> None:
    command = training(tmp_path, "ignorant", 4)
    run = Submission(lab, tmp_path, nodes=2, launch={"template": template, "command": command})
    job = run.submit()
    wait_for(lambda: run.log().count("is ready") == 2)
    run.slurm("scancel", "--batch", "--signal=USR1", job)
    run.finish(job)
    assert run.log().count("came to its end") == 2
    assert (run.marker()["rc"], run.marker()["reason"]) == (0, "signalled")


def test_slurm_itself_announces_the_time_limit(lab: Lab, tmp_path: Path) -> None:
    # Slurm does it up to 60 s early, here as soon as the job starts, maybe before the training does.
    command = 'until [ -e "$SUPERVISE_STOP_FILE" ]; do sleep 0.1; done'
    launch = {"template": "srun", "command": command, "signal_before": "110s"}
    run = Submission(lab, tmp_path, slurm={"time": 2}, launch=launch)
    job = run.submit()
    run.finish(job, seconds=90)
    assert run.state(job) != "TIMEOUT"
    assert run.marker()["reason"] == "signalled"


@pytest.mark.parametrize("template", ["srun", "torchrun"])
def test_a_cancelled_training_has_time_to_save_and_leaves_a_marker(
    lab: Lab, tmp_path: Path, template: str
) -> None:
    command = training(tmp_path, "handles")
    run = Submission(lab, tmp_path, nodes=2, launch={"template": template, "command": command})
    job = run.submit()
    wait_for(lambda: run.log().count("is ready") == 2)
    run.slurm("scancel", job)
    run.finish(job)
    wait_for(run.folder.exit_marker(run.no).exists)
    assert run.log().count("was told SIGTERM") >= 2
    assert run.log().count("has saved") == 2
    assert run.marker()["reason"] == "signalled"
    assert "signal" in run.events()


def test_a_training_that_loses_a_node_ends_and_says_that_it_was_told_to(lab: Lab, tmp_path: Path) -> None:
    command = training(tmp_path, "handles", 60)
    run = Submission(lab, tmp_path, nodes=3, launch={"template": "srun", "command": command})
    job = run.submit()
    wait_for(lambda: run.log().count("is ready") == 3)
    nodes = run.slurm("scontrol", "show", "hostnames", run.slurm("squeue", "-h", "-j", job, "-o", "%N"))
    lost = nodes.splitlines()[-1]
    lab.kill_node(lost)
    try:
        wait_for(run.folder.exit_marker(run.no).exists, 60)
        run.finish(job)
        assert run.state(job) == "NODE_FAIL"
        # Its code may well be 0: the ranks that are left save at TERM, and that is what srun returns (22.05).
        assert run.marker()["reason"] == "signalled"
        assert run.log().count("has saved") == 2
    finally:
        lab.return_node(lost)


HOSTILE = (
    "$(touch pwned) `touch pwned` \"; touch pwned; ' $HOME {{ 7*7 }} \u00e9\u4e16 \\ %j * ~ #SBATCH --requeue"
)


def test_hostile_text_is_text_for_slurm_and_for_both_scripts(lab: Lab, tmp_path: Path) -> None:
    chdir = tmp_path / "a dir $(touch pwned) %j 'x' \\n"
    chdir.mkdir()
    lines = f"{HOSTILE}\n#SBATCH --nodes=4\nEOF\n"
    show = (
        "import json, os, sys; "
        "print(json.dumps([os.environ['A'], os.environ['SUPERVISE_NAME'], *sys.argv[1:]]))"
    )
    run = Submission(
        lab,
        chdir,
        name=HOSTILE,
        slurm={"comment": lines, "extra": {"mail-user": HOSTILE}},
        launch={
            "template": "srun",
            "command": shlex.join([sys.executable, "-c", show, lines]),
            "setup": f"B={shlex.quote(lines)}\nexport A=$B",
            "env": {"A": "before", "C": lines},
        },
    )
    job = run.submit()
    run.finish(job)
    assert run.marker()["rc"] == 0, run.log()
    assert json.loads(run.log().splitlines()[-1]) == [lines, HOSTILE, lines]
    assert run.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%j") == HOSTILE
    assert "supervise:abcdefghabcdefg2" in run.slurm(
        "squeue", "-h", "-t", "all", "-j", job, "-O", "Comment:2000"
    )
    shown = run.slurm("scontrol", "show", "job", job)
    assert "Requeue=0" in shown
    assert "NumNodes=1" in shown
    assert not list(tmp_path.rglob("pwned"))
