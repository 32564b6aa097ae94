"""The next move of a run, from where its allocation stands and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.decide.table import TABLE, Move, Rule, budget_for, spent
from supervisor.domain.decision import Diagnosis, Verdict
from supervisor.domain.evidence import SIGNALLED, Phase, Sighting
from supervisor.domain.policy import Policy
from supervisor.domain.run import Allocation, Run, RunState
from supervisor.domain.spec import JobSpec

LOST_RULE = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextMove:
    """A verdict with its rule, before nodes, size and checkpoint are settled."""

    verdict: Verdict
    rule: str
    text: str
    step_back: bool = False
    """Hand over the checkpoint before the one that the failed attempt used."""
    grow: bool = False
    """Only sizes above the failed attempt's make sense."""
    budget_left: int | None = None


def is_over(sighting: Sighting, suspects: bool, policy: Policy) -> bool:
    """Say whether an allocation can be judged.

    A COMPLETING job whose script has left its marker trains no more (what lives on a lost node is
    fenced by its old attempt number). It is judged when its missing nodes are known, or after a while.
    A script that was signalled waits for Slurm's word on whether that was a cancel, a limit or a preemption.
    """
    if sighting.phase is Phase.ENDED:
        return True
    if sighting.phase is not Phase.COMPLETING or sighting.marker is None:
        return False
    if suspects and sighting.marker.rc != 0:
        return True
    waited = sighting.at - sighting.marker.at
    return sighting.marker.reason != SIGNALLED and waited > policy.completing_patience


def keep(rule: str, text: str) -> NextMove:
    """Return the move that changes nothing."""
    return NextMove(verdict=Verdict.KEEP, rule=rule, text=text)


def move_while_live(allocation: Allocation, sighting: Sighting, policy: Policy) -> NextMove:
    """Return the move for an allocation that is not over."""
    match sighting.phase:
        case Phase.BLIND:
            return NextMove(verdict=Verdict.BLIND, rule="blind", text=f"nothing is known: {sighting.why}")
        case Phase.UNSEEN:
            return keep("submitting", "its submission is being settled")
        case Phase.MISSING:
            return _missing(allocation, sighting, policy)
        case Phase.PENDING:
            reason = sighting.job.reason if sighting.job else ""
            return keep(
                "pending", f"job {allocation.job_id} waits in the queue ({reason or 'no reason given'})"
            )
        case Phase.COMPLETING:
            return keep(
                "completing", f"job {allocation.job_id} has ended; waiting for its nodes to come back"
            )
        case _:
            step = f", step {sighting.progress.last_step}" if sighting.progress else ""
            return keep("running", f"job {allocation.job_id} runs on {allocation.num_nodes} nodes{step}")


def _missing(allocation: Allocation, sighting: Sighting, policy: Policy) -> NextMove:
    since = allocation.noticed_at or sighting.at
    if sighting.at - since >= policy.lost_after and sighting.cancel_asked:
        text = f"cancelled as asked; job {allocation.job_id} is nowhere to be found"
        return NextMove(verdict=Verdict.ACCEPT_CANCEL, rule=LOST_RULE, text=text)
    if sighting.at - since < policy.lost_after:
        return keep("missing", f"job {allocation.job_id} is nowhere to be found since {since:%H:%M:%S} UTC")
    return NextMove(
        verdict=Verdict.HOLD,
        rule=LOST_RULE,
        text=(
            f"job {allocation.job_id} is lost: {sighting.why}. Check that none of its processes is alive, "
            f"then: supervise resume {allocation.run_id}"
        ),
    )


def move_after_end(
    run: Run,
    spec: JobSpec,
    history: Sequence[Allocation],
    diagnosis: Diagnosis | None,
    *,
    newest_step: int | None,
    policy: Policy,
) -> NextMove:
    """Return the move after an allocation has ended.

    Args:
        run: the run.
        spec: its job file.
        history: its allocations, oldest first; the last one is judged.
        diagnosis: why it ended; None when it finished the training.
        newest_step: step of the newest committed checkpoint; None without one.
        policy: what is allowed.
    """
    if diagnosis is None:
        return NextMove(verdict=Verdict.FINISH, rule="done", text="the training is finished")
    if run.state is RunState.CANCELLING:
        return NextMove(verdict=Verdict.ACCEPT_CANCEL, rule="cancelled", text="cancelled as asked")
    rule = TABLE[diagnosis.failure_class]
    if rule.move is Move.ACCEPT:
        return NextMove(
            verdict=Verdict.ACCEPT_CANCEL,
            rule="cancelled",
            text=f"{diagnosis.summary}; supervise resume {run.id} takes it up again",
        )
    if rule.move is Move.HOLD:
        return NextMove(verdict=Verdict.HOLD, rule=f"{diagnosis.failure_class}.hold", text=diagnosis.summary)
    return _retry_or_stop(run, spec, history, diagnosis, rule, newest_step=newest_step, policy=policy)


def _retry_or_stop(
    run: Run,
    spec: JobSpec,
    history: Sequence[Allocation],
    diagnosis: Diagnosis,
    rule: Rule,
    *,
    newest_step: int | None,
    policy: Policy,
) -> NextMove:
    judged = history[-1]
    name = diagnosis.failure_class
    progressed = newest_step is not None and newest_step > (judged.resume_step or 0)
    budget = budget_for(diagnosis, spec, policy)
    left = budget - spent(history, name, newest_step)
    if rule.free_with_progress and progressed:
        left = max(left, 1)
    larger = [size for size in spec.sizes() if size > judged.num_nodes]
    if rule.move is Move.GROW and not larger:
        left = 0
    if left <= 0:
        # P7: a user's bug stops with its explanation; what is not the user's fault is held for a person.
        verdict = Verdict.STOP if rule.move in {Move.STOP, Move.GROW} else Verdict.HOLD
        return NextMove(
            verdict=verdict,
            rule=f"{name}.budget_spent",
            text=f"{diagnosis.summary}; no retries left for {name} (supervise resume {run.id} tries again)",
            budget_left=0,
        )
    return NextMove(
        verdict=Verdict.RESUBMIT,
        rule=f"{name}.{'off_the_node' if rule.move is Move.OFF_THE_NODE else 'retry'}",
        text=diagnosis.summary,
        step_back=rule.move is Move.ROLL_BACK,
        grow=rule.move is Move.GROW,
        budget_left=left - 1,
    )
