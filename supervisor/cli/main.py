"""The entry point: global options, sub-commands loaded when they are used, errors turned into exit codes."""

import difflib
import importlib
import signal
import sys
from types import FrameType
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from supervisor import __version__
from supervisor.cli.text import clean, clean_lines
from supervisor.errors import SupervisorError

COMMANDS = {
    "cancel": ("runs", "Cancel RUN."),
    "completion": ("completion", "Print what makes SHELL complete the commands."),
    "config": ("site", "Look at the settings."),
    "explain": ("story", "Tell the story of RUN."),
    "init": ("submit", "Write a commented job file to start from."),
    "lab": ("lab", "Run a throw-away real Slurm cluster on this machine."),
    "ledger": ("site", "Ask the ledger."),
    "logs": ("logs", "Print the output of RUN."),
    "nodes": ("site", "List nodes that our runs keep off or that we drained."),
    "resume": ("runs", "Take RUN up again."),
    "schema": ("submit", "Print the JSON Schema of job files, for editors."),
    "status": ("story", "List runs, or the allocations of one RUN."),
    "submit": ("submit", "Submit JOB_FILE and watch over it from then on."),
    "sweep": ("runs", "Make one pass over all runs. For cron."),
    "watch": ("runs", "Sweep again and again, for people without cron."),
}
"""Sub-command to its module and the line about it: listing them imports none of the modules."""


class _LazyGroup(click.Group):
    """Imports the module of a sub-command when it is used, so that ``--help`` and completion stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"supervisor.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - a slip in the table above
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "supervise --help lists them."
            ctx.fail(f"There is no command {clean(args[0])!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, prog_name="supervise")
@click.option("--ledger", metavar="URL", help="URL of the ledger; SUPERVISE_LEDGER says the same.")
@click.option("-v", "--verbose", count=True, help="Say more about what is done, on standard error.")
@click.pass_context
def supervise(ctx: click.Context, ledger: str | None, verbose: int) -> None:
    """Keep distributed trainings alive on Slurm: submit, watch over, recover, explain.

    RUN is a run's number, its name, or the Slurm job id of one of its allocations.

    Exit codes: 0 ok, 1 it failed, 2 usage or job file, 3 Slurm or ledger out of reach, 4 refused by
    policy, 5 nothing matched, 75 try again later.
    """
    # Imported here: with these --help would take three times as long.
    from supervisor.cli.app import App, configure_logging  # noqa: PLC0415

    configure_logging(verbose)
    if ctx.obj is None:
        ctx.obj = App(flags={"ledger": ledger})


def _end_in_order(number: int, _frame: FrameType | None) -> NoReturn:
    """Turn SIGTERM into an exit that ends what was started and gives the lease back."""
    raise SystemExit(128 + number)


def main(argv: list[str] | None = None, *, app: object = None) -> NoReturn:
    """Run ``supervise`` and exit with its code (``docs/architecture.md``, exit codes).

    Args:
        argv: the words after ``supervise``; those of this process by default.
        app: an ``App`` to use, as tests do; made from the environment by default.
    """
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        code = supervise.main(argv, prog_name="supervise", standalone_mode=False, obj=app)
    except SupervisorError as error:
        click.echo(f"supervise: {clean_lines(error)}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("supervise: interrupted; nothing that was begun is lost, the next sweep goes on", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
