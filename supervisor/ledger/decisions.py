"""Decisions with the diagnoses behind them, as they were taken."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from supervisor.domain.decision import Decision, Diagnosis, Evidence, NodeDecision
from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import AllocationNo, NodeName
from supervisor.ledger import tables
from supervisor.ledger.base import Store, insert_row
from supervisor.ledger.events import add_event
from supervisor.ledger.rows import StoredDecision


def add_decision(
    connection: sa.Connection,
    decision: Decision,
    diagnosis: Diagnosis | None,
    *,
    at: datetime,
    planned_no: AllocationNo | None = None,
) -> int:
    """Store a decision inside the caller's transaction and return its number."""
    decision_id = insert_row(
        connection,
        tables.decision,
        {
            "at": at,
            "run_id": decision.run_id,
            "allocation_no": decision.allocation_no,
            "verdict": decision.verdict,
            "rule": decision.rule,
            "text": decision.text,
            "num_nodes": decision.num_nodes,
            "exclude": decision.exclude,
            "resume_from": decision.resume_from,
            "resume_step": decision.resume_step,
            "budget_left": decision.budget_left,
            "expected_start": decision.expected_start,
            "planned_no": planned_no,
            "failure_class": diagnosis.failure_class if diagnosis else None,
            "diagnosis": asdict(diagnosis) if diagnosis else None,
        },
    )
    measures = {item.node: item for item in decision.nodes}
    at_fault = set(diagnosis.nodes) if diagnosis else set()
    for node in sorted(measures.keys() | at_fault):
        item = measures.get(node)
        connection.execute(
            sa.insert(tables.decision_node).values(
                decision_id=decision_id,
                node=node,
                at_fault=node in at_fault,
                measure=item.measure if item else None,
                reason=item.reason if item else "",
                avoid_until=item.avoid_until if item else None,
            )
        )
    add_event(
        connection,
        at=at,
        kind="decision",
        text=f"{decision.verdict}: {decision.text}",
        run_id=decision.run_id,
        allocation_no=decision.allocation_no,
        data={"decision": decision_id, "verdict": decision.verdict, "rule": decision.rule},
    )
    return decision_id


class DecisionStore(Store):
    """Appends and reads decisions."""

    def record_decision(self, decision: Decision, diagnosis: Diagnosis | None, at: datetime) -> int:
        """Store a decision that plans no allocation, and return its number."""
        with self._write() as connection:
            return add_decision(connection, decision, diagnosis, at=at)

    def decisions(self, run_id: int) -> tuple[StoredDecision, ...]:
        """Return the decisions about a run, oldest first."""
        table, nodes = tables.decision, tables.decision_node
        mine = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.id)
        measures = (
            sa.select(nodes)
            .join(table, table.c.id == nodes.c.decision_id)
            .where(table.c.run_id == run_id, nodes.c.measure.is_not(None))
            .order_by(nodes.c.node)
        )
        by_decision: dict[int, list[NodeDecision]] = {}
        with self._read() as connection:
            rows = connection.execute(mine).mappings().all()
            for row in connection.execute(measures).mappings():
                by_decision.setdefault(row["decision_id"], []).append(
                    NodeDecision(
                        node=row["node"],
                        measure=row["measure"],
                        reason=row["reason"],
                        avoid_until=row["avoid_until"],
                    )
                )
        return tuple(_stored(dict(row), tuple(by_decision.get(row["id"], ()))) for row in rows)


def _stored(row: dict[str, Any], nodes: tuple[NodeDecision, ...]) -> StoredDecision:
    decision_id, at, planned_no = row.pop("id"), row.pop("at"), row.pop("planned_no")
    diagnosis = row.pop("diagnosis")
    del row["failure_class"]
    return StoredDecision(
        id=decision_id,
        at=at,
        planned_no=planned_no,
        decision=Decision(**row, nodes=nodes),
        diagnosis=_diagnosis(diagnosis) if diagnosis is not None else None,
    )


def _diagnosis(stored: dict[str, Any]) -> Diagnosis:
    return Diagnosis(
        failure_class=FailureClass(stored["failure_class"]),
        nodes=tuple(NodeName(node) for node in stored["nodes"]),
        summary=stored["summary"],
        evidence=tuple(Evidence(**item) for item in stored["evidence"]),
        confidence=stored["confidence"],
        runner_up=stored["runner_up"],
    )
