"""supervise logs: the output of a run, over its restarts."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.text import clean_log
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo
from supervisor.domain.run import FINISHED_RUNS, RunState
from supervisor.errors import NothingMatched, SupervisorError

_LOOK = timedelta(seconds=1)
_CHUNK = 1 << 20
_BYTES_PER_LINE = 400
"""How far back the last lines are searched for, per line; a file of many gigabytes is not read whole."""


@click.command()
@click.argument("run")
@click.option(
    "--allocation", type=click.IntRange(min=1), help="Number of the allocation; the newest by default."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Lines from the end to begin with.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on printing, over restarts, until the run is at rest.")
@pass_app
def logs(app: App, run: str, *, allocation: int | None, lines: int, follow: bool) -> None:
    """Print the output of RUN.

    Colours and control characters are left out; supervise status RUN names the folder with the files.
    """
    found = app.find_run(run)
    newest = app.ledger.allocations(found.id)[-1].no
    no = AllocationNo(allocation) if allocation is not None else newest
    if no > newest:
        raise NothingMatched(f"run {found.id} has no allocation {no}; the newest is {newest}")
    folder = RunFolder(found.folder)
    log = _Log(folder.log(no))
    if not log.path.exists() and not follow:
        raise NothingMatched(f"{log.path}: there is no output yet; supervise status {found.id} says why")
    log.print_tail(lines)
    while follow:
        current = app.ledger.run(found.id)
        newest = app.ledger.allocations(found.id)[-1].no
        is_last = allocation is not None or newest == no
        at_rest = current.state in FINISHED_RUNS or current.state is RunState.HELD or no < newest
        # After the states were read: what a run wrote before it came to rest is printed.
        log.print_new(last=not is_last or at_rest)
        if not is_last:
            no = AllocationNo(no + 1)
            log = _Log(folder.log(no))
            click.echo(f"==> allocation {no} <==", err=True)
        elif at_rest:
            return
        else:
            app.clock.sleep(_LOOK)


class _Log:
    """A file that grows, printed by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def print_tail(self, lines: int) -> None:
        """Print the last ``lines`` lines; what comes after them is new."""
        kept: list[bytes] = []
        for data in self._read(back=_BYTES_PER_LINE * lines + 65536):
            kept = (b"".join(kept) + data).splitlines(keepends=True)[-lines:] if lines else []
        click.echo(clean_log(b"".join(kept).decode("utf-8", "replace")), nl=False)

    def print_new(self, *, last: bool) -> None:
        """Print what was added, up to the end of the last line; with ``last`` also a line without an end."""
        for added in self._read():
            data = self._rest + added
            # A carriage return ends a state of a progress bar; as the last byte it may be half a line's end.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            self._rest = data[cut:]
            click.echo(clean_log(data[:cut].decode("utf-8", "replace")), nl=False)
        if last and self._rest:
            click.echo(clean_log(self._rest.decode("utf-8", "replace")))
            self._rest = b""

    def _read(self, back: int | None = None) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                if back is not None:
                    self._offset = max(0, file.seek(0, 2) - back)
                file.seek(self._offset)
                while data := file.read(_CHUNK):
                    self._offset += len(data)
                    yield data
        except FileNotFoundError:
            return
        except OSError as error:
            raise SupervisorError(f"{self.path}: cannot be read: {error.strerror}") from error
