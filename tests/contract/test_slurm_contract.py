"""What the simulated and the real Slurm have in common, so that a sweep tested on one works on the other."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest

from supervisor.clock import ManualClock, SystemClock
from supervisor.domain.facts import (
    ENDED_JOBS,
    Accepted,
    Applied,
    Controller,
    Doubt,
    JobRow,
    JobState,
    Known,
    NodeBase,
    NodeFlag,
    NodeRow,
    Refused,
    StartBid,
    Unknown,
)
from supervisor.domain.ids import JobId, NodeName, Token, find_token, format_token
from supervisor.lab import Lab, LabSpec
from supervisor.slurm.client import Slurm
from supervisor.slurm.commands import CommandSlurm
from supervisor.slurm.simulated import SimulatedSlurm

NODES = ("node001", "node002", "node003", "node004")
TOKEN = Token("abcdefghijklmnop")
MIN_JOB_AGE_S = 5


class Bench(Protocol):
    """A cluster to test on, and the hands to make things happen there."""

    slurm: Slurm
    script: Path

    def wait(self, done: Callable[[], bool], seconds: float = 20) -> None: ...
    def end_script(self, job_id: JobId, exit_code: int) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def kill_node(self, name: str) -> object: ...
    def return_node(self, name: str) -> None: ...


class SimulatedBench:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.simulation = SimulatedSlurm(
            self.clock, nodes=NODES, min_job_age=timedelta(seconds=MIN_JOB_AGE_S), user="root"
        )
        self.slurm: Slurm = self.simulation
        self.script = folder / "job.sh"
        self.freeze = self.simulation.freeze
        self.thaw = self.simulation.thaw
        self.kill_node = self.simulation.fail_node
        self.return_node = self.simulation.return_node
        self.end_script = self.simulation.finish

    def wait(self, done: Callable[[], bool], seconds: float = 20) -> None:
        for _ in range(int(seconds) + 1):
            if done():
                return
            self.clock.sleep(timedelta(seconds=1))
        raise AssertionError("it did not come to pass")


class RealBench:
    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder = folder
        self.lab = lab
        self.slurm: Slurm = CommandSlurm(
            {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "TZ": "Asia/Tokyo", **lab.env()}, SystemClock()
        )
        self.script = folder / "job.sh"
        self.script.write_text(
            "#!/bin/sh\n#SBATCH --no-requeue\n#SBATCH --output=/dev/null\n"
            f'end="{folder}/end.$SLURM_JOB_ID"\n'
            'while [ ! -e "$end" ]; do sleep 0.1; done\nexit "$(cat "$end")"\n'
        )
        self.freeze = lab.freeze_controller
        self.thaw = lab.thaw_controller
        self.kill_node = lab.kill_node
        self.return_node = lab.return_node

    def end_script(self, job_id: JobId, exit_code: int) -> None:
        part = self.folder / f"part.{job_id}"
        part.write_text(str(exit_code))
        part.rename(self.folder / f"end.{job_id}")

    def wait(self, done: Callable[[], bool], seconds: float = 20) -> None:
        for _ in range(int(seconds * 10)):
            if done():
                return
            time.sleep(0.1)
        raise AssertionError("it did not come to pass")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="contract-"))
    with Lab.up(folder / "lab", LabSpec(nodes=len(NODES), min_job_age_s=MIN_JOB_AGE_S)) as lab:
        yield lab
    shutil.rmtree(folder)


@pytest.fixture(params=["simulated", "real"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "simulated":
        yield SimulatedBench(tmp_path)
        return
    real = RealBench(tmp_path, request.getfixturevalue("lab"))
    yield real
    for job in jobs(real):
        if job.state not in ENDED_JOBS:
            real.slurm.cancel(job.job_id)
    for name, row in nodes(real).items():
        if row.drained:
            real.slurm.undrain(NodeName(name))
    real.wait(lambda: all(row.usable and row.base is NodeBase.IDLE for row in nodes(real).values()), 40)


def jobs(bench: Bench) -> tuple[JobRow, ...]:
    reading = bench.slurm.jobs()
    assert isinstance(reading, Known), reading
    return reading.value


def nodes(bench: Bench) -> dict[str, NodeRow]:
    reading = bench.slurm.nodes()
    assert isinstance(reading, Known), reading
    return {row.name: row for row in reading.value}


def job(bench: Bench, job_id: JobId) -> JobRow | None:
    reading = bench.slurm.job(job_id)
    assert isinstance(reading, Known), reading
    return reading.value


def live_job(bench: Bench, job_id: JobId) -> JobRow:
    row = job(bench, job_id)
    assert row is not None
    return row


def submit(bench: Bench, *options: str) -> JobId:
    outcome = bench.slurm.submit(bench.script, options)
    assert isinstance(outcome, Accepted), outcome
    return outcome.job_id


def submit_and_run(bench: Bench, *options: str) -> JobId:
    job_id = submit(bench, *options)
    bench.wait(lambda: live_job(bench, job_id).state is JobState.RUNNING)
    return job_id


def test_the_controller_says_which_cluster_it_is(bench: Bench) -> None:
    reading = bench.slurm.controller()

    assert isinstance(reading, Known)
    assert isinstance(reading.value, Controller)
    assert reading.value.cluster
    assert reading.value.version.startswith("2")
    assert reading.value.min_job_age_s == MIN_JOB_AGE_S


def test_all_nodes_are_listed_and_usable(bench: Bench) -> None:
    found = nodes(bench)

    assert tuple(sorted(found)) == NODES
    assert all(row.usable and not row.reason for row in found.values())
    assert all(row.partitions == ("main",) for row in found.values())


def test_the_default_partition_holds_all_nodes_and_has_no_limit(bench: Bench) -> None:
    reading = bench.slurm.partitions()

    assert isinstance(reading, Known)
    (row,) = reading.value
    assert (row.name, row.up, row.default, row.max_nodes) == ("main", True, True, None)
    assert row.nodes == NODES


def test_a_job_is_found_again_by_the_token_in_its_comment(bench: Bench) -> None:
    job_id = submit_and_run(bench, "--nodes=2", f"--comment=mine {format_token(TOKEN)}", "--job-name=llama")

    (row,) = [row for row in jobs(bench) if find_token(row.comment) == TOKEN]
    assert row.job_id == job_id
    assert row.name == "llama"
    assert len(row.nodes) == row.num_nodes == 2
    assert row.user
    assert row.restart_count == 0
    assert row.submit_at is not None
    assert row.start_at is not None
    assert row.submit_at <= row.start_at


def test_excluded_nodes_are_not_given_to_the_job(bench: Bench) -> None:
    job_id = submit_and_run(bench, "--nodes=2", "--exclude=node[001-002]")

    assert set(live_job(bench, job_id).nodes) == {"node003", "node004"}


def test_an_exclusion_of_a_node_that_does_not_exist_is_refused(bench: Bench) -> None:
    outcome = bench.slurm.submit(bench.script, ["--nodes=1", "--exclude=node099"])

    assert isinstance(outcome, Refused)
    assert "Invalid node name" in outcome.message
    assert not outcome.denied


def test_exclusions_that_leave_too_few_nodes_are_refused(bench: Bench) -> None:
    comment = f"--comment={format_token(TOKEN)}"
    outcome = bench.slurm.submit(bench.script, ["--nodes=2", "--exclude=node[001-003]", comment])

    assert isinstance(outcome, Refused)
    assert "Requested node configuration is not available" in outcome.message


def test_a_refused_job_may_be_seen_as_failed_by_bad_constraints_but_never_starts(bench: Bench) -> None:
    comment = f"--comment={format_token(TOKEN)}"
    bench.slurm.submit(bench.script, ["--nodes=2", "--exclude=node[001-003]", comment])

    ghosts = [row for row in jobs(bench) if find_token(row.comment) == TOKEN and not row.nodes]
    assert [(row.state, row.reason) for row in ghosts[-1:]] == [(JobState.FAILED, "BadConstraints")]


def test_a_partition_that_does_not_exist_is_refused(bench: Bench) -> None:
    outcome = bench.slurm.submit(bench.script, ["--partition=nowhere"])

    assert isinstance(outcome, Refused)
    assert "nvalid partition" in outcome.message


def test_drained_nodes_make_a_job_wait_where_excluded_ones_get_it_refused(bench: Bench) -> None:
    for node in NODES[:3]:
        assert isinstance(bench.slurm.drain(NodeName(node), "for a test"), Applied)
    job_id = submit(bench, "--nodes=2")

    assert live_job(bench, job_id).state is JobState.PENDING
    for node in NODES[:3]:
        assert isinstance(bench.slurm.undrain(NodeName(node)), Applied)
    bench.wait(lambda: live_job(bench, job_id).state is JobState.RUNNING, 40)


def test_a_job_larger_than_its_partition_is_accepted_and_waits_for_ever(bench: Bench) -> None:
    job_id = submit(bench, "--nodes=9")

    never = {"PartitionConfig", "PartitionNodeLimit"}
    bench.wait(lambda: live_job(bench, job_id).reason in never)
    assert live_job(bench, job_id).state is JobState.PENDING
    assert live_job(bench, job_id).num_nodes == 9


@pytest.mark.parametrize(("exit_code", "state"), [(0, JobState.COMPLETED), (3, JobState.FAILED)])
def test_a_script_that_ends_shows_its_exit_code(bench: Bench, exit_code: int, state: JobState) -> None:
    job_id = submit_and_run(bench)
    bench.end_script(job_id, exit_code)

    bench.wait(lambda: live_job(bench, job_id).state in ENDED_JOBS)
    row = live_job(bench, job_id)
    assert (row.state, row.exit_code, row.exit_signal) == (state, exit_code, 0)
    assert row.end_at is not None


def test_an_ended_job_is_forgotten_after_min_job_age(bench: Bench) -> None:
    job_id = submit_and_run(bench)
    bench.end_script(job_id, 0)

    bench.wait(lambda: job(bench, job_id) is None, 60)
    assert job_id not in {row.job_id for row in jobs(bench)}


def test_an_id_that_was_never_given_is_known_to_be_unknown(bench: Bench) -> None:
    reading = bench.slurm.job(JobId(4_000_000))

    assert isinstance(reading, Known)
    assert reading.value is None


def test_a_cancelled_job_is_gone_or_going(bench: Bench) -> None:
    job_id = submit_and_run(bench)

    assert isinstance(bench.slurm.cancel(job_id), Applied)
    bench.wait(lambda: (row := job(bench, job_id)) is None or row.state is JobState.CANCELLED)


def test_cancelling_a_job_that_is_not_there_changes_nothing(bench: Bench) -> None:
    assert isinstance(bench.slurm.cancel(JobId(4_000_000)), Applied)


def test_a_drain_shows_our_reason_and_undrain_takes_it_away(bench: Bench) -> None:
    reason = "supervise: Xid 79 on gpu [3] (run 7)"
    before = datetime(2020, 1, 1, tzinfo=UTC)
    assert isinstance(bench.slurm.drain(NodeName("node002"), reason), Applied)

    row = nodes(bench)["node002"]
    assert row.drained
    assert not row.usable
    assert not row.down
    assert row.reason == reason
    assert row.reason_user
    assert row.reason_at is not None
    assert row.reason_at > before
    assert isinstance(bench.slurm.undrain(NodeName("node002")), Applied)
    assert not nodes(bench)["node002"].drained
    assert isinstance(bench.slurm.undrain(NodeName("node002")), Applied)


def test_a_node_that_does_not_exist_cannot_be_drained(bench: Bench) -> None:
    outcome = bench.slurm.drain(NodeName("node099"), "for a test")

    assert isinstance(outcome, Refused)
    assert not outcome.denied


@pytest.mark.parametrize("reason", ["", "two\nlines", "a|b", "a=b", "x" * 201, "\u00e9", "'quoted'", " x"])
def test_a_reason_that_would_not_come_back_unchanged_is_an_error(bench: Bench, reason: str) -> None:
    with pytest.raises(ValueError, match="drain reason"):
        bench.slurm.drain(NodeName("node001"), reason)


@pytest.mark.parametrize("name", ["node[001-002]", "node001,node002", "-v", "a b", ""])
def test_only_one_plain_node_is_drained_at_a_time(bench: Bench, name: str) -> None:
    with pytest.raises(ValueError, match="not a node name"):
        bench.slurm.drain(NodeName(name), "for a test")
    with pytest.raises(ValueError, match="not a node name"):
        bench.slurm.undrain(NodeName(name))


def test_a_prediction_names_time_and_nodes_and_submits_nothing(bench: Bench) -> None:
    bid = bench.slurm.predict_start(bench.script, ["--exclude=node001"], 3)

    assert isinstance(bid, StartBid)
    assert bid.num_nodes == 3
    assert bid.nodes == ("node002", "node003", "node004")
    assert not [row for row in jobs(bench) if row.state not in ENDED_JOBS]


def test_a_prediction_refuses_what_cannot_start_on_the_nodes_that_are_up(bench: Bench) -> None:
    assert isinstance(bench.slurm.predict_start(bench.script, [], 9), Refused)
    bench.slurm.drain(NodeName("node001"), "for a test")

    assert isinstance(bench.slurm.predict_start(bench.script, [], 4), Refused)
    assert isinstance(bench.slurm.predict_start(bench.script, [], 3), StartBid)


def test_hostile_comments_and_names_come_back_as_they_are(bench: Bench) -> None:
    name = "a b|\nJobState=FAILED $(touch x)"
    comment = f"{format_token(TOKEN)}|x\n4242|FAKE|evil JobState=FAKE NodeName=evil '\"`id`"
    job_id = submit(bench, f"--comment={comment}", f"--job-name={name}")

    row = live_job(bench, job_id)
    assert row.comment == comment
    assert row.name == name
    assert 4242 not in {row.job_id for row in jobs(bench)}
    assert all(row.state is not JobState.UNKNOWN for row in jobs(bench))


def test_a_frozen_controller_leaves_a_doubt_and_the_job_is_found_after_the_thaw(bench: Bench) -> None:
    comment = f"--comment=frozen {format_token(Token('frozenfrozenfroz'))}"
    bench.freeze()
    try:
        outcome = bench.slurm.submit(bench.script, [comment])
        reading = bench.slurm.jobs()
        drained = bench.slurm.drain(NodeName("node001"), "for a test")
    finally:
        bench.thaw()

    assert isinstance(outcome, Doubt)
    assert isinstance(reading, Unknown)
    assert isinstance(drained, Doubt)
    bench.wait(lambda: any("frozen " in row.comment for row in jobs(bench)))
    assert len([row for row in jobs(bench) if "frozen " in row.comment]) == 1


def test_a_node_that_loses_power_takes_its_job_with_it(bench: Bench) -> None:
    job_id = submit_and_run(bench, "--nodes=2", "--exclude=node[003-004]", "--no-requeue")
    bench.kill_node("node002")

    ended: list[JobRow] = []

    def lost() -> bool:
        ended.extend(row for row in jobs(bench) if row.job_id == job_id and row.state in ENDED_JOBS)
        return bool(ended)

    bench.wait(lost, 40)
    assert ended[0].state is JobState.NODE_FAIL
    assert "node002" in ended[0].nodes
    row = nodes(bench)["node002"]
    assert row.down
    assert NodeFlag.NOT_RESPONDING in row.flags
    assert "ot responding" in row.reason
    bench.return_node("node002")
    bench.wait(lambda: nodes(bench)["node002"].usable, 40)
