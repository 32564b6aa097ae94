"""Whether a job file fits the cluster at all, before anything is submitted."""

from collections.abc import Sequence

from supervisor.domain.facts import NodeRow, PartitionRow
from supervisor.domain.nodeset import unfold
from supervisor.domain.spec import JobSpec


def find_misfits(
    spec: JobSpec, partitions: Sequence[PartitionRow], nodes: Sequence[NodeRow]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (errors, warnings) about ``spec`` on a cluster with these partitions and nodes.

    Slurm accepts a job with more nodes than its partition has and lets it pend for ever (22.05), so that
    is an error here; what may change by itself (nodes that are down now) is a warning.
    """
    names = sorted(row.name for row in partitions)
    wanted = spec.slurm.partition
    if wanted is not None and "," in wanted:
        return (), (f"slurm.partition names several partitions ({wanted}); sizes are not checked",)
    partition = next((r for r in partitions if r.name == wanted or (wanted is None and r.default)), None)
    if partition is None:
        what = f"there is no partition {wanted!r}" if wanted else "the cluster has no default partition"
        return (f"slurm.partition: {what}; there are: {', '.join(names)}",), ()
    errors: list[str] = []
    warnings: list[str] = []
    known = {row.name for row in nodes}
    barred = set(unfold(spec.slurm.exclude or ""))
    stale = sorted(barred - known)
    if stale and known:
        errors.append(
            f"slurm.exclude: the cluster has no node {', '.join(stale)}; Slurm would refuse the job"
        )
    smallest = spec.sizes()[-1]
    possible = len(set(partition.nodes) - barred)
    if partition.max_nodes is not None:
        possible = min(possible, partition.max_nodes)
    if smallest > possible:
        errors.append(
            f"nodes.min: partition {partition.name} can give a job {possible} nodes at most, "
            f"the smallest allowed size is {smallest}; Slurm would let the job wait for ever"
        )
    elif spec.sizes()[0] > possible:
        warnings.append(
            f"nodes.want: partition {partition.name} can give a job {possible} nodes at most; "
            f"a smaller allowed size is used"
        )
    limit = spec.time_limit()
    if (
        limit is not None
        and partition.max_time_s is not None
        and limit.total_seconds() > partition.max_time_s
    ):
        errors.append(
            f"slurm.time: partition {partition.name} allows {partition.max_time_s // 60} minutes at most"
        )
    if not partition.up:
        warnings.append(f"slurm.partition: partition {partition.name} is not up; the job will wait")
    usable = sum(1 for row in nodes if row.usable and row.name in set(partition.nodes) - barred)
    if smallest <= possible and usable < smallest:
        warnings.append(
            f"only {usable} of {possible} nodes of partition {partition.name} are usable right now"
        )
    return tuple(errors), tuple(warnings)


def first_size(spec: JobSpec, partitions: Sequence[PartitionRow]) -> int:
    """Return the largest allowed size that the partition can ever give, or the smallest allowed one."""
    wanted = spec.slurm.partition
    partition = next((r for r in partitions if r.name == wanted or (wanted is None and r.default)), None)
    sizes = spec.sizes()
    if partition is None:
        return sizes[0]
    possible = len(set(partition.nodes) - set(unfold(spec.slurm.exclude or "")))
    if partition.max_nodes is not None:
        possible = min(possible, partition.max_nodes)
    return next((size for size in sizes if size <= possible), sizes[-1])
