"""A submission as a value: everything that will be written and asked of Slurm, before anything is done."""

from dataclasses import dataclass
from pathlib import Path

from supervisor.domain.ids import AllocationNo, NodeName, RunId, Token
from supervisor.domain.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """What one allocation of a run is asked for; with the spec it determines script and options fully."""

    run_id: RunId | None
    """None in a dry run, before the ledger has given a number."""
    uid: str
    spec: JobSpec
    folder: Path
    chdir: Path
    no: AllocationNo
    token: Token
    num_nodes: int
    excluded: tuple[NodeName, ...]
    resume_from: str | None
    resume_step: int | None
    last_failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file to be written with mode 0600 (0700 when executable) before sbatch is called."""

    path: Path
    content: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """What ``--dry-run`` prints and what is carried out, one and the same."""

    script: Path
    files: tuple[PlannedFile, ...]
    options: tuple[str, ...]
    """argv words for sbatch, before the script."""
    warnings: tuple[str, ...] = ()
