"""Carries a run's plan out. Any step may be the last before a crash: the next sweep goes on from there."""

import json
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from supervisor.act.cancellation import cancel
from supervisor.act.drain import Drainer, plan_drain
from supervisor.act.pruning import prune_checkpoints
from supervisor.act.submission import Submitted, submit
from supervisor.checkpoint.choice import find
from supervisor.decide.next import LOST_RULE
from supervisor.domain.action import OPEN_ACTIONS, Action, ActionState
from supervisor.domain.checkpoint import CheckpointState
from supervisor.domain.decision import Diagnosis, Evidence, NodeMeasure, Verdict
from supervisor.domain.evidence import Phase, Sighting
from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import NodeName, Token
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.domain.spec import JobSpec
from supervisor.domain.submission import AllocationRequest, SubmissionPlan
from supervisor.intake.plan import plan_submission
from supervisor.ledger.rows import AllocationFacts, NewAllocation
from supervisor.ledger.store import Ledger
from supervisor.slurm.client import Slurm
from supervisor.sweep.plan import RunPlan

_TOKEN_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # noqa: S105 - an alphabet, no secret
SAVED = "checkpoint_seen"
"""Kind of the event that tells of a run's first checkpoint."""
_PHASE_STATES = {Phase.PENDING: AllocationState.PENDING, Phase.RUNNING: AllocationState.RUNNING}
_RUN_STATES = {Phase.PENDING: RunState.QUEUED, Phase.RUNNING: RunState.RUNNING}
_END_STATES = {
    Verdict.FINISH: RunState.DONE,
    Verdict.STOP: RunState.FAILED,
    Verdict.HOLD: RunState.HELD,
    Verdict.WAIT: RunState.WAITING,
    Verdict.ACCEPT_CANCEL: RunState.CANCELLED,
}


def new_token() -> Token:
    """Return a fresh token for one intended submission: 80 random bits."""
    return Token("".join(secrets.choice(_TOKEN_ALPHABET) for _ in range(16)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What carrying out needs."""

    ledger: Ledger
    slurm: Slurm
    template_dirs: tuple[Path, ...]
    actor: str
    cluster: str
    now: datetime

    def drainer(self) -> Drainer:
        """Return what drains nodes."""
        return Drainer(
            ledger=self.ledger, slurm=self.slurm, cluster=self.cluster, actor=self.actor, now=self.now
        )


def apply_plan(plan: RunPlan, hands: Hands) -> tuple[str, ...]:
    """Carry out ``plan`` and return sentences about what happened beyond it."""
    verdict = plan.decision.verdict
    if verdict is Verdict.BLIND:
        return ()
    if verdict is Verdict.KEEP:
        return _keep(plan, hands)
    isolated = _judge(plan, plan.sighting, hands) if plan.sighting is not None else ()
    if verdict is Verdict.RESUBMIT:
        return (*isolated, *_resubmit(plan, hands))
    return (*isolated, *_close(plan, hands))


def request_for(run: Run, spec: JobSpec, allocation: Allocation, payload: str) -> AllocationRequest:
    """Return what an allocation in the ledger asks for; the same before and after a crash."""
    return AllocationRequest(
        run_id=run.id,
        uid=run.uid,
        spec=spec,
        folder=run.folder,
        chdir=run.folder.parent.parent,
        no=allocation.no,
        token=allocation.token,
        num_nodes=allocation.num_nodes,
        excluded=allocation.excluded,
        resume_from=allocation.resume_from,
        resume_step=allocation.resume_step,
        last_failure=str(json.loads(payload or "{}").get("last_failure", "")),
    )


def submission_for(
    run: Run, spec: JobSpec, allocation: Allocation, action: Action, template_dirs: tuple[Path, ...]
) -> SubmissionPlan:
    """Render an allocation in the ledger."""
    return plan_submission(request_for(run, spec, allocation, action.payload), template_dirs=template_dirs)


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as plain data, to be stored with the event of an allocation's end."""
    return {
        "failure_class": diagnosis.failure_class,
        "nodes": list(diagnosis.nodes),
        "summary": diagnosis.summary,
        "evidence": [[item.source, item.text] for item in diagnosis.evidence],
        "confidence": diagnosis.confidence,
        "runner_up": diagnosis.runner_up,
    }


def stored_diagnosis(ledger: Ledger, allocation: Allocation) -> Diagnosis:
    """Return the diagnosis that was stored when an allocation was judged."""
    for event in reversed(ledger.events(run_id=allocation.run_id, kind="diagnosed")):
        if event.allocation_no == allocation.no and event.data:
            data = event.data
            return Diagnosis(
                failure_class=FailureClass(data["failure_class"]),
                nodes=tuple(NodeName(name) for name in data["nodes"]),
                summary=data["summary"],
                evidence=tuple(Evidence(source=source, text=text) for source, text in data["evidence"]),
                confidence=data["confidence"],
                runner_up=data["runner_up"],
            )
    # Never diagnosed: Slurm refused it, so it never ran, or it was lost, so nobody knows.
    refused = allocation.state is AllocationState.REFUSED
    return Diagnosis(
        failure_class=FailureClass.SCHEDULER if refused else FailureClass.UNKNOWN,
        summary=f"Slurm refused it: {allocation.slurm_reason}" if refused else "its job was lost",
        confidence=1.0 if refused else 0.0,
    )


def was_resumed(ledger: Ledger, allocation: Allocation) -> bool:
    """Say whether a person asked to go on after ``allocation`` (``supervise resume``)."""
    return any(
        event.allocation_no == allocation.no
        for event in ledger.events(run_id=allocation.run_id, kind="resumed")
    )


def has_saved(ledger: Ledger, run: Run) -> bool:
    """Say whether a checkpoint of the run was ever seen."""
    return bool(ledger.events(run_id=run.id, kind=SAVED, limit=1))


def _note_first_save(plan: RunPlan, hands: Hands) -> None:
    """Write down that the run has a checkpoint: should its directory vanish, step 0 is no place to go on."""
    run, spec = plan.run, plan.spec
    if spec.checkpoint is None or has_saved(hands.ledger, run):
        return
    try:
        found = find(run.folder.parent.parent / spec.checkpoint.dir)
    except OSError:
        return  # not now; the next sweep looks again
    newest = next((item for item in found if item.state is CheckpointState.UNKNOWN), None)
    if newest is not None:
        hands.ledger.append_event(
            SAVED, f"step {newest.step} in {newest.path}", run_id=run.id, allocation_no=plan.allocation.no
        )


def _keep(plan: RunPlan, hands: Hands) -> tuple[str, ...]:
    """Write down what was seen of a live allocation, and cancel it where that was asked for."""
    run, allocation, sighting = plan.run, plan.allocation, plan.sighting
    if sighting is None:
        return ()
    _record_sighting(allocation, sighting, hands)
    state = _PHASE_STATES.get(sighting.phase)
    if state is not None and allocation.state is not state:
        hands.ledger.advance_allocation(run.id, allocation.no, expected=allocation.state, to=state)
    if run.state is RunState.CANCELLING:
        # Level-triggered: a cancel whose first try did not come through is asked for again.
        settled, text = cancel(hands.ledger, hands.slurm, allocation, actor=hands.actor)
        return () if settled is ActionState.APPLIED else (text,)
    to = _RUN_STATES.get(sighting.phase, run.state)
    if to is not run.state:
        hands.ledger.advance_run(run.id, expected=run.state, to=to, reason=plan.decision.text)
    elif run.reason != plan.decision.text:
        hands.ledger.set_run_reason(run.id, run.state, plan.decision.text)
    if sighting.phase is Phase.RUNNING:
        _note_first_save(plan, hands)
        return prune_checkpoints(run, plan.spec, allocation, now=hands.now)
    return ()


def _record_sighting(allocation: Allocation, sighting: Sighting, hands: Hands) -> None:
    facts = AllocationFacts()
    if sighting.job is not None:
        facts["slurm_state"] = sighting.job.raw_state
        facts["slurm_reason"] = sighting.job.reason
        if sighting.job.submit_at is not None:
            facts["submitted_at"] = sighting.job.submit_at
        facts["restart_count"] = sighting.job.restart_count
        facts["job_id"] = sighting.job.job_id
    if sighting.phase is Phase.RUNNING:
        if sighting.nodes:
            facts["nodes"] = sighting.nodes
        if sighting.job is not None and sighting.job.start_at is not None:
            facts["started_at"] = sighting.job.start_at
    if sighting.phase is Phase.MISSING and allocation.slurm_state != "MISSING":
        # From here on the patience for a vanished job runs.
        facts["slurm_state"] = "MISSING"
        facts["slurm_reason"] = sighting.why
        facts["noticed_at"] = sighting.at
    if sighting.progress is not None:
        facts["first_step_at"] = sighting.progress.first_at
        facts["last_step"] = sighting.progress.last_step
        facts["last_step_at"] = sighting.progress.last_at
    hands.ledger.record_facts(allocation.run_id, allocation.no, **facts)


def _judge(plan: RunPlan, sighting: Sighting, hands: Hands) -> tuple[str, ...]:
    """Write down the end of an allocation and what follows for nodes, close it, then drain.

    The order matters: diagnosis, avoids and drain intents come before the allocation is ENDED. A crash in
    between makes the next sweep judge it again, and all of these can be written twice without harm. Returns
    sentences about the drains.
    """
    drains: list[Action] = []
    allocation, ledger = plan.allocation, hands.ledger
    if plan.diagnosis is not None:
        ledger.append_event(
            "diagnosed",
            f"{plan.diagnosis.failure_class}: {plan.diagnosis.summary}",
            run_id=plan.run.id,
            allocation_no=allocation.no,
            data=diagnosis_data(plan.diagnosis),
        )
    for item in plan.decision.nodes:
        ledger.avoid(item.node, run_id=None, until=item.avoid_until, reason=item.reason)
        if item.measure is NodeMeasure.DRAIN:
            drains.append(
                plan_drain(ledger, item, cluster=hands.cluster, run_id=plan.run.id, no=allocation.no)
            )
        elif item.measure is NodeMeasure.REQUEST:
            ledger.append_event("drain_requested", item.reason, run_id=plan.run.id, node=item.node)
    _record_sighting(allocation, sighting, hands)
    job, marker = sighting.job, sighting.marker
    lost = plan.decision.rule == LOST_RULE
    ledger.advance_allocation(
        plan.run.id,
        allocation.no,
        expected=allocation.state,
        to=AllocationState.LOST if lost else AllocationState.ENDED,
        started_at=(job.start_at if job and sighting.nodes else None) or allocation.started_at,
        ended_at=None if lost else sighting.job_ended_at or sighting.at,
        noticed_at=allocation.noticed_at if lost else sighting.at,
        nodes=sighting.nodes or allocation.nodes,
        exit_code=marker.rc if marker else (job.exit_code if job else None),
        exit_signal=job.exit_signal if job else None,
        failure_class=plan.diagnosis.failure_class if plan.diagnosis else None,
    )
    # The node is isolated before the run goes on; a drain that is cut short here is taken up by any sweep.
    drainer = hands.drainer()
    return tuple(drainer.drain(action) for action in drains if action.state in OPEN_ACTIONS)


def _resubmit(plan: RunPlan, hands: Hands) -> tuple[str, ...]:
    run, decision, ledger = plan.run, plan.decision, hands.ledger
    state = run.state
    if state is not RunState.RECOVERING:
        if not ledger.advance_run(run.id, expected=state, to=RunState.RECOVERING, reason=decision.text):
            return ("somebody else changed the run meanwhile; the next sweep looks again",)
        state = RunState.RECOVERING
    payload = json.dumps({"last_failure": plan.diagnosis.failure_class if plan.diagnosis else ""})
    planned = ledger.plan_allocation(
        run.id,
        expected=state,
        allocation=NewAllocation(
            token=new_token(),
            num_nodes=decision.num_nodes or plan.spec.nodes.min,
            excluded=decision.exclude,
            resume_from=decision.resume_from,
            resume_step=decision.resume_step,
        ),
        action_payload=payload,
        decision=decision,
        diagnosis=plan.diagnosis,
    )
    if planned is None:
        return ("another allocation of the run is live; the next sweep looks again",)
    allocation, action = planned
    submission = submission_for(run, plan.spec, allocation, action, hands.template_dirs)
    done = submit(
        ledger, hands.slurm, action=action, allocation=allocation, plan=submission, actor=hands.actor
    )
    return report_submission(run.id, state, done, ledger)


def report_submission(run_id: int, state: RunState, done: Submitted, ledger: Ledger) -> tuple[str, ...]:
    """Move the run on after a submission was settled, and say what became of it."""
    if done.state is ActionState.APPLIED:
        reason = f"submitted as {done.text}"
        if state is RunState.QUEUED:
            ledger.set_run_reason(run_id, state, reason)
        else:
            ledger.advance_run(run_id, expected=state, to=RunState.QUEUED, reason=reason)
    elif done.state is ActionState.REFUSED:
        reason = f"{done.text} (mend it, then: supervise resume {run_id})"
        ledger.advance_run(run_id, expected=state, to=RunState.HELD, reason=reason)
    elif done.state is ActionState.UNKNOWN:
        ledger.set_run_reason(run_id, state, done.text)
    return (done.text,)


def _close(plan: RunPlan, hands: Hands) -> tuple[str, ...]:
    """Bring a run to rest: done, failed, held, waiting or cancelled."""
    run, decision, ledger = plan.run, plan.decision, hands.ledger
    to = _END_STATES[decision.verdict]
    if run.state is to:
        if run.reason != decision.text:
            ledger.set_run_reason(run.id, run.state, decision.text)
        return ()
    state = run.state
    if to is RunState.WAITING and state is not RunState.RECOVERING:
        ledger.advance_run(run.id, expected=state, to=RunState.RECOVERING, reason=decision.text)
        state = RunState.RECOVERING
    ledger.record_decision(decision, plan.diagnosis, hands.now)
    ledger.advance_run(run.id, expected=state, to=to, reason=decision.text)
    return ()
