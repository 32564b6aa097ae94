"""A Slurm in memory on a clock that the test moves: the same words as the real one, faults on demand.

It knows whole nodes, first in first out, and the options that the supervisor itself gives to sbatch.
Each rule was seen on Slurm 22.05.8; ``tests/contract`` runs the same tests against both.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from supervisor.domain.facts import (
    ENDED_JOBS,
    Accepted,
    Applied,
    BidOutcome,
    ChangeOutcome,
    Controller,
    Doubt,
    JobRow,
    JobState,
    Known,
    NodeBase,
    NodeFlag,
    NodeRow,
    PartitionRow,
    Reading,
    Refused,
    StartBid,
    SubmitOutcome,
    Unknown,
)
from supervisor.domain.ids import JobId, NodeName
from supervisor.domain.nodeset import is_node_name
from supervisor.slurm.commands import check_reason
from supervisor.slurm.simulated_cluster import (
    TIMEOUT_TEXT,
    UNAVAILABLE_TEXT,
    Request,
    SimulatedCluster,
    SimulatedNode,
)
from supervisor.slurm.states import read_nodes

_T = TypeVar("_T")


class SimulatedSlurm(SimulatedCluster):
    """The ``Slurm`` Protocol on a simulated cluster, whose faults it inherits."""

    def controller(self) -> Reading[Controller]:
        """See ``Slurm.controller``."""
        return self._answer(
            "controller",
            Controller(
                cluster="simulated",
                version="22.05.8",
                min_job_age_s=int(self._min_job_age.total_seconds()),
                slurm_user="slurm",
            ),
        )

    def jobs(self) -> Reading[tuple[JobRow, ...]]:
        """See ``Slurm.jobs``."""
        self._advance()
        return self._answer("jobs", tuple(self._jobs.values()))

    def job(self, job_id: JobId) -> Reading[JobRow | None]:
        """See ``Slurm.job``."""
        self._advance()
        return self._answer("job", self._jobs.get(job_id))

    def accounting(self, job_ids: Sequence[JobId], since: datetime) -> Reading[tuple[JobRow, ...]]:
        """See ``Slurm.accounting``."""
        self._advance()
        if not self.accounting_on:
            self.calls["accounting"] += 1
            return Unknown("sacct: exit code 1: Slurm accounting storage is disabled", self._clock.now())
        rows = (*self._records, *(job for job in self._jobs.values() if job.state not in ENDED_JOBS))
        # slurmdbd, unlike slurmctld, is not frozen with the controller.
        self.calls["accounting"] += 1
        return Known(
            tuple(
                row
                for row in rows
                if (not job_ids or row.job_id in job_ids) and (row.end_at is None or row.end_at >= since)
            ),
            self._clock.now(),
        )

    def nodes(self) -> Reading[tuple[NodeRow, ...]]:
        """See ``Slurm.nodes``."""
        self._advance()
        return self._answer("nodes", tuple(self._node_row(node) for node in self._nodes.values()))

    def partitions(self) -> Reading[tuple[PartitionRow, ...]]:
        """See ``Slurm.partitions``."""
        row = PartitionRow(
            name=self._partition,
            up=True,
            nodes=tuple(self._nodes),
            max_nodes=None,
            max_time_s=None,
            default=True,
        )
        return self._answer("partitions", (row,))

    def submit(self, script: Path, options: Sequence[str]) -> SubmitOutcome:
        """See ``Slurm.submit``."""
        self.calls["submit"] += 1
        request = self._request(script, options)
        if isinstance(request, Refused):
            return request
        if self._frozen:
            if self._accept_while_frozen:
                self._waiting.append(request)
            return Doubt(message=TIMEOUT_TEXT)
        self._advance()
        refusal = self._refusal(request)
        if refusal is not None:
            if refusal.message == UNAVAILABLE_TEXT:
                self._leave_ghost(request)
            return refusal
        job_id = self._enqueue(request)
        if self._lose_next_reply:
            self._lose_next_reply = False
            return Doubt(message=TIMEOUT_TEXT)
        return Accepted(job_id=job_id)

    def predict_start(self, script: Path, options: Sequence[str], num_nodes: int) -> BidOutcome:
        """See ``Slurm.predict_start``; a drained node is as good as none here, unlike in ``submit``."""
        self.calls["predict_start"] += 1
        request = self._request(script, [*options, f"--nodes={num_nodes}"])
        if isinstance(request, Refused):
            return request
        if self._frozen:
            return Doubt(message=TIMEOUT_TEXT)
        self._advance()
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        usable = [node for node in self._candidates(request) if self._usable(node)]
        if len(usable) < num_nodes:
            return Refused(message=UNAVAILABLE_TEXT)
        free_at = sorted(((self._free_at(node), node.name) for node in usable), key=lambda pair: pair[0])
        chosen = free_at[:num_nodes]
        return StartBid(
            num_nodes=num_nodes, start_at=chosen[-1][0], nodes=tuple(sorted(name for _, name in chosen))
        )

    def cancel(self, job_id: JobId) -> ChangeOutcome:
        """See ``Slurm.cancel``."""
        self.calls["cancel"] += 1
        if self._frozen:
            return Doubt(message=TIMEOUT_TEXT)
        self._advance()
        job = self._jobs.get(job_id)
        if job is not None and job.state not in ENDED_JOBS:
            self._end(job_id, JobState.CANCELLED, uid=1000)
        return Applied(message="CANCELLED")

    def drain(self, node: NodeName, reason: str) -> ChangeOutcome:
        """See ``Slurm.drain``."""
        check_reason(reason)
        found = self._changeable("drain", node)
        if isinstance(found, SimulatedNode):
            self._drain(found, reason, self._user)
            return Applied(message="DRAIN")
        return found

    def undrain(self, node: NodeName) -> ChangeOutcome:
        """See ``Slurm.undrain``."""
        found = self._changeable("undrain", node)
        if isinstance(found, SimulatedNode):
            found.flags.discard(NodeFlag.DRAIN)
            if not found.down:
                found.reason, found.reason_user, found.reason_at = "", "", None
            return Applied(message="UNDRAIN")
        return found

    def _answer(self, method: str, value: _T) -> Reading[_T]:
        self.calls[method] += 1
        now = self._clock.now()
        return Unknown(TIMEOUT_TEXT, now) if self._frozen else Known(value, now)

    def _changeable(self, method: str, name: NodeName) -> SimulatedNode | Refused | Doubt:
        self.calls[method] += 1
        if not is_node_name(name):
            raise ValueError(f"{name[:80]!r} is not a node name")
        if self._frozen:
            return Doubt(message=TIMEOUT_TEXT)
        self._advance()
        if not self.may_drain:
            return Refused(message="slurm_update error: Invalid user id", denied=True)
        node = self._nodes.get(name)
        return node or Refused(message=f"Slurm knows no node {name}")

    def _node_row(self, node: SimulatedNode) -> NodeRow:
        base = NodeBase.IDLE if node.job is None else NodeBase.ALLOCATED
        return NodeRow(
            name=node.name,
            base=NodeBase.DOWN if node.down else base,
            flags=frozenset(node.flags),
            reason=node.reason,
            reason_user=node.reason_user,
            reason_at=node.reason_at,
            partitions=(self._partition,),
            cpus=4,
            memory_mib=4000,
        )

    def _request(self, script: Path, options: Sequence[str]) -> Request | Refused:
        given: dict[str, str] = {}
        for option in options:
            name, sign, value = option.partition("=")
            if not name.startswith("--"):
                return Refused(message=f"the simulation reads --name=value, not {option!r}")
            given[name] = value if sign else ""
        try:
            exclude = frozenset(read_nodes(given.get("--exclude", "")))
            num_nodes = int(given.get("--nodes", "1").partition("-")[0])
        except ValueError:
            return Refused(message="Invalid option value")
        return Request(
            num_nodes=num_nodes,
            exclude=exclude,
            comment=given.get("--comment", ""),
            name=given.get("--job-name", script.name),
            partition=given.get("--partition", self._partition),
        )
