"""Signatures: what a line of a log proves or only suggests. Data, loaded from packs in ``plugins/``."""

import re
from dataclasses import dataclass

from supervisor.domain.failure import FailureClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One pattern and its meaning."""

    id: str
    failure_class: FailureClass
    pattern: re.Pattern[str]
    confidence: float
    """0 to 1: how sure the class is when the line is there."""
    echo: bool = False
    """The line is a consequence (a peer that noticed, a parent that killed) and never outranks a cause."""
    cause: str
    """What happened, in plain words."""
    advice: str = ""
    """What a person can do."""
