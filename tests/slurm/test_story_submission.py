"""Promises P1 to P3 on a real Slurm: doubtful answers, a silent controller, two jobs with one token."""

import os
import signal

import pytest

from supervisor.domain.action import ActionState
from supervisor.domain.facts import Known
from supervisor.domain.folder import RunFolder
from supervisor.domain.run import AllocationState, Run, RunState
from tests.slurm.story import Story, wait


def freeze_at_sbatch(story: Story) -> None:
    """Let the next sbatch stop slurmctld first; then sbatch is the true one again."""
    pid = next(fact.pid for fact in story.lab.status().daemons if fact.name == "slurmctld")
    story.shim(
        "sbatch",
        f'case " $* " in *" --test-only "*) ;; *) kill -STOP {pid}; rm -- "$0" ;; esac\nexec $real "$@"',
    )


def lose_reply_of_sbatch(story: Story) -> None:
    """Let the next sbatch be accepted and its answer be lost."""
    story.shim(
        "sbatch",
        'case " $* " in *" --test-only "*) exec $real "$@" ;; esac\n'
        'rm -- "$0"\n$real "$@" >/dev/null\nexec sleep 60',
    )


DOUBTS = {"controller freezes": freeze_at_sbatch, "reply is lost": lose_reply_of_sbatch}


def check_one_trains(story: Story, run: Run, no: int) -> None:
    """Check that one job and one claim exist for allocation ``no``."""
    allocation = story.ledger.allocation(run.id, no)
    assert story.jobs_of(allocation) == [allocation.job_id]
    assert story.log(run).count(f"rank 0 of attempt {no} starts") == 1
    assert len(list((run.folder / "claims").iterdir())) == no


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_submit_whose_answer_is_lost_becomes_exactly_one_job(story: Story, doubt: str) -> None:
    path = story.write_job(nodes="2", steps=20)
    DOUBTS[doubt](story)

    done = story.cli("submit", str(path))
    assert done.returncode == 0
    assert "no clear answer from sbatch" in done.stdout
    (run,) = story.ledger.runs(None, None)
    assert story.last(run).state is AllocationState.PLANNED
    story.lab.thaw_controller()

    story.sweep_until_state(run, RunState.DONE)
    check_one_trains(story, run, 1)
    (action,) = story.ledger.actions(run.id)
    assert action.state is ActionState.APPLIED


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_resubmission_whose_answer_is_lost_becomes_exactly_one_job(story: Story, doubt: str) -> None:
    run = story.submit(nodes="{min: 2, want: 3}")
    nodes = story.train(run)
    DOUBTS[doubt](story)
    story.slurm("scontrol", "update", f"nodename={nodes[1]}", "state=down", "reason=for a test")

    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")
    assert story.last(run).state is AllocationState.PLANNED
    assert story.state(run) is RunState.RECOVERING
    assert "searched for by its token" in story.reason(run)
    story.lab.thaw_controller()

    story.sweep_until_state(run, RunState.DONE)
    check_one_trains(story, run, 2)


def test_a_controller_that_is_silent_longer_than_the_grace_leads_to_no_second_job(story: Story) -> None:
    path = story.write_job(nodes="2", steps=20)
    freeze_at_sbatch(story)
    story.cli("submit", str(path))
    (run,) = story.ledger.runs(None, None)

    for _ in range(2):
        assert story.app.sweep().run().blind
    story.lab.thaw_controller()

    story.sweep_until_state(run, RunState.DONE)
    check_one_trains(story, run, 1)


@pytest.mark.parametrize("fault", ["frozen", "dead"])
def test_a_silent_controller_changes_nothing_and_all_goes_on_when_it_answers(
    story: Story, fault: str
) -> None:
    run = story.submit(nodes="{min: 2, want: 3}")
    nodes = story.train(run)
    if fault == "frozen":
        story.lose(nodes[1])
        story.lab.freeze_controller()
    else:
        # In order, since a slurmctld that is killed may forget the jobs and node states of its last seconds.
        story.slurm("scontrol", "shutdown", "slurmctld")
        wait(lambda: not isinstance(story.app.slurm.controller(), Known), "the controller is gone")
    before = (story.ledger.events(), story.ledger.run(run.id), story.history(run))
    try:
        done = story.cli("sweep")
        refused = story.cli("submit", str(story.write_job("other", nodes="2")))
    finally:
        (story.lab.thaw_controller if fault == "frozen" else story.lab.start_controller)()

    assert done.returncode == 3
    assert "blind: nothing is changed" in done.stdout
    assert "Slurm does not answer" in done.stderr
    assert (story.ledger.events(), story.ledger.run(run.id), story.history(run)) == before
    assert refused.returncode == 3
    assert "nothing was submitted" in refused.stderr
    wait(lambda: isinstance(story.app.slurm.controller(), Known), "the controller answers")
    story.sweep_until_state(run, RunState.DONE, 150)
    classes = [item.failure_class for item in story.history(run)]
    assert classes == (["node_fail", None] if fault == "frozen" else [None])
    assert story.last(run).excluded == ((nodes[1],) if fault == "frozen" else ())


def test_of_two_jobs_with_one_token_one_trains_and_the_run_follows_it(story: Story) -> None:
    story.shim("sbatch", 'rm -- "$0"\n$real "$@" >/dev/null\nsleep 1\nexec $real "$@"')
    run = story.submit(nodes="2", steps=30)
    allocation = story.last(run)
    twins = story.jobs_of(allocation)
    assert len(twins) == 2

    story.sweep_until_state(run, RunState.DONE)

    assert story.log(run).count("rank 0 of attempt 1 starts") == 1
    assert len(story.history(run)) == 1
    wait(lambda: all(story.job(twin)["JobState"] in {"COMPLETED", "FAILED"} for twin in twins), "both ended")
    codes = {story.job(twin)["ExitCode"] for twin in twins}
    assert codes == {"0:0", "77:0"}
    winner = story.last(run).job_id
    assert story.job(winner)["ExitCode"] == "0:0"


def test_a_copy_of_the_script_that_is_submitted_by_hand_later_stands_aside(story: Story) -> None:
    run = story.submit(nodes="2", steps=60)
    story.train(run)
    allocation = story.last(run)
    script = RunFolder(run.folder).script(allocation.no)
    log = story.root / "copy.out"

    copy = story.slurm(
        *("sbatch", "--parsable", "--nodes=2", f"--comment=supervise:{allocation.token}"),
        *(f"--output={log}", str(script)),
    )
    wait(lambda: story.job(int(copy))["JobState"] == "FAILED", "the copy has ended")

    assert story.job(int(copy))["ExitCode"] == "77:0"
    assert "another job holds the claim" in log.read_text()
    story.sweep_until_state(run, RunState.DONE)
    assert story.last(run).job_id == allocation.job_id
    assert story.log(run).count("rank 0 of attempt 1 starts") == 1


def test_a_job_that_slurm_requeued_stands_aside_and_a_new_allocation_goes_on(story: Story) -> None:
    run = story.submit(nodes="2")
    story.train(run)
    job_id = story.last(run).job_id
    assert story.job(job_id)["Requeue"] == "0"
    story.slurm("scontrol", "requeue", str(job_id), check=False)
    assert story.job(job_id)["JobState"] == "RUNNING"

    story.slurm("scontrol", "update", f"jobid={job_id}", "Requeue=1")
    story.slurm("scontrol", "requeue", str(job_id))
    wait(lambda: story.job(job_id)["JobState"] == "PENDING", "requeued")
    story.sweep()
    assert story.state(run) is RunState.QUEUED
    # Not StartTime=now: a second start in the same second fails before the script (22.05).
    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    first, second = story.history(run)
    assert (first.exit_code, first.failure_class, first.restart_count) == (76, "preempted", 1)
    assert second.job_id != job_id
    assert second.resume_step is not None
    story.sweep_until_state(run, RunState.DONE)
    assert story.log(run).count("rank 0 of attempt 1 starts") == 1


def test_a_sweep_that_was_killed_with_the_lease_does_not_keep_the_next_one_out(story: Story) -> None:
    run = story.submit(nodes="2", steps=30)
    lease = story.app.settings.sweep.lease
    child = os.fork()
    if child == 0:
        story.ledger.acquire_lease("sweep", f"{os.uname().nodename}:{os.getpid()}", lease)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    story.sweep_until_state(run, RunState.DONE)
    assert len(story.history(run)) == 1
