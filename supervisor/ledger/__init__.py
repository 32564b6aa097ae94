"""The only room that talks SQL: runs, allocations, actions, decisions, events, nodes and leases."""

from supervisor.ledger.rows import (
    AllocationFacts,
    AvoidRow,
    DrainRecord,
    DrainState,
    Event,
    Finding,
    Lease,
    NewAllocation,
    Severity,
    StoredDecision,
)
from supervisor.ledger.store import Ledger

__all__ = [
    "AllocationFacts",
    "AvoidRow",
    "DrainRecord",
    "DrainState",
    "Event",
    "Finding",
    "Lease",
    "Ledger",
    "NewAllocation",
    "Severity",
    "StoredDecision",
]
