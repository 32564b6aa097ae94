"""The whole circle on a simulated cluster."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.evidence import Phase
from supervisor.domain.facts import Accepted, JobState, Known, NodeFlag
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import AllocationNo, Token
from supervisor.domain.run import AllocationState, RunState
from supervisor.domain.spec import JobSpec
from supervisor.errors import PolicyRefusal, SlurmUnavailable
from supervisor.hooks import load_plugins, load_signatures
from supervisor.ledger.rows import NewAllocation
from supervisor.ledger.store import Ledger
from supervisor.observe.scheduler import ClusterView
from supervisor.sweep.look import look
from tests.unit.dcp_files import write_checkpoint
from tests.unit.world import World

MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.ledger.close()


def node_reason(world: World, name: str) -> tuple[bool, str]:
    reading = world.slurm.nodes()
    assert isinstance(reading, Known)
    row = next(row for row in reading.value if row.name == name)
    return NodeFlag.DRAIN in row.flags, row.reason


def test_a_run_is_queued_then_running_then_done(world: World) -> None:
    run = world.submit()
    assert run.state is RunState.QUEUED
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING
    world.finish(run)
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.DONE
    assert world.sweep().lines == ()


def test_a_lost_node_is_drained_avoided_excluded_and_the_run_resubmitted_smaller(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    report = world.sweep()
    assert any("resubmit on 4 nodes" in line for line in report.lines)
    assert node_reason(world, "node003") == (
        True,
        f"supervise: node_fail run {run.id}.1 (was: Not responding)",
    )
    first, second = world.ledger.allocations(run.id)
    assert (first.state, first.failure_class) == (AllocationState.ENDED, "node_fail")
    assert (second.num_nodes, second.excluded) == (4, ("node003",))
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING
    assert "node003" not in world.last(run).nodes
    assert len(world.live_jobs()) == 1


def test_two_nodes_lost_at_once_are_both_drained_and_excluded(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node002")
    world.slurm.fail_node("node005")
    world.pass_time(15)
    world.sweep()
    assert world.last(run).excluded == ("node002", "node005")
    assert node_reason(world, "node002")[0]
    assert node_reason(world, "node005")[0]


def test_p5_half_of_the_nodes_at_once_are_a_shared_incident_and_none_is_drained(world: World) -> None:
    run = world.submit()
    world.sweep()
    for name in ("node001", "node002", "node003"):
        world.slurm.fail_node(name)
    world.pass_time(15)
    world.sweep()
    assert world.ledger.actions(run.id)
    assert all(action.kind is not ActionKind.DRAIN for action in world.ledger.actions(run.id))
    assert world.last(run).num_nodes == 2


def test_without_rights_a_node_is_avoided_and_its_drain_asked_for(world: World) -> None:
    world.slurm.may_drain = False
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.sweep()
    (drain,) = [action for action in world.ledger.actions(run.id) if action.kind is ActionKind.DRAIN]
    assert drain.state is ActionState.REFUSED
    assert any(event.kind == "drain_requested" for event in world.ledger.events(run.id))
    assert world.last(run).excluded == ("node003",)


def test_p4_a_node_that_an_admin_drained_meanwhile_keeps_the_admins_reason(world: World) -> None:
    world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.slurm.drain_by_admin("node003", "RMA 4711")
    world.sweep()
    assert node_reason(world, "node003") == (True, "RMA 4711")


def test_a_run_with_no_size_left_waits_with_a_reason_and_goes_on_by_itself(world: World) -> None:
    run = world.submit(nodes={"min": 6, "want": 6})
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.sweep()
    waiting = world.ledger.run(run.id)
    assert waiting.state is RunState.WAITING
    assert "5 usable, the smallest allowed size is 6" in waiting.reason
    world.sweep_for(2 * MINUTE)
    assert world.ledger.run(run.id).state is RunState.WAITING
    world.slurm.return_node("node003")
    world.slurm.undrain("node003")  # type: ignore[arg-type]
    world.ledger.lift_avoid("node003")
    world.sweep()
    # The node that failed stays out of this run's next allocation, so six are not to be had even now.
    assert world.ledger.run(run.id).state in {RunState.WAITING, RunState.QUEUED}


def test_an_avoid_of_a_node_that_no_longer_exists_does_not_spoil_the_resubmission(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.ledger.avoid("node999", None, world.clock.now() + timedelta(days=1), "an old story")
    world.sweep()
    assert world.last(run).excluded == ("node003",)
    assert world.last(run).state is AllocationState.PENDING


def test_the_users_own_scancel_ends_supervision(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.cancel_by_user(world.live_jobs()[0].job_id)
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.CANCELLED
    assert world.live_jobs() == ()


def test_a_time_limit_without_progress_is_retried_once_and_then_held(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.time_out(world.live_jobs()[0].job_id)
    world.sweep()
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING
    world.slurm.time_out(world.live_jobs()[0].job_id)
    world.sweep()
    held = world.ledger.run(run.id)
    assert held.state is RunState.HELD
    assert "supervise resume" in held.reason


def test_p7_a_command_that_fails_again_and_again_stops_after_two_attempts_and_blames_no_node(
    world: World,
) -> None:
    run = world.submit()
    for _ in range(5):
        world.sweep()
        if world.ledger.run(run.id).state is RunState.RUNNING:
            world.finish(run, 1)
    assert world.ledger.run(run.id).state is RunState.HELD
    assert len(world.ledger.allocations(run.id)) == 2
    assert world.ledger.avoided(world.clock.now()) == ()


def test_p3_a_frozen_controller_freezes_the_run_and_its_deadlines(world: World) -> None:
    run = world.submit()
    world.sweep()
    before = (world.ledger.run(run.id), world.ledger.allocations(run.id), len(world.ledger.events(run.id)))
    world.slurm.freeze()
    for _ in range(10):
        world.pass_time(3600)
        assert world.sweep().blind
    assert before == (
        world.ledger.run(run.id),
        world.ledger.allocations(run.id),
        len(world.ledger.events(run.id)),
    )
    world.slurm.thaw()
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING


def test_nothing_is_stored_when_no_controller_answers_a_submission(world: World) -> None:
    world.slurm.freeze()
    with pytest.raises(SlurmUnavailable):
        world.submit()
    assert world.ledger.runs(None, None) == ()


@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_that_was_purged_unseen_is_settled_by_accounting_or_its_marker(
    tmp_path: Path, accounting: bool
) -> None:
    world = World(tmp_path, accounting=accounting)
    run = world.submit()
    world.sweep()
    world.finish(run)
    world.pass_time(1000)
    assert world.jobs() == ()
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.DONE
    world.ledger.close()


def test_p2_a_job_that_vanished_without_a_trace_is_held_for_a_person_and_never_resubmitted(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, accounting=False)
    run = world.submit()
    world.sweep()
    job_id = world.last(run).job_id
    assert job_id is not None
    world.slurm.finish(job_id, 0)
    world.pass_time(1000)
    world.sweep()
    assert "nowhere to be found" in world.ledger.run(run.id).reason
    world.sweep_for(40 * MINUTE, every=MINUTE)
    held = world.ledger.run(run.id)
    assert held.state is RunState.HELD
    assert world.last(run).state is AllocationState.LOST
    assert world.slurm.calls["submit"] == 1
    world.ledger.close()


def test_a_lost_reply_is_found_again_by_its_token(world: World) -> None:
    world.slurm.lose_reply_next_submit()
    run = world.submit()
    assert world.last(run).state is AllocationState.PLANNED
    world.sweep()
    assert world.last(run).state in {AllocationState.PENDING, AllocationState.RUNNING}
    assert world.slurm.calls["submit"] == 1


def test_a_submission_into_a_controller_that_froze_is_tried_again_only_after_the_grace(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)

    # The controller freezes between the look and the submission, and never takes the job.
    original = world.slurm.submit
    world.slurm.submit = lambda *a: (world.slurm.freeze(accept=False), original(*a))[1]  # type: ignore[method-assign]
    world.sweep()
    world.slurm.submit = original  # type: ignore[method-assign]
    assert world.last(run).state is AllocationState.PLANNED
    world.slurm.thaw()
    world.sweep()
    assert world.slurm.calls["submit"] == 2
    world.pass_time(60)
    world.sweep()
    assert world.slurm.calls["submit"] == 3
    assert len(world.live_jobs()) == 1
    assert world.ledger.run(run.id).state is not RunState.HELD


def test_a_refused_first_submission_holds_the_run_with_slurms_words(world: World) -> None:
    run = world.submit(slurm={"partition": "nosuch"})
    held = world.ledger.run(run.id)
    assert held.state is RunState.HELD
    assert "Invalid partition" in held.reason


def test_two_runs_may_not_save_to_the_same_directory(world: World) -> None:
    world.submit(checkpoint={"dir": "ckpt"})
    with pytest.raises(PolicyRefusal, match=r"checkpoint\.dir"):
        world.submit(checkpoint={"dir": "ckpt"})


def test_a_dry_run_says_what_a_sweep_would_do_and_changes_nothing(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    before = (world.ledger.events(), world.ledger.allocations(run.id), world.slurm.calls["submit"])
    report = world.sweep(dry_run=True)
    assert any("resubmit on 4 nodes" in line and "drain node003" in line for line in report.lines)
    after = (world.ledger.events(), world.ledger.allocations(run.id), world.slurm.calls["submit"])
    assert before == after


def test_a_paused_supervisor_looks_and_does_nothing(world: World) -> None:
    world.submit()
    world.policy = replace(world.policy, paused=True)
    events = len(world.ledger.events())
    assert world.sweep().lines
    assert len(world.ledger.events()) == events


def test_overlapping_sweeps_are_kept_apart_by_the_lease(world: World) -> None:
    world.submit()
    assert world.ledger.acquire_lease("sweep", "otherhost:1", timedelta(minutes=2))
    assert "otherhost:1" in world.sweep().busy
    world.pass_time(130)
    assert not world.sweep().busy


def test_one_poisoned_run_does_not_keep_the_others_from_their_turn(world: World) -> None:
    poisoned = world.submit(name="poisoned")
    healthy = world.submit(name="healthy", nodes=2)
    world.sweep()
    last = world.last(poisoned)
    world.slurm.time_out(last.job_id or 0)
    (poisoned.folder / "scripts").rename(poisoned.folder / "gone")
    (poisoned.folder / "scripts").write_text("in the way")
    report = world.sweep()
    assert any("poisoned" in line and "error" in line for line in report.lines)
    assert world.ledger.run(healthy.id).state is RunState.RUNNING


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_sweep_asks_slurm_once_for_jobs_and_once_for_nodes_whatever_the_number_of_runs(
    tmp_path: Path, count: int
) -> None:
    world = World(tmp_path)
    for number in range(count):
        world.submit(name=f"run{number}", nodes=1)
    world.sweep()
    world.slurm.calls.clear()
    world.sweep()
    assert world.slurm.calls == {"controller": 1, "jobs": 1, "nodes": 1}
    world.ledger.close()


def test_a_preempted_run_goes_on_in_a_new_allocation(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.slurm.preempt(world.live_jobs()[0].job_id)
    world.sweep()
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING
    assert world.ledger.allocations(run.id)[0].failure_class == "preempted"


def test_a_node_that_dies_while_the_job_pends_leaves_the_run_in_the_queue(world: World) -> None:
    world.submit(name="first")
    second = world.submit(name="second")
    world.slurm.fail_node("node001")
    world.pass_time(15)
    world.sweep()
    assert world.ledger.run(second.id).state in {RunState.QUEUED, RunState.RUNNING}
    assert world.last(second).no == 1


def test_a_second_ledger_sees_the_same_story(world: World) -> None:
    run = world.submit()
    world.sweep()
    with Ledger.open(f"sqlite:///{world.root}/ledger.db", world.clock) as other:
        assert other.run(run.id) == world.ledger.run(run.id)
        assert [row.state for row in other.allocations(run.id)] == [AllocationState.RUNNING]
    assert world.jobs()[0].state is JobState.RUNNING


def test_old_checkpoints_are_pruned_only_where_the_job_file_asks_for_it(world: World) -> None:
    asked = world.submit(name="asked", nodes=2, checkpoint={"dir": "asked", "keep": 2})
    world.submit(name="silent", nodes=2, checkpoint={"dir": "silent"})
    world.sweep()
    for step in (10, 20, 30, 40):
        world.save("asked", step)
        world.save("silent", step)
    world.sweep()
    assert sorted(path.name for path in (world.root / "asked").iterdir()) == ["step-30-a1", "step-40-a1"]
    assert len(list((world.root / "silent").iterdir())) == 4
    world.finish(asked, 1)
    world.sweep()
    assert world.last(asked).resume_step == 40


def test_the_newest_whole_checkpoint_is_handed_over_and_a_torn_one_is_not(world: World) -> None:
    run = world.submit(checkpoint={"dir": "ckpt"})
    world.sweep()
    whole = world.save("ckpt", 10)
    torn = world.save("ckpt", 20)
    (torn / ".metadata").unlink()
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.sweep()
    assert world.last(run).resume_step == 10
    assert world.last(run).resume_from == str(whole)


def test_p1_a_checkpoint_that_a_lost_nodes_process_commits_too_late_is_not_chosen(world: World) -> None:
    run = world.submit(checkpoint={"dir": "ckpt"})
    world.sweep()
    world.save("ckpt", 10)
    world.slurm.fail_node("node003")
    world.pass_time(15)
    world.save("ckpt", 20, late_s=60)
    world.sweep()
    assert world.last(run).resume_step == 10


def test_a_run_whose_checkpoints_are_gone_is_held_and_not_restarted_at_step_0(world: World) -> None:
    run = world.submit(checkpoint={"dir": "ckpt"})
    world.sweep()
    world.save("ckpt", 10)
    world.slurm.preempt(world.live_jobs()[0].job_id)
    world.sweep()
    assert world.last(run).resume_step == 10
    world.sweep()
    shutil.rmtree(world.root / "ckpt")
    world.slurm.preempt(world.live_jobs()[0].job_id)
    world.sweep()
    held = world.ledger.run(run.id)
    assert held.state is RunState.HELD
    assert "not from step 0" in held.reason


def test_a_job_file_that_is_submitted_again_goes_on_from_what_is_there(world: World) -> None:
    write_checkpoint(world.root / "ckpt" / "step-70")
    run = world.submit(checkpoint={"dir": "ckpt"})
    assert world.last(run).resume_step == 70


def test_a_corrupt_checkpoint_costs_one_step_back(world: World) -> None:
    run = world.submit(checkpoint={"dir": "ckpt"})
    world.sweep()
    for step in (10, 20):
        world.save("ckpt", step)
    world.signatures = load_signatures(load_plugins())
    folder = RunFolder(run.folder)
    folder.log(AllocationNo(1)).write_text("RuntimeError: PytorchStreamReader failed reading zip archive\n")
    world.finish(run, 1)
    world.sweep()
    assert world.ledger.allocations(run.id)[0].failure_class == "checkpoint_corrupt"
    assert world.last(run).resume_step == 10


def test_p7_a_users_traceback_stops_the_run_at_once_and_is_explained(world: World) -> None:
    run = world.submit()
    world.sweep()
    world.signatures = load_signatures(load_plugins())
    RunFolder(run.folder).log(AllocationNo(1)).write_text("Traceback:\nValueError: shapes do not match\n")
    world.finish(run, 1)
    world.sweep()
    failed = world.ledger.run(run.id)
    assert failed.state is RunState.FAILED
    assert "an error of its own" in failed.reason
    assert world.ledger.avoided(world.clock.now()) == ()


def test_resume_takes_a_held_run_up_again_whatever_the_budgets_say(world: World) -> None:
    run = world.submit()
    for _ in range(4):
        world.sweep()
        if world.ledger.run(run.id).state is RunState.RUNNING:
            world.finish(run, 1)
    assert world.ledger.run(run.id).state is RunState.HELD
    last = world.last(run)
    world.ledger.append_event("resumed", "resumed by hand", run_id=run.id, allocation_no=last.no)
    world.ledger.advance_run(run.id, expected=RunState.HELD, to=RunState.RECOVERING, reason="resumed")
    world.sweep()
    world.sweep()
    assert world.ledger.run(run.id).state is RunState.RUNNING
    assert world.last(run).no == last.no + 1


def test_p1_of_two_jobs_with_one_token_the_one_that_holds_the_claim_is_followed(world: World) -> None:
    run = world.submit()
    world.sweep()
    first = world.last(run)
    options = ["--nodes=2", "--partition=main", f"--comment=supervise:{first.token}", "--job-name=demo"]
    twin = world.slurm.submit(RunFolder(run.folder).script(first.no), options)
    assert isinstance(twin, Accepted)
    claim = RunFolder(run.folder).claim(first.no)
    claim.mkdir()
    (claim / "job").write_text(json.dumps({"job_id": twin.job_id, "token": first.token}))
    world.slurm.finish(first.job_id or 0, 77)
    world.sweep()
    assert world.last(run).job_id == twin.job_id
    assert world.ledger.run(run.id).state in {RunState.QUEUED, RunState.RUNNING}
    assert len(world.ledger.allocations(run.id)) == 1


def test_p3_runs_of_another_cluster_in_the_same_ledger_are_left_alone(world: World) -> None:
    ours = world.submit(name="ours", nodes=2)
    theirs = world.ledger.create_run(
        uid="zzzzzzzz",
        name="theirs",
        owner="alice",
        cluster="elsewhere",
        spec_json=ours.spec_json,
        folder=world.root / ".supervise" / "theirs-zzzzzzzz",
        allocation=NewAllocation(token=Token("zzzzzzzzzzzzzzzz"), num_nodes=2),
        action_payload="{}",
    )[0]
    before = (world.ledger.run(theirs.id), world.ledger.actions(theirs.id))
    world.sweep_for(60 * MINUTE, every=MINUTE)
    assert (world.ledger.run(theirs.id), world.ledger.actions(theirs.id)) == before
    assert world.ledger.run(ours.id).state is RunState.RUNNING


def test_a_marker_from_before_a_forced_requeue_says_nothing_about_the_present_start(
    world: World,
) -> None:
    run = world.submit()
    world.sweep()
    last = world.last(run)
    world.leave_marker(run, last.no, 1)
    started = world.clock.now() + timedelta(seconds=30)
    row = replace(world.jobs()[0], state=JobState.COMPLETING, restart_count=1, start_at=started)
    view = ClusterView(jobs=Known((row,), started), nodes=world.slurm.nodes())
    job_file = JobSpec.model_validate_json(run.spec_json)
    seen = look(run, job_file, last, view=view, slurm=world.slurm, now=started)
    assert (seen.phase, seen.marker) == (Phase.RUNNING, None)
    first_start = replace(row, restart_count=0)
    view = ClusterView(jobs=Known((first_start,), started), nodes=world.slurm.nodes())
    seen = look(run, job_file, last, view=view, slurm=world.slurm, now=started)
    assert seen.phase is Phase.COMPLETING


def test_a_sweep_asks_for_partitions_once_however_many_runs_need_a_size(world: World) -> None:
    for name in ("first", "second", "third"):
        world.submit(name=name, nodes=2)
    world.sweep()
    for row in world.live_jobs():
        world.slurm.preempt(row.job_id)
    world.slurm.calls.clear()
    world.sweep()
    assert world.slurm.calls["submit"] == 3
    assert world.slurm.calls["partitions"] == 1
