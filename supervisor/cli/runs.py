"""supervise sweep, watch, cancel, resume: what moves runs on."""

from datetime import timedelta

import click

from supervisor.act.cancellation import cancel as cancel_allocation
from supervisor.act.submission import withdraw
from supervisor.cli.app import App, pass_app
from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.folder import RunFolder
from supervisor.domain.run import FINISHED_RUNS, LIVE_ALLOCATIONS, SUPERVISED_RUNS, AllocationState, RunState
from supervisor.domain.units import parse_duration
from supervisor.errors import PolicyRefusal, SlurmUnavailable, TryLater, UsageError
from supervisor.sweep.circle import SweepReport

RESTLESS = timedelta(seconds=1)
"""Pause between sweeps while something is under way."""
LOOK = timedelta(seconds=1)
"""How often a watch looks into the run folders for an exit marker; that costs Slurm nothing."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be done and do nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what is worth a mail from cron: errors.")
@pass_app
def sweep(app: App, *, dry_run: bool, quiet: bool) -> None:
    """Make one pass over all runs: observe, diagnose, decide, act. For cron."""
    report = app.sweep().run(dry_run=dry_run)
    if report.busy:
        raise TryLater(f"{report.busy}; nothing to do here")
    _print(report, quiet=quiet)
    if report.blind:
        raise SlurmUnavailable(f"{report.blind}; nothing was changed")


@click.command()
@click.option("--interval", default="15s", show_default=True, help="Pause between sweeps while all is quiet.")
@click.option("--until-done", is_flag=True, help="End when no run needs watching any more.")
@pass_app
def watch(app: App, *, interval: str, until_done: bool) -> None:
    """Sweep again and again, for people without cron; ends with Ctrl-C at any time without harm.

    While something is under way it sweeps each second; while all is quiet it only looks into the run folders
    for scripts that have ended, and asks Slurm once per interval.
    """
    try:
        pause = parse_duration(interval)
    except ValueError as error:
        raise UsageError(f"--interval: {error}") from error
    seen: tuple[str, ...] = ()
    while True:
        report = app.sweep().run()
        if report.lines != seen or report.blind:
            _print(report)
            seen = report.lines
        if until_done and report.live_runs == 0 and not report.busy and not report.blind:
            return
        _rest(app, report, pause)


@click.command()
@click.argument("run")
@pass_app
def cancel(app: App, run: str) -> None:
    """Cancel RUN: its job is cancelled, and it is not taken up again."""
    found = app.find_run(run)
    if found.state in FINISHED_RUNS:
        click.echo(f"run {found.id} is {found.state} already")
        return
    allocation = app.ledger.allocations(found.id)[-1]
    if found.state is not RunState.CANCELLING and not app.ledger.advance_run(
        found.id, expected=found.state, to=RunState.CANCELLING, reason="cancelled by its user"
    ):
        raise TryLater(f"run {found.id} has just changed; look at it and try again")
    if allocation.state not in LIVE_ALLOCATIONS:
        app.ledger.advance_run(
            found.id, expected=RunState.CANCELLING, to=RunState.CANCELLED, reason="cancelled by its user"
        )
        click.echo(f"run {found.id} is cancelled; it had no job")
        return
    if allocation.state is AllocationState.PLANNED:
        opened = [a for a in app.ledger.open_actions([ActionKind.SUBMIT]) if a.token == allocation.token]
        if opened and withdraw(app.ledger, opened[0], allocation, actor=app.actor):
            app.ledger.advance_run(
                found.id, expected=RunState.CANCELLING, to=RunState.CANCELLED, reason="cancelled by its user"
            )
            click.echo(f"run {found.id} is cancelled before it was submitted")
            return
        click.echo(
            f"run {found.id} is being submitted right now; the next sweep finds its job and cancels it"
        )
        return
    state, text = cancel_allocation(app.ledger, app.slurm, allocation, actor=app.actor)
    click.echo(f"run {found.id}: {text}")
    if state is ActionState.UNKNOWN:
        raise SlurmUnavailable("the next sweep cancels it again")


@click.command()
@click.argument("run")
@pass_app
def resume(app: App, run: str) -> None:
    """Take RUN up again after it was held, failed or cancelled, from its newest checkpoint."""
    found = app.find_run(run)
    if found.state in SUPERVISED_RUNS and found.state is not RunState.WAITING:
        raise PolicyRefusal(f"run {found.id} is {found.state}: there is nothing to resume")
    if found.state is RunState.DONE:
        raise PolicyRefusal(f"run {found.id} is finished; submit its job file again for another training")
    allocation = app.ledger.allocations(found.id)[-1]
    app.ledger.append_event("resumed", "resumed by hand", run_id=found.id, allocation_no=allocation.no)
    if not app.ledger.advance_run(
        found.id, expected=found.state, to=RunState.RECOVERING, reason="resumed by hand"
    ):
        raise TryLater(f"run {found.id} has just changed; look at it and try again")
    report = app.sweep().run()
    if report.busy:
        click.echo(f"run {found.id} goes on with the next sweep ({report.busy})")
    else:
        _print(report)


def wait_for(app: App, run_id: int) -> None:
    """Sweep until a run is at rest and exit as ``sbatch --wait`` would: with the training's code."""
    seen = ""
    while True:
        report = app.sweep().run()
        run = app.ledger.run(run_id)
        if f"{run.state}: {run.reason}" != seen:
            seen = f"{run.state}: {run.reason}"
            click.echo(f"run {run.id} {seen}", err=True)
        if run.state is RunState.DONE:
            return
        if run.state in FINISHED_RUNS or run.state is RunState.HELD:
            code = app.ledger.allocations(run_id)[-1].exit_code
            raise click.exceptions.Exit(code if code and 0 < code < 126 else 1)
        _rest(app, report, timedelta(seconds=5))


def _print(report: SweepReport, *, quiet: bool = False) -> None:
    for line in report.lines:
        if not quiet or "error" in line:
            click.echo(line)
    if not report.lines and not quiet and not report.busy:
        click.echo("no runs to look after")
    if report.blind:
        click.echo(f"Slurm does not answer: {report.blind}", err=True)


def _rest(app: App, report: SweepReport, pause: timedelta) -> None:
    """Pause between sweeps; shorter when something is under way or a script has ended."""
    if report.restless and not report.blind:
        app.clock.sleep(RESTLESS)
        return
    markers = [
        RunFolder(app.ledger.run(allocation.run_id).folder).exit_marker(allocation.no)
        for allocation in app.ledger.live_allocations()
    ]
    awaited = [marker for marker in markers if not marker.exists()]
    until = app.clock.now() + pause
    while app.clock.now() < until and not any(marker.exists() for marker in awaited):
        app.clock.sleep(min(LOOK, until - app.clock.now()))
