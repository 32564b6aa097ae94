"""How many nodes to ask for: the size with the least node time lost, by what Slurm predicts for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.domain.facts import BidOutcome, NodeRow, Refused, StartBid
from supervisor.domain.ids import NodeName

MAX_BIDS = 6
"""Questions to Slurm per decision, whatever the number of allowed sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChoice:
    """A size and why it was taken."""

    num_nodes: int | None
    """None when no allowed size can start."""
    start_at: datetime | None
    text: str


def sizes_to_ask(sizes: Sequence[int], usable: int, limit: int = MAX_BIDS) -> tuple[int, ...]:
    """Return the sizes worth a question, largest first: none above ``usable`` unless all are.

    Args:
        sizes: the allowed sizes, largest first.
        usable: nodes of the partition that are neither excluded, drained, nor down.
        limit: most questions; the largest and the smallest size are always among them.
    """
    possible = [size for size in sizes if size <= usable] or list(sizes[-1:])
    if len(possible) <= limit:
        return tuple(possible)
    stride = (len(possible) - 1) / (limit - 1)
    return tuple(dict.fromkeys(possible[round(index * stride)] for index in range(limit)))


def count_usable(rows: Sequence[NodeRow], partition: Sequence[NodeName], excluded: Sequence[NodeName]) -> int:
    """Return how many nodes of the partition a job of ours could run on, now or after others have ended."""
    inside = set(partition)
    barred = set(excluded)
    return sum(1 for row in rows if row.usable and row.name in inside and row.name not in barred)


def starts_now(bid: BidOutcome, *, now: datetime, within: timedelta) -> bool:
    """Say whether a bid promises a start that counts as now."""
    return isinstance(bid, StartBid) and bid.start_at - now <= within


def choose_size(
    bids: Mapping[int, BidOutcome],
    *,
    want: int,
    horizon: timedelta,
    now: datetime,
    start_now_within: timedelta,
) -> SizeChoice:
    """Take the largest size that can start now, else the one that loses the least node time.

    A size ``n`` that starts after a wait ``w`` loses ``w * want`` node-seconds of waiting and
    ``horizon * (want - n)`` of running small, where ``horizon`` is how long the allocation would run.

    Args:
        bids: Slurm's answer for each size that was asked about.
        want: the size when all is well.
        horizon: the time limit of an allocation, or an assumption.
        now: the time of the decision.
        start_now_within: a predicted start this near counts as now.
    """
    starts = {size: bid for size, bid in bids.items() if isinstance(bid, StartBid)}
    now_sizes = [size for size, bid in starts.items() if starts_now(bid, now=now, within=start_now_within)]
    if now_sizes:
        size = max(now_sizes)
        return SizeChoice(num_nodes=size, start_at=starts[size].start_at, text=f"{size} nodes can start now")
    if starts:

        def lost(size: int) -> tuple[float, int]:
            wait = (starts[size].start_at - now).total_seconds()
            return wait * want + horizon.total_seconds() * (want - size), -size

        size = min(starts, key=lost)
        wait = starts[size].start_at - now
        return SizeChoice(
            num_nodes=size,
            start_at=starts[size].start_at,
            text=f"{size} nodes are predicted to start in {int(wait.total_seconds())} s, the least loss",
        )
    refusals = sorted({bid.message for bid in bids.values() if isinstance(bid, Refused)})
    return SizeChoice(num_nodes=None, start_at=None, text="; ".join(refusals) or "Slurm predicts no start")
