"""The one Protocol through which every other room speaks with Slurm."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from supervisor.domain.facts import (
    BidOutcome,
    ChangeOutcome,
    Controller,
    JobRow,
    NodeRow,
    PartitionRow,
    Reading,
    SubmitOutcome,
)
from supervisor.domain.ids import JobId, NodeName


class Slurm(Protocol):
    """A Slurm cluster. Reads never raise for a cluster that is silent or odd: they return ``Unknown``."""

    def controller(self) -> Reading[Controller]:
        """Ask who answers; ``Unknown`` when nobody does."""
        ...

    def jobs(self) -> Reading[tuple[JobRow, ...]]:
        """Read our user's jobs that slurmctld still remembers, ended ones included (one squeue call).

        A job that is missing has not ended: slurmctld forgets after MinJobAge.
        """
        ...

    def job(self, job_id: JobId) -> Reading[JobRow | None]:
        """Read one job of any user by id; None when slurmctld says that it does not know the id."""
        ...

    def accounting(self, job_ids: Sequence[JobId], since: datetime) -> Reading[tuple[JobRow, ...]]:
        """Read what slurmdbd knows of ``job_ids`` since ``since``, duplicates included (one sacct call).

        With no ids it reads all our user's jobs since then. ``Unknown`` where accounting is off.
        """
        ...

    def nodes(self) -> Reading[tuple[NodeRow, ...]]:
        """Read every node (one call). Powered-down and future nodes may be absent; absent is not dead."""
        ...

    def partitions(self) -> Reading[tuple[PartitionRow, ...]]:
        """Read every partition and its limits."""
        ...

    def submit(self, script: Path, options: Sequence[str]) -> SubmitOutcome:
        """Submit ``script`` with ``options`` (argv words). ``Doubt`` means that it may have been accepted."""
        ...

    def predict_start(self, script: Path, options: Sequence[str], num_nodes: int) -> BidOutcome:
        """Ask when the job would start at ``num_nodes`` nodes; submits nothing (``sbatch --test-only``)."""
        ...

    def cancel(self, job_id: JobId) -> ChangeOutcome:
        """Cancel one job and check that it is gone or going."""
        ...

    def drain(self, node: NodeName, reason: str) -> ChangeOutcome:
        """Drain one node with ``reason`` and read it back."""
        ...

    def undrain(self, node: NodeName) -> ChangeOutcome:
        """Take DRAIN off one node and read it back."""
        ...
