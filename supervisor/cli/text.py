"""Makes text of users, jobs and Slurm safe for a terminal (promise P9); the standard library only."""

import re

# CSI and OSC sequences of ECMA-48: colours, cursor moves, window titles, links.
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def clean(value: object) -> str:
    """Return one line of printable text; what cannot be printed becomes ``?``, nothing becomes ``-``."""
    text = "-" if value is None or value == "" else str(value)
    return "".join(char if char.isprintable() else "?" for char in text)


def clean_lines(value: object) -> str:
    """Return printable text that keeps its line breaks and tabs, such as a message about several problems."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in str(value))


def clean_log(text: str) -> str:
    """Return a piece of a log: colours are dropped, a progress bar's rewrites become lines of their own."""
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return clean_lines(plain)
