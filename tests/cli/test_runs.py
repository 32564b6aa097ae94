"""supervise cancel, resume, sweep, watch: what moves runs on, and the exit codes that scripts see."""

from datetime import timedelta

import pytest

from supervisor.clock import Clock
from supervisor.domain.action import ActionState
from supervisor.domain.facts import Doubt
from supervisor.domain.ids import AllocationNo
from supervisor.domain.run import AllocationState, Run, RunState
from supervisor.ledger.rows import Finding, NewAllocation, Severity
from supervisor.ledger.store import Ledger
from supervisor.slurm.simulated import SimulatedSlurm
from supervisor.sweep.apply import new_token
from tests.cli.desk import Desk


def hold(desk: Desk, run: Run) -> None:
    ledger = desk.ledger()
    assert ledger.advance_run(run.id, expected=ledger.run(run.id).state, to=RunState.HELD, reason="quota")


def end_by_bug(desk: Desk, run: Run) -> None:
    desk.say("sweep")
    desk.write_log(run, "Traceback (most recent call last):\nNameError: name 'x' is not defined\n")
    desk.end_training(run, 1)
    desk.say("sweep")


def test_a_live_run_is_cancelled_with_its_job(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    said = desk.say("cancel", "demo")
    assert (said.code, said.out) == (0, "run 1: job 1 is cancelled\n")
    assert desk.run(run).state is RunState.CANCELLING
    desk.say("sweep")
    assert desk.run(run).state is RunState.CANCELLED
    assert desk.slurm.calls["submit"] == 1


def test_a_run_is_cancelled_once(desk: Desk) -> None:
    run = desk.submit()
    desk.say("cancel", "1")
    assert desk.say("cancel", "1").out == "run 1: job 1 was cancelled before\n"
    desk.say("sweep")
    said = desk.say("cancel", "1")
    assert (said.code, said.out) == (0, "run 1 is cancelled already\n")
    assert desk.slurm.calls["cancel"] == 1
    assert desk.run(run).state is RunState.CANCELLED


def test_a_run_that_was_never_submitted_is_cancelled_at_once(desk: Desk) -> None:
    ledger = desk.ledger()
    finished = desk.submit()
    ledger.create_run(
        uid="planned1",
        name="planned",
        owner="alice",
        cluster="simulated",
        spec_json=finished.spec_json,
        folder=desk.root / ".supervise" / "planned-planned1",
        allocation=NewAllocation(token=new_token(), num_nodes=2),
        action_payload="{}",
    )
    said = desk.say("cancel", "planned")
    assert (said.code, said.out) == (0, "run 2 is cancelled before it was submitted\n")
    desk.say("sweep")
    assert ledger.run(2).state is RunState.CANCELLED
    assert desk.slurm.calls["submit"] == 1


@pytest.mark.parametrize("accepted", [True, False])
def test_a_doubtful_submission_is_cancelled_when_its_job_is_found_or_never_comes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    desk.slurm.lose_reply_next_submit()
    with monkeypatch.context() as lost:
        if not accepted:
            lost.setattr(desk.slurm, "submit", lambda *_: Doubt(message="timed out"))
        desk.say("submit", str(desk.write_job()))
    assert "not known yet whether Slurm took its job" in desk.say("cancel", "1").out
    for _ in range(5):
        assert desk.say("sweep").code == 0
        desk.clock.sleep(timedelta(seconds=20))
    ledger = desk.ledger()
    assert ledger.run(1).state is RunState.CANCELLED
    assert [action.state for action in ledger.actions(1) if action.kind == "submit"] == [
        ActionState.APPLIED if accepted else ActionState.REFUSED
    ]
    assert desk.slurm.calls["submit"] == int(accepted)
    assert ledger.open_actions() == ()


def test_a_held_run_is_cancelled_without_a_job(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    desk.slurm.finish(1)
    ledger = desk.ledger()
    ledger.advance_allocation(
        run.id, AllocationNo(1), expected=AllocationState.RUNNING, to=AllocationState.ENDED
    )
    hold(desk, run)
    said = desk.say("cancel", "1")
    assert (said.code, said.out) == (0, "run 1 is cancelled; it had no job\n")


def test_a_cancel_that_slurm_does_not_answer_is_taken_up_by_the_next_sweep(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    desk.slurm.freeze()
    said = desk.say("cancel", "1")
    assert said.code == 3
    assert "the next sweep cancels it again" in said.err
    desk.slurm.thaw()
    desk.say("sweep")
    desk.say("sweep")
    assert desk.run(run).state is RunState.CANCELLED


@pytest.mark.parametrize("command", ["cancel", "resume"])
def test_somebody_elses_run_is_refused(desk: Desk, command: str) -> None:
    run = desk.submit()
    said = desk.say(command, "1", SUPERVISE_SLURM_USER="bob")
    assert said.code == 4
    assert "run 1 is alice's and you act for bob" in said.err
    assert desk.run(run).state is RunState.QUEUED


def test_a_failed_run_is_resumed(desk: Desk) -> None:
    run = desk.submit()
    end_by_bug(desk, run)
    assert desk.run(run).state is RunState.FAILED
    said = desk.say("resume", "demo")
    assert (said.code, said.out) == (0, "run 1 demo is queued: submitted as job 2\n")
    assert desk.last(run).no == 2


def test_a_held_run_is_resumed(desk: Desk) -> None:
    run = desk.submit()
    end_by_bug(desk, run)
    desk.say("resume", "1")
    desk.say("sweep")
    desk.end_training(run)
    ledger = desk.ledger()
    ledger.advance_allocation(
        run.id, AllocationNo(2), expected=AllocationState.RUNNING, to=AllocationState.ENDED
    )
    hold(desk, run)
    assert desk.say("resume", "1").out == "run 1 demo is queued: submitted as job 3\n"


def test_a_resume_while_slurm_is_silent_is_kept_for_the_next_sweep(desk: Desk) -> None:
    run = desk.submit()
    end_by_bug(desk, run)
    desk.slurm.freeze()
    said = desk.say("resume", "1")
    assert said.code == 0
    assert "run 1 goes on with the next sweep (Slurm does not answer: " in said.out
    desk.slurm.thaw()
    desk.say("sweep")
    assert desk.run(run).state is RunState.QUEUED


def test_a_running_or_finished_run_is_not_resumed(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    said = desk.say("resume", "1")
    assert said.code == 4
    assert "run 1 is running: there is nothing to resume" in said.err
    desk.end_training(run)
    desk.say("sweep")
    said = desk.say("resume", "1")
    assert said.code == 4
    assert "submit its job file again" in said.err


def test_a_sweep_prints_one_sentence_per_run(desk: Desk) -> None:
    assert desk.say("sweep").out == "no runs to look after\n"
    desk.submit("one")
    desk.submit("two", "-N2")
    assert desk.say("sweep").lines == [
        "run 1 one: keep: job 1 runs on 4 nodes",
        "run 2 two: keep: job 2 runs on 2 nodes",
    ]


def test_a_quiet_sweep_prints_nothing_when_all_is_well(desk: Desk) -> None:
    desk.submit("error", "--job-name=run 1 error: error: x")
    said = desk.say("sweep", "--quiet")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_a_quiet_sweep_tells_errors_on_standard_error(desk: Desk) -> None:
    run = desk.submit("demo", "--job-name", "da")
    desk.say("sweep")
    with desk.ledger()._write() as connection:  # a ledger that a later version has written
        connection.exec_driver_sql("UPDATE run SET spec_json = '{\x1b}'")
    desk.end_training(run)
    said = desk.say("sweep", "--quiet")
    assert said.out == ""
    assert "run 1 da: error: " in said.err
    assert "\x1b" not in said.err


def test_a_sweep_that_cannot_see_changes_nothing_and_ends_with_three(desk: Desk) -> None:
    run = desk.submit()
    desk.slurm.freeze()
    for argv in (("sweep",), ("sweep", "--quiet"), ("sweep", "--dry-run")):
        said = desk.say(*argv)
        assert said.code == 3
        assert said.err.count("Slurm does not answer: ") == 1
    assert desk.run(run).state is RunState.QUEUED


def test_a_sweep_beside_another_ends_with_seventy_five(desk: Desk) -> None:
    desk.submit()
    assert desk.ledger().acquire_lease("sweep", "elsewhere:7", timedelta(minutes=2))
    said = desk.say("sweep")
    assert said.code == 75
    assert "elsewhere:7 sweeps since 12:00:00 UTC; nothing to do here" in said.err
    said = desk.say("sweep", "--quiet")
    assert (said.code, said.out, said.err) == (75, "", "")
    assert desk.say("sweep", "--dry-run").code == 0


def test_a_dry_run_says_the_same_and_does_nothing(desk: Desk) -> None:
    desk.submit()
    desk.say("sweep")
    desk.slurm.fail_node("node001")
    desk.clock.sleep(timedelta(seconds=30))
    planned = desk.say("sweep", "--dry-run")
    assert "run 1 demo: resubmit: " in planned.out
    assert desk.slurm.calls["submit"] == 1
    assert desk.say("sweep").lines[0] == planned.lines[0]


def test_paused_sweeps_look_and_say_so(desk: Desk) -> None:
    desk.submit()
    said = desk.say("sweep", SUPERVISE_SWEEP_PAUSED="true")
    assert said.code == 0
    assert "sweep.paused is set ($SUPERVISE_SWEEP_PAUSED)" in said.err
    assert desk.ledger().run(1).state is RunState.QUEUED


def test_a_watch_ends_when_every_run_is_at_rest(desk: Desk) -> None:
    run = desk.submit()
    desk.clock.events = [lambda: None, lambda: desk.end_training(run)]
    said = desk.say("watch", "--until-done", "--interval", "5s")
    assert said.code == 0
    assert said.lines[0] == "run 1 demo: keep: job 1 runs on 4 nodes"
    assert "run 1 demo: finish: " in said.out
    assert desk.run(run).state is RunState.DONE


def test_a_watch_says_once_that_slurm_is_silent(desk: Desk) -> None:
    run = desk.submit()
    desk.slurm.freeze()
    pauses = [lambda: None] * 40
    desk.clock.events = [*pauses, desk.slurm.thaw, *pauses, lambda: desk.end_training(run)]
    said = desk.say("watch", "--until-done")
    assert said.err.count("Slurm does not answer: ") == 1
    assert "finish" in said.out


@pytest.mark.parametrize("interval", ["soon", "0", "-1s", "UNLIMITED"])
def test_a_senseless_interval_is_a_usage_error(desk: Desk, interval: str) -> None:
    assert desk.say("watch", f"--interval={interval}").code == 2


def test_ctrl_c_ends_with_130_and_says_that_nothing_is_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: SimulatedSlurm) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedSlurm, "jobs", interrupt)
    said = desk.say("sweep")
    assert said.code == 130
    assert "nothing that was begun is lost" in said.err


def test_a_doubtful_place_of_the_ledger_is_told_where_runs_are_moved_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.submit()
    finding = Finding(severity=Severity.WARN, subject="file system", text="it lies on nfs4")
    opened = Ledger.open

    def open_doubtful(url: str, clock: Clock) -> Ledger:
        ledger = opened(url, clock)
        ledger.warnings = (finding,)
        return ledger

    monkeypatch.setattr(Ledger, "open", open_doubtful)
    assert desk.say("status").err == ""
    assert desk.say("sweep", "--quiet").err == ""
    assert desk.say("sweep").err == f"warning: {finding.text}\n"
