"""What to do about nodes at fault: drain, ask, or only avoid; never more than the caps allow (promise P5)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.domain.decision import Diagnosis, NodeDecision, NodeMeasure
from supervisor.domain.facts import NodeBase, NodeFlag, NodeRow
from supervisor.domain.failure import NODE_CLASSES
from supervisor.domain.ids import AllocationNo, NodeName, RunId
from supervisor.domain.policy import Mode, NodePolicy

REASON_PREFIX = "supervise:"
"""Marks a drain as ours, for people; ownership itself is proven by the ledger (promise P4)."""

# What Slurm writes by itself when a node is lost; replacing it takes nothing from anybody.
_SLURMS_OWN_REASONS = ("Not responding", "Node unexpectedly rebooted")

MIN_SHARED = 3
"""Fewer nodes than this that fail together are judged one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCount:
    """How many nodes we keep drained already."""

    standing: int
    in_window: int


def is_free_to_drain(row: NodeRow) -> bool:
    """Say whether a drain would change nobody else's drain or reason (promise P4)."""
    if NodeFlag.DRAIN in row.flags or NodeFlag.FAIL in row.flags:
        return False
    return not row.reason or row.reason.startswith(_SLURMS_OWN_REASONS)


def drain_reason(run_id: RunId, no: AllocationNo, diagnosis: Diagnosis, row: NodeRow | None) -> str:
    """Return the reason text: who, what, which run; printable ASCII and short."""
    was = f" (was: {row.reason})" if row is not None and row.reason else ""
    text = f"{REASON_PREFIX} {diagnosis.failure_class} run {run_id}.{no}{was}"
    return "".join(c if " " <= c <= "~" and c not in "|=\"'`\\" else "?" for c in text)[:200]


def is_shared(diagnosis: Diagnosis, num_nodes: int, policy: NodePolicy) -> bool:
    """Say whether so many nodes failed together that a switch, a file system or Slurm itself is the cause."""
    failed = len(diagnosis.nodes)
    return failed >= MIN_SHARED and failed * 100 >= policy.shared_percent * max(num_nodes, 1)


def decide_nodes(
    run_id: RunId,
    no: AllocationNo,
    diagnosis: Diagnosis,
    *,
    num_nodes: int,
    rows: Mapping[NodeName, NodeRow],
    drains: DrainCount,
    policy: NodePolicy,
    now: datetime,
) -> tuple[NodeDecision, ...]:
    """Decide for each node that the diagnosis names.

    Only classes that prove a node's fault lead here to anything; a user's bug avoids and drains nobody (P7).
    A shared incident avoids nobody either: the nodes that are down are not usable anyway.
    """
    if diagnosis.failure_class not in NODE_CLASSES or is_shared(diagnosis, num_nodes, policy):
        return ()
    room = _drains_allowed(rows.values(), drains, policy)
    decisions: list[NodeDecision] = []
    for node in diagnosis.nodes:
        row = rows.get(node)
        measure, note = _measure(row, room, policy)
        room -= measure is NodeMeasure.DRAIN
        reason = drain_reason(run_id, no, diagnosis, row)
        decisions.append(
            NodeDecision(
                node=node,
                measure=measure,
                reason=reason + (f" [{note}]" if note else ""),
                avoid_until=now + policy.avoid_for,
            )
        )
    return tuple(decisions)


def _measure(row: NodeRow | None, room: int, policy: NodePolicy) -> tuple[NodeMeasure, str]:
    if row is None:
        return NodeMeasure.AVOID, "Slurm does not list it"
    mode = policy.mode_for(row.partitions)
    if not is_free_to_drain(row):
        return NodeMeasure.AVOID, "somebody else's drain or reason stands"
    if mode is Mode.OBSERVE:
        return NodeMeasure.AVOID, "observe mode"
    if mode is Mode.ADVISE:
        return NodeMeasure.REQUEST, "advise mode"
    if room <= 0:
        return NodeMeasure.REQUEST, "drain cap reached"
    return NodeMeasure.DRAIN, ""


def _drains_allowed(rows: Iterable[NodeRow], drains: DrainCount, policy: NodePolicy) -> int:
    """Return how many more nodes may be drained: absolute, percent of eligible nodes, and per window.

    Eligible nodes are those that nobody has drained or powered down; a lost one still counts, since it was
    in service until now. On a small cluster the percentage never falls below two nodes.
    """
    eligible = sum(
        1
        for row in rows
        if NodeFlag.DRAIN not in row.flags
        and NodeFlag.POWERED_DOWN not in row.flags
        and row.base is not NodeBase.FUTURE
    )
    by_percent = max(2, math.floor(eligible * policy.max_percent / 100))
    standing = min(policy.max_drains, by_percent) - drains.standing
    return max(0, min(standing, policy.max_per_window - drains.in_window))
