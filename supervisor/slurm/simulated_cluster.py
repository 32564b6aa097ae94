"""What happens inside the simulated Slurm: nodes that fail, jobs that start and end, faults on demand."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from supervisor.clock import Clock
from supervisor.domain.facts import ENDED_JOBS, JobRow, JobState, NodeFlag, Refused
from supervisor.domain.ids import JobId, NodeName

TIMEOUT_TEXT = "Socket timed out on send/recv operation"
UNAVAILABLE_TEXT = "Requested node configuration is not available"
BAD_NODE_TEXT = "Invalid node name specified"


@dataclass(slots=True)
class SimulatedNode:
    """One node; at most one job holds it."""

    name: NodeName
    down: bool = False
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    job: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What sbatch was asked for."""

    num_nodes: int = 1
    exclude: frozenset[NodeName] = frozenset()
    comment: str = ""
    name: str = ""
    partition: str = ""


class SimulatedCluster:
    """Nodes, jobs, and what becomes of them. ``calls`` counts the calls of each method of the Protocol."""

    def __init__(
        self,
        clock: Clock,
        *,
        nodes: Iterable[str] = ("node001", "node002", "node003", "node004"),
        partition: str = "main",
        user: str = "alice",
        min_job_age: timedelta = timedelta(seconds=300),
        accounting: bool = True,
        may_drain: bool = True,
        detection: timedelta = timedelta(seconds=10),
        job_length: timedelta = timedelta(days=1),
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.accounting_on = accounting
        self.may_drain = may_drain
        self._clock = clock
        self._nodes = {NodeName(name): SimulatedNode(NodeName(name)) for name in nodes}
        self._partition = partition
        self._user = user
        self._min_job_age = min_job_age
        self._detection = detection
        self._job_length = job_length
        self._jobs: dict[JobId, JobRow] = {}
        self._requests: dict[JobId, Request] = {}
        self._records: list[JobRow] = []
        self._lost: list[tuple[datetime, NodeName]] = []
        self._next_id = 1
        self._frozen = False
        self._accept_while_frozen = True
        self._waiting: list[Request] = []
        self._lose_next_reply = False

    # Faults and turns of fate, for tests.

    def freeze(self, *, accept: bool = True) -> None:
        """Stop answering; with ``accept`` what is submitted meanwhile is in the queue after ``thaw``."""
        self._frozen = True
        self._accept_while_frozen = accept

    def thaw(self) -> None:
        """Answer again."""
        self._frozen = False
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._enqueue(request)

    def lose_reply_next_submit(self) -> None:
        """Accept the next submission, but answer it with a timeout."""
        self._lose_next_reply = True

    def fail_node(self, name: str) -> None:
        """Cut a node's power; its job ends with NODE_FAIL once the controller has noticed."""
        self._lost.append((self._clock.now() + self._detection, self._node(name).name))

    def return_node(self, name: str) -> None:
        """Bring a node back: idle, unless it is drained."""
        node = self._node(name)
        self._lost = [(at, lost) for at, lost in self._lost if lost != node.name]
        node.down = False
        node.flags.discard(NodeFlag.NOT_RESPONDING)
        if NodeFlag.DRAIN not in node.flags:
            node.reason, node.reason_user, node.reason_at = "", "", None

    def drain_by_admin(self, name: str, reason: str, user: str = "root") -> None:
        """Drain a node by somebody else's hand, whatever rights we have."""
        self._drain(self._node(name), reason, user)

    def remove_node(self, name: str) -> None:
        """Take a node out of the configuration."""
        del self._nodes[self._node(name).name]

    def finish(self, job_id: int, exit_code: int = 0) -> None:
        """Let a running job's script end with ``exit_code``."""
        state = JobState.FAILED if exit_code else JobState.COMPLETED
        self._end(JobId(job_id), state, exit_code=exit_code, reason="NonZeroExitCode" if exit_code else "")

    def cancel_by_user(self, job_id: int, uid: int = 1000) -> None:
        """Cancel a job by its owner's own scancel."""
        self._end(JobId(job_id), JobState.CANCELLED, uid=uid)

    def time_out(self, job_id: int) -> None:
        """Let a running job meet its time limit."""
        self._end(JobId(job_id), JobState.TIMEOUT, reason="TimeLimit")

    def preempt(self, job_id: int) -> None:
        """Let a running job give way to a better one."""
        self._end(JobId(job_id), JobState.PREEMPTED)

    # How it works inside.

    def _node(self, name: str) -> SimulatedNode:
        return self._nodes[NodeName(name)]

    def _drain(self, node: SimulatedNode, reason: str, user: str) -> None:
        node.flags.add(NodeFlag.DRAIN)
        node.reason, node.reason_user, node.reason_at = reason, user, self._clock.now()

    def _refusal(self, request: Request) -> Refused | None:
        if request.partition != self._partition:
            return Refused(message="Invalid partition name specified")
        if request.num_nodes < 1:
            return Refused(message="Node count specification invalid")
        if request.exclude - self._nodes.keys():
            return Refused(message=BAD_NODE_TEXT)
        # More nodes than the partition has is accepted and pends for ever; only exclusion is refused.
        if request.exclude and len(self._candidates(request)) < request.num_nodes <= len(self._nodes):
            return Refused(message=UNAVAILABLE_TEXT)
        return None

    def _candidates(self, request: Request) -> list[SimulatedNode]:
        return [node for node in self._nodes.values() if node.name not in request.exclude]

    def _usable(self, node: SimulatedNode) -> bool:
        return not node.down and not node.flags & {NodeFlag.DRAIN, NodeFlag.NOT_RESPONDING}

    def _free_at(self, node: SimulatedNode) -> datetime:
        now = self._clock.now()
        job = self._jobs.get(node.job) if node.job is not None else None
        return max(now, job.end_at) if job is not None and job.end_at is not None else now

    def _enqueue(self, request: Request) -> JobId:
        job_id = JobId(self._next_id)
        self._next_id += 1
        self._requests[job_id] = request
        self._jobs[job_id] = JobRow(
            job_id=job_id,
            state=JobState.PENDING,
            raw_state="PENDING",
            reason="Priority",
            user=self._user,
            name=request.name,
            comment=request.comment,
            submit_at=self._clock.now(),
            num_nodes=request.num_nodes,
            partition=request.partition,
        )
        self._advance()
        return job_id

    def _leave_ghost(self, request: Request) -> None:
        """Keep a refused job as slurmctld does (22.05.8): squeue shows it, comment and token and all."""
        job_id = self._enqueue(request)
        self._end(job_id, JobState.FAILED, reason="BadConstraints")

    def _advance(self) -> None:
        """Do what slurmctld would have done by now."""
        if self._frozen:
            return
        now = self._clock.now()
        for at, name in [entry for entry in self._lost if entry[0] <= now]:
            self._lost.remove((at, name))
            if name in self._nodes:
                self._lose(self._nodes[name], at)
        self._start_jobs(now)
        for job in list(self._jobs.values()):
            ended = job.state in ENDED_JOBS and job.end_at is not None
            if ended and job.end_at is not None and now - job.end_at > self._min_job_age:
                del self._jobs[job.job_id]

    def _lose(self, node: SimulatedNode, at: datetime) -> None:
        node.down = True
        node.flags.add(NodeFlag.NOT_RESPONDING)
        if NodeFlag.DRAIN not in node.flags:
            node.reason, node.reason_user, node.reason_at = "Not responding", "slurm", at
        if node.job is not None:
            self._end(node.job, JobState.NODE_FAIL, reason="NodeDown", at=at)

    def _start_jobs(self, now: datetime) -> None:
        for job in list(self._jobs.values()):
            if job.state is not JobState.PENDING:
                continue
            request = self._requests[job.job_id]
            free = [n for n in self._candidates(request) if self._usable(n) and n.job is None]
            if request.num_nodes > len(self._nodes):
                self._jobs[job.job_id] = replace(job, reason="PartitionConfig")
                continue
            if len(free) < request.num_nodes:
                self._jobs[job.job_id] = replace(job, reason="Resources")
                return
            chosen = free[: request.num_nodes]
            for node in chosen:
                node.job = job.job_id
            self._jobs[job.job_id] = replace(
                job,
                state=JobState.RUNNING,
                raw_state="RUNNING",
                reason="",
                start_at=now,
                end_at=now + self._job_length,
                nodes=tuple(node.name for node in chosen),
            )

    def _end(
        self,
        job_id: JobId,
        state: JobState,
        *,
        exit_code: int = 0,
        reason: str = "",
        uid: int | None = None,
        at: datetime | None = None,
    ) -> None:
        job = self._jobs[job_id]
        if job.state in ENDED_JOBS:
            raise ValueError(f"job {job_id} has ended before: {job.raw_state}")
        for node in self._nodes.values():
            if node.job == job_id:
                node.job = None
        now = at or self._clock.now()
        ended = replace(
            job,
            state=state,
            raw_state=state.value,
            reason=reason,
            start_at=job.start_at or now,
            end_at=now,
            exit_code=exit_code,
            exit_signal=0,
        )
        self._jobs[job_id] = ended
        # squeue says CANCELLED; only accounting names who did it.
        word = state.value if uid is None else f"{state.value} by {uid}"
        self._records.append(replace(ended, raw_state=word, cancelled_by=uid))
