"""Nodes: caps, other people's drains, and nobody drained for a user's bug or a shared fault."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.nodes import DrainCount, decide_nodes, drain_reason, is_free_to_drain
from supervisor.domain.decision import NodeDecision, NodeMeasure
from supervisor.domain.facts import NodeBase, NodeRow
from supervisor.domain.failure import NODE_CLASSES, FailureClass
from supervisor.domain.ids import AllocationNo, NodeName, RunId
from supervisor.domain.policy import Mode, NodePolicy
from supervisor.slurm.commands import check_reason
from tests.unit.facts import NOW, diagnosis, names, node

ACT = NodePolicy(mode=Mode.ACT)
NONE_YET = DrainCount(standing=0, in_window=0)


def decide(
    *failed: NodeName,
    failure_class: FailureClass = FailureClass.NODE_FAIL,
    policy: NodePolicy = ACT,
    rows: tuple[NodeRow, ...] = (),
    drains: DrainCount = NONE_YET,
    num_nodes: int = 6,
) -> tuple[NodeDecision, ...]:
    all_rows = {name: node(name) for name in names(1, 2, 3, 4, 5, 6)} | {row.name: row for row in rows}
    return decide_nodes(
        RunId(1),
        AllocationNo(2),
        diagnosis(failure_class, *failed),
        num_nodes=num_nodes,
        rows=all_rows,
        drains=drains,
        policy=policy,
        now=NOW,
    )


def measures(decisions: tuple[NodeDecision, ...]) -> list[NodeMeasure]:
    return [decision.measure for decision in decisions]


def test_a_failed_node_is_drained_in_act_mode_and_only_avoided_in_a_fresh_install() -> None:
    assert measures(decide(*names(3))) == [NodeMeasure.DRAIN]
    assert measures(decide(*names(3), policy=NodePolicy())) == [NodeMeasure.AVOID]
    assert measures(decide(*names(3), policy=NodePolicy(mode=Mode.ADVISE))) == [NodeMeasure.REQUEST]


def test_the_most_careful_partition_of_a_node_decides() -> None:
    policy = NodePolicy(mode=Mode.ACT, partition_modes={"shared": Mode.OBSERVE})
    row = node("n3", partitions=("main", "shared"))
    assert measures(decide(*names(3), policy=policy, rows=(row,))) == [NodeMeasure.AVOID]


def test_p7_no_node_is_touched_for_what_is_not_a_nodes_fault() -> None:
    for failure_class in set(FailureClass) - NODE_CLASSES:
        assert decide(*names(3), failure_class=failure_class) == ()


def test_p4_somebody_elses_drain_or_reason_is_left_alone() -> None:
    drained = node("n3", NodeBase.IDLE, "DRAIN", reason="RMA 4711")
    noted = node("n3", NodeBase.DOWN, reason="kernel panic, see ticket")
    assert measures(decide(*names(3), rows=(drained,))) == [NodeMeasure.AVOID]
    assert measures(decide(*names(3), rows=(noted,))) == [NodeMeasure.AVOID]


def test_slurms_own_reason_for_a_lost_node_may_be_replaced_and_is_quoted() -> None:
    down = node("n3", NodeBase.DOWN, "NOT_RESPONDING", reason="Not responding")
    (decision,) = decide(*names(3), rows=(down,))
    assert is_free_to_drain(down)
    assert decision.measure is NodeMeasure.DRAIN
    assert decision.reason == "supervise: node_fail run 1.2 (was: Not responding)"


def test_p5_two_nodes_may_be_drained_on_a_small_cluster_and_not_a_third() -> None:
    assert measures(decide(*names(1, 2))) == [NodeMeasure.DRAIN, NodeMeasure.DRAIN]
    assert measures(decide(*names(1), drains=DrainCount(standing=2, in_window=0))) == [NodeMeasure.REQUEST]
    assert measures(decide(*names(1), drains=DrainCount(standing=0, in_window=4))) == [NodeMeasure.REQUEST]


def test_p5_many_nodes_of_one_run_at_once_are_a_shared_incident_and_none_is_blamed() -> None:
    assert decide(*names(1, 2, 3)) == ()
    assert len(decide(*names(1, 2, 3), num_nodes=12)) == 3


def test_a_node_that_slurm_does_not_list_is_only_avoided() -> None:
    assert measures(decide(NodeName("gone"))) == [NodeMeasure.AVOID]


@given(standing=st.integers(0, 20), in_window=st.integers(0, 20), failed=st.integers(1, 40))
def test_p5_the_caps_hold_for_any_history(standing: int, in_window: int, failed: int) -> None:
    policy = NodePolicy(mode=Mode.ACT, max_drains=8, max_percent=10, max_per_window=4)
    rows = {name: node(name) for name in names(*range(100))}
    decisions = decide_nodes(
        RunId(1),
        AllocationNo(1),
        diagnosis(FailureClass.NODE_FAIL, *names(*range(failed))),
        num_nodes=100,
        rows=rows,
        drains=DrainCount(standing=standing, in_window=in_window),
        policy=policy,
        now=NOW,
    )
    drained = measures(decisions).count(NodeMeasure.DRAIN)
    assert drained <= max(0, min(8 - standing, 4 - in_window))


@given(reason=st.text(max_size=300))
def test_p9_any_old_reason_gives_a_drain_reason_that_slurm_takes_unchanged(reason: str) -> None:
    row = node("n1", NodeBase.DOWN, reason=reason)
    text = drain_reason(RunId(1), AllocationNo(1), diagnosis(FailureClass.NODE_FAIL), row)
    assert check_reason(text) == text
