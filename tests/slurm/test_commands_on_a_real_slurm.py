"""What only a real Slurm can show of the command adapter: other users, accounting, text by other hands."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.clock import SystemClock
from supervisor.domain.facts import (
    ENDED_JOBS,
    Accepted,
    Applied,
    Doubt,
    JobRow,
    JobState,
    Known,
    Refused,
    Unknown,
)
from supervisor.domain.ids import JobId, NodeName, Token, find_token, format_token
from supervisor.lab import Lab, LabSpec
from supervisor.slurm.commands import CommandSlurm, Timeouts
from supervisor.slurm.process import CommandResult, run_command

SINCE = datetime(2020, 1, 1, tzinfo=UTC)
BASE = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="commands-", dir="/tmp"))
    folder.chmod(0o755)
    spec = LabSpec(nodes=3, accounting=True, shared=os.geteuid() == 0)
    with Lab.up(folder / "lab", spec) as lab:
        yield lab
    shutil.rmtree(folder)


@pytest.fixture
def slurm(lab: Lab) -> Iterator[CommandSlurm]:
    slurm = CommandSlurm({**BASE, **lab.env()}, SystemClock())
    yield slurm
    for row in jobs(slurm):
        if row.state not in ENDED_JOBS:
            slurm.cancel(row.job_id)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#SBATCH --output=/dev/null\nexec sleep 300\n")
    return path


def scontrol(lab: Lab, *words: str) -> None:
    subprocess.run(["scontrol", *words], env={**BASE, **lab.env()}, check=True, timeout=30)


def wait(done: Callable[[], bool], seconds: float = 30) -> None:
    for _ in range(int(seconds * 5)):
        if done():
            return
        time.sleep(0.2)
    raise AssertionError("it did not come to pass")


def jobs(slurm: CommandSlurm) -> tuple[JobRow, ...]:
    reading = slurm.jobs()
    assert isinstance(reading, Known), reading
    return reading.value


def accounting(slurm: CommandSlurm, *job_ids: JobId) -> tuple[JobRow, ...]:
    reading = slurm.accounting(job_ids, SINCE)
    assert isinstance(reading, Known), reading
    return reading.value


def submit(slurm: CommandSlurm, script: Path, *options: str) -> JobId:
    outcome = slurm.submit(script, options)
    assert isinstance(outcome, Accepted), outcome
    return outcome.job_id


def run_as_nobody(argv: Sequence[str], *, environment: Mapping[str, str], timeout_s: float) -> CommandResult:
    """Run as an account without rights; as root by runuser, otherwise by sudo."""
    become = ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else ["sudo", "-n", "-u", "nobody"]
    settings = [f"{name}={value}" for name, value in environment.items()]
    return run_command([*become, "env", *settings, *argv], environment=environment, timeout_s=timeout_s)


def test_an_ordinary_user_is_denied_a_drain_and_nothing_is_changed(lab: Lab, slurm: CommandSlurm) -> None:
    nobody = CommandSlurm({**BASE, **lab.env()}, SystemClock(), runner=run_as_nobody)

    outcome = nobody.drain(NodeName("node001"), "for a test")

    assert isinstance(outcome, Refused)
    assert outcome.denied
    reading = nobody.nodes()
    assert isinstance(reading, Known)
    assert not any(row.drained or row.reason for row in reading.value)


def test_an_ordinary_user_is_denied_the_cancelling_of_anothers_job(
    lab: Lab, slurm: CommandSlurm, script: Path
) -> None:
    job_id = submit(slurm, script)
    nobody = CommandSlurm({**BASE, **lab.env()}, SystemClock(), runner=run_as_nobody)

    outcome = nobody.cancel(job_id)

    assert isinstance(outcome, Refused)
    assert outcome.denied
    assert [row.state for row in jobs(slurm) if row.job_id == job_id] != [JobState.CANCELLED]


def test_the_jobs_of_others_are_not_listed_but_can_be_asked_for(
    lab: Lab, slurm: CommandSlurm, script: Path
) -> None:
    job_id = submit(slurm, script)
    nobody = CommandSlurm({**BASE, **lab.env()}, SystemClock(), runner=run_as_nobody)

    reading = nobody.jobs()
    asked = nobody.job(job_id)

    assert isinstance(reading, Known)
    assert reading.value == ()
    assert isinstance(asked, Known)
    assert asked.value is not None
    assert asked.value.user != "nobody"


def test_a_reason_or_comment_of_several_lines_makes_no_node(lab: Lab, slurm: CommandSlurm) -> None:
    record = "NodeName=evil CPUTot=4 RealMemory=1 State=DOWN"
    scontrol(lab, "update", "nodename=node003", "state=drain", f"reason=a = b [x@1]\n{record} Reason=c")
    scontrol(lab, "update", "nodename=node003", f"comment=x\n{record}\nNodeName=node001 State=DOWN")
    try:
        reading = slurm.nodes()
        assert isinstance(reading, Known)
        rows = {str(row.name): row for row in reading.value}
        assert "evil" not in rows
        assert not any(row.down for row in rows.values())
        assert rows["node003"].drained
        assert rows["node003"].reason == "a = b [x@1]"
        assert rows["node003"].reason_at is not None
    finally:
        scontrol(lab, "update", "nodename=node003", "comment=", "state=undrain")


def test_hostile_text_survives_accounting_without_moving_a_column(slurm: CommandSlurm, script: Path) -> None:
    name = "a|b\n99|FAKE|NODE_FAIL"
    token = Token("accountaccountac")
    comment = f"{format_token(token)}|x\n99|FAKE"
    job_id = submit(slurm, script, f"--job-name={name}", f"--comment={comment}")
    # A job that ends before slurmdbd has heard of its start is booked under the name "allocation".
    wait(lambda: any(row.state is JobState.RUNNING for row in accounting(slurm, job_id)))
    assert isinstance(slurm.cancel(job_id), Applied)

    wait(lambda: any(row.state is JobState.CANCELLED for row in accounting(slurm, job_id)))
    (row,) = accounting(slurm, job_id)
    assert row.name == name
    assert row.cancelled_by == os.geteuid()
    assert row.raw_state == f"CANCELLED by {os.geteuid()}"
    assert row.end_at is not None
    assert abs(row.end_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert row.partition == "main"
    assert find_token(row.comment) in {token, None}  # kept only with AccountingStoreFlags=job_comment
    assert 99 not in {other.job_id for other in accounting(slurm)}


def test_an_exit_code_is_the_same_in_the_queue_and_in_accounting(slurm: CommandSlurm, tmp_path: Path) -> None:
    failing = tmp_path / "fail.sh"
    failing.write_text("#!/bin/sh\n#SBATCH --output=/dev/null\nexit 42\n")
    killed = tmp_path / "kill.sh"
    killed.write_text("#!/bin/sh\n#SBATCH --output=/dev/null\nkill -9 $$\n")
    ids = [submit(slurm, failing), submit(slurm, killed)]

    wait(lambda: {row.job_id for row in accounting(slurm, *ids) if row.state in ENDED_JOBS} == set(ids))
    queue = {row.job_id: (row.state, row.exit_code, row.exit_signal) for row in jobs(slurm)}
    books = {row.job_id: (row.state, row.exit_code, row.exit_signal) for row in accounting(slurm, *ids)}
    assert books[ids[0]] == queue[ids[0]] == (JobState.FAILED, 42, 0)
    assert books[ids[1]] == queue[ids[1]] == (JobState.FAILED, 0, 9)


def test_a_job_put_back_in_the_queue_counts_its_restarts_and_leaves_a_record_of_each(
    lab: Lab, slurm: CommandSlurm, script: Path
) -> None:
    job_id = submit(slurm, script, "--requeue")
    wait(lambda: any(row.state is JobState.RUNNING for row in jobs(slurm) if row.job_id == job_id))

    scontrol(lab, "requeue", str(job_id))

    wait(lambda: any(row.restart_count == 1 for row in jobs(slurm) if row.job_id == job_id))
    wait(lambda: len(accounting(slurm, job_id)) == 2)


def test_array_tasks_and_ranges_do_not_disturb_the_list(slurm: CommandSlurm, script: Path) -> None:
    job_id = submit(slurm, script, "--array=0-9%2")

    wait(lambda: len([row for row in jobs(slurm) if row.state is JobState.RUNNING]) == 2)
    assert job_id in {row.job_id for row in jobs(slurm)}


def test_what_sbatch_itself_rejects_is_refused(slurm: CommandSlurm, script: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo no interpreter\n")
    answers = [
        slurm.submit(script, ["--no-such-option"]),
        slurm.submit(script, ["--time=soon"]),
        slurm.submit(script, ["--nodes=many"]),
        slurm.submit(script, ["--gres=gpu:1"]),
        slurm.submit(script, ["--constraint=nowhere"]),
        slurm.submit(tmp_path / "missing.sh", []),
        slurm.submit(plain, []),
        slurm.submit(script, ["--comment=" + "x" * 200_000]),
    ]

    assert [type(answer) for answer in answers] == [Refused] * len(answers)


def test_our_kill_of_sbatch_leaves_a_doubt_and_one_job(lab: Lab, slurm: CommandSlurm, script: Path) -> None:
    hasty = CommandSlurm({**BASE, **lab.env()}, SystemClock(), timeouts=Timeouts(submit_s=0.5))
    comment = f"--comment={format_token(Token('hastyhastyhastyh'))}"
    lab.freeze_controller()
    try:
        outcome = hasty.submit(script, [comment])
    finally:
        lab.thaw_controller()

    assert isinstance(outcome, Doubt)

    def found() -> list[JobRow]:
        return [row for row in jobs(slurm) if find_token(row.comment) == "hastyhastyhastyh"]

    wait(lambda: bool(found()))
    assert len(found()) == 1


def test_variables_of_the_caller_do_not_change_what_is_read(
    lab: Lab, slurm: CommandSlurm, script: Path
) -> None:
    job_id = submit(slurm, script, "--nodes=2")
    noisy = CommandSlurm(
        {
            **BASE,
            **lab.env(),
            "SQUEUE_FORMAT": "%i",
            "SQUEUE_STATES": "SUSPENDED",
            "SQUEUE_USERS": "nobody",
            "SLURM_TIME_FORMAT": "relative",
            "SBATCH_TEST_ONLY": "1",
            "SLURM_CLUSTERS": "elsewhere",
            "TZ": "Asia/Tokyo",
        },
        SystemClock(),
    )

    (row,) = [row for row in jobs(noisy) if row.job_id == job_id]
    (same,) = [row for row in jobs(slurm) if row.job_id == job_id]
    assert row.submit_at == same.submit_at
    assert isinstance(noisy.submit(script, ["--hold"]), Accepted)


def test_a_dead_controller_is_unknown_to_every_read(lab: Lab, slurm: CommandSlurm, script: Path) -> None:
    lab.kill_controller()
    try:
        readings = [slurm.controller(), slurm.jobs(), slurm.job(JobId(1)), slurm.nodes(), slurm.partitions()]
        outcome = slurm.submit(script, [])
        cancelled = slurm.cancel(JobId(1))
    finally:
        lab.start_controller()

    assert [type(reading) for reading in readings] == [Unknown] * 5
    assert isinstance(outcome, Doubt)
    assert isinstance(cancelled, Doubt)
    wait(lambda: isinstance(slurm.controller(), Known))
