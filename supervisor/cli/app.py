"""What every command needs, made when first asked for: settings, ledger, Slurm, plugins, clock."""

import logging
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import click
import structlog
from pluggy import PluginManager

from supervisor.cli.text import clean, clean_lines
from supervisor.clock import Clock, SystemClock
from supervisor.domain.run import Run
from supervisor.domain.signature import Signature
from supervisor.errors import NothingMatched, PolicyRefusal, SettingsError, UsageError
from supervisor.hooks import load_plugins, load_signatures
from supervisor.ledger.failures import mask_url
from supervisor.ledger.store import Ledger
from supervisor.settings import SITE_FILE, LoadedSettings, Settings, caller_name, load_settings
from supervisor.slurm.client import Slurm
from supervisor.slurm.commands import CommandSlurm, Timeouts
from supervisor.sweep.circle import Sweep, actor_name

SITE_TEMPLATES = Path("/etc/supervisor/templates")


class App:
    """The objects of one call of ``supervise``."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        slurm: Slurm | None = None,
        site_file: Path = SITE_FILE,
    ) -> None:
        self.environ = dict(os.environ) if environ is None else dict(environ)
        self.clock = clock or SystemClock()
        self._flags = flags or {}
        self._slurm = slurm
        self._site_file = site_file

    @cached_property
    def loaded(self) -> LoadedSettings:
        """The settings with their origins."""
        return load_settings(self.environ, flags=self._flags, site_file=self._site_file)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.values

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, opened and up to date; closed when the command ends."""
        ledger = Ledger.open(self.settings.ledger, self.clock)
        context = click.get_current_context(silent=True)
        if context is not None:
            context.find_root().call_on_close(ledger.close)
        return ledger

    def warn_of_place(self) -> None:
        """Say what is doubtful about the ledger's place; only commands that begin or move runs do."""
        for finding in self.ledger.warnings:
            click.echo(f"warning: {clean_lines(finding.text)}", err=True)

    @cached_property
    def slurm(self) -> Slurm:
        """The cluster."""
        if self._slurm is not None:
            return self._slurm
        read_s = self.settings.slurm.timeout.total_seconds()
        timeouts = Timeouts(read_s=read_s, change_s=read_s, submit_s=2 * read_s, accounting_s=2 * read_s)
        return CommandSlurm(
            self.environ, self.clock, timeouts=timeouts, user=self.settings.slurm.user or None
        )

    @property
    def owner(self) -> str:
        """Whose runs are looked after."""
        return self.settings.slurm.user or caller_name()

    @property
    def actor(self) -> str:
        """host:pid of this process."""
        return actor_name()

    @cached_property
    def template_dirs(self) -> tuple[Path, ...]:
        """Template directories of the user and the site, searched before the bundled one."""
        named = tuple(Path(text).expanduser() for text in self.settings.templates)
        missing = [str(path) for path in named if not path.is_dir()]
        if missing:
            origin = self.loaded.origin("templates")
            raise SettingsError(f"{origin}: templates: {', '.join(missing)}: no such directory")
        return (*named, SITE_TEMPLATES)

    @cached_property
    def plugins(self) -> PluginManager:
        """The bundled plugins, the site's and the user's."""
        return load_plugins(self.settings.plugins)

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The signatures of all packs."""
        return load_signatures(self.plugins)

    def notify(self, target: str, subject: str, body: str) -> bool | None:
        """Deliver news through the first plugin that knows the target."""
        found: bool | None = self.plugins.hook.supervise_notify(target=target, subject=subject, body=body)
        return found

    def sweep(self) -> Sweep:
        """Return a sweep over the owner's runs."""
        return Sweep(
            self.ledger,
            self.slurm,
            self.clock,
            policy=self.settings.policy(),
            signatures=self.signatures,
            lease=self.settings.sweep.lease,
            template_dirs=self.template_dirs,
            owner=self.owner,
            notify=self.notify,
            notify_targets=self.settings.notify,
        )

    def find_run(self, text: str) -> Run:
        """Return the one run that ``text`` names: a number, a name, or a Slurm job id.

        Raises:
            NothingMatched: if there is none.
            UsageError: if several match; they are listed.
        """
        found = self.ledger.find_runs(text)
        if not found:
            where = mask_url(self.settings.ledger)
            raise NothingMatched(f"no run {text!r} in {where}; supervise status --all lists them")
        if len(found) > 1:
            listed = "".join(
                f"\n  {run.id}  {clean(run.name)}  {run.state} since {run.changed_at:%Y-%m-%dT%H:%M:%SZ}"
                for run in found
            )
            raise UsageError(f"{text!r} names several runs; say the number:{listed}")
        return found[0]

    def find_own_run(self, text: str) -> Run:
        """Return the run that ``text`` names, to change it.

        Raises:
            NothingMatched: if there is none.
            UsageError: if several match.
            PolicyRefusal: if it is somebody else's, as in a ledger that a site shares.
        """
        found = self.find_run(text)
        if found.owner != self.owner:
            raise PolicyRefusal(
                f"run {found.id} is {found.owner}'s and you act for {self.owner}; who may cancel their jobs "
                f"can say SUPERVISE_SLURM_USER={found.owner} supervise ..."
            )
        return found


def configure_logging(verbose: int) -> None:
    """Send what is logged to standard error: warnings, with one -v what is done, with two everything."""
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            # No local variables in tracebacks: they may hold the user's environment.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s")


pass_app = click.make_pass_decorator(App)
