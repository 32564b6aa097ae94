"""The next move: total, budgeted, and never a loop on the user's own bug."""

import pytest

from supervisor.decide.next import is_over, move_after_end, move_while_live
from supervisor.decide.table import TABLE, Move, budget_for, spent
from supervisor.domain.decision import Verdict
from supervisor.domain.evidence import Phase
from supervisor.domain.facts import JobState
from supervisor.domain.failure import COMMUNICATION_CLASSES, NODE_CLASSES, USER_CLASSES, FailureClass
from supervisor.domain.policy import Policy
from supervisor.domain.run import Allocation, AllocationState, RunState
from tests.unit.facts import NOW, SECOND, allocation, diagnosis, job, marker, run, sighting, spec

POLICY = Policy()


def ended(no: int, failure_class: FailureClass | None = None, *, start: int | None = None) -> Allocation:
    return allocation(no, state=AllocationState.ENDED, failure_class=failure_class, resume_step=start)


def move(failure_class: FailureClass, *history: Allocation, step: int | None = None, **options: object):
    return move_after_end(
        run(),
        options.get("spec", spec()),  # type: ignore[arg-type]
        history or (ended(1),),
        diagnosis(failure_class, confidence=options.get("confidence", 0.95)),  # type: ignore[arg-type]
        newest_step=step,
        policy=POLICY,
    )


def test_the_table_has_a_rule_for_every_failure_class() -> None:
    assert set(TABLE) == set(FailureClass)
    for failure_class in NODE_CLASSES:
        assert TABLE[failure_class].move is Move.OFF_THE_NODE
    for failure_class in USER_CLASSES:
        assert TABLE[failure_class].move is Move.STOP
    for failure_class in COMMUNICATION_CLASSES:
        assert TABLE[failure_class].move is Move.RETRY


@pytest.mark.parametrize("failure_class", list(FailureClass))
@pytest.mark.parametrize("step", [None, 0, 50])
def test_every_failure_class_has_an_answer(failure_class: FailureClass, step: int | None) -> None:
    answer = move(failure_class, step=step)
    assert answer.verdict in set(Verdict) - {Verdict.KEEP, Verdict.BLIND, Verdict.WAIT}
    assert answer.text
    assert answer.rule


def test_a_finished_training_finishes_the_run() -> None:
    answer = move_after_end(run(), spec(), (ended(1),), None, newest_step=9, policy=POLICY)
    assert answer.verdict is Verdict.FINISH


def test_a_users_bug_stops_at_once_when_it_is_sure() -> None:
    assert move(FailureClass.USER_CODE).verdict is Verdict.STOP


def test_p7_a_users_bug_that_is_in_doubt_stops_after_two_attempts() -> None:
    first = move(FailureClass.USER_CODE, ended(1), confidence=0.5)
    second = move(FailureClass.USER_CODE, ended(1, FailureClass.USER_CODE), ended(2), confidence=0.5)
    assert (first.verdict, second.verdict) == (Verdict.RESUBMIT, Verdict.STOP)


def test_an_unknown_failure_is_retried_once_and_then_held() -> None:
    first = move(FailureClass.UNKNOWN, ended(1))
    second = move(FailureClass.UNKNOWN, ended(1, FailureClass.UNKNOWN), ended(2))
    assert (first.verdict, second.verdict) == (Verdict.RESUBMIT, Verdict.HOLD)


def test_only_progress_refills_a_budget() -> None:
    without = (ended(1, FailureClass.UNKNOWN), ended(2, start=10))
    assert move(FailureClass.UNKNOWN, *without, step=10).verdict is Verdict.HOLD
    assert move(FailureClass.UNKNOWN, *without, step=20).verdict is Verdict.RESUBMIT


def test_failures_before_the_last_progress_do_not_count() -> None:
    history = (
        ended(1, FailureClass.NCCL_NETWORK),
        ended(2, FailureClass.NCCL_NETWORK, start=10),
        ended(3, FailureClass.NCCL_NETWORK, start=30),
        ended(4, start=30),
    )
    # The second attempt came to step 30 and failed there, the third failed without getting further.
    assert spent(history, FailureClass.NCCL_NETWORK, 30) == 2
    assert spent(history, FailureClass.UNKNOWN, 30) == 0


def test_a_time_limit_is_free_with_progress_and_held_without() -> None:
    stuck = (ended(1, FailureClass.TIME_LIMIT, start=10), ended(2, start=10))
    assert move(FailureClass.TIME_LIMIT, *stuck, step=50).verdict is Verdict.RESUBMIT
    assert move(FailureClass.TIME_LIMIT, *stuck, step=10).verdict is Verdict.HOLD


def test_a_cancelled_job_is_not_taken_up_again() -> None:
    assert move(FailureClass.CANCELLED).verdict is Verdict.ACCEPT_CANCEL


def test_a_run_that_is_being_cancelled_is_cancelled_whatever_ended_its_job() -> None:
    answer = move_after_end(
        run(RunState.CANCELLING),
        spec(),
        (ended(1),),
        diagnosis(FailureClass.NODE_FAIL),
        newest_step=5,
        policy=POLICY,
    )
    assert answer.verdict is Verdict.ACCEPT_CANCEL


def test_memory_is_retried_only_where_more_nodes_are_allowed() -> None:
    small, full = ended(1), allocation(1, num_nodes=6)
    assert move(FailureClass.HOST_OOM, small).grow
    assert move(FailureClass.HOST_OOM, full).verdict is Verdict.STOP


def test_a_bad_checkpoint_costs_one_step_back() -> None:
    assert move(FailureClass.CHECKPOINT_CORRUPT, step=40).step_back


def test_the_job_files_budget_outranks_the_sites_and_the_tables() -> None:
    asked = spec(recovery={"budgets": {"node_fail": 2}})
    site = Policy(budgets={FailureClass.NODE_FAIL: 5, FailureClass.UNKNOWN: 7})
    assert budget_for(diagnosis(FailureClass.NODE_FAIL), asked, site) == 2
    assert budget_for(diagnosis(FailureClass.UNKNOWN), asked, site) == 7


def test_a_completing_job_without_suspects_is_waited_for() -> None:
    seen = sighting(Phase.COMPLETING, marker=marker(1), job=job(JobState.COMPLETING))
    assert not is_over(seen, suspects=False, policy=POLICY)
    assert is_over(seen, suspects=True, policy=POLICY)


def test_a_completing_job_is_judged_when_patience_is_over() -> None:
    seen = sighting(Phase.COMPLETING, marker=marker(1, at=NOW - 60 * SECOND), job=job(JobState.COMPLETING))
    assert is_over(seen, suspects=False, policy=POLICY)


def test_a_signalled_script_is_judged_only_on_slurms_word() -> None:
    signalled = marker(143, reason="signalled", at=NOW - 600 * SECOND)
    seen = sighting(Phase.COMPLETING, marker=signalled, job=job(JobState.COMPLETING))
    assert not is_over(seen, suspects=False, policy=POLICY)


def test_p3_a_blind_look_changes_nothing() -> None:
    seen = sighting(Phase.BLIND, why="squeue timed out")
    assert move_while_live(allocation(), seen, POLICY).verdict is Verdict.BLIND


def test_a_vanished_job_is_waited_for_and_then_held_for_a_person() -> None:
    first = allocation(noticed_at=NOW - 60 * SECOND)
    later = allocation(noticed_at=NOW - POLICY.lost_after)
    missing = sighting(Phase.MISSING, why="no source")
    assert move_while_live(first, missing, POLICY).verdict is Verdict.KEEP
    held = move_while_live(later, missing, POLICY)
    assert held.verdict is Verdict.HOLD
    assert "supervise resume 1" in held.text


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_of_a_live_allocation_has_an_answer(phase: Phase) -> None:
    assert move_while_live(allocation(), sighting(phase), POLICY).text
