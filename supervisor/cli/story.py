"""supervise status, explain: what happened, why, what next, and did it happen."""

from collections.abc import Iterator
from datetime import datetime

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.output import Column, Style, format_time, print_rows, style_options
from supervisor.cli.text import clean
from supervisor.domain.action import OPEN_ACTIONS, Action, ActionKind, ActionState
from supervisor.domain.nodeset import fold
from supervisor.domain.run import FINISHED_RUNS, LIVE_ALLOCATIONS, Allocation, AllocationState, Run, RunState
from supervisor.errors import UsageError
from supervisor.ledger.rows import StoredDecision

_LIST = [
    Column(name="RUN", right=True),
    Column(name="JOBID", right=True),
    Column(name="NAME"),
    Column(name="USER"),
    Column(name="STATE"),
    Column(name="ST"),
    Column(name="NODES", right=True),
    Column(name="ELAPSED", right=True),
    Column(name="STEP", right=True),
    Column(name="RST", right=True),
    Column(name="REASON"),
]
_HISTORY = [
    Column(name="NO", right=True),
    Column(name="JOBID", right=True),
    Column(name="STATE"),
    Column(name="ST"),
    Column(name="NODES", right=True),
    Column(name="NODELIST"),
    Column(name="EXCLUDED"),
    Column(name="FROM", right=True),
    Column(name="STEP", right=True),
    Column(name="STARTED"),
    Column(name="ENDED"),
    Column(name="CAUSE"),
]
# squeue(1), JOB STATE CODES
_SHORT = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "CONFIGURING": "CF",
    "COMPLETING": "CG",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}


_OUTLOOK = {
    RunState.HELD: "nothing more by itself; mend the cause, then: supervise resume {run}",
    RunState.FAILED: "nothing more by itself; mend the cause, then: supervise resume {run}",
    RunState.CANCELLED: "nothing more; supervise resume {run} takes it up again",
    RunState.DONE: "nothing more; it is finished",
    RunState.WAITING: "each sweep looks again and goes on when it can",
    RunState.CANCELLING: "each sweep cancels its job until it is gone",
}


@click.command()
@click.argument("run", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Finished runs too.")
@click.option("-u", "--user", metavar="NAME", help="Only runs of this user.")
@click.option("--me", is_flag=True, help="Only runs of your own.")
@click.option("-t", "--states", metavar="STATES", help="Only runs in these states, separated by commas.")
@style_options
@pass_app
def status(
    app: App,
    run: str | None,
    *,
    everything: bool,
    user: str | None,
    me: bool,
    states: str | None,
    as_json: bool,
    parsable: bool,
    noheader: bool,
    columns: str | None,
) -> None:
    """List runs, or the allocations of one RUN.

    STATE is the run's; ST is what Slurm says of its newest job, RST counts restarts.
    """
    style = Style(json=as_json, parsable=parsable, noheader=noheader, format=columns)
    if run is not None:
        found = app.find_run(run)
        if not style.for_scripts:
            click.echo(clean(f"run {found.id} {found.name} of {found.owner}: {found.state}: {found.reason}"))
            click.echo(clean(f"folder {found.folder}"))
        print_rows(_HISTORY, [_history_row(row) for row in app.ledger.allocations(found.id)], style)
        return
    wanted = _states(states) if states is not None else frozenset(RunState)
    if not everything and states is None:
        wanted -= FINISHED_RUNS
    now = app.clock.now()
    runs = app.ledger.runs(wanted, app.owner if me else user)
    print_rows(_LIST, [_list_row(row, app.ledger.allocations(row.id), now) for row in runs], style)


def _states(text: str) -> frozenset[RunState]:
    words = {word.strip().lower() for word in text.split(",") if word.strip()}
    if words == {"all"}:
        return frozenset(RunState)
    unknown = sorted(words - set(RunState))
    if unknown or not words:
        raise UsageError(f"--states: no state {', '.join(unknown)!r}; there are: all, {', '.join(RunState)}")
    return frozenset(map(RunState, words))


def _list_row(run: Run, history: tuple[Allocation, ...], now: datetime) -> list[object]:
    last = history[-1]
    steps = [item.last_step for item in history if item.last_step is not None]
    started = last.started_at
    elapsed = (last.ended_at or now) - started if started is not None else None
    return [
        run.id,
        last.job_id,
        run.name,
        run.owner,
        run.state,
        _SHORT.get(last.slurm_state, last.slurm_state),
        last.num_nodes,
        elapsed,
        steps[-1] if steps else None,
        len(history) - 1,
        run.reason,
    ]


def _history_row(item: Allocation) -> list[object]:
    return [
        item.no,
        item.job_id,
        item.state,
        _SHORT.get(item.slurm_state, item.slurm_state),
        item.num_nodes,
        fold(item.nodes),
        fold(item.excluded),
        item.resume_step,
        item.last_step,
        item.started_at,
        item.ended_at,
        item.failure_class,
    ]


@click.command()
@click.argument("run")
@pass_app
def explain(app: App, run: str) -> None:
    """Tell the story of RUN: what happened, why, what next, did it happen."""
    found = app.find_run(run)
    for line in _story(app, found):
        click.echo(clean(line) if line else "")


def _story(app: App, run: Run) -> Iterator[str]:
    history = app.ledger.allocations(run.id)
    decisions = app.ledger.decisions(run.id)
    actions = app.ledger.actions(run.id)
    yield f"run {run.id} {run.name} is {run.state}: {run.reason}"
    yield ""
    yield "What happened"
    yield from (f"  {_happened(item)}" for item in history)
    yield ""
    yield "Why"
    yield from _why(history[-1], decisions)
    yield ""
    yield "What next"
    yield from _what_next(decisions)
    yield f"  now: {_now(run, history[-1], actions)}"
    yield ""
    yield "Did it happen"
    for action in actions:
        what = action.node or (f"allocation {action.allocation_no}" if action.allocation_no else "")
        mark = "still open" if action.state in OPEN_ACTIONS else action.state
        yes = "yes" if action.state is ActionState.APPLIED else mark
        when = format_time(action.settled_at or action.planned_at)
        line = f"  {when} {action.kind} {what}".rstrip()
        yield f"{line}: {yes}" + (f": {action.detail}" if action.detail else "")


def _why(last: Allocation, decisions: tuple[StoredDecision, ...]) -> Iterator[str]:
    found = False
    for stored in decisions:
        diagnosis = stored.diagnosis
        if diagnosis is None:
            continue
        found = True
        where = f" on {fold(diagnosis.nodes)}" if diagnosis.nodes else ""
        yield (
            f"  allocation {stored.decision.allocation_no}: {diagnosis.failure_class}{where} "
            f"(confidence {diagnosis.confidence:.2f}): {diagnosis.summary}"
        )
        for evidence in diagnosis.evidence:
            yield f"    {evidence.source}: {evidence.text[:300]}"
        if diagnosis.runner_up:
            yield f"    runner-up: {diagnosis.runner_up}"
    if last.state is AllocationState.REFUSED and last.slurm_reason:
        yield f"  allocation {last.no}: Slurm refused it: {last.slurm_reason}"
    elif not found:
        yield "  nothing has failed"


def _what_next(decisions: tuple[StoredDecision, ...]) -> Iterator[str]:
    for stored in decisions:
        decision = stored.decision
        left = f", {decision.budget_left} retries left" if decision.budget_left is not None else ""
        yield f"  {format_time(stored.at)} {decision.verdict} by rule {decision.rule}{left}: {decision.text}"
        for node in decision.nodes:
            yield f"    {node.measure} {node.node} until {format_time(node.avoid_until)}: {node.reason}"


def _now(run: Run, last: Allocation, actions: tuple[Action, ...]) -> str:
    """Return what is going to happen by itself, or what a person can do."""
    submits = [a for a in actions if a.kind is ActionKind.SUBMIT and a.allocation_no == last.no]
    doubtful = any(a.state in {ActionState.ACTING, ActionState.UNKNOWN} for a in submits)
    if last.state is AllocationState.PLANNED and doubtful:
        return (
            "it is not known whether Slurm took the job; each sweep searches for it by its token before it "
            "is submitted again"
        )
    if run.state in _OUTLOOK:
        return _OUTLOOK[run.state].format(run=run.id)
    if last.state in LIVE_ALLOCATIONS and last.job_id is not None:
        said = f" ({last.slurm_state}{': ' + last.slurm_reason if last.slurm_reason else ''})"
        return f"job {last.job_id} goes on{said if last.slurm_state else ''}; each sweep looks at it"
    return "the next sweep goes on"


def _happened(item: Allocation) -> str:
    start = f"from step {item.resume_step}" if item.resume_step is not None else "from step 0"
    job = f"job {item.job_id}" if item.job_id is not None else "no job"
    text = f"{format_time(item.planned_at)} allocation {item.no}: {item.num_nodes} nodes {start}, {job}"
    if item.excluded:
        text += f", without {fold(item.excluded)}"
    if item.started_at is not None:
        text += f"; ran {format_time(item.started_at)} on {fold(item.nodes)}"
    if item.last_step is not None:
        text += f" to step {item.last_step}"
    if item.ended_at is not None:
        code = f", exit code {item.exit_code}" if item.exit_code is not None else ""
        text += f"; ended {format_time(item.ended_at)} ({item.slurm_state}{code})"
        text += f", noticed {format_time(item.noticed_at)}"
    return text
