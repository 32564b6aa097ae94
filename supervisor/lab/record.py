"""The record of a lab (lab.json): what was brought up, so that any later command can find and end it."""

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.errors import LabError
from supervisor.lab.layout import Layout, Ports
from supervisor.lab.spec import LabSpec

# Where a lab keeps what needs a short path when its own folder's path is long.
SHORT_PARENT = Path("/tmp")  # noqa: S108
SHORT_PREFIX = "supervise-lab-"

_VERSION = 1


class Phase(StrEnum):
    """How far a lab has come; one that stays ``STARTING`` with nobody at work on it has crashed."""

    STARTING = "starting"
    UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A lab as it was brought up."""

    phase: Phase
    spec: LabSpec
    ports: Ports
    short: Path
    slurm_version: tuple[int, int]


def write_record(layout: Layout, record: Record) -> None:
    """Store ``record`` whole or not at all."""
    data = {
        "version": _VERSION,
        "phase": record.phase,
        "spec": record.spec.to_json(),
        "ports": {
            "controller": record.ports.controller,
            "database": record.ports.database,
            "nodes": record.ports.nodes,
        },
        "short": str(record.short),
        "slurm_version": record.slurm_version,
    }
    draft = layout.record.with_suffix(".draft")
    draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    draft.replace(layout.record)


def read_record(root: Path) -> Record | None:
    """Read the record of the lab in ``root``; None when there is none.

    Raises:
        LabError: there is one that this version of the supervisor cannot read, or that somebody else wrote.
    """
    path = root / "lab.json"
    try:
        if os.geteuid() not in (0, path.stat().st_uid):
            raise LabError(f"lab: {path} belongs to another account; run this command as that account")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LabError(f"lab: {path} cannot be read: {error}") from error
    try:
        if data["version"] != _VERSION:
            raise LabError(f"lab: {path} was written by another version of the supervisor; use that one")
        return Record(
            phase=Phase(data["phase"]),
            spec=LabSpec.from_json(data["spec"]),
            ports=Ports(
                controller=data["ports"]["controller"],
                database=data["ports"]["database"],
                nodes=tuple(data["ports"]["nodes"]),
            ),
            short=_checked_short(root, data["short"]),
            slurm_version=(data["slurm_version"][0], data["slurm_version"][1]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise LabError(
            f"lab: {path} is not the record of a lab ({error}); remove the folder by hand"
        ) from error


def _checked_short(root: Path, text: str) -> Path:
    # The folder is removed at the end, maybe by root for somebody else: the record alone is not trusted.
    short = Path(text)
    if short == root:
        return short
    if short.parent != SHORT_PARENT or not short.name.startswith(SHORT_PREFIX) or short.is_symlink():
        raise ValueError(f"{text!r} is not a folder of a lab")
    if short.exists() and short.stat().st_uid != root.stat().st_uid:
        raise ValueError(f"{text!r} belongs to another account")
    return short
