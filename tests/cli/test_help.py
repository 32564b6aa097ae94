"""The help texts, frozen: a change of the command line shows in review.

To write them anew: SUPERVISE_WRITE_GOLDEN=1 python -m pytest tests/cli/test_help.py
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from supervisor.cli.main import COMMANDS, supervise
from tests.cli.desk import ROOT, Desk
from tests.cli.desk import supervise as run_supervise

GOLDEN = Path(__file__).parent / "golden"
_OTHERS = {"lab"}  # a tool for tests: its options follow what the lab can do


def _paths(command: click.Command = supervise, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and name not in _OTHERS:
                    yield from _paths(inner, (*path, name))


@pytest.mark.parametrize("path", list(_paths()), ids=lambda path: "-".join(("supervise", *path)))
def test_a_help_text_changes_only_when_that_is_meant(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(supervise, [*path, "--help"], prog_name="supervise", terminal_width=100)
    assert result.exit_code == 0
    golden = GOLDEN / ("-".join(("supervise", *path)) + ".txt")
    if os.environ.get("SUPERVISE_WRITE_GOLDEN"):
        golden.write_text(result.output)
    assert result.output == golden.read_text()


def test_no_help_text_is_left_over() -> None:
    expected = {"-".join(("supervise", *path)) + ".txt" for path in _paths()}
    assert {file.name for file in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_itself(name: str) -> None:
    command = supervise.get_command(click.Context(supervise), name)
    assert command is not None
    said = " ".join((command.help or "").split())
    assert said.startswith(COMMANDS[name][1].partition(".")[0])


def test_help_and_completion_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from supervisor.cli.main import main\n"
        "try:\n main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'sqlalchemy', 'pydantic', 'paramiko', 'alembic', 'ruamel', 'jinja2', 'structlog'}\n"
        "sys.exit(','.join(sorted(heavy & sys.modules.keys())) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "submit" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(desk: Desk, shell: str) -> None:
    said = desk.say("completion", shell)
    assert said.code == 0
    assert f"_SUPERVISE_COMPLETE={shell}_complete" in said.out


def test_a_shell_gets_the_names_of_commands_and_options(tmp_path: Path) -> None:
    asked = {"_SUPERVISE_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    commands = run_supervise(cwd=tmp_path, environ=asked | {"COMP_WORDS": "supervise s"})
    assert commands.lines == ["plain,schema", "plain,status", "plain,submit", "plain,sweep"]
    options = run_supervise(
        cwd=tmp_path, environ=asked | {"COMP_CWORD": "2", "COMP_WORDS": "supervise status --no"}
    )
    assert options.lines == ["plain,--noheader"]


def test_an_unknown_command_names_the_nearest(desk: Desk) -> None:
    said = desk.say("statsu")
    assert said.code == 2
    assert "did you mean status?" in said.err
    assert desk.say("frobnicate").code == 2


def test_an_unknown_shell_is_a_usage_error(desk: Desk) -> None:
    assert desk.say("completion", "tcsh").code == 2
