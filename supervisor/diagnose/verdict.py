"""Why an attempt ended: Slurm's word, the nodes' state, the exit, then the log."""

from collections.abc import Sequence

from supervisor.diagnose.lines import match_lines, rank_matches
from supervisor.domain.decision import Diagnosis, Evidence
from supervisor.domain.evidence import SIGNALLED, Phase, Sighting
from supervisor.domain.facts import JobState, NodeFlag, NodeRow
from supervisor.domain.failure import NODE_CLASSES, FailureClass
from supervisor.domain.ids import NodeName
from supervisor.domain.nodeset import fold
from supervisor.domain.signature import Signature

EXIT_NO_PLACE = 74
"""The claim or the working directory could not be used (templates/partials/claim)."""
EXIT_REQUEUED = 76
"""The script found that Slurm had requeued it and did not train (templates/partials/claim)."""
EXIT_CLAIM_LOST = 77
"""Another job holds the allocation's claim (templates/partials/claim)."""
EXIT_STOPPED = 85
"""The training stopped because it was asked to, and is not finished (documented for users)."""

_SLURM_CLASSES = {
    JobState.PREEMPTED: (FailureClass.PREEMPTED, "Slurm preempted the job"),
    JobState.TIMEOUT: (FailureClass.TIME_LIMIT, "the job reached its time limit"),
    JobState.DEADLINE: (FailureClass.TIME_LIMIT, "the job reached its deadline"),
    JobState.OUT_OF_MEMORY: (
        FailureClass.HOST_OOM,
        "Slurm ended the job for using more memory than it asked for",
    ),
}

_EXIT_CLASSES: dict[int | None, tuple[FailureClass, str]] = {
    EXIT_STOPPED: (FailureClass.TIME_LIMIT, "the training saved and stopped early because it was asked to"),
    EXIT_NO_PLACE: (FailureClass.FILESYSTEM, "the run folder or the working directory could not be used"),
    EXIT_REQUEUED: (
        FailureClass.PREEMPTED,
        "Slurm requeued the job in spite of --no-requeue; it stood aside",
    ),
    EXIT_CLAIM_LOST: (
        FailureClass.SCHEDULER,
        "another job holds this allocation's claim, so it did not train",
    ),
}


def lost_nodes(sighting: Sighting) -> tuple[NodeRow, ...]:
    """Return the allocation's nodes that are down or do not answer."""
    return tuple(row for row in sighting.node_rows if row.down or NodeFlag.NOT_RESPONDING in row.flags)


def stuck_nodes(sighting: Sighting) -> tuple[NodeName, ...]:
    """Return the nodes that a COMPLETING job still waits for, when they are only a part of its nodes.

    squeue(1), %N: for a COMPLETING job the list holds only nodes that have not yet been returned to service.
    """
    if sighting.phase is not Phase.COMPLETING or sighting.job is None:
        return ()
    busy = set(sighting.job.nodes)
    return tuple(sorted(busy)) if busy and busy < set(sighting.nodes) else ()


def is_success(sighting: Sighting) -> bool:
    """Say whether the attempt finished the training.

    Exit code 0 alone is not success: srun was seen to return 0 after a node died (22.05). No node may be
    lost, and the spec's ``done`` condition must hold if there is one. A training that was asked to stop and
    then ended with 0 has saved, not finished, unless that condition says otherwise.
    """
    if sighting.phase not in {Phase.ENDED, Phase.COMPLETING} or sighting.done is False:
        return False
    if sighting.done is None and (lost_nodes(sighting) or _was_signalled(sighting)):
        return False
    if sighting.job is not None and sighting.job.state not in {JobState.COMPLETED, JobState.COMPLETING}:
        return False
    return _exit_code(sighting) == 0


def diagnose(sighting: Sighting, signatures: Sequence[Signature]) -> Diagnosis:
    """Say why an attempt that did not succeed has ended.

    Args:
        sighting: the allocation as it was seen after its end.
        signatures: the loaded packs.
    """
    return (
        _from_cancellation(sighting)
        or _from_nodes(sighting)
        or _from_slurm_state(sighting)
        or _from_log(sighting, signatures, only=NODE_CLASSES)
        or _from_exit(sighting)
        or _from_log(sighting, signatures)
        or _unknown(sighting)
    )


def _from_cancellation(sighting: Sighting) -> Diagnosis | None:
    job = sighting.job
    if job is None or job.state is not JobState.CANCELLED:
        return None
    by = f" by uid {job.cancelled_by}" if job.cancelled_by is not None else ""
    return Diagnosis(
        failure_class=FailureClass.CANCELLED,
        summary=f"the job was cancelled{by}",
        evidence=(_slurm_evidence(sighting),),
        confidence=1.0,
    )


def _from_nodes(sighting: Sighting) -> Diagnosis | None:
    job = sighting.job
    lost = lost_nodes(sighting)
    said_so = job is not None and job.state in {JobState.NODE_FAIL, JobState.BOOT_FAIL}
    names = {row.name for row in lost} | ({job.failed_node} if job and job.failed_node else set())
    if names or said_so:
        evidence = tuple(
            Evidence(
                source="node",
                text=f"{row.name} {row.base}+{'+'.join(sorted(row.flags))} {row.reason}".strip(),
            )
            for row in lost
        )
        where = fold(names) if names else "a node that Slurm does not name"
        return Diagnosis(
            failure_class=FailureClass.NODE_FAIL,
            nodes=tuple(sorted(names)),
            summary=f"{where} was lost",
            evidence=(*evidence, _slurm_evidence(sighting)),
            confidence=0.95 if names else 0.8,
        )
    stuck = stuck_nodes(sighting)
    if stuck and _exit_code(sighting) not in {0, None}:
        return Diagnosis(
            failure_class=FailureClass.NODE_FAIL,
            nodes=stuck,
            summary=f"{fold(stuck)} did not come back from the ended job, the other nodes did",
            evidence=(_slurm_evidence(sighting),),
            confidence=0.7,
        )
    return None


def _from_slurm_state(sighting: Sighting) -> Diagnosis | None:
    if sighting.job is None or sighting.job.state not in _SLURM_CLASSES:
        return None
    failure_class, summary = _SLURM_CLASSES[sighting.job.state]
    return Diagnosis(
        failure_class=failure_class, summary=summary, evidence=(_slurm_evidence(sighting),), confidence=0.95
    )


def _from_exit(sighting: Sighting) -> Diagnosis | None:
    rc = _exit_code(sighting)
    if rc in _EXIT_CLASSES:
        failure_class, summary = _EXIT_CLASSES[rc]
    elif _was_signalled(sighting):
        # torchrun turns any code of its workers, also 85, into 1.
        failure_class, summary = _EXIT_CLASSES[EXIT_STOPPED]
    else:
        return None
    return Diagnosis(
        failure_class=failure_class, summary=summary, evidence=(_slurm_evidence(sighting),), confidence=0.9
    )


def _was_signalled(sighting: Sighting) -> bool:
    return sighting.marker is not None and sighting.marker.reason == SIGNALLED


def _from_log(
    sighting: Sighting, signatures: Sequence[Signature], *, only: frozenset[FailureClass] | None = None
) -> Diagnosis | None:
    """Judge by the log; with ``only``, where the first cause in it is of one of these classes.

    A script that was told to stop may have been told because a node was lost, and slurmctld may have
    forgotten that in a crash of its own (22.05); the log has not.
    """
    winner, second = rank_matches(match_lines(sighting.log, signatures))
    if winner is None or (only is not None and winner.signature.failure_class not in only):
        return None
    sign = winner.signature
    advice = f"; {sign.advice}" if sign.advice else ""
    return Diagnosis(
        failure_class=sign.failure_class,
        summary=f"{sign.cause}{advice}",
        evidence=(
            Evidence(source=f"{winner.line.source}:{winner.line.number}", text=winner.line.text),
            _slurm_evidence(sighting),
        ),
        confidence=sign.confidence,
        runner_up=(
            f"{second.signature.failure_class} ({second.line.source}:{second.line.number}): "
            f"later or less sure than {sign.id}"
            if second
            else ""
        ),
    )


def _unknown(sighting: Sighting) -> Diagnosis:
    last = tuple(
        Evidence(source=f"{line.source}:{line.number}", text=line.text) for line in sighting.log[-3:]
    )
    rc = _exit_code(sighting)
    summary = (
        "the command ended with 0, but the run's done condition does not hold"
        if rc == 0
        else f"nothing proves why it ended (exit code {'unknown' if rc is None else rc})"
    )
    return Diagnosis(
        failure_class=FailureClass.UNKNOWN,
        summary=summary,
        evidence=(*last, _slurm_evidence(sighting)),
        confidence=0.0,
    )


def _exit_code(sighting: Sighting) -> int | None:
    """Return the exit code of the training: the script's marker knows it first and best."""
    if sighting.marker is not None:
        return sighting.marker.rc
    if sighting.job is None:
        return None
    if sighting.job.exit_signal:
        return 128 + sighting.job.exit_signal
    return sighting.job.exit_code


def _slurm_evidence(sighting: Sighting) -> Evidence:
    parts = [f"seen in {sighting.why}"]
    if sighting.job is not None:
        reason = f" ({sighting.job.reason})" if sighting.job.reason not in {"", "None"} else ""
        parts.append(f"job {sighting.job.job_id} {sighting.job.raw_state}{reason}")
    if sighting.marker is not None:
        parts.append(f"exit marker: rc {sighting.marker.rc}, {sighting.marker.reason}")
    return Evidence(source="slurm", text="; ".join(parts))
