"""Reads the sbatch options after ``--`` on the command line into places of the job file."""

import re
from collections.abc import Sequence

from supervisor.domain.spec import OWNED_OPTIONS
from supervisor.errors import UsageError

_SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "u": "usage",
    "V": "version",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""Short options of sbatch(1), 22.05 to 25.11."""

_FLAGS = frozenset(
    {
        "contiguous",
        "exclusive",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "nice",
        "no-kill",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    }
)
"""Long options that take no value, or one only after ``=``."""

_PLACES = {
    **{
        name: f"slurm.{name.replace('-', '_')}"
        for name in (
            "account",
            "chdir",
            "comment",
            "constraint",
            "cpus-per-task",
            "exclude",
            "exclusive",
            "gpus-per-node",
            "gres",
            "mem",
            "ntasks-per-node",
            "partition",
            "qos",
            "reservation",
            "time",
        )
    },
    "job-name": "name",
}
_NODES = re.compile(r"(\d+)(?:-(\d+))?")


def parse_passthrough(words: Sequence[str]) -> dict[str, str | bool]:
    """Return overrides for ``load_spec``: dotted place to value; a flag without a value is True.

    Args:
        words: such as ``["--mail-type=END", "-p", "gpu", "-N4", "--exclusive"]``.

    Raises:
        UsageError: if a word is no option, lacks its value, or belongs to the supervisor; it lists all.
    """
    found: dict[str, str | bool] = {}
    problems: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            _take(name, value if has_value else _next_value(name, rest), found, problems)
        elif word.startswith("-") and len(word) > 1 and not word.startswith("--"):
            _take_short(word[1:], rest, found, problems)
        else:
            problems.append(f"{word!r} after -- is not an option of sbatch")
    if problems:
        raise UsageError("\n".join(problems))
    return found


def _take_short(letters: str, rest: list[str], found: dict[str, str | bool], problems: list[str]) -> None:
    """Take ``-p gpu``, ``-pgpu``, or several letters without values such as ``-HO``."""
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter)
        if name is None:
            problems.append(f"-{letter}: sbatch has no such option")
            return
        if name in _FLAGS:
            _take(name, True, found, problems)
            continue
        _take(name, letters or _next_value(name, rest), found, problems)
        return


def _next_value(name: str, rest: list[str]) -> str | bool:
    if name in _FLAGS or not rest or (rest[0].startswith("-") and rest[0] != "-"):
        return True
    return rest.pop(0)


def _take(name: str, value: str | bool, found: dict[str, str | bool], problems: list[str]) -> None:
    if name == "nodes":
        match = _NODES.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            problems.append("--nodes: write a number or MIN-MAX")
        else:
            found |= {"nodes.min": match[1], "nodes.want": match[2] or match[1]}
    elif name in _PLACES:
        if value is True and name not in _FLAGS:
            problems.append(f"--{name}: a value is missing")
        found[_PLACES[name]] = value
    elif name in OWNED_OPTIONS:
        problems.append(f"--{name} belongs to the supervisor: {OWNED_OPTIONS[name]}")
    else:
        found[f"slurm.extra.{name}"] = value
