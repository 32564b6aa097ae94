"""supervise submit, init, schema: from a job file to a run."""

import json
import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.output import format_time
from supervisor.cli.runs import wait_for
from supervisor.cli.text import clean, clean_lines
from supervisor.decide.fit import first_size
from supervisor.domain.action import ActionState
from supervisor.domain.facts import Doubt, Refused, StartBid
from supervisor.errors import SlurmRejected, SlurmUnavailable, UsageError
from supervisor.intake.passthrough import parse_passthrough
from supervisor.intake.plan import describe, sbatch_options
from supervisor.intake.source import load_spec
from supervisor.intake.starter import json_schema, starter
from supervisor.sweep.begin import Beginning, begin_run, check_cluster, plan_beginning

_NODES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_FLAGS = {
    "partition": ("-p", "slurm.partition"),
    "account": ("-A", "slurm.account"),
    "qos": ("-q", "slurm.qos"),
    "time": ("-t", "slurm.time"),
    "gpus-per-node": (None, "slurm.gpus_per_node"),
    "gres": (None, "slurm.gres"),
    "cpus-per-task": ("-c", "slurm.cpus_per_task"),
    "mem": (None, "slurm.mem"),
    "constraint": ("-C", "slurm.constraint"),
    "exclude": ("-x", "slurm.exclude"),
    "reservation": (None, "slurm.reservation"),
    "comment": (None, "slurm.comment"),
    "job-name": ("-J", "name"),
    "chdir": ("-D", "slurm.chdir"),
}


def _slurm_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (letter, target) in reversed(_FLAGS.items()):
        names = [f"--{name}"] + ([letter] if letter else [])
        command = click.option(*names, metavar="VALUE", help=f"Overrides {target} of the job file.")(command)
    return command


class _SubmitCommand(click.Command):
    """Says where options of sbatch go that are none of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            text = f"{error.format_message()} Options of sbatch go after --, as in: -- --mail-type=END"
            raise click.UsageError(text, ctx) from error


@click.command(cls=_SubmitCommand)
@click.argument("job_file", type=click.Path(path_type=Path))
@click.argument("sbatch_options", nargs=-1, type=click.UNPROCESSED)
@_slurm_flags
@click.option("-N", "--nodes", metavar="N|MIN-MAX", help="Overrides nodes.min and nodes.want.")
@click.option("--dry-run", is_flag=True, help="Print script and plan; contact nobody.")
@click.option(
    "--test-only", is_flag=True, help="Ask slurmctld whether and when it would start; submit nothing."
)
@click.option(
    "-W", "--wait", is_flag=True, help="Watch over the run until it is finished; exit with its code."
)
@click.option("--parsable", is_flag=True, help="Print the Slurm job id and the run's number only: JOBID;RUN.")
@click.option("--force", is_flag=True, help="Submit although another run saves to the same directory.")
@pass_app
def submit(
    app: App,
    /,
    job_file: Path,
    sbatch_options: tuple[str, ...],
    *,
    nodes: str | None,
    dry_run: bool,
    test_only: bool,
    wait: bool,
    parsable: bool,
    force: bool,
    **flags: str | None,
) -> None:
    """Submit JOB_FILE and watch over it from then on.

    Other options of sbatch go after --, for example: supervise submit job.yaml -- --mail-type=END
    """
    spec = load_spec(job_file, _overrides(flags, nodes, sbatch_options))
    beginning = plan_beginning(spec, cwd=Path.cwd(), template_dirs=app.template_dirs)
    if dry_run:
        _warn(beginning.plan.warnings)
        click.echo(clean_lines(describe(beginning.plan)))
        return
    if not test_only:
        app.warn_of_place()
    partitions, warnings = check_cluster(spec, app.slurm)
    num_nodes = first_size(spec, partitions)
    if num_nodes != beginning.request.num_nodes:
        beginning = plan_beginning(spec, cwd=Path.cwd(), template_dirs=app.template_dirs, num_nodes=num_nodes)
    _warn((*beginning.plan.warnings, *warnings))
    if test_only:
        _test_only(app, beginning)
        return
    _submit(app, beginning, wait=wait, parsable=parsable, force=force)


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        click.echo(f"warning: {clean(warning)}", err=True)


def _overrides(
    flags: dict[str, str | None], nodes: str | None, sbatch_options: tuple[str, ...]
) -> dict[str, object]:
    overrides: dict[str, object] = dict(parse_passthrough(sbatch_options))
    for name, (_, target) in _FLAGS.items():
        value = flags[name.replace("-", "_")]
        if value is not None:
            overrides[target] = value
    if nodes is not None:
        match = _NODES.fullmatch(nodes)
        if match is None:
            raise UsageError(f"--nodes: {nodes!r} is neither a number nor MIN-MAX")
        overrides |= {"nodes.min": int(match[1]), "nodes.want": int(match[2] or match[1])}
    return overrides


def _test_only(app: App, beginning: Beginning) -> None:
    """Ask slurmctld; nothing is left behind, and nothing in the run folder is needed for the answer."""
    request = beginning.request
    with tempfile.TemporaryDirectory(prefix="supervise-") as folder:
        script = Path(folder) / "test-only.sbatch"
        script.write_text(beginning.plan.files[0].content, encoding="utf-8", errors="surrogateescape")
        options = sbatch_options(request.spec, num_nodes=request.num_nodes)
        bid = app.slurm.predict_start(script, options, request.num_nodes)
    match bid:
        case StartBid():
            click.echo(f"would start at {format_time(bid.start_at)} on {bid.num_nodes} nodes")
        case Refused():
            raise SlurmRejected(f"Slurm would refuse it: {bid.message}")
        case Doubt():
            raise SlurmUnavailable(f"no clear answer: {bid.message}")


def _submit(app: App, beginning: Beginning, *, wait: bool, parsable: bool, force: bool) -> None:
    run, done = begin_run(
        beginning, app.ledger, app.slurm, owner=app.owner, actor=app.actor, environ=app.environ, force=force
    )
    if done.state is ActionState.REFUSED:
        raise SlurmRejected(f"run {run.id} is held: {done.text}")
    if parsable:
        click.echo(f"{done.job_id or ''};{run.id}")
    elif done.job_id is not None:
        click.echo(
            f"Submitted batch job {done.job_id} as run {run.id} on {beginning.request.num_nodes} nodes"
        )
    else:
        click.echo(clean(f"run {run.id} is stored; {done.text}"))
    if beginning.request.resume_step is not None:
        click.echo(
            clean(f"It resumes from step {beginning.request.resume_step} in {beginning.request.resume_from}"),
            err=True,
        )
    if wait:
        wait_for(app, run.id)
    elif not parsable:
        click.echo(
            f"Watch over it with cron (supervise sweep) or: supervise watch; see: supervise status {run.id}",
            err=True,
        )


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("job.yaml"))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(path: Path, *, force: bool) -> None:
    """Write a commented job file to start from."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(starter(path.resolve().parent.name or "training"))
    except FileExistsError as error:
        raise UsageError(f"{path}: exists already; --force overwrites it") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    name = clean(shlex.quote(str(path)))
    click.echo(f"{name} is written; edit it, then: supervise submit --dry-run {name}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))
