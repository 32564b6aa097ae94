"""Random histories of a run against a model of three lines: never two live allocations."""

from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from supervisor.domain.action import ACTION_TRANSITIONS, ActionState
from supervisor.domain.ids import RunId, Token
from supervisor.domain.run import (
    ALLOCATION_TRANSITIONS,
    LIVE_ALLOCATIONS,
    RUN_TRANSITIONS,
    AllocationState,
    RunState,
)
from supervisor.ledger import Ledger, NewAllocation

_NUMBERS = count(1)


class OneRun(RuleBasedStateMachine):
    """A run, its allocations and its actions; ``self`` holds what the ledger ought to hold."""

    ledger: ClassVar[Ledger]

    @initialize()
    def submit(self) -> None:
        number = next(_NUMBERS)
        run, allocation, action = self.ledger.create_run(
            uid=f"run-{number}",
            name="llama",
            owner="ada",
            cluster="c1",
            spec_json="{}",
            folder=Path("/x"),
            allocation=NewAllocation(token=Token(f"first-{number}"), num_nodes=2),
            action_payload="",
        )
        self.run_id: RunId = run.id
        self.state = run.state
        self.allocations = {int(allocation.no): allocation.state}
        self.actions = {action.id: action.state}

    def _live(self) -> list[int]:
        return [no for no, state in self.allocations.items() if state in LIVE_ALLOCATIONS]

    @rule(expected=st.sampled_from(RunState), to=st.sampled_from(RunState))
    def advance_run(self, expected: RunState, to: RunState) -> None:
        if to not in RUN_TRANSITIONS[expected]:
            with pytest.raises(ValueError, match="cannot become"):
                self.ledger.advance_run(self.run_id, expected=expected, to=to, reason="r")
            return
        moved = self.ledger.advance_run(self.run_id, expected=expected, to=to, reason="r")
        assert moved == (self.state == expected)
        if moved:
            self.state = to

    @rule(to=st.sampled_from(RunState))
    def advance_run_from_where_it_is(self, to: RunState) -> None:
        self.advance_run(self.state, to)

    @rule(
        data=st.data(), to=st.sampled_from(AllocationState), stale=st.sampled_from([None, *AllocationState])
    )
    def advance_allocation(
        self, data: st.DataObject, to: AllocationState, stale: AllocationState | None
    ) -> None:
        no = data.draw(st.sampled_from(sorted(self.allocations)))
        expected = stale or self.allocations[no]
        if to not in ALLOCATION_TRANSITIONS[expected]:
            with pytest.raises(ValueError, match="cannot become"):
                self.ledger.advance_allocation(self.run_id, no, expected=expected, to=to)
            return
        moved = self.ledger.advance_allocation(self.run_id, no, expected=expected, to=to)
        second = to in LIVE_ALLOCATIONS and set(self._live()) - {no} != set()
        assert moved == (self.allocations[no] == expected and not second)
        if moved:
            self.allocations[no] = to

    @rule(stale=st.sampled_from([None, *RunState]))
    def plan_allocation(self, stale: RunState | None) -> None:
        expected = stale or self.state
        planned = self.ledger.plan_allocation(
            self.run_id,
            expected=expected,
            allocation=NewAllocation(token=Token(f"next-{next(_NUMBERS)}"), num_nodes=1),
            action_payload="",
            decision=None,
            diagnosis=None,
        )
        assert (planned is not None) == (expected == self.state and not self._live())
        if planned is not None:
            allocation, action = planned
            assert allocation.no == max(self.allocations) + 1
            self.allocations[int(allocation.no)] = allocation.state
            self.actions[action.id] = action.state

    @rule(data=st.data(), to=st.sampled_from(ActionState))
    def move_action(self, data: st.DataObject, to: ActionState) -> None:
        action_id = data.draw(st.sampled_from(sorted(self.actions)))
        state = self.actions[action_id]
        if to == ActionState.ACTING:
            moved = self.ledger.start_action(action_id, "host:1")
            assert moved == (state in {ActionState.PLANNED, ActionState.UNKNOWN})
        elif to in ACTION_TRANSITIONS[state]:
            moved = self.ledger.settle_action(action_id, to, "d", expected=state)
            assert moved
        else:
            with pytest.raises(ValueError, match="cannot be settled"):
                self.ledger.settle_action(action_id, to, "d", expected=state)
            return
        if moved:
            self.actions[action_id] = to

    @invariant()
    def ledger_and_model_agree(self) -> None:
        if not hasattr(self, "run_id"):
            return
        assert self.ledger.run(self.run_id).state == self.state
        assert {row.no: row.state for row in self.ledger.allocations(self.run_id)} == self.allocations
        assert {row.id: row.state for row in self.ledger.actions(self.run_id)} == self.actions
        assert len(self._live()) <= 1

    def teardown(self) -> None:
        """The story can be told again from the events alone (promise P8)."""
        state, allocations = RunState.QUEUED, {}
        for event in self.ledger.events(self.run_id):
            if event.kind == "run_state" and event.data is not None:
                assert event.data["from"] == state
                state = RunState(event.data["to"])
            elif event.kind == "allocation_planned":
                allocations[event.allocation_no] = AllocationState.PLANNED
            elif event.kind == "allocation_state" and event.data is not None:
                assert event.data["from"] == allocations[event.allocation_no]
                allocations[event.allocation_no] = AllocationState(event.data["to"])
        assert (state, allocations) == (self.state, self.allocations)


def test_no_history_gives_a_run_two_live_allocations(ledger: Ledger) -> None:
    machine = type("OneRunHere", (OneRun,), {"ledger": ledger})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
