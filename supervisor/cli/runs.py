"""supervise sweep, watch, cancel, resume: what moves runs on."""

from datetime import timedelta

import click

from supervisor.act.cancellation import cancel as cancel_allocation
from supervisor.act.submission import withdraw
from supervisor.cli.app import App, pass_app
from supervisor.cli.text import clean, clean_lines
from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.folder import RunFolder
from supervisor.domain.run import (
    FINISHED_RUNS,
    LIVE_ALLOCATIONS,
    SUPERVISED_RUNS,
    AllocationState,
    Run,
    RunState,
)
from supervisor.domain.units import parse_duration
from supervisor.errors import PolicyRefusal, SlurmRejected, SlurmUnavailable, TryLater, UsageError
from supervisor.sweep.circle import SweepReport

RESTLESS = timedelta(seconds=1)
"""Pause between sweeps while something is under way."""
LOOK = timedelta(seconds=1)
"""How often a watch looks into the run folders for an exit marker; that costs Slurm nothing."""
_CANCELLED = "cancelled by its user"


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be done and do nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only: what is worth a mail from cron.")
@pass_app
def sweep(app: App, *, dry_run: bool, quiet: bool) -> None:
    """Make one pass over all runs: observe, diagnose, decide, act. For cron.

    Ends with 75 when another sweep is at work, and with 3 when Slurm or the ledger does not answer; nothing
    is changed then.
    """
    if not quiet:
        app.warn_of_place()
    report = app.sweep().run(dry_run=dry_run)
    if report.busy:
        if quiet:
            # Sweeps that overlap are everyday life under cron and worth no mail.
            raise click.exceptions.Exit(TryLater.exit_code)
        raise TryLater(f"{report.busy}; nothing to do here")
    if app.settings.sweep.paused and not (dry_run or quiet):
        origin = clean(app.loaded.origin("sweep.paused"))
        click.echo(f"sweep.paused is set ({origin}): nothing is done, this is only a plan", err=True)
    _print(report, quiet=quiet)
    if report.blind:
        raise SlurmUnavailable(f"Slurm does not answer: {report.blind}; nothing was changed")


@click.command()
@click.option(
    "-i", "--interval", default="15s", show_default=True, help="Pause between sweeps while all is quiet."
)
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
    if pause <= timedelta(0):
        raise UsageError("--interval: must be longer than nothing, such as 15s")
    app.warn_of_place()
    seen: tuple[str, ...] | None = None
    while True:
        report = app.sweep().run()
        shown = (*report.lines, report.blind)
        if shown != seen and not report.busy:
            _print(report)
            if report.blind:
                click.echo(f"Slurm does not answer: {clean(report.blind)}; it is asked again", err=True)
            seen = shown
        if until_done and report.live_runs == 0 and not report.busy and not report.blind:
            return
        _rest(app, report, pause)


@click.command()
@click.argument("run")
@pass_app
def cancel(app: App, run: str) -> None:
    """Cancel RUN: its job is cancelled, and it is not taken up again."""
    found = app.find_own_run(run)
    if found.state in FINISHED_RUNS:
        click.echo(f"run {found.id} is {found.state} already")
        return
    allocation = app.ledger.allocations(found.id)[-1]
    if found.state is not RunState.CANCELLING and not app.ledger.advance_run(
        found.id, expected=found.state, to=RunState.CANCELLING, reason=_CANCELLED
    ):
        raise TryLater(f"run {found.id} has just changed; look at it and try again")
    if allocation.state not in LIVE_ALLOCATIONS:
        _end_cancelled(app, found)
        click.echo(f"run {found.id} is cancelled; it had no job")
    elif allocation.state is AllocationState.PLANNED:
        opened = [a for a in app.ledger.open_actions([ActionKind.SUBMIT]) if a.token == allocation.token]
        if opened and withdraw(app.ledger, opened[0], allocation, actor=app.actor):
            _end_cancelled(app, found)
            click.echo(f"run {found.id} is cancelled before it was submitted")
            return
        click.echo(
            f"run {found.id}: it is not known yet whether Slurm took its job; the next sweep searches for it "
            "and cancels it"
        )
    else:
        state, text = cancel_allocation(app.ledger, app.slurm, allocation, actor=app.actor)
        if state is ActionState.UNKNOWN:
            raise SlurmUnavailable(f"run {found.id}: {text}; the next sweep cancels it again")
        if state is ActionState.REFUSED:
            raise SlurmRejected(f"run {found.id}: {text}; the next sweep tries again")
        click.echo(clean(f"run {found.id}: {text}"))


def _end_cancelled(app: App, run: Run) -> None:
    app.ledger.advance_run(run.id, expected=RunState.CANCELLING, to=RunState.CANCELLED, reason=_CANCELLED)


@click.command()
@click.argument("run")
@pass_app
def resume(app: App, run: str) -> None:
    """Take RUN up again after it was held, failed or cancelled, from its newest checkpoint."""
    found = app.find_own_run(run)
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
    if report.busy or report.blind:
        why = report.busy or f"Slurm does not answer: {report.blind}"
        click.echo(clean(f"run {found.id} goes on with the next sweep ({why})"))
        return
    resumed = app.ledger.run(found.id)
    click.echo(clean(f"run {resumed.id} {resumed.name} is {resumed.state}: {resumed.reason}"))


def wait_for(app: App, run_id: int) -> None:
    """Sweep until a run is at rest and exit as ``sbatch --wait`` would: with the training's code."""
    seen = ""
    while True:
        report = app.sweep().run()
        run = app.ledger.run(run_id)
        if f"{run.state}: {run.reason}" != seen:
            seen = f"{run.state}: {run.reason}"
            click.echo(clean(f"run {run.id} {seen}"), err=True)
        if run.state is RunState.DONE:
            return
        if run.state in FINISHED_RUNS or run.state is RunState.HELD:
            code = app.ledger.allocations(run_id)[-1].exit_code
            raise click.exceptions.Exit(code if code and 0 < code < 126 else 1)
        _rest(app, report, timedelta(seconds=5))


def _print(report: SweepReport, *, quiet: bool = False) -> None:
    for line in report.lines:
        is_error = line in report.errors
        if is_error or not quiet:
            click.echo(clean_lines(line), err=is_error)
    if not report.lines and not quiet and not report.busy and not report.blind:
        click.echo("no runs to look after")


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
