"""What the site and the user allow, as one value that every decision takes as an argument."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from supervisor.domain.failure import FailureClass


class Mode(StrEnum):
    """How far the supervisor may go with nodes; a fresh install observes."""

    OBSERVE = "observe"
    """Avoid bad nodes for our own runs; record what a drain would have been."""
    ADVISE = "advise"
    """The same, and ask the admins for the drain."""
    ACT = "act"
    """Drain, within the caps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """Rules about taking nodes out of service (promise P5)."""

    mode: Mode = Mode.OBSERVE
    partition_modes: Mapping[str, Mode] = field(default_factory=dict)
    avoid_for: timedelta = timedelta(days=1)
    max_drains: int = 8
    """Most nodes that we keep drained at once."""
    max_percent: float = 10.0
    """Most of the eligible nodes, in percent, that we keep drained at once; two nodes are always allowed."""
    max_per_window: int = 4
    window: timedelta = timedelta(hours=1)
    shared_percent: float = 50.0
    """When at least this share of a run's nodes (three or more) fails at once, it is no node's fault."""

    def mode_for(self, partitions: tuple[str, ...]) -> Mode:
        """Return the most careful mode of the partitions that a node is in."""
        order = [Mode.OBSERVE, Mode.ADVISE, Mode.ACT]
        modes = [self.partition_modes.get(name, self.mode) for name in partitions] or [self.mode]
        return min(modes, key=order.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that decisions depend on besides facts."""

    nodes: NodePolicy = field(default_factory=NodePolicy)
    budgets: Mapping[FailureClass, int] = field(default_factory=dict)
    """Retries per class that override the table's."""
    start_now_within: timedelta = timedelta(seconds=30)
    """A predicted start this near counts as now."""
    completing_patience: timedelta = timedelta(seconds=20)
    """How long an ended script may wait for its nodes before those that are missing are suspected."""
    lost_after: timedelta = timedelta(minutes=30)
    """How long a job may be nowhere to be found before the run is held."""
    submit_grace: timedelta = timedelta(seconds=30)
    """How long a doubtful submission is searched for, with Slurm answering, before it is tried again."""
    paused: bool = False
