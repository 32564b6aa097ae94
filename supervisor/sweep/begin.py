"""Begins a run: checks it against the cluster, stores it with its intent, submits its first allocation."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.act.submission import Submitted, submit
from supervisor.checkpoint.choice import choose
from supervisor.decide.fit import find_misfits
from supervisor.domain.action import ActionState
from supervisor.domain.checkpoint import Checkpoint
from supervisor.domain.facts import Known, PartitionRow
from supervisor.domain.folder import RunFolder, run_folder
from supervisor.domain.ids import AllocationNo
from supervisor.domain.run import FINISHED_RUNS, Run, RunState
from supervisor.domain.spec import JobSpec
from supervisor.domain.submission import AllocationRequest, SubmissionPlan
from supervisor.errors import PolicyRefusal, SlurmUnavailable, SpecError, SupervisorError
from supervisor.intake.files import write_private_file
from supervisor.intake.plan import plan_submission
from supervisor.ledger.rows import NewAllocation
from supervisor.ledger.store import Ledger
from supervisor.slurm.client import Slurm
from supervisor.sweep.apply import new_token, report_submission, submission_for

# Slurm's and torchrun's variables of a surrounding job would be taken for the new one's.
_FOREIGN = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMIX_", "SUPERVISE_", "TORCHELASTIC_")
_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
# Where the run's own Slurm is configured is part of its environment.
_KEPT = frozenset({"SLURM_CONF", "SUPERVISE_PYTHON"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A run that is about to begin: everything is known but its number."""

    spec: JobSpec
    request: AllocationRequest
    plan: SubmissionPlan
    template_dirs: tuple[Path, ...]


def plan_beginning(
    spec: JobSpec, *, cwd: Path, template_dirs: tuple[Path, ...], num_nodes: int | None = None
) -> Beginning:
    """Plan the first allocation; contacts nobody and writes nothing.

    Raises:
        SpecError: if a template cannot be rendered.
    """
    chdir = cwd / (spec.slurm.chdir or "")
    token = new_token()
    uid = str(token)[:8]
    newest = _newest_checkpoint(chdir / spec.checkpoint.dir) if spec.checkpoint else None
    request = AllocationRequest(
        run_id=None,
        uid=uid,
        spec=spec,
        folder=run_folder(chdir, spec.name, uid),
        chdir=chdir,
        no=AllocationNo(1),
        token=token,
        num_nodes=num_nodes or spec.sizes()[0],
        excluded=(),
        resume_from=str(newest.path) if newest else None,
        resume_step=newest.step if newest else None,
    )
    plan = plan_submission(request, template_dirs=template_dirs)
    return Beginning(spec=spec, request=request, plan=plan, template_dirs=template_dirs)


def check_cluster(spec: JobSpec, slurm: Slurm) -> tuple[tuple[PartitionRow, ...], tuple[str, ...]]:
    """Check ``spec`` against the cluster; return its partitions and warnings.

    Raises:
        SlurmUnavailable: if Slurm does not answer.
        SpecError: if the run could never start.
    """
    partitions, nodes = slurm.partitions(), slurm.nodes()
    if not isinstance(partitions, Known):
        raise SlurmUnavailable(f"Slurm does not answer: {partitions.why}; nothing was submitted, try again")
    if not isinstance(nodes, Known):
        raise SlurmUnavailable(f"Slurm does not answer: {nodes.why}; nothing was submitted, try again")
    errors, warnings = find_misfits(spec, partitions.value, nodes.value)
    if errors:
        raise SpecError(list(errors))
    return partitions.value, warnings


def begin_run(
    beginning: Beginning,
    ledger: Ledger,
    slurm: Slurm,
    *,
    owner: str,
    actor: str,
    environ: Mapping[str, str],
    force: bool = False,
) -> tuple[Run, Submitted]:
    """Store the run and its intent, then submit it.

    Raises:
        PolicyRefusal: if a live run writes to the same checkpoint directory, unless ``force``.
        SlurmUnavailable: if no slurmctld answers; nothing is stored then.
        SupervisorError: if the run folder cannot be written; nothing is stored then.
    """
    request = beginning.request
    controller = slurm.controller()
    if not isinstance(controller, Known):
        raise SlurmUnavailable(f"Slurm does not answer: {controller.why}; nothing was submitted, try again")
    if not force:
        _refuse_shared_checkpoints(request, ledger)
    write_environment(RunFolder(request.folder), environ)
    run, allocation, action = ledger.create_run(
        uid=request.uid,
        name=request.spec.name,
        owner=owner,
        cluster=controller.value.cluster,
        spec_json=request.spec.model_dump_json(by_alias=True),
        folder=request.folder,
        allocation=NewAllocation(
            token=request.token,
            num_nodes=request.num_nodes,
            excluded=request.excluded,
            resume_from=request.resume_from,
            resume_step=request.resume_step,
        ),
        action_payload=json.dumps({"last_failure": ""}),
    )
    plan = submission_for(run, beginning.spec, allocation, action, beginning.template_dirs)
    try:
        done = submit(ledger, slurm, action=action, allocation=allocation, plan=plan, actor=actor)
    except SupervisorError as error:
        ledger.set_run_reason(run.id, RunState.QUEUED, str(error))
        raise
    if done.state is not ActionState.LOST_RACE:
        report_submission(run.id, RunState.QUEUED, done, ledger)
    return ledger.run(run.id), done


def write_environment(folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Keep the submitter's environment for later allocations, which a cron job with a bare one submits.

    The file is readable by its owner only, as Slurm's own copy is: it may hold the user's tokens. It is what
    ``sbatch --export-file`` reads: NAME=value, each ended by a NUL.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_FOREIGN) or name in _RANK_VARIABLES)
    }
    data = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in sorted(kept.items()))
    write_private_file(folder.environment(), data)


def _newest_checkpoint(directory: Path) -> Checkpoint | None:
    """Return what an earlier training left, so that a job file that is submitted again goes on from there."""
    choice = choose(directory)
    if choice.chosen is None and choice.is_blind:
        reasons = choice.unreadable or "; ".join(reason for _, reason in choice.skipped)
        raise SupervisorError(
            f"checkpoint.dir: what is in {directory} cannot be judged ({reasons}); step 0 might be wrong. "
            "Mend it or name another directory"
        )
    return choice.chosen


def _refuse_shared_checkpoints(request: AllocationRequest, ledger: Ledger) -> None:
    if request.spec.checkpoint is None:
        return
    mine = request.chdir / request.spec.checkpoint.dir
    for other in ledger.runs(None, None):
        if other.state in FINISHED_RUNS:
            continue
        spec = JobSpec.model_validate_json(other.spec_json)
        if spec.checkpoint and other.folder.parent.parent / spec.checkpoint.dir == mine:
            raise PolicyRefusal(
                f"checkpoint.dir: run {other.id} ({other.name}, {other.state}) saves to {mine} already; "
                f"two runs would mix their checkpoints. Cancel it (supervise cancel {other.id}), use another "
                "directory, or add --force"
            )
