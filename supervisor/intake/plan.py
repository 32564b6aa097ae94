"""From a request to a submission as a value: files, sbatch options, warnings. It reads templates only.

The same request gives the same plan, byte for byte: after a crash a sweep plans again and must ask Slurm for
exactly what was asked for before.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import NodeName, format_token
from supervisor.domain.nodeset import fold, unfold
from supervisor.domain.spec import JobSpec, Rung
from supervisor.domain.submission import AllocationRequest, PlannedFile, SubmissionPlan
from supervisor.domain.units import format_slurm_time, parse_duration
from supervisor.errors import SpecError
from supervisor.intake.files import write_files, write_private_file
from supervisor.intake.render import Renderer, Value, check_template_name

__all__ = ["describe", "plan_submission", "sbatch_options", "write_files", "write_private_file"]

_NODE_SCRIPT_OF_OTHERS = "srun.node.sh.j2"
_DISPLAYED = (
    "--no-requeue",
    "--open-mode",
    "--partition",
    "--nodes",
    "--ntasks-per-node",
    "--time",
    "--signal",
)
"""Options that the script repeats as #SBATCH lines for its reader.

``--exclude`` is not among them: a later question to Slurm with the same script and nothing to exclude would
find the old list in it.
"""
_HARMLESS = re.compile(r"--[a-z-]+(=[A-Za-z0-9@:,._/-]*)?")


def plan_submission(request: AllocationRequest, *, template_dirs: Sequence[Path]) -> SubmissionPlan:
    """Plan one allocation.

    Args:
        request: what is asked for.
        template_dirs: folders whose templates come before the bundled ones, first wins.

    Raises:
        SpecError: if a template is missing or cannot be rendered.
    """
    spec, folder = request.spec, RunFolder(request.folder)
    template = spec.launch.template
    check_template_name(template)
    options = (
        *sbatch_options(spec, num_nodes=request.num_nodes, exclude=request.excluded),
        f"--comment={_comment(request)}",
        f"--chdir={request.chdir}",
        f"--output={_output_pattern(folder.log(request.no))}",
        # The submitter's environment as it was at first: cron, which submits later ones, has a bare one.
        f"--export-file={folder.environment()}",
    )
    renderer = Renderer(template_dirs)
    values = _values(request, options)
    node_script = f"{template}.node.sh.j2"
    if not renderer.has(node_script):
        node_script = _NODE_SCRIPT_OF_OTHERS
    script = folder.script(request.no)
    files = (
        PlannedFile(path=script, content=renderer.render(f"{template}.sbatch.j2", values), executable=True),
        PlannedFile(
            path=folder.node_script(request.no), content=renderer.render(node_script, values), executable=True
        ),
    )
    return SubmissionPlan(script=script, files=files, options=options, warnings=_warnings(spec))


def sbatch_options(spec: JobSpec, *, num_nodes: int, exclude: Sequence[NodeName] = ()) -> tuple[str, ...]:
    """Return the argv words that say what resources an allocation needs; no shell ever reads them.

    Args:
        spec: the run.
        num_nodes: nodes that the training uses.
        exclude: nodes to keep off, besides the spec's own.
    """
    slurm = spec.slurm
    seconds = _signal_seconds(spec)
    excluded = fold({*unfold(slurm.exclude or ""), *exclude})
    values: dict[str, str | int | None] = {
        "job-name": spec.name,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "nodes": num_nodes,
        "ntasks-per-node": tasks_per_node(spec),
        "cpus-per-task": slurm.cpus_per_task,
        "gpus-per-node": slurm.gpus_per_node,
        "gres": slurm.gres,
        "mem": slurm.mem,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "exclude": excluded or None,
        # To the batch shell (B:), which tells the training; without B: only the steps would get it.
        "signal": f"B:USR1@{seconds}" if seconds else None,
        "open-mode": "append",
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    words.append("--no-requeue")
    if slurm.exclusive:
        words.append("--exclusive")
    for name, value in slurm.extra.items():
        if value is not False:
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    return tuple(words)


def tasks_per_node(spec: JobSpec) -> int:
    """Return how many tasks srun starts on a node; under torchrun one, which starts the ranks itself."""
    return 1 if spec.launch.template == "torchrun" else spec.ranks_per_node()


def describe(plan: SubmissionPlan) -> str:
    """Return what a dry run prints: every file as it would be written, and the exact command."""
    parts = []
    for file in plan.files:
        mode = "0700" if file.executable else "0600"
        parts.append(f"# ---- {file.path} (mode {mode})\n{file.content.rstrip()}\n")
    parts.append(f"# ---- command\n{shlex.join(['sbatch', *plan.options, str(plan.script)])}")
    return "\n".join(parts)


def _values(request: AllocationRequest, options: Sequence[str]) -> dict[str, Value]:
    """Return everything that a template may print."""
    spec, folder, no = request.spec, RunFolder(request.folder), request.no
    ranks, tasks = spec.ranks_per_node(), tasks_per_node(spec)
    return {
        "run_id": "" if request.run_id is None else str(request.run_id),
        "run_uid": request.uid,
        "name": spec.name,
        "no": int(no),
        "padded_no": f"{no:04d}",
        "token": str(request.token),
        "chdir": str(request.chdir),
        "folder": str(folder.root),
        "node_script": str(folder.node_script(no)),
        "claims": str(folder.claims()),
        "claim": str(folder.claim(no)),
        "journal": str(folder.journal(no)),
        "exit_marker": str(folder.exit_marker(no)),
        "progress": str(folder.progress(no)),
        "stop_file": str(folder.stop_file(no)),
        "resume_from": request.resume_from or "",
        "resume_step": "" if request.resume_step is None else str(request.resume_step),
        "last_failure": request.last_failure,
        "checkpoint_dir": str(request.chdir / spec.checkpoint.dir) if spec.checkpoint else "",
        "num_nodes": request.num_nodes,
        "ranks_per_node": ranks,
        "world_size": request.num_nodes * ranks,
        "tasks_per_node": tasks,
        "num_tasks": request.num_nodes * tasks,
        "cpus_per_task": spec.slurm.cpus_per_task or 0,
        "batch": _batch(spec, request.num_nodes * ranks),
        "env": tuple(spec.launch.env.items()),
        "setup": spec.launch.setup,
        "command": spec.launch.command,
        "signal": str(spec.launch.signal),
        # srun's way to the nodes: a signal that the training itself is not told by.
        "carrier": "USR1" if spec.launch.signal == "USR2" else "USR2",
        "displayed_options": tuple(
            word for word in options if word.partition("=")[0] in _DISPLAYED and _HARMLESS.fullmatch(word)
        ),
    }


def _batch(spec: JobSpec, world_size: int) -> Value:
    """Return the names and values that tell a training its share of the global batch at this size."""
    if spec.batch is None:
        return ()
    total, micro = spec.batch.global_, spec.batch.micro
    if micro is None:
        if total % world_size:
            return (("SUPERVISE_GLOBAL_BATCH", total),)
        micro = total // world_size
    if total % (micro * world_size):
        problem = (
            f"batch.global: {total} is no whole number of micro-batches of {micro} on {world_size} ranks"
        )
        raise SpecError([problem])
    return (
        ("SUPERVISE_GLOBAL_BATCH", total),
        ("SUPERVISE_MICRO_BATCH", micro),
        ("SUPERVISE_ACCUMULATION", total // (micro * world_size)),
    )


def _comment(request: AllocationRequest) -> str:
    """Return the user's comment with the mark by which a lost submission is found again."""
    return " ".join(filter(None, (request.spec.slurm.comment, format_token(request.token))))


def _output_pattern(log: Path) -> str:
    """Return the ``--output`` pattern that means exactly this file.

    Where a pattern holds a backslash, slurmstepd takes one off each pair and expands no ``%``; where it holds
    none, ``%%`` is a percent sign (sbatch(1) "filename pattern"; both seen on 22.05). A relative pattern is
    no way round it: the working directory is put in front of it first.
    """
    text = str(log)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")


def _signal_seconds(spec: JobSpec) -> int:
    return int(parse_duration(spec.launch.signal_before).total_seconds())


def _warnings(spec: JobSpec) -> tuple[str, ...]:
    """Return what is allowed and is probably not meant."""
    warnings = []
    limit, seconds = spec.time_limit(), _signal_seconds(spec)
    if limit is not None and seconds and limit.total_seconds() <= seconds + 60:
        # sbatch(1) --signal: it may come up to 60 seconds early.
        warnings.append(
            f"slurm.time is {format_slurm_time(limit)} and launch.signal_before {spec.launch.signal_before}: "
            "the training would be told to stop as soon as it starts"
        )
    if spec.checkpoint is None:
        warnings.append("checkpoint.dir is not set: after a failure the training starts again at step 0")
    inside = [rung for rung in spec.recovery.ladder if rung is not Rung.RESUBMIT]
    if inside or spec.nodes.spares:
        # Spares that nothing uses would only be taken from others.
        warnings.append(
            "recovery inside the allocation is not there yet: nodes.spares and the rungs "
            f"{', '.join(inside) or 'spare'} are not used, every recovery is a resubmission"
        )
    return tuple(warnings)
