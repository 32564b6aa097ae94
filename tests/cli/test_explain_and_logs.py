"""supervise explain and logs: what a person reads in the morning."""

from datetime import timedelta

import pytest

from supervisor.domain.run import RunState
from tests.cli.desk import Desk

QUESTIONS = ["What happened", "Why", "What next", "Did it happen"]


def sections(desk: Desk, run: str = "1") -> dict[str, str]:
    """Return the answers of ``explain`` by question, the headline under an empty one."""
    said = desk.say("explain", run)
    assert said.code == 0, said.err
    assert [line for line in said.lines if line in QUESTIONS] == QUESTIONS
    found: dict[str, str] = {"": ""}
    title = ""
    for line in said.lines:
        if line in QUESTIONS:
            title = line
            found[title] = ""
        else:
            found[title] += line + "\n"
    return found


def test_a_run_that_never_failed_says_so(desk: Desk) -> None:
    desk.submit()
    desk.say("sweep")
    told = sections(desk)
    assert told[""].startswith("run 1 demo is running: ")
    assert (
        "allocation 1: 4 nodes from step 0, job 1; ran 2026-03-01T12:00:00Z on node[001-004]"
        in told["What happened"]
    )
    assert told["Why"].strip() == "nothing has failed"
    assert "now: job 1 goes on (RUNNING); each sweep looks at it" in told["What next"]
    assert "submit allocation 1: yes: job 1: sbatch accepted it" in told["Did it happen"]


def test_a_node_failure_is_told_with_evidence_rule_and_outcome(desk: Desk) -> None:
    desk.environ["SUPERVISE_NODES_MODE"] = "act"
    desk.submit()
    desk.say("sweep")
    desk.slurm.fail_node("node002")
    desk.clock.sleep(timedelta(seconds=30))
    desk.say("sweep")
    desk.say("sweep")
    told = sections(desk)
    assert (
        "ended 2026-03-01T12:00:10Z (NODE_FAIL, exit code 0), noticed 2026-03-01T12:00:30Z"
        in told["What happened"]
    )
    assert "allocation 2: 4 nodes from step 0, job 2, without node002" in told["What happened"]
    assert "allocation 1: node_fail on node002 (confidence" in told["Why"]
    assert "resubmit by rule" in told["What next"]
    assert "drain node002 until" in told["What next"]
    assert "drain node002: yes" in told["Did it happen"]
    assert "submit allocation 2: yes" in told["Did it happen"]


def test_a_bug_of_the_users_is_explained_with_its_line(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
    desk.write_log(run, trace + "NameError: name 'loss' is not defined\n")
    desk.end_training(run, 1)
    desk.say("sweep")
    assert desk.run(run).state is RunState.FAILED
    told = sections(desk)
    assert "user_code" in told["Why"]
    assert "0001.out:3: NameError: name 'loss' is not defined" in told["Why"]
    assert "mend the cause, then: supervise resume 1" in told["What next"]


def test_a_held_run_says_what_a_person_can_do(desk: Desk) -> None:
    desk.submit()
    desk.say("sweep")
    ledger = desk.ledger()
    assert ledger.advance_run(1, expected=RunState.RUNNING, to=RunState.HELD, reason="the quota is used up")
    told = sections(desk)
    assert "run 1 demo is held: the quota is used up" in told[""]
    assert "mend the cause, then: supervise resume 1" in told["What next"]


def test_a_waiting_run_says_that_it_goes_on_by_itself(desk: Desk) -> None:
    desk.submit()
    desk.say("sweep")
    for name in ("node002", "node003", "node004", "node005", "node006"):
        desk.slurm.drain_by_admin(name, "maintenance")
    desk.slurm.fail_node("node001")
    desk.clock.sleep(timedelta(seconds=30))
    desk.say("sweep")
    assert desk.ledger().run(1).state is RunState.WAITING
    assert "now: each sweep looks again and goes on when it can" in sections(desk)["What next"]


def test_a_doubtful_submission_is_named_as_one(desk: Desk) -> None:
    desk.slurm.lose_reply_next_submit()
    said = desk.say("submit", str(desk.write_job()))
    assert said.code == 0
    assert said.out.startswith("run 1 is stored; no clear answer from sbatch")
    told = sections(desk)
    assert "it is not known whether Slurm took the job" in told["What next"]
    assert "submit allocation 1: still open" in told["Did it happen"]
    desk.say("sweep")
    assert "found again by its token" in sections(desk)["Did it happen"]


def test_a_run_at_rest_says_what_can_be_done(desk: Desk) -> None:
    run = desk.submit("done")
    desk.say("sweep")
    desk.end_training(run)
    desk.say("sweep")
    assert "nothing more; it is finished" in sections(desk, "done")["What next"]
    desk.submit("other")
    desk.say("cancel", "other")
    desk.say("sweep")
    assert "supervise resume 2 takes it up again" in sections(desk, "other")["What next"]


def test_output_that_is_not_there_yet_is_exit_code_five(desk: Desk) -> None:
    desk.submit()
    said = desk.say("logs", "1")
    assert said.code == 5
    assert "there is no output yet; supervise status 1 says why" in said.err
    assert desk.say("logs", "1", "--allocation", "4").code == 5
    assert "has no allocation 4; the newest is 1" in desk.say("logs", "1", "--allocation", "4").err
    assert desk.say("logs", "1", "--allocation", "0").code == 2


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_lines_are_printed(desk: Desk, end: str) -> None:
    run = desk.submit()
    desk.write_log(run, "\n".join(f"line {n}" for n in range(1000)) + end)
    assert desk.say("logs", "1", "-n", "2").out == f"line 998\nline 999{end}"
    assert len(desk.say("logs", "1").lines) == 50
    assert desk.say("logs", "1", "-n", "0").out == ""
    assert len(desk.say("logs", "1", "-n", "100000").lines) == 1000


def test_a_huge_log_is_not_read_whole(desk: Desk) -> None:
    run = desk.submit()
    path = desk.write_log(run, "")
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert desk.say("logs", "1", "-n", "1").out == "the end\n"


def test_a_log_cannot_move_the_cursor_or_name_the_window(desk: Desk) -> None:
    run = desk.submit()
    desk.write_log(run, b"\x1b[1;31mred\x1b[0m \x1b]0;owned\x07\x1b[2Jx\x07\xff\n 10%\r 20%\r\nok\tdone\n")
    assert desk.say("logs", "1").out == "red x?\N{REPLACEMENT CHARACTER}\n 10%\n 20%\nok\tdone\n"


def test_an_older_allocation_keeps_its_output(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    desk.write_log(run, "first\n")
    desk.slurm.fail_node("node001")
    desk.clock.sleep(timedelta(seconds=30))
    desk.say("sweep")
    desk.write_log(run, "second\n", no=2)
    assert desk.say("logs", "1").out == "second\n"
    assert desk.say("logs", "1", "--allocation", "1").out == "first\n"


def test_following_goes_over_restarts_until_the_run_is_at_rest(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    path = desk.write_log(run, "one\n")

    def add() -> None:
        path.write_text("one\ntwo\nhal")

    def restart() -> None:
        desk.slurm.fail_node("node001")
        desk.clock._now += timedelta(seconds=30)
        desk.say("sweep")
        path.write_text("one\ntwo\nhalf\nlast words")
        desk.write_log(run, "three\n", no=2)

    def finish() -> None:
        desk.say("sweep")
        desk.end_training(run)
        desk.say("sweep")

    desk.clock.events = [add, restart, finish]
    said = desk.say("logs", "-f", "1")
    assert said.code == 0
    assert said.out == "one\ntwo\nhalf\nlast words\nthree\n"
    assert said.err == "==> allocation 2 <==\n"


def test_an_output_that_cannot_be_read_is_named(desk: Desk) -> None:
    run = desk.submit()
    path = desk.write_log(run, "")
    path.unlink()
    path.mkdir()
    said = desk.say("logs", "1")
    assert said.code == 1
    assert f"supervise: {path}: cannot be read: " in said.err
