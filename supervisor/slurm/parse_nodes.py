"""Replies of scontrol about nodes, partitions and the controller as rows."""

import logging
import re
from collections import Counter

from supervisor.domain.facts import Controller, NodeRow, PartitionRow
from supervisor.domain.ids import NodeName
from supervisor.domain.nodeset import is_node_name
from supervisor.domain.units import parse_slurm_time
from supervisor.slurm.states import (
    NOTHING,
    read_count,
    read_node_state,
    read_nodes,
    read_time,
    split_reason,
)

_log = logging.getLogger(__name__)

_NAME = re.compile(r"^NodeName=(\S*)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=(\S*)")
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=")
_REQUIRED = frozenset({"NodeName", "CPUTot", "RealMemory", "State", "CfgTRES"})
"""Every record of ``scontrol show node`` has them, from 20.11 to 26.05, before any free text."""


def parse_nodes(text: str) -> tuple[NodeRow, ...]:
    """Read the reply to ``scontrol show -o node``: one line a node, free text (reason, comment) last.

    Only what stands before the free text is read as fields. scontrol flattens the newlines of a reason,
    but prints those of a node's comment (seen on 22.05.8), so a line may be forged: a name that comes
    twice, or in a line that is no whole record, is ambiguous and left out. Absent is not dead.

    Raises:
        ValueError: if there is text, but no record in it.
    """
    heads: list[tuple[NodeName, dict[str, str], str]] = []
    doubtful: set[str] = set()
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        cut = _FREE_TEXT.search(line)
        head = line[: cut.start()] if cut else line
        fields = dict(_PAIR.findall(head))
        name = fields.get("NodeName", "")
        if line.startswith("NodeName=") and is_node_name(name) and fields.keys() >= _REQUIRED:
            heads.append((NodeName(name), fields, line[len(head) :]))
        else:
            match = _NAME.match(line)
            doubtful.add(match.group(1) if match else "(a line without a name)")
    if lines and not heads and not _says_no_nodes(lines):
        raise ValueError("the reply of scontrol show node holds no node record")
    doubtful |= {name for name, times in Counter(name for name, _, _ in heads).items() if times > 1}
    if doubtful:
        _log.warning("node records that cannot be told from forged text are not used: %s", sorted(doubtful))
    return tuple(_node(name, fields, rest) for name, fields, rest in heads if name not in doubtful)


def _says_no_nodes(lines: list[str]) -> bool:
    return lines[0].startswith("No nodes in the system")


def _node(name: NodeName, fields: dict[str, str], rest: str) -> NodeRow:
    base, flags = read_node_state(fields["State"])
    # Reason is the first free text of a record; a comment that says Reason= is only a comment.
    reason, user, at = split_reason(rest[len(" Reason=") :] if rest.startswith(" Reason=") else "")
    partitions = fields.get("Partitions", "")
    gres = fields.get("Gres", "")
    return NodeRow(
        name=name,
        base=base,
        flags=flags,
        reason=reason,
        reason_user=user,
        reason_at=at,
        partitions=tuple(part for part in partitions.split(",") if part),
        cpus=read_count(fields["CPUTot"]),
        memory_mib=read_count(fields["RealMemory"]),
        gres="" if gres in NOTHING else gres,
        boot_at=read_time(fields.get("BootTime", "")),
    )


def parse_partitions(text: str) -> tuple[PartitionRow, ...]:
    """Read the reply to ``scontrol show -o partition``.

    Raises:
        ValueError: if a line is no partition record, or its node list or time cannot be read.
    """
    rows = []
    for line in text.split("\n"):
        if not line.strip() or line.startswith("No partitions in the system"):
            continue
        fields = dict(_PAIR.findall(line))
        if not line.startswith("PartitionName=") or not fields.keys() >= {"State", "Nodes"}:
            raise ValueError(f"no partition record: {line[:80]!r}")
        rows.append(
            PartitionRow(
                name=fields["PartitionName"],
                up=fields["State"] == "UP",
                nodes=read_nodes(fields["Nodes"]),
                max_nodes=_limit(fields.get("MaxNodes", "UNLIMITED")),
                max_time_s=_seconds(fields.get("MaxTime", "UNLIMITED")),
                default=fields.get("Default") == "YES",
            )
        )
    return tuple(rows)


def _limit(text: str) -> int | None:
    return None if text == "UNLIMITED" else int(text)


def _seconds(text: str) -> int | None:
    if text in {"UNLIMITED", "NONE"}:
        return None
    time = parse_slurm_time(text)
    return None if time is None else int(time.total_seconds())


def parse_config(text: str) -> Controller:
    """Read the reply to ``scontrol show config``.

    Raises:
        ValueError: if the version or the cluster's name is missing.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, sign, value = line.partition("=")
        # The first wins: free text in later settings cannot speak for an earlier one.
        if sign and key.strip() not in found:
            found[key.strip()] = value.strip()
    if not {"ClusterName", "SLURM_VERSION"} <= found.keys():
        raise ValueError("the reply of scontrol show config names no cluster or no version")
    return Controller(
        cluster=found["ClusterName"],
        version=found["SLURM_VERSION"],
        min_job_age_s=read_count(found.get("MinJobAge", "")),
        slurm_user=found.get("SlurmUser", "").partition("(")[0],
    )
