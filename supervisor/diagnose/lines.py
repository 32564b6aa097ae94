"""Finds the telling lines of a log. The first cause wins, not the loudest and not the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.domain.evidence import LogLine
from supervisor.domain.signature import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A line and the signature that it bears."""

    signature: Signature
    line: LogLine


def match_lines(lines: Sequence[LogLine], signatures: Sequence[Signature]) -> tuple[Match, ...]:
    """Return one match for each telling line, in the order of the log.

    Where several signatures fit a line, the surest wins, and among equals the one that is no echo.
    """
    matches: list[Match] = []
    for line in lines:
        fitting = [signature for signature in signatures if signature.pattern.search(line.text)]
        if fitting:
            best = max(fitting, key=lambda signature: (not signature.echo, signature.confidence))
            matches.append(Match(signature=best, line=line))
    return tuple(matches)


def rank_matches(matches: Sequence[Match]) -> tuple[Match | None, Match | None]:
    """Return the winning match and the runner-up of another class.

    Causes come before echoes, then surer before less sure by a wide margin, then earlier before later.
    """
    causes = [match for match in matches if not match.signature.echo] or list(matches)
    if not causes:
        return None, None
    surest = max(match.signature.confidence for match in causes)
    strong = [match for match in causes if match.signature.confidence >= surest - 0.2]
    winner = strong[0]
    others = [m for m in causes if m.signature.failure_class is not winner.signature.failure_class]
    return winner, (others[0] if others else None)
