"""Prints tables as squeue does, and the same rows for scripts."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

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


def style_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all listing commands share."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON; times are ISO 8601 in UTC."),
        click.option("-P", "--parsable2", "parsable", is_flag=True, help="Print fields separated by |."),
        click.option("-n", "-h", "--noheader", is_flag=True, help="Leave the header out."),
        click.option(
            "-o", "--format", "columns", metavar="NAMES", help="Columns to print, separated by commas."
        ),
    ):
        command = option(command)
    return command


def clean(value: object) -> str:
    """Return one line of printable text: what users and jobs wrote never moves the cursor (promise P9)."""
    text = "-" if value is None or value == "" else str(value)
    return "".join(char if char.isprintable() else "?" for char in text)


def format_age(duration: timedelta | None) -> str:
    """Return a duration as squeue prints elapsed times: ``[D-]HH:MM:SS``."""
    if duration is None:
        return "-"
    total = max(0, int(duration.total_seconds()))
    days, rest = divmod(total, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def print_rows(columns: Sequence[Column], rows: Sequence[Sequence[object]], style: Style) -> None:
    """Print ``rows`` in the way that ``style`` says.

    Raises:
        UsageError: if ``--format`` names a column that there is not.
    """
    picked = list(range(len(columns)))
    if style.format:
        names = [column.name.upper() for column in columns]
        wanted = [name.strip().upper() for name in style.format.split(",") if name.strip()]
        missing = [name for name in wanted if name not in names]
        if missing:
            raise UsageError(f"--format: no column {', '.join(missing)}; there are: {', '.join(names)}")
        picked = [names.index(name) for name in wanted]
    if style.json:
        keys = [columns[index].name.lower() for index in picked]
        data = [dict(zip(keys, [_plain(row[index]) for index in picked], strict=True)) for row in rows]
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    header = [columns[index].name for index in picked]
    cells = [[clean(row[index]) for index in picked] for row in rows]
    if style.parsable:
        lines = ["|".join(cell.replace("|", "/") for cell in row) for row in cells]
        click.echo("\n".join(lines if style.noheader else ["|".join(header), *lines]))
        return
    _print_table([columns[index] for index in picked], cells, noheader=style.noheader)


def _print_table(columns: Sequence[Column], cells: list[list[str]], *, noheader: bool) -> None:
    table = cells if noheader else [[column.name for column in columns], *cells]
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


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)
