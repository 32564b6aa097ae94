"""supervise status, explain, logs: what happened, why, what next, and did it happen."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.output import Column, Style, clean, format_age, print_rows, style_options
from supervisor.domain.action import OPEN_ACTIONS, ActionState
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo
from supervisor.domain.nodeset import fold
from supervisor.domain.run import FINISHED_RUNS, Allocation, Run, RunState
from supervisor.errors import NothingMatched

_LIST = [
    Column(name="RUN", right=True),
    Column(name="JOBID", right=True),
    Column(name="NAME"),
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


@click.command()
@click.argument("run", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Finished runs too.")
@style_options
@pass_app
def status(
    app: App,
    run: str | None,
    *,
    everything: bool,
    as_json: bool,
    parsable: bool,
    noheader: bool,
    columns: str | None,
) -> None:
    """List runs, or the allocations of one RUN."""
    style = Style(json=as_json, parsable=parsable, noheader=noheader, format=columns)
    if run is not None:
        found = app.find_run(run)
        if not (as_json or parsable):
            click.echo(clean(f"run {found.id} {found.name} of {found.owner}: {found.state}: {found.reason}"))
            click.echo(clean(f"folder {found.folder}"))
        print_rows(_HISTORY, [_history_row(row) for row in app.ledger.allocations(found.id)], style)
        return
    now = app.clock.now()
    runs = [row for row in app.ledger.runs(None, None) if everything or row.state not in FINISHED_RUNS]
    print_rows(_LIST, [_list_row(row, app.ledger.allocations(row.id), now) for row in runs], style)


def _list_row(run: Run, history: tuple[Allocation, ...], now: datetime) -> list[object]:
    last = history[-1]
    steps = [item.last_step for item in history if item.last_step is not None]
    started = last.started_at
    elapsed = (last.ended_at or now) - started if started is not None else None
    return [
        run.id,
        last.job_id,
        run.name,
        run.state,
        _SHORT.get(last.slurm_state, last.slurm_state),
        last.num_nodes,
        format_age(elapsed),
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
        _time(item.started_at),
        _time(item.ended_at),
        item.failure_class,
    ]


def _time(moment: datetime | None) -> str | None:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else None


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
    yield f"run {run.id} {run.name} is {run.state}: {run.reason}"
    yield ""
    yield "What happened"
    for item in history:
        yield f"  {_happened(item)}"
    yield ""
    yield "Why"
    decisions = app.ledger.decisions(run.id)
    diagnosed = [stored for stored in decisions if stored.diagnosis is not None]
    if not diagnosed:
        yield "  nothing has failed"
    for stored in diagnosed:
        diagnosis = stored.diagnosis
        if diagnosis is None:
            continue
        where = f" on {fold(diagnosis.nodes)}" if diagnosis.nodes else ""
        yield (
            f"  allocation {stored.decision.allocation_no}: {diagnosis.failure_class}{where} "
            f"(confidence {diagnosis.confidence:.2f}): {diagnosis.summary}"
        )
        for evidence in diagnosis.evidence:
            yield f"    {evidence.source}: {evidence.text[:300]}"
        if diagnosis.runner_up:
            yield f"    runner-up: {diagnosis.runner_up}"
    yield ""
    yield "What next"
    if not decisions:
        yield "  nothing has to be decided"
    for stored in decisions:
        decision = stored.decision
        left = f", {decision.budget_left} retries left" if decision.budget_left is not None else ""
        yield f"  {_time(stored.at)} {decision.verdict} by rule {decision.rule}{left}: {decision.text}"
        for node in decision.nodes:
            yield f"    {node.measure} {node.node} until {_time(node.avoid_until)}: {node.reason}"
    yield ""
    yield "Did it happen"
    for action in app.ledger.actions(run.id):
        what = action.node or (f"allocation {action.allocation_no}" if action.allocation_no else "")
        mark = "still open" if action.state in OPEN_ACTIONS else action.state
        yes = "yes" if action.state is ActionState.APPLIED else mark
        when = _time(action.settled_at or action.planned_at)
        yield f"  {when} {action.kind} {what}: {yes}: {action.detail}"


def _happened(item: Allocation) -> str:
    start = f"from step {item.resume_step}" if item.resume_step is not None else "from step 0"
    text = f"{_time(item.planned_at)} allocation {item.no}: {item.num_nodes} nodes {start}, job {item.job_id}"
    if item.excluded:
        text += f", without {fold(item.excluded)}"
    if item.started_at is not None:
        text += f"; ran {_time(item.started_at)} on {fold(item.nodes)}"
    if item.last_step is not None:
        text += f" to step {item.last_step}"
    if item.ended_at is not None:
        code = f", exit code {item.exit_code}" if item.exit_code is not None else ""
        text += f"; ended {_time(item.ended_at)} ({item.slurm_state}{code}), noticed {_time(item.noticed_at)}"
    return text


@click.command()
@click.argument("run")
@click.option("--allocation", type=int, help="Number of the allocation; the newest by default.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on printing, over restarts, until the run is at rest.")
@pass_app
def logs(app: App, run: str, *, allocation: int | None, lines: int, follow: bool) -> None:
    """Print the output of RUN."""
    found = app.find_run(run)
    no = AllocationNo(allocation or app.ledger.allocations(found.id)[-1].no)
    folder = RunFolder(found.folder)
    path = folder.log(no)
    if not path.exists() and not follow:
        raise NothingMatched(f"{path}: there is no output yet; supervise status {found.id} says why")
    offset = _print_tail(path, lines)
    while follow:
        app.clock.sleep(timedelta(seconds=1))
        offset = _print_from(path, offset)
        current = app.ledger.run(found.id)
        newest = app.ledger.allocations(found.id)[-1].no
        if newest != no and allocation is None:
            no, path, offset = newest, folder.log(newest), 0
            click.echo(f"==> allocation {no} <==", err=True)
        elif current.state in FINISHED_RUNS or current.state is RunState.HELD:
            _print_from(path, offset)
            return


def _print_tail(path: Path, lines: int) -> int:
    """Print the last lines of a file that may be large; return where it ended."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 200 * max(lines, 1) - 65536))
        kept = file.read(end - file.tell()).split(b"\n")
    tail = b"\n".join(kept[-(lines + 1) :]) if lines else b""
    click.echo(tail.decode("utf-8", "replace"), nl=False)
    return end


def _print_from(path: Path, offset: int) -> int:
    if not path.exists():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    if data:
        click.echo(data.decode("utf-8", "replace"), nl=False)
    return offset + len(data)
