"""Slurm through its command-line programs: the adapter that works at every site."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from supervisor.clock import Clock
from supervisor.domain.facts import (
    ENDED_JOBS,
    Applied,
    BidOutcome,
    ChangeOutcome,
    Controller,
    Doubt,
    JobRow,
    JobState,
    Known,
    NodeRow,
    PartitionRow,
    Reading,
    Refused,
    SubmitOutcome,
    Unknown,
)
from supervisor.domain.ids import JobId, NodeName
from supervisor.domain.nodeset import is_node_name
from supervisor.slurm.parse_jobs import (
    SACCT_FIELDS,
    draw_nonce,
    parse_sacct,
    parse_squeue,
    squeue_format,
)
from supervisor.slurm.parse_nodes import parse_config, parse_nodes, parse_partitions
from supervisor.slurm.process import CommandResult, clean_environment, run_command
from supervisor.slurm.replies import classify_bid, classify_refusal, classify_submit

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_REASON = re.compile(r"(?!['\" ])[\x20-\x3c\x3e-\x7b\x7d\x7e]{1,200}(?<!['\" ])")
_UNKNOWN_JOB = "Invalid job id specified"
_GOING = ENDED_JOBS | {JobState.COMPLETING}


class Runner(Protocol):
    """Runs one command; ``run_command`` is the real one."""

    def __call__(
        self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_s: float
    ) -> CommandResult:
        """Run ``argv`` and return what it did; never raises."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Wall-clock seconds after which a command is killed.

    sbatch gets longer than slurmctld's MessageTimeout (10 s by default), which it waits for itself:
    an answer of its own says more than our kill.
    """

    read_s: float = 30.0
    change_s: float = 30.0
    submit_s: float = 60.0
    accounting_s: float = 60.0


def check_reason(reason: str) -> str:
    """Return ``reason`` if scontrol takes it as it is and every parser gives it back unchanged.

    Raises:
        ValueError: if it is empty, over 200 bytes, not printable ASCII, or holds ``|`` or ``=``, or a
            quote or a blank at its ends (scontrol strips quotes).
    """
    if not _REASON.fullmatch(reason):
        raise ValueError(
            f"{reason[:80]!r} cannot be a drain reason: 1 to 200 printable ASCII characters, "
            "without '|' and '=', and without quotes or blanks at the ends"
        )
    return reason


class CommandSlurm:
    """The ``Slurm`` Protocol by way of squeue, sacct, scontrol, sbatch and scancel."""

    def __init__(
        self,
        environ: Mapping[str, str],
        clock: Clock,
        *,
        timeouts: Timeouts | None = None,
        user: str | None = None,
        runner: Runner = run_command,
    ) -> None:
        self._environment, dropped = clean_environment(environ)
        # sbatch hands its environment on to the job: nothing is pinned in it.
        self._submit_environment, _ = clean_environment(environ, pinned=False)
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._whose = ("--me",) if user is None else (f"--user={user}",)
        self._account_user = str(os.getuid()) if user is None else user
        self._runner = runner
        if dropped:
            _log.info("not handed to Slurm commands: %s", ", ".join(dropped))

    def controller(self) -> Reading[Controller]:
        """Ask slurmctld for its configuration; a backup that took over answers as well.

        It is asked anew each time and not pinged: ``scontrol ping`` ends with 1 whenever the primary is
        down (22.05), whoever answers in its place.
        """
        return self._read(["scontrol", "show", "config"], parse_config)

    def jobs(self) -> Reading[tuple[JobRow, ...]]:
        """Read our user's jobs in one squeue call, ended ones that slurmctld remembers included."""
        nonce = draw_nonce()
        argv = ["squeue", *self._whose, "--states=all", "--noheader", "-O", squeue_format(nonce)]
        return self._read(argv, lambda text: parse_squeue(text, nonce), may_be_empty=True)

    def job(self, job_id: JobId) -> Reading[JobRow | None]:
        """Read one job, of whichever user: ids are reused.

        One unknown id gives rc 1 and a clear word; two or more would give rc 0 and nothing (22.05).
        """
        nonce = draw_nonce()
        argv = ["squeue", f"--jobs={job_id}", "--states=all", "--noheader", "-O", squeue_format(nonce)]
        result = self._run(argv)
        if result.rc == 1 and _UNKNOWN_JOB in result.stderr and not result.stdout.strip():
            return Known(None, self._clock.now())
        reading = self._reading(result, lambda text: parse_squeue(text, nonce), may_be_empty=True)
        if isinstance(reading, Unknown):
            return reading
        rows = [row for row in reading.value if row.job_id == job_id]
        if len(rows) == 1:
            return Known(rows[0], reading.at)
        return Unknown(f"squeue --jobs={job_id} gave {len(rows)} rows for it", reading.at)

    def accounting(self, job_ids: Sequence[JobId], since: datetime) -> Reading[tuple[JobRow, ...]]:
        """Read slurmdbd's records, one for each time that a job was started, in one sacct call."""
        nonce = draw_nonce()
        argv = [
            *("sacct", "-X", "-D", "--noheader", "--parsable2", f"--delimiter={nonce}"),
            *("-S", since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"), "-E", "now"),
            f"--format={','.join(SACCT_FIELDS)}",
            f"--jobs={','.join(str(job_id) for job_id in job_ids)}"
            if job_ids
            else f"--user={self._account_user}",
        ]
        return self._read(
            argv,
            lambda text: parse_sacct(text, nonce),
            may_be_empty=True,
            timeout_s=self._timeouts.accounting_s,
        )

    def nodes(self) -> Reading[tuple[NodeRow, ...]]:
        """Read every node in one scontrol call (10,000 nodes: 0.05 s and 6 MB; sinfo -N takes 1 s)."""
        return self._read(["scontrol", "show", "-o", "node"], parse_nodes)

    def partitions(self) -> Reading[tuple[PartitionRow, ...]]:
        """Read every partition in one scontrol call."""
        return self._read(["scontrol", "show", "-o", "partition"], parse_partitions)

    def submit(self, script: Path, options: Sequence[str]) -> SubmitOutcome:
        """Submit ``script`` once; anything but an id or a definite no is ``Doubt``."""
        argv = ["sbatch", "--parsable", *options, str(script.absolute())]
        return classify_submit(
            self._runner(argv, environment=self._submit_environment, timeout_s=self._timeouts.submit_s)
        )

    def predict_start(self, script: Path, options: Sequence[str], num_nodes: int) -> BidOutcome:
        """Ask slurmctld when the job would start.

        ``--test-only`` refuses where nodes are drained and sbatch itself would accept and wait (22.05.8:
        "Requested node configuration is not available"), so a ``Refused`` here is about now.
        """
        argv = ["sbatch", "--test-only", *options, f"--nodes={num_nodes}", str(script.absolute())]
        return classify_bid(self._run(argv, self._timeouts.submit_s), num_nodes)

    def cancel(self, job_id: JobId) -> ChangeOutcome:
        """Cancel a job, then look: scancel of an unknown id ends with 0 (22.05)."""
        result = self._run(["scancel", str(job_id)], self._timeouts.change_s)
        refusal = classify_refusal(result)
        if refusal is not None and refusal.denied:
            return refusal
        reading = self.job(job_id)
        if isinstance(reading, Unknown):
            return Doubt(message=f"{result.explain()}; then: {reading.why}")
        if reading.value is None:
            return Applied(message="slurmctld does not know the job (any more)")
        if reading.value.state in _GOING:
            return Applied(message=reading.value.raw_state)
        return Doubt(message=f"{result.explain()}; the job is still {reading.value.raw_state}")

    def drain(self, node: NodeName, reason: str) -> ChangeOutcome:
        """Drain one node and read it back.

        Raises:
            ValueError: if ``node`` is no plain name or ``reason`` cannot be one (``check_reason``).
        """
        check_reason(reason)
        return self._update(
            node,
            ["state=drain", f"reason={reason}"],
            # slurmctld appends " : Not responding" and the like to a reason that is there.
            lambda row: row.drained and row.reason.startswith(reason),
        )

    def undrain(self, node: NodeName) -> ChangeOutcome:
        """Take DRAIN off one node; UNDRAIN, unlike RESUME, is no error on a node that is not drained.

        But it makes such a node NOT_RESPONDING until its next ping (22.05.8), so that one is left alone.

        Raises:
            ValueError: if ``node`` is no plain name.
        """
        before = self._one_node(node)
        if isinstance(before, Known) and before.value is not None and not before.value.drained:
            return Applied(message="was not drained")
        return self._update(node, ["state=undrain"], lambda row: not row.drained)

    def _update(self, node: NodeName, words: list[str], done: Callable[[NodeRow], bool]) -> ChangeOutcome:
        # One node a call: with a list, a bad name fails the call after good ones were changed (22.05).
        if not is_node_name(node):
            raise ValueError(f"{node[:80]!r} is not a node name")
        argv = ["scontrol", "update", f"nodename={node}", *words]
        result = self._run(argv, self._timeouts.change_s)
        if result.rc == 1 and "Invalid node name specified" in result.stderr:
            return Refused(message=f"Slurm knows no node {node}")
        refusal = classify_refusal(result)
        if refusal is not None:
            return refusal
        after = self._one_node(node)
        if isinstance(after, Unknown):
            return Doubt(message=f"{result.explain()}; then: {after.why}")
        if after.value is not None and done(after.value):
            return Applied(message="+".join((after.value.base, *sorted(after.value.flags))))
        return Doubt(message=f"{result.explain()}; the node does not show it")

    def _one_node(self, node: NodeName) -> Reading[NodeRow | None]:
        if not is_node_name(node):
            raise ValueError(f"{node[:80]!r} is not a node name")
        reading = self._read(["scontrol", "show", "-o", "node", node], parse_nodes)
        if isinstance(reading, Unknown):
            return reading
        rows = [row for row in reading.value if row.name == node]
        return Known(rows[0] if len(rows) == 1 else None, reading.at)

    def _run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        return self._runner(argv, environment=self._environment, timeout_s=timeout_s or self._timeouts.read_s)

    def _read(
        self,
        argv: Sequence[str],
        parse: Callable[[str], _T],
        *,
        may_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> Reading[_T]:
        return self._reading(self._run(argv, timeout_s), parse, may_be_empty=may_be_empty)

    def _reading(
        self, result: CommandResult, parse: Callable[[str], _T], *, may_be_empty: bool
    ) -> Reading[_T]:
        """Turn a reply into a fact; ``may_be_empty`` says that an empty reply is one."""
        now = self._clock.now()
        if not result.clean:
            return Unknown(result.explain(), now)
        # squeue was seen to end with 0 after an error, so nothing plus an error is not "no jobs".
        if not result.stdout.strip() and (not may_be_empty or "error" in result.stderr.lower()):
            return Unknown(f"{result.explain()} (an empty reply)", now)
        if result.stderr.strip():
            _log.warning("%s also said: %s", result.argv[0], result.stderr.strip()[:300])
        try:
            return Known(parse(result.stdout), now)
        except ValueError as error:
            return Unknown(f"{' '.join(result.argv[:3])}: {error}", now)
