"""What a lab should look like: the values that a person or a test chooses, and their bounds."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Self

from supervisor.errors import LabError

# More slurmd than this on one small machine and Slurm's own commands begin to time out.
MAX_NODES = 256

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_NODE_SET = re.compile(r"[A-Za-z0-9_,\[\]-]+")
_TIME_LIMIT = re.compile(r"UNLIMITED|[0-9:-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """One partition: ``nodes`` is a Slurm node set ("ALL" for every node), ``max_time`` as Slurm reads it."""

    name: str = "main"
    nodes: str = "ALL"
    max_time: str = "UNLIMITED"
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LabError(f"lab: partition name {self.name!r}: use letters, digits, '_' and '-'")
        if not _NODE_SET.fullmatch(self.nodes):
            raise LabError(
                f"lab: partition {self.name}: {self.nodes!r} is not a node set such as node[001-004]"
            )
        if not _TIME_LIMIT.fullmatch(self.max_time):
            raise LabError(f"lab: partition {self.name}: time limit {self.max_time!r}: write e.g. 1-00:00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """A lab to bring up. ``memory_mb`` and ``cpus_per_node`` are per node and may exceed the machine.

    ``slurmd_timeout_s`` and ``min_job_age_s`` are slurm.conf's SlurmdTimeout and MinJobAge in seconds;
    ``requeue_delay_s`` is AuthInfo's cred_expire, how long Slurm makes a requeued job wait (120 by default).
    A line of ``extra_conf`` ("Key=value ...") replaces the lab's own value of that key in slurm.conf.
    The first of ``partitions`` is the default one. ``shared`` lets other accounts of the machine use the
    lab (root's labs only: as SlurmUser an ordinary account cannot start other people's jobs).
    """

    nodes: int = 4
    gpus_per_node: int = 0
    cpus_per_node: int = 4
    memory_mb: int = 4000
    accounting: bool = False
    slurmd_timeout_s: int = 5
    min_job_age_s: int = 300
    requeue_delay_s: int = 5
    partitions: tuple[PartitionSpec, ...] = (PartitionSpec(),)
    extra_conf: tuple[str, ...] = ()
    cluster_name: str = "lab"
    shared: bool = False

    def __post_init__(self) -> None:
        bounds = (
            ("nodes", self.nodes, 1, MAX_NODES),
            ("gpus per node", self.gpus_per_node, 0, 64),
            ("cpus per node", self.cpus_per_node, 1, 1024),
            ("memory per node (MB)", self.memory_mb, 1, 10_000_000),
            ("SlurmdTimeout", self.slurmd_timeout_s, 0, 65533),
            # slurm.conf(5): MinJobAge has a floor of 2 seconds, and 0 means never.
            ("requeue delay", self.requeue_delay_s, 5, 3600),
            ("MinJobAge", self.min_job_age_s, 0, 10_000_000),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise LabError(f"lab: {name} must lie between {low} and {high}, not {value}")
        if not self.partitions:
            raise LabError("lab: at least one partition is needed")
        if not _NAME.fullmatch(self.cluster_name):
            raise LabError(f"lab: cluster name {self.cluster_name!r}: use letters, digits, '_' and '-'")
        for line in self.extra_conf:
            if "=" not in line or "\n" in line:
                raise LabError(f"lab: extra line {line!r}: write one Key=value of slurm.conf a line")

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes: node001, node002, ..."""
        return tuple(f"node{number:03d}" for number in range(1, self.nodes + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read back what ``to_json`` gave."""
        partitions = tuple(PartitionSpec(**partition) for partition in data["partitions"])
        return cls(**{**data, "partitions": partitions, "extra_conf": tuple(data["extra_conf"])})
