"""Walls that import contracts cannot see: who asks the time, what never appears in the project."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((ROOT / "supervisor").rglob("*.py"))
_TIME_CALLS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("time", "time"),
    ("time", "sleep"),
    ("date", "today"),
}
_NOT_MONOTONIC = {"supervisor/clock.py"}


def calls(path: Path) -> set[tuple[str, str]]:
    """Return the (object, method) pairs that a module calls."""
    tree = ast.parse(path.read_text())
    return {
        (node.func.value.id, node.func.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_clock_asks_what_time_it_is(path: Path) -> None:
    if str(path.relative_to(ROOT)) in _NOT_MONOTONIC:
        assert calls(path) & _TIME_CALLS
    else:
        assert not calls(path) & _TIME_CALLS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_command_is_a_shell_string(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"shell\s*=\s*True|os\.system\(|os\.popen\(", text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_outgrows_a_room_and_no_function_a_screen(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 75, f"{path}:{node.lineno} {node.name}"
