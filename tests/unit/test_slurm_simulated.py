from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.clock import ManualClock
from supervisor.domain.facts import Accepted, Doubt, JobRow, JobState, Known, Refused, StartBid, Unknown
from supervisor.domain.ids import JobId, NodeName, Token, find_token, format_token
from supervisor.slurm.client import Slurm
from supervisor.slurm.simulated import SimulatedSlurm

SCRIPT = Path("/run/job.sh")
TOKEN = Token("abcdefghijklmnop")
OURS = f"--comment={format_token(TOKEN)}"
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def slurm(clock: ManualClock) -> SimulatedSlurm:
    return SimulatedSlurm(clock)


def submit(slurm: Slurm, *options: str) -> JobId:
    outcome = slurm.submit(SCRIPT, options)
    assert isinstance(outcome, Accepted), outcome
    return outcome.job_id


def row(slurm: Slurm, job_id: JobId) -> JobRow:
    reading = slurm.job(job_id)
    assert isinstance(reading, Known)
    assert reading.value is not None
    return reading.value


def ours(slurm: Slurm) -> list[JobRow]:
    reading = slurm.jobs()
    assert isinstance(reading, Known)
    return [row for row in reading.value if find_token(row.comment) == TOKEN]


def test_jobs_start_in_the_order_in_which_they_came(slurm: SimulatedSlurm) -> None:
    first, second, third = (submit(slurm, f"--nodes={size}") for size in (3, 2, 1))

    assert [row(slurm, number).state for number in (first, second, third)] == [
        JobState.RUNNING,
        JobState.PENDING,
        JobState.PENDING,
    ]
    slurm.finish(first)
    assert row(slurm, first).state is JobState.COMPLETED
    assert row(slurm, second).nodes == ("node001", "node002")
    assert row(slurm, third).nodes == ("node003",)


def test_a_frozen_controller_answers_nothing_and_takes_the_job_all_the_same(slurm: SimulatedSlurm) -> None:
    slurm.freeze()

    assert isinstance(slurm.submit(SCRIPT, [OURS]), Doubt)
    for reading in (slurm.controller(), slurm.jobs(), slurm.job(JobId(1)), slurm.nodes(), slurm.partitions()):
        assert isinstance(reading, Unknown)
    assert isinstance(slurm.predict_start(SCRIPT, [], 1), Doubt)
    assert isinstance(slurm.cancel(JobId(1)), Doubt)
    assert isinstance(slurm.drain(NodeName("node001"), "x"), Doubt)
    slurm.thaw()
    assert len(ours(slurm)) == 1


def test_a_dead_controller_takes_no_job(slurm: SimulatedSlurm) -> None:
    slurm.freeze(accept=False)
    assert isinstance(slurm.submit(SCRIPT, [OURS]), Doubt)
    slurm.thaw()

    assert ours(slurm) == []


def test_a_reply_that_is_lost_is_lost_once(slurm: SimulatedSlurm) -> None:
    slurm.lose_reply_next_submit()

    assert isinstance(slurm.submit(SCRIPT, [OURS]), Doubt)
    assert len(ours(slurm)) == 1
    assert isinstance(slurm.submit(SCRIPT, []), Accepted)


def test_a_lost_node_is_noticed_after_the_detection_time(slurm: SimulatedSlurm, clock: ManualClock) -> None:
    job_id = submit(slurm, "--nodes=4")
    slurm.fail_node("node003")

    clock.sleep(timedelta(seconds=9))
    assert row(slurm, job_id).state is JobState.RUNNING
    clock.sleep(timedelta(seconds=1))
    assert row(slurm, job_id).state is JobState.NODE_FAIL
    assert row(slurm, job_id).end_at == START + timedelta(seconds=10)
    reading = slurm.accounting([job_id], START)
    assert isinstance(reading, Known)
    assert [book.state for book in reading.value] == [JobState.NODE_FAIL]
    waiting = submit(slurm, "--nodes=4")
    assert row(slurm, waiting).state is JobState.PENDING
    slurm.return_node("node003")
    assert row(slurm, waiting).state is JobState.RUNNING


def test_every_end_has_its_own_state(slurm: SimulatedSlurm) -> None:
    timed_out, preempted, cancelled, failed = (submit(slurm) for _ in range(4))
    slurm.time_out(timed_out)
    slurm.preempt(preempted)
    slurm.cancel_by_user(cancelled, uid=1234)
    slurm.finish(failed, 7)

    assert [row(slurm, number).state for number in (timed_out, preempted, cancelled, failed)] == [
        JobState.TIMEOUT,
        JobState.PREEMPTED,
        JobState.CANCELLED,
        JobState.FAILED,
    ]
    assert row(slurm, failed).exit_code == 7
    reading = slurm.accounting([cancelled], START)
    assert isinstance(reading, Known)
    assert reading.value[0].cancelled_by == 1234
    with pytest.raises(ValueError, match="has ended before"):
        slurm.finish(failed)


def test_accounting_remembers_what_the_controller_forgot(slurm: SimulatedSlurm, clock: ManualClock) -> None:
    job_id = submit(slurm)
    slurm.finish(job_id)
    clock.sleep(timedelta(seconds=301))

    assert slurm.job(job_id) == Known(None, clock.now())
    reading = slurm.accounting([job_id], START)
    assert isinstance(reading, Known)
    assert [book.state for book in reading.value] == [JobState.COMPLETED]
    slurm.accounting_on = False
    assert isinstance(slurm.accounting([job_id], START), Unknown)


def test_an_ordinary_user_is_denied_a_drain(slurm: SimulatedSlurm) -> None:
    slurm.may_drain = False
    outcome = slurm.drain(NodeName("node001"), "x")

    assert isinstance(outcome, Refused)
    assert outcome.denied


def test_a_node_that_left_the_configuration_makes_exclusions_refused(slurm: SimulatedSlurm) -> None:
    slurm.fail_node("node004")
    slurm.remove_node("node004")

    assert isinstance(slurm.submit(SCRIPT, ["--exclude=node004"]), Refused)
    reading = slurm.partitions()
    assert isinstance(reading, Known)
    assert reading.value[0].nodes == ("node001", "node002", "node003")


def test_a_prediction_waits_for_running_jobs(slurm: SimulatedSlurm) -> None:
    submit(slurm, "--nodes=3")

    now = slurm.predict_start(SCRIPT, [], 1)
    later = slurm.predict_start(SCRIPT, [], 4)
    assert isinstance(now, StartBid)
    assert isinstance(later, StartBid)
    assert now.start_at == START
    assert later.start_at == START + timedelta(days=1)


def test_calls_are_counted(slurm: SimulatedSlurm) -> None:
    slurm.jobs()
    slurm.jobs()
    slurm.nodes()
    submit(slurm)

    assert slurm.calls == {"jobs": 2, "nodes": 1, "submit": 1}
