from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.clock import ManualClock
from supervisor.domain.facts import Applied, Doubt, JobState, Known, Refused, Unknown
from supervisor.domain.ids import JobId, NodeName
from supervisor.slurm.commands import CommandSlurm, Timeouts
from supervisor.slurm.parse_jobs import SQUEUE_FIELDS
from supervisor.slurm.process import CommandResult

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Script:
    """Plays Slurm's programs: each call takes the next answer; ``{nonce}`` becomes the call's own."""

    def __init__(self, *answers: tuple[int | None, str, str]) -> None:
        self.answers = list(answers)
        self.calls: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.timeouts: list[float] = []

    def __call__(
        self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_s: float
    ) -> CommandResult:
        self.calls.append(list(argv))
        self.environments.append(dict(environment))
        self.timeouts.append(timeout_s)
        rc, stdout, stderr = self.answers.pop(0)
        nonce = argv[-1].split(",")[0].rpartition(":")[2] if "-O" in argv else ""
        return CommandResult(
            argv=tuple(argv),
            rc=rc,
            stdout=stdout.replace("{nonce}", nonce),
            stderr=stderr,
            timed_out=rc is None,
        )


def slurm(script: Script, **options: object) -> CommandSlurm:
    environ = {"PATH": "/bin", "SQUEUE_FORMAT": "%i", "TZ": "Asia/Tokyo"}
    return CommandSlurm(environ, ManualClock(NOW), runner=script, **options)  # type: ignore[arg-type]


def row(job_id: int, state: str) -> str:
    values = dict.fromkeys(SQUEUE_FIELDS, "") | {"JobID": str(job_id), "State": state}
    return "".join(values[name] + "{nonce}" for name in SQUEUE_FIELDS) + "\n"


def node(state: str, reason: str = "") -> str:
    line = f"NodeName=n1 CPUTot=4 RealMemory=1000 State={state} CfgTRES=cpu=4"
    return line + (f" Reason={reason} [root@1796086846]\n" if reason else "\n")


def test_jobs_are_read_in_one_call_with_a_clean_environment() -> None:
    script = Script((0, row(7, "RUNNING"), ""))
    reading = slurm(script).jobs()

    assert isinstance(reading, Known)
    assert [job.job_id for job in reading.value] == [7]
    assert reading.at == NOW
    assert len(script.calls) == 1
    assert script.calls[0][:4] == ["squeue", "--me", "--states=all", "--noheader"]
    assert script.environments[0] == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s",
    }


def test_the_jobs_of_a_given_user_are_read_where_one_is_given() -> None:
    script = Script((0, "", ""))
    slurm(script, user="trainer").jobs()

    assert script.calls[0][1] == "--user=trainer"


def test_no_jobs_is_a_fact_only_when_nothing_went_wrong() -> None:
    assert slurm(Script((0, "", ""))).jobs() == Known((), NOW)
    for answer in [
        (0, "", "squeue: error: something"),
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller"),
        (None, "", ""),
        (0, "garbage", ""),
    ]:
        assert isinstance(slurm(Script(answer)).jobs(), Unknown)


def test_no_nodes_is_never_a_fact() -> None:
    for answer in [(0, "", ""), (1, "", "slurm_load_node error"), (0, "odd", ""), (None, "", "")]:
        assert isinstance(slurm(Script(answer)).nodes(), Unknown)


def test_only_slurmctlds_own_word_makes_an_id_unknown() -> None:
    unknown_id = (1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert slurm(Script(unknown_id)).job(JobId(7)) == Known(None, NOW)
    for answer in [
        (0, "", ""),
        (1, "", "slurm_load_jobs error: Socket timed out"),
        (0, row(8, "RUNNING"), ""),
    ]:
        assert isinstance(slurm(Script(answer)).job(JobId(7)), Unknown)


def test_a_submission_is_given_as_words_and_keeps_the_users_time_zone() -> None:
    script = Script((0, "12\n", ""))
    slurm(script, timeouts=Timeouts(submit_s=7)).submit(
        Path("/run/job.sh"), ["--comment=$(id); x", "--nodes=2"]
    )

    assert script.calls == [["sbatch", "--parsable", "--comment=$(id); x", "--nodes=2", "/run/job.sh"]]
    assert script.environments[0] == {"PATH": "/bin", "TZ": "Asia/Tokyo"}
    assert script.timeouts == [7]


def test_a_prediction_asks_for_its_own_size_last() -> None:
    script = Script((1, "", "allocation failure: Requested node configuration is not available"))
    outcome = slurm(script).predict_start(Path("/run/job.sh"), ["--nodes=8"], 4)

    assert isinstance(outcome, Refused)
    assert script.calls == [["sbatch", "--test-only", "--nodes=8", "--nodes=4", "/run/job.sh"]]


def test_accounting_names_its_window_in_utc() -> None:
    script = Script((0, "", ""), (1, "", "Slurm accounting storage is disabled\n"))
    since = datetime(2026, 1, 1, 9, tzinfo=UTC) - timedelta(days=1)
    adapter = slurm(script)

    assert adapter.accounting([JobId(1), JobId(2)], since) == Known((), NOW)
    assert isinstance(adapter.accounting([], since), Unknown)
    assert script.calls[0][script.calls[0].index("-S") + 1] == "2025-12-31T09:00:00"
    assert script.calls[0][script.calls[0].index("-E") + 1] == "now"
    assert script.calls[0][-1] == "--jobs=1,2"
    assert script.calls[1][-1].startswith("--user=")


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "COMPLETED", "NODE_FAIL"])
def test_a_cancelled_job_that_is_gone_or_going_is_cancelled(state: str) -> None:
    assert slurm(Script((0, "", ""), (0, row(7, state), ""))).cancel(JobId(7)) == Applied(message=state)


def test_a_cancelled_job_that_still_runs_is_a_doubt() -> None:
    for answers in [
        ((0, "", ""), (0, row(7, "RUNNING"), "")),
        ((0, "", ""), (0, row(7, "EXPEDITING"), "")),
        ((None, "", ""), (1, "", "slurm_load_jobs error: Socket timed out")),
    ]:
        assert isinstance(slurm(Script(*answers)).cancel(JobId(7)), Doubt)


def test_a_cancel_that_timed_out_but_worked_is_applied() -> None:
    outcome = slurm(Script((None, "", ""), (0, row(7, "CANCELLED"), ""))).cancel(JobId(7))

    assert isinstance(outcome, Applied)


def test_a_cancel_of_anothers_job_is_denied() -> None:
    script = Script((1, "", "scancel: error: Kill job error on job id 7: Access/permission denied"))

    outcome = slurm(script).cancel(JobId(7))
    assert isinstance(outcome, Refused)
    assert outcome.denied


def test_a_drain_counts_only_when_the_node_shows_it() -> None:
    script = Script((0, "", ""), (0, node("IDLE+DRAIN", "bad gpu"), ""))
    assert isinstance(slurm(script).drain(NodeName("n1"), "bad gpu"), Applied)
    assert script.calls[0] == ["scontrol", "update", "nodename=n1", "state=drain", "reason=bad gpu"]

    for shown in [node("IDLE"), node("IDLE+DRAIN", "an admin's reason"), node("IDLE+DRAIN"), ""]:
        assert isinstance(slurm(Script((0, "", ""), (0, shown, ""))).drain(NodeName("n1"), "bad gpu"), Doubt)


def test_a_drain_whose_answer_was_lost_counts_when_the_node_shows_it() -> None:
    script = Script((None, "", ""), (0, node("ALLOCATED+DRAIN", "bad gpu : Not responding"), ""))

    assert isinstance(slurm(script).drain(NodeName("n1"), "bad gpu"), Applied)


def test_a_node_that_is_not_drained_is_not_touched_by_undrain() -> None:
    script = Script((0, node("IDLE"), ""))

    assert isinstance(slurm(script).undrain(NodeName("n1")), Applied)
    assert [call[1] for call in script.calls] == ["show"]


def test_undrain_of_a_node_that_is_down_takes_off_the_drain_alone() -> None:
    script = Script((0, node("DOWN+DRAIN", "x"), ""), (0, "", ""), (0, node("DOWN", "x"), ""))

    assert isinstance(slurm(script).undrain(NodeName("n1")), Applied)
    assert script.calls[1] == ["scontrol", "update", "nodename=n1", "state=undrain"]


def test_an_unknown_job_state_is_kept_in_slurms_own_word() -> None:
    reading = slurm(Script((0, row(7, "EXPEDITING"), ""))).jobs()

    assert isinstance(reading, Known)
    assert (reading.value[0].state, reading.value[0].raw_state) == (JobState.UNKNOWN, "EXPEDITING")
