"""How runs end on a real Slurm: cancels, time limits, deaths after the end, refusals at submit."""

from pathlib import Path

import pytest

from supervisor.domain.run import AllocationState, RunState
from supervisor.lab import Lab, LabSpec
from tests.slurm.story import FAST, Story, wait


def test_a_users_own_scancel_ends_the_run_and_nothing_is_resubmitted(story: Story) -> None:
    run = story.submit(nodes="2")
    story.train(run)
    job_id = story.last(run).job_id
    story.slurm("scancel", str(job_id))

    story.sweep_until_state(run, RunState.CANCELLED)
    story.sweep()

    wait(lambda: story.job(job_id)["JobState"] == "CANCELLED", "Slurm says so")
    assert len(story.history(run)) == 1
    assert story.last(run).failure_class == "cancelled"
    assert f"supervise resume {run.id}" in story.reason(run)
    assert story.jobs("PD", "R") == []
    assert not story.ledger.our_drains("lab")


def test_supervise_cancel_ends_job_and_run(story: Story) -> None:
    run = story.submit(nodes="2")
    story.train(run)
    job_id = story.last(run).job_id

    done = story.cli("cancel", "run")
    assert done.returncode == 0, done.stderr
    story.sweep_until_state(run, RunState.CANCELLED)

    wait(lambda: story.job(job_id)["JobState"] == "CANCELLED", "Slurm says so")
    assert len(story.history(run)) == 1
    assert [action.kind for action in story.ledger.actions(run.id)] == ["submit", "cancel"]


def test_a_pending_run_is_cancelled_before_it_starts(story: Story) -> None:
    blocker = story.slurm(
        "sbatch", "--parsable", "-N5", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300"
    )
    wait(lambda: story.job(int(blocker))["JobState"] == "RUNNING", "the blocker runs")
    run = story.submit(nodes="2")
    story.sweep()
    assert story.cli("cancel", str(run.id)).returncode == 0
    story.sweep_until_state(run, RunState.CANCELLED)
    assert story.job(story.last(run).job_id)["JobState"] == "CANCELLED"
    assert story.log(run) == ""


def test_the_time_limit_is_announced_and_the_run_goes_on_without_any_budget(story: Story) -> None:
    more = "recovery: {budgets: {time_limit: 0}}"
    # One rank: of several, the first to end with 85 makes srun end the others (--kill-on-bad-exit).
    run = story.submit(nodes="1", time_limit="1", signal_before="50s", every=1000, more=more)

    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted", 75)

    first, second = story.history(run)
    assert (first.failure_class, first.exit_code) == ("time_limit", 85)
    assert story.job(first.job_id)["ExitCode"] == "85:0"
    assert story.job(first.job_id)["TimeLimit"] == "00:01:00"
    assert "was told USR1" in story.log(run)
    assert second.resume_step is not None
    assert second.resume_step > 0
    assert second.excluded == ()
    story.sweep_until_state(run, RunState.DONE)


def test_where_slurm_refuses_or_would_wait_for_ever_the_submit_says_so(story: Story) -> None:
    path = story.write_job(nodes="{min: 6, want: 8}")
    too_many = story.cli("submit", str(path))
    unknown = story.cli("submit", str(path), "-N", "2", "--partition", "nowhere")
    too_large_want = story.cli("submit", str(path), "-N", "2-8", "--test-only")
    missing = story.cli("submit", str(story.root / "no.yaml"))

    assert too_many.returncode == 2
    assert "nodes.min: partition main can give a job 5 nodes at most" in too_many.stderr
    assert unknown.returncode == 2
    assert "there is no partition 'nowhere'; there are: main" in unknown.stderr
    assert too_large_want.returncode == 0
    assert "nodes.want: partition main can give a job 5 nodes at most" in too_large_want.stderr
    assert missing.returncode == 2
    assert story.ledger.runs(None, None) == ()
    assert story.jobs("PD", "R") == []


def test_an_avoid_list_that_names_a_node_that_is_gone_does_not_spoil_the_submission(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 3}")
    nodes = story.train(run)
    until = story.app.clock.now().replace(year=story.app.clock.now().year + 1)
    story.ledger.avoid("node999", run_id=None, until=until, reason="it was sold")

    story.lose(nodes[1])
    story.sweep_until_state(run, RunState.DONE)

    assert story.last(run).excluded == (nodes[1],)
    assert story.job(story.last(run).job_id)["ExcNodeList"] == nodes[1]


@pytest.mark.parametrize("accounting", [True, False], ids=["accounting on", "accounting off"])
def test_a_job_that_slurmctld_forgot_between_two_sweeps_is_settled(tmp_path: Path, accounting: bool) -> None:
    spec = LabSpec(nodes=2, accounting=accounting, min_job_age_s=2)
    with Lab.up(tmp_path / "lab", spec) as lab:
        root = tmp_path / "user"
        root.mkdir()
        story = Story(lab, root, **FAST)
        path = story.write_job(nodes="1", steps=10, more="recovery: {budgets: {unknown: 0}}")
        if accounting:
            # It fails, and its exit marker is lost: slurmdbd alone can tell.
            path.write_text(path.read_text().replace(f"{root}/run/train.py", "-c 'import sys; sys.exit(9)'"))
        assert story.cli("submit", str(path)).returncode == 0
        (run,) = story.ledger.runs(None, None)
        marker = run.folder / "exit" / "0001.json"
        wait(marker.exists, "the script has ended")
        wait(lambda: story.jobs() == [], "the job is forgotten", 60)
        if accounting:
            marker.unlink()

        story.sweep_until_state(run, RunState.HELD if accounting else RunState.DONE)

        last = story.last(run)
        assert last.state is AllocationState.ENDED
        assert last.ended_at is not None
        if accounting:
            assert last.exit_code == 9
            assert "seen in sacct" in story.explain(run)
        else:
            assert last.exit_code == 0
            assert story.cli("status", str(run.id), "-P", "-n").returncode == 0
        story.ledger.close()


def test_a_node_that_dies_while_the_finished_job_completes_does_not_undo_the_run(tmp_path: Path) -> None:
    epilog = tmp_path / "epilog.sh"
    epilog.write_text(
        f'#!/bin/bash\n[ "$SLURMD_NODENAME" = node002 ] && touch {tmp_path}/at && sleep 60\nexit 0\n'
    )
    epilog.chmod(0o755)
    spec = LabSpec(nodes=3, slurmd_timeout_s=4, extra_conf=(f"Epilog={epilog}",))
    with Lab.up(tmp_path / "lab", spec) as lab:
        root = tmp_path / "user"
        root.mkdir()
        story = Story(lab, root, **FAST)
        run = story.submit(nodes="3", steps=10, more=f"done: {{file: {root}/run/done}}")
        wait((tmp_path / "at").exists, "the epilog is at work")
        job_id = story.last(run).job_id
        assert story.job(job_id)["JobState"] == "COMPLETING"
        story.lose("node002")

        story.sweep_until_state(run, RunState.DONE)
        story.sweep()

        assert len(story.history(run)) == 1
        assert story.last(run).exit_code == 0
        wait(lambda: story.job(job_id)["JobState"] == "COMPLETED", "completed")
        assert "DRAIN" not in story.node("node002")
        story.ledger.close()
