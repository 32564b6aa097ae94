"""Promise P6 on a real Slurm: what is handed on is whole, and no writer from the grave decides."""

import shutil
import time
from pathlib import Path

from supervisor.checkpoint.choice import MARGIN
from supervisor.domain.run import RunState
from tests.slurm.story import Story, wait
from tests.unit.dcp_files import write_checkpoint


def leave_half_written(saves: Path) -> None:
    """Leave what a save that died leaves: shards without metadata, and metadata over a truncated shard."""
    unfinished = write_checkpoint(saves / "step-00009000-a1")
    (unfinished / ".metadata").unlink()
    torn = write_checkpoint(saves / "step-00008000-a1")
    with (torn / "__1_0.distcp").open("r+b") as shard:
        shard.truncate(10)


def test_a_checkpoint_half_written_at_the_moment_of_death_is_passed_over_with_its_reason(
    story: Story,
) -> None:
    run = story.submit(nodes="{min: 2, want: 3}", every=10)
    nodes = story.train(run)
    story.lose(nodes[2])
    saves = story.root / "run" / "ckpt"
    leave_half_written(saves)

    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    whole = max(path for path in saves.glob("*-a1") if path.name < "step-00008000")
    assert story.last(run).resume_from == str(whole)
    told = story.explain(run)
    assert "step-00009000-a1: partial: no .metadata: the save was not finished (2 shard files)" in told
    assert "step-00008000-a1: corrupt" in told
    script = (run.folder / "scripts" / "0002.sbatch").read_text()
    assert f"SUPERVISE_RESUME_FROM={whole}" in script
    story.sweep_until_state(run, RunState.DONE)


def test_a_checkpoint_folder_that_vanishes_after_progress_holds_the_run(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 3}")
    nodes = story.train(run)
    story.sweep()
    story.lose(nodes[1])
    wait(lambda: story.job(story.last(run).job_id)["JobState"] != "RUNNING", "the job is lost")
    shutil.rmtree(story.root / "run" / "ckpt")

    story.sweep_until_state(run, RunState.HELD)

    assert "not from step 0" in story.reason(run)
    assert str(story.root / "run" / "ckpt") in story.reason(run)
    assert len(story.history(run)) == 1
    assert story.jobs("PD", "R") == []
    assert "DRAIN" in story.node(nodes[1])
    assert "held" in story.cli("status").stdout


def test_a_writer_from_the_grave_commits_late_and_is_not_chosen(story: Story) -> None:
    run = story.submit(nodes="3")
    nodes = story.train(run)
    zombie = nodes[1]
    saves = story.root / "run" / "ckpt"

    story.lab.isolate_node(zombie)
    first_job = story.last(run).job_id
    wait(lambda: story.job(first_job)["JobState"] == "NODE_FAIL", "the job is lost")
    assert len(story.lab.processes(zombie)) > 2
    before = story.saves(run)[-1]
    # Within this margin a commit is taken as made before the end: clocks differ.
    time.sleep(MARGIN.total_seconds() + 0.5)
    (story.root / "run" / "late-1-1").write_text("7000")
    wait((saves / "step-00007000-a1" / ".metadata").exists, "a late commit by a dead attempt")

    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")
    assert story.last(run).resume_from == str(before)
    assert "step-00007000-a1: written by attempt 1" in story.explain(run)

    # It goes on while the second attempt trains, and changes nothing of it.
    claim = run.folder / "claims" / "0002" / "job"
    wait(claim.exists, "the second attempt has begun")
    mine = claim.read_text()
    (story.root / "run" / "late-1-1").write_text("7005")
    wait((saves / "step-00007005-a1" / ".metadata").exists, "another late commit")
    story.sweep_until_state(run, RunState.DONE)
    assert claim.read_text() == mine
    assert (story.root / "run" / "done").read_text() == "2"
    assert [path.name for path in story.saves(run) if path.name.endswith("-a2")]
    assert zombie not in story.last(run).nodes
    # When the node returns, Slurm itself ends the writer.
    story.lab.return_node(zombie)
    wait(lambda: len(story.lab.processes(zombie)) == 1, "only slurmd is left there")
