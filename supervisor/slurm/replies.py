"""What an answer of sbatch, scancel or scontrol means: done, a definite no, or doubt.

A no has to be known by its words (slurm_strerror, src/common/slurm_errno.c, and the option parser of
sbatch). Every other answer is a doubt: sbatch was seen to fail with "Socket timed out on send/recv
operation" and the job to run all the same.
"""

import re

from supervisor.domain.facts import Accepted, BidOutcome, Doubt, Refused, StartBid, SubmitOutcome
from supervisor.domain.ids import JobId
from supervisor.slurm.process import CommandResult
from supervisor.slurm.states import read_nodes, read_time

DENIED = re.compile(
    r"Access/permission denied"
    r"|Invalid user id"  # what an ordinary user gets for a node update (ESLURM_USER_ID_MISSING)
    r"|User's group not permitted to use this partition"
    r"|Access denied to requested reservation"
    r"|Burst Buffer permission denied"
    r"|Security violation"
)
"""A no about rights."""

_SERVER_NO = re.compile(
    r"Invalid (?!authentication|job credential)[\w-]+"
    r"|Requested (?:node configuration is not available|nodes not in this partition"
    r"|time limit is invalid|reservation is invalid|operation not supported on this system"
    r"|GRES option unsupported|more tasks than available processors)"
    r"|Node count specification invalid|CPU count specification invalid|Task count specification invalid"
    r"|Task distribution specification invalid"
    r"|More processors requested than permitted|Memory required by task is not available"
    r"|Memory specification can not be satisfied"
    r"|Job violates accounting/QOS policy|Job dependency problem|Circular job dependency"
    r"|Job size specification needs to be provided|Job script not specified"
    r"|Pathname of a file, directory or other parameter too long"
    r"|No partition specified or system default partition"
    r"|Only batch jobs are accepted or processed"
    r"|Time limit specification required, but not provided"
    r"|Duplicate generic resource|Burst Buffer request invalid"
    r"|Environment is missing in job"
)
"""Words of slurmctld that come instead of a job and stay true until somebody changes something.

A no that passes by itself (``System submissions disabled``, ``Partition in DOWN state``) is left out: as
a doubt the job is looked for and submitted again, as a refusal the run would be held.
"""

_CLIENT_NO = re.compile(
    r"unrecognized option|invalid option|requires an argument|option '\S+' is ambiguous"
    r"|doesn't allow an argument"
    r"|is not a valid \w+|Invalid --?[\w-]+ |Invalid [\w ()-]+ specification"
    r"|Unable to open file|Batch script is empty|does not look like a batch script"
    r"|Batch script contains DOS line breaks|[Ii]nvalid partition specified"
    r"|Script arguments not permitted with --wrap"
)
"""sbatch ends over these before it asks anybody."""

_SERVER_PREFIX = re.compile(r"(?:Batch job submission failed|allocation failure): *(.*)")
_PARSABLE = re.compile(r"^(\d{1,10})(?:;([\w.-]{1,255}))?$")
_BID = re.compile(
    r"\bJob (\d+) to start at (\S+) using (\d+) processors on (?:nodes )?(\S+)(?: in partition (\S+))?"
)


def _message(result: CommandResult) -> str:
    """Return what the command said, without the program's own prefixes, on one line."""
    lines = [line.strip() for line in (result.stderr or result.stdout).split("\n") if line.strip()]
    plain = [re.sub(r"^(?:sbatch|scancel|scontrol): (?:error: )?", "", line) for line in lines]
    return "; ".join(plain)[:1000] or result.explain()


def classify_refusal(result: CommandResult) -> Refused | None:
    """Return the definite no that a failed command gave, or None where its answer leaves doubt."""
    # These never start, however often they are tried (execve(2): MAX_ARG_STRLEN is 128 KiB).
    if "Argument list too long" in result.not_started or "null byte" in result.not_started:
        return Refused(message=result.explain())
    if result.rc in {None, 0}:
        return None
    answer = _SERVER_PREFIX.search(result.stderr)
    if answer is not None:
        # Only slurmctld's own word counts here: a warning before it may sound like a refusal.
        words = answer.group(1)
        if DENIED.search(words):
            return Refused(message=_message(result), denied=True)
        return Refused(message=_message(result)) if _SERVER_NO.match(words) else None
    if DENIED.search(result.stderr):
        return Refused(message=_message(result), denied=True)
    return Refused(message=_message(result)) if _CLIENT_NO.search(result.stderr) else None


def classify_submit(result: CommandResult) -> SubmitOutcome:
    """Read the answer of ``sbatch --parsable``."""
    if result.clean:
        # A job_submit plugin may print lines of its own: the id is the last line that is one.
        ids = [match for line in result.stdout.split("\n") if (match := _PARSABLE.match(line.strip()))]
        if ids:
            number, cluster = ids[-1].groups()
            return Accepted(
                job_id=JobId(int(number)), cluster=cluster or "", warnings=result.stderr.strip()[:1000]
            )
        return Doubt(message=f"sbatch ended with 0 but printed no job id: {result.stdout[:200]!r}")
    return classify_refusal(result) or Doubt(message=result.explain())


def classify_bid(result: CommandResult, num_nodes: int) -> BidOutcome:
    """Read the answer of ``sbatch --test-only``, which goes to stderr."""
    bid = _BID.search(result.stderr)
    if result.clean and bid is not None:
        start_at = read_time(bid.group(2))
        try:
            nodes = read_nodes(bid.group(4))
        except ValueError as error:
            return Doubt(message=f"sbatch --test-only: {error}")
        if start_at is not None:
            return StartBid(num_nodes=num_nodes, start_at=start_at, nodes=nodes)
    return classify_refusal(result) or Doubt(message=result.explain())
