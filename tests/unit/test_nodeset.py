"""Node lists: Slurm's brackets, and nothing of ClusterShell's algebra."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.nodeset import fold, is_node_name, unfold


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("n[1-3,7]", 4),
        ("rack[0-1]n[0-3]", 8),
        ("a,b,n[008-010]", 5),
        ("", 0),
        ("(null)", 0),
        ("None assigned", 0),
    ],
)
def test_slurms_lists_are_unfolded(text: str, count: int) -> None:
    assert len(unfold(text)) == count


@pytest.mark.parametrize(
    "text", ["n[1-3]!n1", "@gpu", "a&b", "a^b", "n[001-", "n[3-1]", "n1 n2", "a\nb", "n%s"]
)
def test_algebra_groups_and_broken_brackets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        unfold(text)


@pytest.mark.parametrize("text", ["n[0-99999999]", "a[0-9999]b[0-9999]", ",".join(["n[0-99999]"] * 3)])
def test_an_absurd_list_is_refused_before_it_is_unfolded(text: str) -> None:
    with pytest.raises(ValueError, match="more than"):
        unfold(text)


def test_many_racks_of_many_nodes_are_not_absurd() -> None:
    racks = ",".join(f"r{rack}n[001-500]" for rack in range(20))
    assert len(unfold(racks)) == 10_000


@given(st.sets(st.integers(0, 9999), min_size=1, max_size=50))
def test_folding_and_unfolding_are_inverse(numbers: set[int]) -> None:
    names = {f"node{number:04d}" for number in numbers}
    assert set(unfold(fold(names))) == names


@given(st.text(max_size=50))
def test_p9_any_text_is_a_list_or_a_value_error(text: str) -> None:
    try:
        found = unfold(text)
    except ValueError:
        return
    assert all("\n" not in name and " " not in name for name in found)


@pytest.mark.parametrize("name", ["", "n1\n", "-n", "a b", "a\nb", "n[1-2]", "x" * 300, "$(touch x)"])
def test_what_is_no_name_is_not_folded(name: str) -> None:
    assert not is_node_name(name)
    with pytest.raises(ValueError, match="node name"):
        fold([name])
