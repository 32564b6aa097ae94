"""Sets of node names in Slurm's bracket notation, folded and unfolded by ClusterShell."""

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from supervisor.domain.ids import NodeName

# ClusterShell evaluates these as groups and set algebra; in a node list they are an error.
_ALGEBRA = frozenset("@!&^% \t\r\n")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ITEM = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,12})-(\d{1,12})")
MAX_NODES = 200_000
"""More than any cluster has; a bracket expression beyond it is an attack or a slip."""


def is_node_name(text: str) -> bool:
    """Say whether ``text`` is one plain node name without brackets or separators."""
    return len(text) <= 255 and _PLAIN_NAME.fullmatch(text) is not None


def unfold(text: str) -> tuple[NodeName, ...]:
    """Return the names in a node list such as ``gpu[001-003,007]``, in ClusterShell's order.

    Slurm's words for "none" (empty, ``(null)``, ``None assigned``) give an empty tuple.

    Raises:
        ValueError: if the list is malformed, uses set algebra or groups, or is absurdly long.
    """
    if text in {"", "(null)", "None", "None assigned", "n/a", "N/A"}:
        return ()
    if _ALGEBRA & set(text):
        raise ValueError(f"node list {text[:80]!r} holds a character that no node name has")
    # Counted before it is unfolded: ClusterShell would fill gigabytes with a forged n[0-99999999].
    if _count(text) > MAX_NODES:
        raise ValueError(f"node list {text[:80]!r} names more than {MAX_NODES} nodes")
    try:
        nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise ValueError(f"node list {text[:80]!r} cannot be read: {error}") from error
    return tuple(NodeName(name) for name in nodes)


def fold(names: Iterable[str]) -> str:
    """Return the shortest bracket form of ``names``; an empty iterable gives an empty string.

    Raises:
        ValueError: if one of the names is no plain node name.
    """
    plain = sorted(set(names))
    for name in plain:
        if not is_node_name(name):
            raise ValueError(f"{name[:80]!r} is not a node name")
    return str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)) if plain else ""


def _count(text: str) -> int:
    """Return an upper bound of how many names a list has: brackets multiply, commas add."""
    total = 0
    for item in _ITEM.findall(text):
        width = 1
        for bracket in _BRACKET.findall(item):
            parts = bracket.split(",")
            ranges = [_RANGE.match(part) for part in parts]
            width *= sum(max(1, int(found[2]) - int(found[1]) + 1) if found else 1 for found in ranges)
        total += width
    return total
