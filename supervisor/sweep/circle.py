"""The pass itself: settle what was left open, then look at every run, decide and act."""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog

from supervisor.act.news import Notify, tell
from supervisor.act.submission import settle, withdraw
from supervisor.clock import Clock
from supervisor.decide.nodes import DrainCount
from supervisor.domain.action import Action, ActionKind, ActionState
from supervisor.domain.facts import Known, PartitionRow
from supervisor.domain.policy import Policy
from supervisor.domain.run import (
    LIVE_ALLOCATIONS,
    SUPERVISED_RUNS,
    Allocation,
    AllocationState,
    Run,
    RunState,
)
from supervisor.domain.signature import Signature
from supervisor.domain.spec import JobSpec
from supervisor.errors import SupervisorError
from supervisor.ledger.store import Ledger
from supervisor.observe.scheduler import ClusterView
from supervisor.slurm.client import Slurm
from supervisor.sweep.apply import (
    Hands,
    apply_plan,
    has_saved,
    report_submission,
    stored_diagnosis,
    submission_for,
    was_resumed,
)
from supervisor.sweep.look import look
from supervisor.sweep.plan import Context, RunPlan, describe, plan_run, replan_run

log = structlog.get_logger()

LEASE = "sweep"
"""Name of the lease that keeps overlapping sweeps on one ledger apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep saw and did: one sentence per run."""

    lines: tuple[str, ...]
    errors: tuple[str, ...] = ()
    """Those of the lines that say what went wrong in the sweep itself; worth a mail from cron."""
    blind: str = ""
    """Why nothing could be concluded; empty when Slurm answered."""
    busy: str = ""
    """Who else is sweeping; empty when nobody is."""
    live_runs: int = 0
    """Runs that still need sweeps."""
    restless: bool = False
    """Something is under way, so the next sweep should be soon."""


def actor_name() -> str:
    """Return host:pid of this process, as stored with leases and actions."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(actor: str) -> bool:
    """Say whether the process host:pid is known to be gone; False when it is of another host."""
    host, _, pid = actor.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


class Sweep:
    """One pass over all supervised runs of one user in one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        slurm: Slurm,
        clock: Clock,
        *,
        policy: Policy,
        signatures: tuple[Signature, ...],
        lease: timedelta = timedelta(minutes=2),
        template_dirs: Iterable[Path] = (),
        owner: str | None = None,
        actor: str | None = None,
        notify: Notify | None = None,
        notify_targets: tuple[str, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._slurm = slurm
        self._clock = clock
        self._policy = policy
        self._signatures = signatures
        self._lease = lease
        self._template_dirs = tuple(template_dirs)
        self._owner = owner
        self._actor = actor or actor_name()
        self._under_way = False
        self._cluster = ""
        self._partitions: list[PartitionRow] = []
        self._errors: list[str] = []
        self._notify = notify
        self._notify_targets = notify_targets

    def run(self, *, dry_run: bool = False) -> SweepReport:
        """Make one pass; with ``dry_run`` only say what it would do."""
        self._errors.clear()
        if dry_run or self._policy.paused:
            return self._pass(dry_run=True)
        busy = self._take_lease()
        if busy:
            return SweepReport(lines=(), busy=busy)
        try:
            return self._pass(dry_run=False)
        finally:
            self._ledger.release_lease(LEASE, self._actor)

    def _pass(self, *, dry_run: bool) -> SweepReport:
        self._under_way = False
        self._partitions = []
        controller = self._slurm.controller()
        view = ClusterView(jobs=self._slurm.jobs(), nodes=self._slurm.nodes())
        if not isinstance(controller, Known) or view.blind():
            runs = self._ledger.runs(SUPERVISED_RUNS, self._owner)
            blind = view.blind() if isinstance(controller, Known) else f"no controller: {controller.why}"
            lines = [f"run {run.id} {run.name}: blind: nothing is changed" for run in runs]
            return SweepReport(lines=tuple(lines), blind=blind, live_runs=len(runs))
        self._cluster = controller.value.cluster
        lines = [] if dry_run else self._settle_submissions(view)
        for run in self._runs():
            if not dry_run and not self._ledger.renew_lease(LEASE, self._actor, self._lease):
                return SweepReport(
                    lines=tuple(lines), errors=tuple(self._errors), busy="another sweep took the lease over"
                )
            lines.extend(self._one_run(run, view, dry_run=dry_run))
        if not dry_run:
            lines.extend(self._carry_out_drains())
        after = self._runs()
        quiet = {RunState.QUEUED, RunState.RUNNING, RunState.WAITING}
        restless = self._under_way or any(run.state not in quiet for run in after)
        return SweepReport(
            lines=tuple(lines), errors=tuple(self._errors), live_runs=len(after), restless=restless
        )

    def _runs(self) -> tuple[Run, ...]:
        """Return the runs to look at. Those of other clusters in the same ledger are not to be found here."""
        runs = self._ledger.runs(SUPERVISED_RUNS, self._owner)
        return tuple(run for run in runs if run.cluster == self._cluster)

    def _take_lease(self) -> str:
        """Take the lease; return who else has it, or an empty string."""
        if self._ledger.acquire_lease(LEASE, self._actor, self._lease):
            return ""
        lease = self._ledger.lease(LEASE)
        if lease is not None and is_dead(lease.holder):
            # Its sweep was killed: waiting for the lease to run out would only lose time.
            self._ledger.break_lease(LEASE, lease.holder)
            if self._ledger.acquire_lease(LEASE, self._actor, self._lease):
                return ""
        return f"{lease.holder} sweeps since {lease.acquired_at:%H:%M:%S} UTC" if lease else "another sweep"

    def _one_run(self, run: Run, view: ClusterView, *, dry_run: bool) -> list[str]:
        """Plan and carry out one run; whatever goes wrong with it, the others have their turn."""
        try:
            plan = self._plan(run, view)
            if plan is None:
                return [f"run {run.id} {run.name}: {run.state}: {run.reason}"]
            self._under_way |= plan.decision.rule in {"completing", "submitting", "missing"}
            lines = [describe(plan)]
            if not dry_run:
                lines.extend(f"  {text}" for text in apply_plan(plan, self._hands(run)))
                lines.extend(f"  {text}" for text in self._tell(plan))
            return lines
        except SupervisorError as error:
            return self._error(run, str(error))
        except Exception as error:
            log.exception("bug", run=run.id)
            return self._error(run, f"please report this as a bug: {type(error).__name__}: {error}")

    def _error(self, run: Run, text: str) -> list[str]:
        self._errors.append(f"run {run.id} {run.name}: error: {text}")
        return self._errors[-1:]

    def _tell(self, plan: RunPlan) -> tuple[str, ...]:
        targets = tuple(dict.fromkeys((*plan.spec.notify, *self._notify_targets)))
        if self._notify is None or not targets:
            return ()
        return tell(
            self._ledger,
            self._notify,
            run=plan.run,
            decision=plan.decision,
            targets=targets,
            actor=self._actor,
        )

    def _plan(self, run: Run, view: ClusterView) -> RunPlan | None:
        history = self._ledger.allocations(run.id)
        spec = JobSpec.model_validate_json(run.spec_json)
        context = self._context(view, run)
        last = history[-1]
        if last.state is AllocationState.PLANNED:
            return None  # its submission is settled before runs are planned; it is still in doubt
        if last.state not in LIVE_ALLOCATIONS:
            diagnosis = stored_diagnosis(self._ledger, last)
            resumed = was_resumed(self._ledger, last)
            return replan_run(run, spec, history, diagnosis, context, resumed=resumed)
        sighting = look(run, spec, last, view=view, slurm=self._slurm, now=context.now)
        return plan_run(run, spec, history, sighting, context)

    def _context(self, view: ClusterView, run: Run) -> Context:
        now = self._clock.now()
        drains = self._ledger.our_drains(run.cluster)
        since = now - self._policy.nodes.window
        return Context(
            view=view,
            slurm=self._slurm,
            policy=self._policy,
            signatures=self._signatures,
            now=now,
            avoided=tuple((row.node, row.run_id) for row in self._ledger.avoided(now)),
            drains=DrainCount(
                standing=len(drains), in_window=sum(1 for row in drains if row.drained_at >= since)
            ),
            saved=has_saved(self._ledger, run),
            partitions=self._partitions,
        )

    def _settle_submissions(self, view: ClusterView) -> list[str]:
        lines: list[str] = []
        for action in self._ledger.open_actions([ActionKind.SUBMIT]):
            if action.run_id is None or action.allocation_no is None:
                continue
            run = self._ledger.run(action.run_id)
            if run.cluster != self._cluster or self._owner not in {None, run.owner}:
                continue
            allocation = self._ledger.allocation(action.run_id, action.allocation_no)
            lines.extend(self._settle_submission(run, allocation, action, view))
        return lines

    def _settle_submission(
        self, run: Run, allocation: Allocation, action: Action, view: ClusterView
    ) -> list[str]:
        if run.state is RunState.CANCELLING and withdraw(self._ledger, action, allocation, actor=self._actor):
            text = "cancelled before it was submitted"
            self._ledger.advance_run(run.id, expected=run.state, to=RunState.CANCELLED, reason=text)
            return [f"run {run.id} {run.name}: {text}"]
        try:
            spec = JobSpec.model_validate_json(run.spec_json)
            done = settle(
                self._ledger,
                self._slurm,
                run=run,
                action=action,
                allocation=allocation,
                plan=submission_for(run, spec, allocation, action, self._template_dirs),
                jobs=view.jobs,
                actor=self._actor,
                grace=self._policy.submit_grace,
                now=self._clock.now(),
            )
        except SupervisorError as error:
            return self._error(run, str(error))
        if run.state is RunState.CANCELLING and done.state is ActionState.REFUSED:
            self._ledger.advance_run(run.id, expected=run.state, to=RunState.CANCELLED, reason=done.text)
        if run.state in {RunState.RECOVERING, RunState.QUEUED}:
            report_submission(run.id, run.state, done, self._ledger)
        return [f"run {run.id} {run.name}: submission of allocation {allocation.no}: {done.text}"]

    def _carry_out_drains(self) -> list[str]:
        """Carry out the drains that were decided, in this sweep or in one that was cut short."""
        lines: list[str] = []
        for action in self._ledger.open_actions([ActionKind.DRAIN]):
            run = self._ledger.run(action.run_id) if action.run_id is not None else None
            if run is None or run.cluster != self._cluster:
                continue
            hands = self._hands(run)
            lines.append(f"  {hands.drainer().drain(action)}")
        return lines

    def _hands(self, run: Run) -> Hands:
        return Hands(
            ledger=self._ledger,
            slurm=self._slurm,
            template_dirs=self._template_dirs,
            actor=self._actor,
            cluster=run.cluster,
            now=self._clock.now(),
        )
