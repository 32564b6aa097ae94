"""Prints tables as squeue does, and the same rows for scripts."""

import difflib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from supervisor.cli.text import clean
from supervisor.domain.units import format_slurm_time
from supervisor.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How rows are printed."""

    json: bool = False
    parsable: bool = False
    noheader: bool = False
    format: str | None = None

    @property
    def for_scripts(self) -> bool:
        """Nothing but rows is wanted."""
        return self.json or self.parsable or self.noheader or self.format is not None


def style_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all listing commands share."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print JSON: times in UTC, durations in seconds."
        ),
        click.option("-P", "--parsable2", "parsable", is_flag=True, help="Print fields separated by |."),
        click.option("-n", "-h", "--noheader", is_flag=True, help="Leave the header out."),
        click.option(
            "-o", "--format", "columns", metavar="NAMES", help="Columns to print, separated by commas."
        ),
    ):
        command = option(command)
    return command


def format_time(moment: datetime | None) -> str:
    """Return a time as ``2026-03-01T12:00:00Z``."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def print_rows(columns: Sequence[Column], rows: Sequence[Sequence[object]], style: Style) -> None:
    """Print ``rows`` in the way that ``style`` says.

    Raises:
        UsageError: if ``--format`` names a column that there is not.
    """
    picked = _pick([column.name.upper() for column in columns], style.format)
    if style.json:
        keys = [columns[index].name.lower() for index in picked]
        data = [dict(zip(keys, [_plain(row[index]) for index in picked], strict=True)) for row in rows]
        # ASCII only: what is not, such as the control characters of ISO 6429, could move the cursor.
        click.echo(json.dumps(data, indent=2))
        return
    header = [columns[index].name for index in picked]
    cells = [[_cell(row[index]) for index in picked] for row in rows]
    table = cells if style.noheader else [header, *cells]
    if style.parsable:
        for row in table:
            click.echo("|".join(cell.replace("|", "/") for cell in row))
        return
    _print_table([columns[index] for index in picked], table)


def _pick(names: list[str], wanted: str | None) -> list[int]:
    if wanted is None:
        return list(range(len(names)))
    asked = [name.strip().upper() for name in wanted.split(",") if name.strip()]
    missing = [name for name in asked if name not in names]
    if missing or not asked:
        near = difflib.get_close_matches(missing[0], names, n=1) if missing else []
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(
            f"--format: no column {', '.join(missing) or 'is named'}{hint}; there are: {', '.join(names)}"
        )
    return [names.index(name) for name in asked]


def _print_table(columns: Sequence[Column], table: list[list[str]]) -> None:
    if not table:
        return
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    limit = shutil.get_terminal_size((0, 0)).columns
    for row in table:
        parts = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        line = " ".join(parts).rstrip()
        # Only a terminal cuts lines; a pipe gets everything.
        click.echo(line[:limit] if limit and _is_terminal() else line)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _cell(value: object) -> str:
    match value:
        case datetime():
            return format_time(value)
        case timedelta():
            return format_slurm_time(value)
        case _:
            return clean(value)


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case tuple() | list():
            return [_plain(item) for item in value]
        case int() | float() | None:
            return value
        case _:
            return str(value)
