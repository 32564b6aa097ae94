"""Reads the step and the attempt from the name of a checkpoint's directory."""

import re
from typing import NamedTuple

_NAME = re.compile(
    r"(?:(?:step|checkpoint|ckpt|iter|global_step)[-_]?)?(?P<step>[0-9]{1,18})(?:[-.]a(?P<attempt>[0-9]{1,9}))?"
)
"""Matched against the whole name: an unanchored search would take ``.trash-step-9`` for step 9."""


class SaveName(NamedTuple):
    """What a name tells."""

    step: int
    attempt: int | None


def parse_name(name: str) -> SaveName | None:
    """Return step and attempt of a directory called ``name``, or None where it names no save.

    Understood are ``step-120``, ``step_120``, ``step-00000120``, ``checkpoint-120``, ``ckpt-120``,
    ``iter_0000120``, ``global_step120`` and ``120``, each with an optional ``-a7`` or ``.a7`` for a save
    by attempt 7 of the run. Anything more (``step-9.tmp``, ``.trash-step-9``) is no save.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    attempt = match["attempt"]
    return SaveName(step=int(match["step"]), attempt=None if attempt is None else int(attempt))


def format_name(step: int, attempt: int) -> str:
    """Return the name that a fresh save of ``step`` by ``attempt`` should have."""
    return f"step-{step:08d}-a{attempt}"
