from datetime import UTC, datetime

import pytest

from supervisor.domain.facts import Accepted, Doubt, Refused, StartBid
from supervisor.slurm.process import CommandResult
from supervisor.slurm.replies import classify_bid, classify_refusal, classify_submit

FAILED = "sbatch: error: Batch job submission failed: "


def reply(rc: int | None, *, stdout: str = "", stderr: str = "", timed_out: bool = False) -> CommandResult:
    return CommandResult(
        argv=("sbatch", "--parsable"), rc=rc, stdout=stdout, stderr=stderr, timed_out=timed_out
    )


@pytest.mark.parametrize(
    ("stdout", "job_id", "cluster"),
    [
        ("123\n", 123, ""),
        ("123;hpc-2\n", 123, "hpc-2"),
        ("sbatch: plugin: welcome\nquota: 17 of 20\n123\n", 123, ""),
        ("17\n123\n", 123, ""),
        ("123\nmotd\n", 123, ""),
    ],
)
def test_an_id_is_an_acceptance(stdout: str, job_id: int, cluster: str) -> None:
    outcome = classify_submit(reply(0, stdout=stdout, stderr="sbatch: warning\n"))

    assert outcome == Accepted(job_id=job_id, cluster=cluster, warnings="sbatch: warning")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stderr", "denied"),
    [
        (FAILED + "Invalid node name specified", False),
        (FAILED + "Invalid account or account/partition combination specified", False),
        (FAILED + "Invalid partition name specified", False),
        (FAILED + "Invalid qos specification", False),
        (FAILED + "Invalid feature specification", False),
        (FAILED + "Invalid license specification", False),
        (FAILED + "Requested node configuration is not available", False),
        (FAILED + "Requested reservation is invalid", False),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", False),
        (FAILED + "Node count specification invalid", False),
        (
            FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            False,
        ),
        (FAILED + "Pathname of a file, directory or other parameter too long", False),
        (FAILED + "Access/permission denied", True),
        (FAILED + "User's group not permitted to use this partition", True),
        ("sbatch: unrecognized option '--nope'\nTry \"sbatch --help\" for more information", False),
        ("sbatch: error: Unable to open file job.sh", False),
        ('sbatch: error: "abc" is not a valid node count', False),
        ("sbatch: error: Invalid --time specification", False),
        ("sbatch: error: Invalid generic resource (gres) specification", False),
        ("sbatch: error: Batch script is empty!", False),
        ("sbatch: error: This does not look like a batch script.  The first", False),
        ("sbatch: error: Batch script contains DOS line breaks (\\r\\n)", False),
    ],
)
def test_a_known_no_is_a_refusal(stderr: str, denied: bool) -> None:
    outcome = classify_submit(reply(1, stderr=stderr + "\n"))

    assert isinstance(outcome, Refused)
    assert outcome.denied is denied
    assert outcome.message


@pytest.mark.parametrize(
    "stderr",
    [
        FAILED + "Socket timed out on send/recv operation",
        FAILED + "Unable to contact slurm controller (connect failure)",
        FAILED + "Zero Bytes were transmitted or received",
        FAILED + "Unexpected message received",
        FAILED + "Protocol authentication error",
        FAILED + "Invalid authentication credential",
        FAILED + "Slurm backup controller in standby mode",
        FAILED + "Unable to create job record, try again",
        FAILED + "System submissions disabled",
        FAILED + "I/O error writing script/environment to file",
        FAILED + "a word of a newer Slurm",
        "sbatch: error: Invalid partition specified: x\n"
        + FAILED
        + "Socket timed out on send/recv operation",
        "",
        "Segmentation fault",
    ],
)
def test_every_other_answer_is_a_doubt(stderr: str) -> None:
    assert isinstance(classify_submit(reply(1, stderr=stderr)), Doubt)


def test_a_success_without_an_id_is_a_doubt() -> None:
    assert isinstance(classify_submit(reply(0, stdout="Submitted batch job 7\n")), Doubt)
    assert isinstance(classify_submit(reply(0)), Doubt)


def test_a_killed_sbatch_is_a_doubt_whatever_it_had_said() -> None:
    said = FAILED + "Invalid partition name specified"

    assert isinstance(classify_submit(reply(None, stdout="123\n", stderr=said, timed_out=True)), Doubt)


def test_a_missing_sbatch_is_a_doubt_and_arguments_that_no_program_can_get_are_a_refusal() -> None:
    missing = CommandResult(argv=("sbatch",), rc=None, not_started="No such file or directory")
    long = CommandResult(argv=("sbatch",), rc=None, not_started="[Errno 7] Argument list too long: 'sbatch'")

    nul = CommandResult(argv=("sbatch",), rc=None, not_started="embedded null byte")

    assert isinstance(classify_submit(missing), Doubt)
    assert isinstance(classify_submit(nul), Refused)
    assert isinstance(classify_submit(long), Refused)


def test_a_prediction_is_read_from_stderr() -> None:
    said = "sbatch: Job 20 to start at 1796086845 using 2 processors on nodes n[1-2] in partition main\n"

    assert classify_bid(reply(0, stderr=said), 2) == StartBid(
        num_nodes=2,
        start_at=datetime(2026, 12, 1, 1, 0, 45, tzinfo=UTC),
        nodes=("n1", "n2"),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("rc", "stderr", "kind"),
    [
        (1, "allocation failure: Requested node configuration is not available", Refused),
        (1, "allocation failure: Invalid node name specified", Refused),
        (1, "allocation failure: Socket timed out on send/recv operation", Doubt),
        (0, "", Doubt),
        (0, "sbatch: Job 20 to start at Unknown using 2 processors on nodes n1 in partition main", Doubt),
        (
            0,
            "sbatch: Job 20 to start at 1796086845 using 2 processors on nodes n[1- in partition main",
            Doubt,
        ),
    ],
)
def test_predictions_that_are_none(rc: int, stderr: str, kind: type) -> None:
    assert isinstance(classify_bid(reply(rc, stderr=stderr), 2), kind)


def test_the_no_of_an_ordinary_user_to_a_node_update_is_about_rights() -> None:
    refusal = classify_refusal(reply(1, stderr="slurm_update error: Invalid user id\n"))

    assert refusal == Refused(message="slurm_update error: Invalid user id", denied=True)
