"""Identifiers, kept apart by type so that one can never be passed for another."""

import re
from typing import NewType

RunId = NewType("RunId", int)
"""A run's number in the ledger; never reused."""

AllocationNo = NewType("AllocationNo", int)
"""1, 2, 3 ... within one run; the one attempt inside carries the same number."""

JobId = NewType("JobId", int)
"""Slurm's job id. Slurm reuses ids (MaxJobId wraps), so it is never a key by itself."""

NodeName = NewType("NodeName", str)
"""Slurm's NodeName, which may differ from the host name."""

Token = NewType("Token", str)
"""Unique mark of one intended submission, carried in the job's comment."""

TOKEN_PATTERN = re.compile(r"supervise:([a-z2-7]{16})\b")
"""How a token is found again in a comment, whatever else the comment holds."""


def format_token(token: Token) -> str:
    """Return the word that marks a job's comment as ours."""
    return f"supervise:{token}"


def find_token(comment: str) -> Token | None:
    """Return the token in ``comment``, or None where it carries none."""
    match = TOKEN_PATTERN.search(comment)
    return Token(match.group(1)) if match else None
