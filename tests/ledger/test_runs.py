from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from supervisor.clock import ManualClock
from supervisor.domain.action import Action, ActionKind, ActionState
from supervisor.domain.decision import Decision, Diagnosis, Evidence, NodeDecision, NodeMeasure, Verdict
from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import AllocationNo, JobId, NodeName, RunId, Token
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.errors import LedgerError, NothingMatched
from supervisor.ledger import Ledger, NewAllocation

NewRun = Callable[[Ledger], tuple[Run, Allocation, Action]]
NODES = (NodeName("gpu001"), NodeName("gpu002"), NodeName("gpu007"))


def _next(token: str, num_nodes: int = 3) -> NewAllocation:
    return NewAllocation(
        token=Token(token),
        num_nodes=num_nodes,
        excluded=(NodeName("gpu007"),),
        resume_from="/c/40",
        resume_step=40,
    )


def _end(ledger: Ledger, run_id: int, no: int) -> None:
    assert ledger.advance_allocation(
        run_id, no, expected=AllocationState.PLANNED, to=AllocationState.PENDING, job_id=JobId(900 + no)
    )
    assert ledger.advance_allocation(run_id, no, expected=AllocationState.PENDING, to=AllocationState.ENDED)


def test_a_new_run_comes_with_its_allocation_and_the_intent_to_submit_it(
    ledger: Ledger, new_run: NewRun
) -> None:
    run, allocation, action = new_run(ledger)
    assert ledger.run(run.id) == run
    assert run.state == RunState.QUEUED
    assert ledger.allocations(run.id) == (allocation,)
    assert ledger.allocation(run.id, 1).state == AllocationState.PLANNED
    assert ledger.live_allocations() == (allocation,)
    assert ledger.open_actions() == (action,)
    assert (action.key, action.kind, action.state) == (
        f"submit:{allocation.token}",
        ActionKind.SUBMIT,
        ActionState.PLANNED,
    )
    assert [event.kind for event in ledger.events(run.id)] == [
        "run_created",
        "allocation_planned",
        "action_planned",
    ]


def test_a_run_that_cannot_be_stored_leaves_nothing_behind(ledger: Ledger, new_run: NewRun) -> None:
    run, allocation, _ = new_run(ledger)
    with pytest.raises(LedgerError, match="there already"):
        ledger.create_run(
            uid="another",
            name="llama",
            owner="ada",
            cluster="c1",
            spec_json="{}",
            folder=Path("/x"),
            allocation=NewAllocation(token=allocation.token, num_nodes=1),
            action_payload="",
        )
    assert ledger.runs() == (run,)
    assert len(ledger.events()) == 3


def test_runs_are_found_by_number_uid_name_and_slurm_job_id(ledger: Ledger, new_run: NewRun) -> None:
    first, _, _ = new_run(ledger)
    second, _, _ = new_run(ledger)
    ledger.record_facts(second.id, 1, job_id=JobId(918273))
    assert [run.id for run in ledger.find_runs("1")] == [first.id]
    assert [run.id for run in ledger.find_runs(second.uid)] == [second.id]
    assert [run.id for run in ledger.find_runs("llama")] == [second.id, first.id]
    assert [run.id for run in ledger.find_runs("918273")] == [second.id]
    for text in ("nothing", "", "9" * 19, "9" * 5000, "%", "' OR 1=1 --", "\0", "\u0662"):
        assert ledger.find_runs(text) == ()


def test_what_does_not_exist_is_said_so(ledger: Ledger) -> None:
    with pytest.raises(NothingMatched, match="no run 7"):
        ledger.run(7)
    with pytest.raises(NothingMatched, match="no allocation 1"):
        ledger.allocation(7, 1)
    with pytest.raises(NothingMatched, match="no allocation 1"):
        ledger.record_facts(7, 1, last_step=3)


def test_runs_are_listed_by_state_and_owner(ledger: Ledger, new_run: NewRun) -> None:
    first, _, _ = new_run(ledger)
    second, _, _ = new_run(ledger)
    ledger.advance_run(first.id, expected=RunState.QUEUED, to=RunState.RUNNING, reason="job 1 runs")
    assert [run.id for run in ledger.runs({RunState.RUNNING})] == [first.id]
    assert [run.id for run in ledger.runs({RunState.QUEUED, RunState.RUNNING}, "ada")] == [
        first.id,
        second.id,
    ]
    assert ledger.runs(owner="bob") == ()
    assert ledger.runs(frozenset()) == ()


def test_a_run_moves_only_from_the_state_that_was_seen(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    clock.sleep(timedelta(minutes=5))
    assert ledger.advance_run(run.id, expected=RunState.QUEUED, to=RunState.RUNNING, reason="job 12 runs")
    assert not ledger.advance_run(run.id, expected=RunState.QUEUED, to=RunState.RUNNING, reason="job 12 runs")
    moved = ledger.run(run.id)
    assert (moved.state, moved.reason, moved.changed_at) == (RunState.RUNNING, "job 12 runs", clock.now())
    assert [event.text for event in ledger.events(run.id)][-1] == "queued -> running: job 12 runs"


def test_a_step_that_the_table_of_states_forbids_is_refused(ledger: Ledger, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    with pytest.raises(ValueError, match="cannot become waiting"):
        ledger.advance_run(run.id, expected=RunState.QUEUED, to=RunState.WAITING, reason="")
    with pytest.raises(ValueError, match="cannot become lost"):
        ledger.advance_allocation(run.id, 1, expected=AllocationState.PLANNED, to=AllocationState.LOST)
    assert len(ledger.events()) == 3


def test_a_reason_can_change_without_the_state_and_is_told_once(ledger: Ledger, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    assert ledger.set_run_reason(run.id, RunState.QUEUED, "waits for Resources")
    assert ledger.set_run_reason(run.id, RunState.QUEUED, "waits for Resources")
    assert not ledger.set_run_reason(run.id, RunState.HELD, "waits for Resources")
    assert [event.kind for event in ledger.events(run.id)].count("run_reason") == 1


def test_facts_come_with_the_move_they_justify(ledger: Ledger, clock: ManualClock, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    _end(ledger, run.id, 1)
    ended = ledger.allocation(run.id, 1)
    assert (ended.state, ended.job_id) == (AllocationState.ENDED, 901)
    assert not ledger.advance_allocation(
        run.id, 1, expected=AllocationState.PENDING, to=AllocationState.RUNNING, nodes=NODES
    )
    assert ledger.allocation(run.id, 1).nodes == ()


def test_facts_without_a_move_are_stored_once_and_told_once(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    first_step = clock.now() + timedelta(seconds=30)
    for _ in range(2):
        ledger.record_facts(run.id, 1, nodes=NODES, first_step_at=first_step, last_step=5, exit_code=None)
    ledger.record_facts(run.id, 1, nodes=tuple(reversed(NODES)), first_step_at=clock.now(), last_step=6)
    stored = ledger.allocation(run.id, 1)
    assert (stored.nodes, stored.first_step_at, stored.last_step) == (NODES, first_step, 6)
    told = [event.data for event in ledger.events(run.id) if event.kind == "allocation_facts"]
    assert told == [
        {"first_step_at": "2026-12-01T08:00:30.000000Z", "last_step": 5, "nodes": "gpu[001-002,007]"},
        {"last_step": 6},
    ]


def test_the_next_allocation_waits_for_the_end_of_the_one_before(ledger: Ledger, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)

    def plan(token: str, expected: RunState = RunState.RECOVERING) -> tuple[Allocation, Action] | None:
        return ledger.plan_allocation(
            run.id,
            expected=expected,
            allocation=_next(token),
            action_payload="",
            decision=None,
            diagnosis=None,
        )

    assert ledger.advance_run(run.id, expected=RunState.QUEUED, to=RunState.RECOVERING, reason="node lost")
    assert plan("second") is None
    _end(ledger, run.id, 1)
    assert plan("second", RunState.WAITING) is None
    planned = plan("second")
    assert planned is not None
    assert (planned[0].no, planned[0].excluded, planned[0].resume_step) == (2, ("gpu007",), 40)
    assert planned[0] == ledger.allocation(run.id, 2)
    assert plan("third") is None
    assert [row.no for row in ledger.live_allocations()] == [2]
    assert len(ledger.actions(run.id)) == 2


def test_a_lost_job_that_shows_up_again_is_not_taken_back_beside_its_successor(
    ledger: Ledger, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    ledger.advance_allocation(run.id, 1, expected=AllocationState.PLANNED, to=AllocationState.PENDING)
    ledger.advance_allocation(run.id, 1, expected=AllocationState.PENDING, to=AllocationState.LOST)
    assert ledger.plan_allocation(
        run.id,
        expected=RunState.QUEUED,
        allocation=_next("second"),
        action_payload="",
        decision=None,
        diagnosis=None,
    )
    assert not ledger.advance_allocation(
        run.id, 1, expected=AllocationState.LOST, to=AllocationState.RUNNING, job_id=JobId(5)
    )
    assert ledger.allocation(run.id, 1).state == AllocationState.LOST
    assert ledger.advance_allocation(run.id, 1, expected=AllocationState.LOST, to=AllocationState.ENDED)


def test_one_slurm_job_is_one_allocation_also_when_its_id_was_reused(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    first, _, _ = new_run(ledger)
    second, _, _ = new_run(ledger)
    ledger.record_facts(first.id, 1, job_id=JobId(7), submitted_at=clock.now())
    with pytest.raises(LedgerError, match="there already"):
        ledger.record_facts(second.id, 1, job_id=JobId(7), submitted_at=clock.now())
    ledger.record_facts(second.id, 1, job_id=JobId(7), submitted_at=clock.now() + timedelta(days=400))
    assert {run.id for run in ledger.find_runs("7")} == {first.id, second.id}


def test_a_decision_comes_back_as_it_was_taken(ledger: Ledger, clock: ManualClock, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    decision = Decision(
        run_id=run.id,
        allocation_no=AllocationNo(1),
        verdict=Verdict.RESUBMIT,
        rule="node-lost",
        text="gpu007 died: resubmit on 3 nodes from step 40",
        num_nodes=3,
        exclude=(NodeName("gpu007"), NodeName("gpu008")),
        resume_from="/c/40",
        resume_step=40,
        nodes=(
            NodeDecision(
                node=NodeName("gpu007"),
                measure=NodeMeasure.DRAIN,
                reason="NODE_FAIL",
                avoid_until=clock.now() + timedelta(hours=12),
            ),
        ),
        budget_left=4,
        expected_start=clock.now() + timedelta(minutes=1),
    )
    diagnosis = Diagnosis(
        failure_class=FailureClass.NODE_FAIL,
        nodes=(NodeName("gpu007"),),
        summary="Slurm lost gpu007",
        evidence=(Evidence(source="squeue", text="NODE_FAIL \x00 \ud800 $(touch x) '; DROP TABLE run; --"),),
        confidence=0.9,
        runner_up="user_code: no traceback in 0001.out",
    )
    ledger.record_decision(decision, diagnosis, clock.now())
    _end(ledger, run.id, 1)
    assert ledger.plan_allocation(
        run.id,
        expected=RunState.QUEUED,
        allocation=_next("second"),
        action_payload="",
        decision=decision,
        diagnosis=None,
    )
    first, second = ledger.decisions(run.id)
    assert first.decision == second.decision == decision
    assert (first.planned_no, second.planned_no) == (None, 2)
    assert first.diagnosis is not None
    assert first.diagnosis.evidence[0].text == "NODE_FAIL \x00 \ufffd $(touch x) '; DROP TABLE run; --"
    assert (first.diagnosis.failure_class, first.diagnosis.confidence) == (FailureClass.NODE_FAIL, 0.9)
    assert second.diagnosis is None


def test_a_decision_that_led_to_nothing_is_not_stored(ledger: Ledger, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    decision = Decision(
        run_id=run.id, allocation_no=AllocationNo(1), verdict=Verdict.RESUBMIT, rule="r", text="again"
    )
    for run_id in (run.id, RunId(99)):
        assert (
            ledger.plan_allocation(
                run_id,
                expected=RunState.QUEUED,
                allocation=_next("second"),
                action_payload="",
                decision=decision,
                diagnosis=None,
            )
            is None
        )
    assert ledger.decisions(run.id) == ()


def test_hostile_text_is_stored_as_text(ledger: Ledger) -> None:
    hostile = "'; DROP TABLE run; -- \0 \udcff $(reboot) :run % \u202e"
    run, _, _ = ledger.create_run(
        uid=hostile,
        name=hostile,
        owner=hostile,
        cluster=hostile,
        spec_json=hostile,
        folder=Path("/home/\u00e9'; --"),
        allocation=NewAllocation(token=Token("t"), num_nodes=1),
        action_payload=hostile,
    )
    clean = hostile.replace("\0", "\ufffd").replace("\udcff", "\ufffd")
    assert (run.name, run.folder) == (clean, Path("/home/\u00e9'; --"))
    assert [found.id for found in ledger.find_runs(hostile)] == [run.id]
    assert ledger.actions(run.id)[0].payload == clean


def test_times_are_kept_in_utc_and_naive_ones_are_refused(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    berlin = datetime(2026, 12, 1, 10, 30, 0, 123456, tzinfo=timezone(timedelta(hours=1)))
    ledger.record_facts(run.id, 1, started_at=berlin)
    stored = ledger.allocation(run.id, 1).started_at
    assert stored == berlin
    assert stored is not None
    assert stored.tzinfo == UTC
    with pytest.raises(ValueError, match="no time zone"):
        ledger.record_facts(run.id, 1, ended_at=datetime(2026, 12, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="no time zone"):
        ledger.avoid("gpu001", None, datetime(2026, 12, 1), "")  # noqa: DTZ001
    with pytest.raises(ValueError, match="not UTF-8"):
        ledger.create_run(
            uid="u",
            name="n",
            owner="o",
            cluster="c",
            spec_json="",
            folder=Path("/home/\udcff"),
            allocation=NewAllocation(token=Token("t"), num_nodes=1),
            action_payload="",
        )
