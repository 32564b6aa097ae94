"""The whole circle on a real Slurm: nodes that die at every moment of a run's life."""

from supervisor.domain.run import RunState
from tests.slurm.story import Story, wait


def check_recovery(story: Story, run_id: int, lost: tuple[str, ...], size: int) -> None:
    """Check what Slurm and the ledger say after a run lost nodes once and went on."""
    run = story.ledger.run(run_id)
    first, second = story.history(run)
    assert first.failure_class == "node_fail"
    wait(lambda: story.job(first.job_id)["JobState"] != "COMPLETING", "the lost job is over")
    assert story.job(first.job_id)["JobState"] in {"NODE_FAIL", "FAILED"}
    assert set(second.excluded) == set(lost)
    assert second.num_nodes == size
    job = story.job(second.job_id)
    assert int(job["NumNodes"].partition("-")[0]) == size
    for node in lost:
        shown = story.node(node)
        assert "DRAIN" in shown
        assert f"Reason=supervise: node_fail run {run.id}.1" in shown
        assert node in story.slurm("scontrol", "show", "hostnames", job["ExcNodeList"]).split()
    assert {str(drain.node) for drain in story.ledger.our_drains("lab")} == set(lost)


def test_a_node_that_dies_is_drained_and_excluded_and_the_run_goes_on_smaller_and_ends(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 5}")
    nodes = story.train(run)

    story.lose(nodes[2])
    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    newest = story.saves(run)[-1]
    assert story.last(run).resume_from == str(newest)
    check_recovery(story, run.id, (nodes[2],), 4)
    story.sweep_until_state(run, RunState.DONE)
    assert (story.root / "run" / "done").read_text() == "2"
    assert len(story.history(run)) == 2
    assert story.job(story.last(run).job_id)["JobState"] == "COMPLETED"
    told = story.explain(run)
    assert "node_fail" in told
    assert nodes[2] in told


def test_the_node_of_the_batch_script_dies_and_the_run_goes_on(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 5}")
    nodes = story.train(run)
    assert story.job(story.last(run).job_id)["BatchHost"] == nodes[0]

    story.lose(nodes[0])
    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    check_recovery(story, run.id, (nodes[0],), 4)
    assert not (run.folder / "exit" / "0001.json").exists()
    story.sweep_until_state(run, RunState.DONE)


def test_two_nodes_that_die_at_once_are_both_drained_and_excluded(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 5}")
    nodes = story.train(run)

    story.lose(nodes[1], nodes[3])
    wait(lambda: all("DOWN" in story.node(node) for node in (nodes[1], nodes[3])), "both down")
    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    check_recovery(story, run.id, (nodes[1], nodes[3]), 3)
    story.sweep_until_state(run, RunState.DONE)


def test_a_node_that_dies_while_the_job_waits_for_it_costs_nothing(story: Story) -> None:
    blocker = story.slurm(
        "sbatch", "--parsable", "-w", "node001", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300"
    )
    run = story.submit(nodes="5", steps=3, every=1)
    story.sweep()
    assert story.job(story.last(run).job_id)["JobState"] == "PENDING"

    story.lose("node004")
    wait(lambda: "DOWN" in story.node("node004"), "node004 down")
    story.slurm("scancel", blocker)
    story.sweep_until(lambda: "node" in story.job(story.last(run).job_id)["Reason"].lower(), "Slurm says why")
    story.sweep()

    assert story.state(run) is RunState.QUEUED
    assert "waits in the queue" in story.reason(run)
    assert "DRAIN" not in story.node("node004")
    story.lab.return_node("node004")
    story.sweep_until_state(run, RunState.DONE)
    assert len(story.history(run)) == 1


def test_a_node_that_dies_before_the_first_step_is_kept_out_and_the_run_begins_again(story: Story) -> None:
    run = story.submit(nodes="{min: 2, want: 5}", first=30)
    wait(lambda: story.job(story.last(run).job_id)["JobState"] == "RUNNING", "started")
    victim = "node003"

    story.lose(victim)
    story.sweep_until(lambda: len(story.history(run)) == 2, "resubmitted")

    check_recovery(story, run.id, (victim,), 4)
    assert story.last(run).resume_from is None
    assert story.history(run)[0].first_step_at is None


def test_no_healthy_node_is_left_and_the_run_waits_until_one_returns(story: Story) -> None:
    run = story.submit(nodes="5")
    nodes = story.train(run)

    story.lose(nodes[4])
    story.sweep_until_state(run, RunState.WAITING)

    assert "waiting for nodes: 4 usable, the smallest allowed size is 5" in story.reason(run)
    assert "waiting" in story.cli("status").stdout
    assert story.jobs("PD", "R") == []
    told = story.node(nodes[4])
    assert f"Reason=supervise: node_fail run {run.id}.1" in told

    # An admin mends the node, gives it back to Slurm and to our runs.
    story.lab.return_node(nodes[4])
    story.slurm("scontrol", "update", f"nodename={nodes[4]}", "state=undrain")
    story.slurm("scontrol", "update", f"nodename={nodes[4]}", "state=resume", check=False)
    assert story.cli("nodes", "clear", nodes[4]).returncode == 0
    story.sweep_until_state(run, RunState.DONE)
    assert story.last(run).resume_step is not None
    assert story.last(run).excluded == ()
