"""The size of the next allocation: now if possible, else the least node time lost."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.sizing import MAX_BIDS, choose_size, count_usable, sizes_to_ask
from supervisor.domain.facts import BidOutcome, Doubt, NodeBase, Refused, StartBid
from tests.unit.facts import NOW, SECOND, names, node, spec

HOUR = timedelta(hours=1)


def choose(bids: dict[int, BidOutcome], *, horizon: timedelta = 24 * HOUR) -> int | None:
    return choose_size(bids, want=8, horizon=horizon, now=NOW, start_now_within=30 * SECOND).num_nodes


def bid(size: int, wait: timedelta) -> StartBid:
    return StartBid(num_nodes=size, start_at=NOW + wait)


def test_the_largest_size_that_can_start_now_is_taken() -> None:
    assert choose({8: bid(8, 2 * HOUR), 6: bid(6, SECOND), 4: bid(4, 0 * SECOND)}) == 6


def test_a_short_wait_for_the_full_size_beats_running_small_for_a_day() -> None:
    assert choose({8: bid(8, HOUR), 4: bid(4, timedelta(minutes=50))}) == 8


def test_a_long_wait_for_the_full_size_loses_against_a_smaller_one() -> None:
    assert choose({8: bid(8, 100 * HOUR), 6: bid(6, HOUR)}) == 6


def test_no_promise_at_all_is_no_size_and_says_why() -> None:
    choice = choose_size(
        {4: Refused(message="not available"), 2: Doubt(message="timed out")},
        want=8,
        horizon=HOUR,
        now=NOW,
        start_now_within=SECOND,
    )
    assert choice.num_nodes is None
    assert "not available" in choice.text


def test_sizes_that_cannot_be_had_are_not_asked_for() -> None:
    assert sizes_to_ask((6, 5, 4, 3, 2), usable=4) == (4, 3, 2)
    assert sizes_to_ask((6, 5, 4), usable=1) == (4,)


@given(st.integers(1, 200), st.integers(0, 200))
def test_the_number_of_questions_is_bounded_and_both_ends_are_asked(want: int, usable: int) -> None:
    sizes = tuple(range(want, 0, -1))
    asked = sizes_to_ask(sizes, usable)
    assert 1 <= len(asked) <= MAX_BIDS
    assert asked[0] == max(min(want, usable), 1)
    assert asked[-1] == 1
    assert list(asked) == sorted(set(asked), reverse=True)


def test_only_nodes_that_a_job_could_use_are_counted() -> None:
    rows = (
        node("n1"),
        node("n2", NodeBase.ALLOCATED),
        node("n3", NodeBase.IDLE, "DRAIN"),
        node("n4", NodeBase.DOWN),
        node("n5", NodeBase.IDLE, "NOT_RESPONDING"),
        node("n6"),
        node("n7"),
    )
    assert count_usable(rows, names(1, 2, 3, 4, 5, 6), names(6)) == 2


def test_micro_batches_bar_sizes_that_do_not_divide_the_global_batch() -> None:
    uneven = spec(nodes={"min": 1, "want": 6}, batch={"global": 24, "micro": 4})
    assert uneven.sizes() == (6, 3, 2, 1)
