"""The job file as a value: what a researcher asks for, in Slurm's own option names where Slurm has one.

Texts are read as Slurm reads them (``time: 1:30`` is a minute and a half). Unknown keys are errors.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import find_token
from supervisor.domain.nodeset import unfold
from supervisor.domain.units import parse_duration, parse_memory, parse_slurm_time

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

OWNED_OPTIONS = {
    "array": "a run is one job; submit several job files instead",
    "chdir": "write slurm.chdir",
    "clusters": "a run is supervised on the cluster whose slurm.conf is in use",
    "comment": "write slurm.comment",
    "error": "logs are kept per allocation in the run folder",
    "exclude": "write slurm.exclude",
    "export": "write launch.env; the environment of the first submission is kept for all",
    "export-file": "write launch.env; the environment of the first submission is kept for all",
    "get-user-env": "write launch.setup; the environment of the first submission is kept for all",
    "gpus": "write slurm.gpus_per_node; a total would not follow the number of nodes",
    "gid": "a run is its submitter's",
    "help": "see man sbatch",
    "job-name": "write name",
    "kill-on-invalid-dep": "the supervisor decides when a run ends",
    "no-kill": "the supervisor decides what happens when a node is lost",
    "nodefile": "a fixed list leaves no way round a bad node; write slurm.exclude or slurm.constraint",
    "nodelist": "a fixed list leaves no way round a bad node; write slurm.exclude or slurm.constraint",
    "no-requeue": "the supervisor always submits with --no-requeue",
    "nodes": "write nodes.min and nodes.want",
    "ntasks": "write launch.procs_per_node; the number of ranks follows the number of nodes",
    "open-mode": "the supervisor always appends",
    "output": "logs are kept per allocation in the run folder",
    "parsable": "use supervise submit --parsable",
    "partition": "write slurm.partition",
    "requeue": "the supervisor resubmits; Slurm's own requeue would start the same size on the same path",
    "signal": "write launch.signal and launch.signal_before",
    "test-only": "use supervise submit --test-only",
    "time": "write slurm.time",
    "uid": "a run is its submitter's",
    "usage": "see man sbatch",
    "version": "say sbatch --version",
    "wait": "use supervise submit --wait",
    "wrap": "write launch.command",
}
"""sbatch options that the supervisor sets itself, and where to say the same thing instead."""


def _no_control_characters(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not hold line breaks or control characters")
    return text


def _as_text(value: Any) -> Any:
    """Take numbers where a text is meant: ``time: 90`` and ``mem: 512`` are what people write."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _no_bool(value: Any) -> Any:
    """Keep ``min: true`` from being read as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number, not true or false")
    return value


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not hold a NUL character")
    return text


def _check_time(text: str) -> str:
    parse_slurm_time(text)
    return _no_control_characters(text)


def _check_memory(text: str) -> str:
    parse_memory(text)
    return _no_control_characters(text)


def _check_duration(text: str) -> str:
    parse_duration(text)
    return _no_control_characters(text)


def _check_option(name: str) -> str:
    """Refuse under slurm.extra what has its own place, and what no option of sbatch can be."""
    if not _OPTION_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a long sbatch option name such as mail-type")
    if name in OWNED_OPTIONS:
        raise ValueError(f"--{name} belongs to the supervisor: {OWNED_OPTIONS[name]}")
    field = name.replace("-", "_")
    if field in SlurmOptions.model_fields:
        raise ValueError(f"write slurm.{field} instead of slurm.extra.{name}")
    # sbatch takes any unique beginning of a long option: --requ is --requeue.
    taken = {*OWNED_OPTIONS, *(known.replace("_", "-") for known in SlurmOptions.model_fields)}
    if any(known.startswith(name) for known in taken):
        raise ValueError(f"{name!r} is an abbreviation; write the full name of the sbatch option")
    return name


def _check_env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of an environment variable")
    if name.startswith(("SUPERVISE_", "SLURM_")):
        raise ValueError(f"{name} is set by the supervisor or by Slurm")
    if name in _READ_ONLY:
        raise ValueError(f"{name} cannot be set in a bash script")
    return name


_AsText = BeforeValidator(_as_text, json_schema_input_type=str | int | float)
# An argument or a variable has at most 128 KiB (MAX_ARG_STRLEN of Linux); a character at most 4 bytes.
_MAX_ARGUMENT = 30_000
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})

Line = Annotated[str, Field(min_length=1, max_length=200), _AsText]
SlurmTime = Annotated[str, _AsText]
Memory = Annotated[str, _AsText]
Duration = Annotated[str, _AsText]
WholeNumber = Annotated[int, BeforeValidator(_no_bool)]
OptionName = Annotated[str, AfterValidator(_check_option)]
EnvName = Annotated[str, AfterValidator(_check_env_name)]
EnvValue = Annotated[str, Field(max_length=_MAX_ARGUMENT), AfterValidator(_no_nul), _AsText]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nodes(_Part):
    """How many nodes the training can use."""

    min: WholeNumber = Field(ge=1, le=100_000, description="Smallest number of nodes that still makes sense.")
    want: WholeNumber = Field(ge=1, le=100_000, description="Number of nodes when all is well.")
    step: WholeNumber = Field(
        1, ge=1, description="Sizes go down from want by this many nodes (for example a pipeline)."
    )
    spares: WholeNumber = Field(0, ge=0, description="Nodes asked for on top, used when one fails.")

    @model_validator(mode="before")
    @classmethod
    def _number_is_both(cls, value: Any) -> Any:
        """Read ``nodes: 4`` as exactly four, and a lone ``want`` or ``min`` as both."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "want": value}
        if isinstance(value, dict):
            known = {"min": value.get("want", value.get("min")), "want": value.get("min")}
            return {key: item for key, item in (known | value).items() if item is not None}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> "Nodes":
        if self.min > self.want:
            raise ValueError(f"nodes.min ({self.min}) is greater than nodes.want ({self.want})")
        return self

    def sizes(self) -> tuple[int, ...]:
        """Return the allowed sizes, largest first: want, want - step, … down to min."""
        return tuple(range(self.want, self.min - 1, -self.step))


class SlurmOptions(_Part):
    """sbatch options by their own names, with ``_`` for ``-``."""

    partition: Line | None = Field(None, description="Partition (queue).")
    account: Line | None = Field(None, description="Account that is charged.")
    qos: Line | None = Field(None, description="Quality of service.")
    time: SlurmTime | None = Field(
        None,
        description="Time limit as sbatch reads it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.",
    )
    gpus_per_node: Line | None = Field(None, description="GPUs on each node, for example 8 or a100:8.")
    gres: Line | None = Field(None, description="Generic resources per node, for example gpu:8.")
    cpus_per_task: WholeNumber | None = Field(None, ge=1)
    ntasks_per_node: WholeNumber | None = Field(
        None, ge=1, description="Ranks per node for the srun template."
    )
    mem: Memory | None = Field(None, description="Memory per node; a bare number is MiB, 0 is all of it.")
    constraint: Line | None = Field(None, description="Node features that are required.")
    reservation: Line | None = None
    exclude: Line | None = Field(None, description="Nodes never to be used; the supervisor adds its own.")
    exclusive: bool = False
    comment: str | None = Field(
        None, max_length=1000, description="Kept; the supervisor adds its mark to it."
    )
    chdir: str | None = Field(None, description="Working directory; the run folder is made in it.")
    extra: dict[OptionName, str | int | bool] = Field(
        default_factory=dict,
        description="Any other sbatch option by its long name, for example mail-type: END.",
    )

    _time = field_validator("time")(lambda text: text if text is None else _check_time(text))
    _mem = field_validator("mem")(lambda text: text if text is None else _check_memory(text))

    @field_validator(
        "partition",
        "account",
        "qos",
        "gpus_per_node",
        "gres",
        "constraint",
        "reservation",
        "chdir",
        "exclude",
    )
    @classmethod
    def _one_line(cls, text: str | None) -> str | None:
        return text if text is None else _no_control_characters(text)

    @field_validator("exclude")
    @classmethod
    def _node_list(cls, text: str | None) -> str | None:
        if text is not None:
            unfold(text)
        return text

    @field_validator("extra")
    @classmethod
    def _extra_values(cls, extra: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for name, value in extra.items():
            if isinstance(value, str) and _CONTROL.search(value):
                raise ValueError(f"{name} must not hold line breaks or control characters")
        return extra

    @field_validator("comment")
    @classmethod
    def _room_for_our_mark(cls, text: str | None) -> str | None:
        if text is None:
            return text
        _no_nul(text)
        if find_token(text) is not None:
            raise ValueError("must not hold a mark of the supervisor (supervise:...)")
        # slurmctld takes 1024 bytes, ours included (22.05 refuses the job above that).
        if len(text.encode("utf-8", "surrogatepass")) > 990:
            raise ValueError("must have at most 990 bytes")
        return text


class StopSignal(StrEnum):
    """Signals that may announce the end of an allocation to the training."""

    USR1 = "USR1"
    USR2 = "USR2"
    TERM = "TERM"
    HUP = "HUP"


class Launch(_Part):
    """How the training is started on its nodes."""

    template: Line = Field("torchrun", description="torchrun, srun, or a template of the site or of yours.")
    command: str = Field(
        min_length=1,
        max_length=_MAX_ARGUMENT,
        description="What a shell on the node runs; under torchrun once per rank.",
    )
    setup: str = Field("", description="Shell lines that run first on every node, such as module load.")
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict, description="Environment variables of the training."
    )
    procs_per_node: WholeNumber | None = Field(
        None,
        ge=1,
        description="Ranks per node; otherwise the number of GPUs per node, ntasks_per_node, or 1.",
    )
    signal: StopSignal = Field(
        StopSignal.USR1, description="Sent to training processes that handle it ahead of the time limit."
    )
    signal_before: Duration = Field("2m", description="How long ahead of the time limit.")

    _texts = field_validator("command", "setup")(_no_nul)

    @field_validator("signal_before")
    @classmethod
    def _signal_in_time(cls, text: str) -> str:
        # sbatch(1) --signal: the time must have an integer value between 0 and 65535.
        if parse_duration(text).total_seconds() > 65535:
            raise ValueError("must be at most 65535 seconds (18 hours)")
        return text


class Batch(_Part):
    """The batch that stays the same at every size."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    global_: WholeNumber = Field(
        alias="global", ge=1, description="Samples per optimizer step over all ranks."
    )
    micro: WholeNumber | None = Field(None, ge=1, description="Samples per rank and forward pass.")


class CheckpointSpec(_Part):
    """Where the training saves."""

    dir: str = Field(min_length=1, description="Directory with one sub-directory per save.")
    format: Literal["auto", "dcp"] = "auto"
    keep: WholeNumber = Field(
        0, ge=0, description="How many to keep when pruning; 0 leaves pruning to the training."
    )

    _line = field_validator("dir")(_no_control_characters)


class Progress(_Part):
    """What counts as progress."""

    stall_after: Duration | None = Field(
        None, description="No new step for this long is reported as a stall."
    )
    first_step_after: Duration | None = Field(None, description="Allowed time until the first step.")

    _durations = field_validator("stall_after", "first_step_after")(
        lambda text: text if text is None else _check_duration(text)
    )


class Rung(StrEnum):
    """Rungs of the recovery ladder, cheapest first."""

    IN_PLACE = "in_place"
    SPARE = "spare"
    SHRINK = "shrink"
    RESUBMIT = "resubmit"


class Recovery(_Part):
    """What may be done when an attempt fails."""

    ladder: tuple[Rung, ...] = (Rung.RESUBMIT,)
    budgets: dict[FailureClass, Annotated[WholeNumber, Field(ge=0)]] = Field(
        default_factory=dict, description="Retries per failure class; only progress refills them."
    )


class DoneWhen(_Part):
    """What must be true for the run to be finished, besides exit code 0."""

    file: str | None = Field(
        None, min_length=1, description="A file that exists when the training is finished."
    )
    step: WholeNumber | None = Field(None, ge=1, description="A step that was reached.")

    _line = field_validator("file")(lambda text: text if text is None else _no_control_characters(text))


class JobSpec(_Part):
    """One run."""

    name: str = Field(min_length=1, max_length=200, description="Name of the run and of its Slurm jobs.")
    nodes: Nodes
    launch: Launch
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    batch: Batch | None = None
    checkpoint: CheckpointSpec | None = None
    progress: Progress = Field(default_factory=Progress)
    recovery: Recovery = Field(default_factory=Recovery)
    done: DoneWhen | None = None
    notify: tuple[Line, ...] = ()

    _line = field_validator("name")(_no_control_characters)

    @model_validator(mode="after")
    def _batch_fits(self) -> "JobSpec":
        if not self.sizes():
            raise ValueError(
                f"no size from nodes.want={self.nodes.want} down to nodes.min={self.nodes.min} divides "
                f"batch.global={self.batch.global_ if self.batch else '-'} into micro-batches"
            )
        return self

    def ranks_per_node(self) -> int:
        """Return how many ranks run on each node."""
        if self.launch.procs_per_node is not None:
            return self.launch.procs_per_node
        if self.slurm.gpus_per_node is not None:
            count = self.slurm.gpus_per_node.rsplit(":", 1)[-1]
            if count.isdecimal() and int(count) > 0:
                return int(count)
        return self.slurm.ntasks_per_node or 1

    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of nodes that the run may use, largest first.

        With ``batch.micro`` only those at which the global batch is a whole number of micro-batches per rank.
        """
        sizes = self.nodes.sizes()
        if self.batch is None or self.batch.micro is None:
            return sizes
        per_node = self.batch.micro * self.ranks_per_node()
        return tuple(size for size in sizes if self.batch.global_ % (per_node * size) == 0)

    def time_limit(self) -> timedelta | None:
        """Return the time limit of one allocation; None where none is set or it is unlimited."""
        return parse_slurm_time(self.slurm.time) if self.slurm.time is not None else None
