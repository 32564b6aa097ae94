"""The entry point: global options, sub-commands loaded when they are used, errors turned into exit codes."""

import importlib
import logging
import sys
from typing import NoReturn

import click
import structlog

from supervisor import __version__
from supervisor.cli.app import App
from supervisor.errors import SupervisorError

_COMMANDS = {
    "cancel": "runs",
    "config": "site",
    "explain": "story",
    "init": "submit",
    "lab": "lab",
    "ledger": "site",
    "logs": "story",
    "nodes": "site",
    "resume": "runs",
    "schema": "submit",
    "status": "story",
    "submit": "submit",
    "sweep": "runs",
    "watch": "runs",
}


class _LazyGroup(click.Group):
    """Imports the module of a sub-command when it is used, so that ``--help`` and completion stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"supervisor.cli.{_COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - a slip in the table above
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, prog_name="supervise")
@click.option("--ledger", metavar="URL", help="URL of the ledger; SUPERVISE_LEDGER says the same.")
@click.option("-v", "--verbose", count=True, help="Say more about what is done, on standard error.")
@click.pass_context
def supervise(ctx: click.Context, ledger: str | None, verbose: int) -> None:
    """Keep distributed trainings alive on Slurm: submit, watch over, recover, explain."""
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            # No local variables in tracebacks: they may hold the user's environment.
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s")
    if ctx.obj is None:
        ctx.obj = App(flags={"ledger": ledger})


def main(argv: list[str] | None = None) -> NoReturn:
    """Run ``supervise`` and exit with its code (``docs/architecture.md``, exit codes)."""
    try:
        code = supervise.main(argv, prog_name="supervise", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except SupervisorError as error:
        click.echo(f"supervise: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("supervise: interrupted; nothing that was begun is lost, the next sweep goes on", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; that is no fault.
        sys.stderr.close()
        sys.exit(0)
