from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa

from supervisor.clock import ManualClock
from supervisor.domain.action import Action, ActionKind, ActionState
from supervisor.domain.ids import NodeName
from supervisor.domain.run import Allocation, Run
from supervisor.errors import LedgerError
from supervisor.ledger import DrainState, Ledger

NewRun = Callable[[Ledger], tuple[Run, Allocation, Action]]


def test_the_same_intent_is_stored_once(ledger: Ledger) -> None:
    first = ledger.plan_action(ActionKind.DRAIN, "drain:gpu007:1", node="gpu007", payload="{}")
    again = ledger.plan_action(ActionKind.DRAIN, "drain:gpu007:1", node="gpu007", payload="other")
    assert again == first
    assert first.node == NodeName("gpu007")
    assert [event.kind for event in ledger.events()] == ["action_planned"]


def test_an_action_is_claimed_by_one_and_settled_once(ledger: Ledger, clock: ManualClock) -> None:
    action = ledger.plan_action(ActionKind.CANCEL, "cancel:1")
    clock.sleep(timedelta(seconds=3))
    assert ledger.start_action(action.id, "login1:77")
    assert not ledger.start_action(action.id, "login2:88")
    assert ledger.settle_action(action.id, ActionState.APPLIED, "scancel: done")
    assert not ledger.settle_action(action.id, ActionState.REFUSED, "too late")
    assert not ledger.start_action(action.id, "login2:88")
    assert ledger.open_actions() == ()
    assert [event.text for event in ledger.events()] == [
        "cancel planned",
        "cancel acting: login1:77",
        "cancel applied: scancel: done",
    ]


def test_an_action_in_doubt_stays_open_and_is_tried_again(ledger: Ledger, new_run: NewRun) -> None:
    run, _, submit = new_run(ledger)
    assert ledger.start_action(submit.id, "login1:77")
    assert ledger.settle_action(submit.id, ActionState.UNKNOWN, "sbatch timed out")
    assert [action.state for action in ledger.open_actions({ActionKind.SUBMIT})] == [ActionState.UNKNOWN]
    assert ledger.open_actions({ActionKind.DRAIN}) == ()
    assert ledger.settle_action(
        submit.id, ActionState.APPLIED, "found by its token", expected=ActionState.UNKNOWN
    )
    settled = ledger.actions(run.id)[0]
    assert (settled.state, settled.detail, settled.actor) == (
        ActionState.APPLIED,
        "found by its token",
        "login1:77",
    )
    assert settled.settled_at is not None


def test_an_end_that_makes_no_sense_is_refused(ledger: Ledger) -> None:
    action = ledger.plan_action(ActionKind.CANCEL, "cancel:1")
    for to, expected in (
        (ActionState.ACTING, ActionState.PLANNED),
        (ActionState.APPLIED, ActionState.PLANNED),
        (ActionState.PLANNED, ActionState.ACTING),
    ):
        with pytest.raises(ValueError, match="cannot be settled"):
            ledger.settle_action(action.id, to, "", expected=expected)


def test_a_lease_is_taken_over_only_when_it_is_over(ledger: Ledger, clock: ManualClock) -> None:
    ttl = timedelta(minutes=2)
    assert ledger.acquire_lease("sweep", "a", ttl)
    assert not ledger.acquire_lease("sweep", "b", ttl)
    assert ledger.acquire_lease("sweep", "a", ttl)
    assert ledger.acquire_lease("other", "b", ttl)
    clock.sleep(timedelta(seconds=119))
    assert not ledger.acquire_lease("sweep", "b", ttl)
    assert ledger.renew_lease("sweep", "a", ttl)
    clock.sleep(timedelta(seconds=119))
    assert not ledger.acquire_lease("sweep", "b", ttl)
    clock.sleep(timedelta(seconds=1))
    assert ledger.acquire_lease("sweep", "b", ttl)
    lease = ledger.lease("sweep")
    assert lease is not None
    assert (lease.holder, lease.acquired_at, lease.expires_at) == ("b", clock.now(), clock.now() + ttl)
    assert not ledger.renew_lease("sweep", "a", ttl)
    assert not ledger.release_lease("sweep", "a")
    assert [event.text for event in ledger.events()] == ["lease sweep was left by a and taken over by b"]


def test_a_lease_is_given_back_or_broken_by_hand(ledger: Ledger) -> None:
    ttl = timedelta(minutes=2)
    assert ledger.acquire_lease("sweep", "a", ttl)
    assert ledger.release_lease("sweep", "a")
    assert ledger.lease("sweep") is None
    assert ledger.acquire_lease("sweep", "b", ttl)
    assert not ledger.break_lease("sweep", "a")
    assert ledger.break_lease("sweep", "b")
    assert ledger.acquire_lease("sweep", "c", ttl)
    assert [event.kind for event in ledger.events()] == ["lease_broken"]


def test_avoided_nodes_expire_are_extended_and_are_lifted(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    start = clock.now()
    ledger.avoid("gpu007", None, start + timedelta(hours=1), "NODE_FAIL")
    ledger.avoid("gpu007", None, start + timedelta(minutes=1), "shorter")
    ledger.avoid("gpu007", run.id, start + timedelta(hours=3), "twice")
    ledger.avoid("gpu008", None, start + timedelta(hours=1), "Xid 79")
    assert [(row.node, row.run_id, row.reason) for row in ledger.avoided(start)] == [
        ("gpu007", None, "NODE_FAIL"),
        ("gpu007", run.id, "twice"),
        ("gpu008", None, "Xid 79"),
    ]
    ledger.avoid("gpu007", None, start + timedelta(hours=2), "again")
    later = {(row.node, row.run_id): row.until for row in ledger.avoided(start + timedelta(minutes=90))}
    assert later == {
        ("gpu007", None): start + timedelta(hours=2),
        ("gpu007", run.id): start + timedelta(hours=3),
    }
    assert ledger.lift_avoid("gpu007") == 3
    assert ledger.lift_avoid("gpu007") == 0
    assert [row.node for row in ledger.avoided(start)] == ["gpu008"]


def test_our_drains_are_remembered_until_they_are_over(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    reason = "supervisor: node_fail llama-0001/1"
    first = ledger.record_drain("gpu007", "c1", reason, clock.now(), run_id=run.id, reason_user="ada")
    assert ledger.record_drain("gpu007", "c1", reason, clock.now(), reason_user="ada") == first
    ledger.record_drain("gpu007", "c2", reason, clock.now())
    assert ledger.our_drains("c1") == (first,)
    assert ledger.end_drain(first.id, DrainState.TAKEN_OVER)
    assert not ledger.end_drain(first.id, DrainState.RETURNED)
    assert ledger.our_drains("c1") == ()
    with pytest.raises(ValueError, match="ends as"):
        ledger.end_drain(first.id, DrainState.DRAINED)


def test_events_are_listed_by_run_time_and_number(
    ledger: Ledger, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    clock.sleep(timedelta(minutes=1))
    ledger.append_event("sweep", "nothing to do", data={"at": clock.now(), "nodes": {"b", "a"}})
    assert [event.kind for event in ledger.events(since=clock.now())] == ["sweep"]
    assert ledger.events(limit=1)[0].data == {"at": "2026-12-01T08:01:00.000000Z", "nodes": ["a", "b"]}
    assert [event.kind for event in ledger.events(run_id=run.id, limit=2)] == [
        "allocation_planned",
        "action_planned",
    ]


@pytest.mark.parametrize("statement", ["UPDATE event SET text = 'x'", "DELETE FROM event"])
def test_events_cannot_be_changed_or_deleted(ledger: Ledger, statement: str) -> None:
    ledger.append_event("sweep", "as it was")
    with pytest.raises(LedgerError, match="event is append-only"), ledger._write() as connection:
        connection.execute(sa.text(statement))
    assert [event.text for event in ledger.events()] == ["as it was"]


@pytest.mark.parametrize("table", ["decision", "decision_node", "event"])
def test_no_history_can_be_emptied_on_postgresql(ledger: Ledger, table: str) -> None:
    verb = "TRUNCATE" if ledger._engine.dialect.name == "postgresql" else "DELETE FROM"
    ledger.append_event("sweep", "as it was")
    tail = " CASCADE" if verb == "TRUNCATE" else ""
    if table == "event" or verb == "TRUNCATE":
        with pytest.raises(LedgerError, match="append-only"), ledger._write() as connection:
            connection.execute(sa.text(f"{verb} {table}{tail}"))
    assert len(ledger.events()) == 1
