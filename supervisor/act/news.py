"""Tells people what happened to a run, once for each decision and target; a failure to tell stops nothing."""

from collections.abc import Callable, Sequence

from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.decision import Decision, Verdict
from supervisor.domain.run import Run
from supervisor.ledger.store import Ledger

Notify = Callable[[str, str, str], bool | None]
"""(target, subject, body) to whether it was delivered; None when no plugin knows the target's scheme."""

WORTH_TELLING = frozenset({Verdict.RESUBMIT, Verdict.WAIT, Verdict.HOLD, Verdict.STOP, Verdict.FINISH})


def tell(
    ledger: Ledger, notify: Notify, *, run: Run, decision: Decision, targets: Sequence[str], actor: str
) -> tuple[str, ...]:
    """Deliver a decision to every target and return sentences about what could not be delivered."""
    if decision.verdict not in WORTH_TELLING:
        return ()
    troubles: list[str] = []
    subject = f"run {run.id} {run.name}: {decision.verdict}"
    body = f"{decision.text}\n\nMore: supervise explain {run.id}\n"
    for target in targets:
        action = ledger.plan_action(
            ActionKind.NOTIFY,
            f"notify:{run.id}.{decision.allocation_no}:{decision.verdict}:{target}",
            run_id=run.id,
            payload=target,
        )
        if not ledger.start_action(action.id, actor):
            continue  # told before, or somebody else is telling it
        why = _deliver(notify, target, subject, body)
        if not why:
            ledger.settle_action(action.id, ActionState.APPLIED, f"told {target}")
            continue
        ledger.settle_action(action.id, ActionState.REFUSED, why)
        troubles.append(f"news for {target}: {why}")
    return tuple(troubles)


def _deliver(notify: Notify, target: str, subject: str, body: str) -> str:
    """Return why news could not be delivered, or an empty string."""
    try:
        delivered = notify(target, subject, body)
    except Exception as error:  # noqa: BLE001 - a plugin of anybody's; news never stop a recovery
        return f"its plugin failed: {type(error).__name__}: {error}"
    if delivered is None:
        return "no plugin knows such a target"
    return "" if delivered else "it could not be delivered"
