"""supervise status: all runs, the allocations of one, for people and for scripts."""

from datetime import timedelta

import pytest

from supervisor.cli import output
from supervisor.ledger.rows import AllocationFacts
from tests.cli.desk import Desk

EVIL = "\x1b[31mred\x1b[0m\nrun 9 evil|x\x07\x9b2J\u202e"


def test_a_table_has_one_line_for_each_run(desk: Desk) -> None:
    desk.submit("first")
    desk.submit("second", "-N2")
    desk.say("sweep")
    desk.clock.sleep(timedelta(hours=26))
    said = desk.say("status")
    assert said.code == 0
    assert [line.split()[:10] for line in said.lines] == [
        ["RUN", "JOBID", "NAME", "USER", "STATE", "ST", "NODES", "ELAPSED", "STEP", "RST"],
        ["1", "1", "first", "alice", "running", "R", "4", "1-02:00:00", "-", "0"],
        ["2", "2", "second", "alice", "running", "R", "2", "1-02:00:00", "-", "0"],
    ]


def test_a_pending_job_shows_its_state_in_slurms_letters(desk: Desk) -> None:
    desk.submit("first")
    desk.submit("second")
    desk.say("sweep")
    assert desk.say("status", "-n", "-o", "name,st,state").lines == ["first  R  running", "second PD queued"]


def test_no_runs_give_a_header_and_success(desk: Desk) -> None:
    said = desk.say("status")
    assert (said.code, len(said.lines)) == (0, 1)
    assert desk.say("status", "--json").json() == []
    assert desk.say("status", "-n").out == ""


def test_finished_runs_are_shown_when_asked_for(desk: Desk) -> None:
    run = desk.submit()
    desk.say("cancel", str(run.id))
    desk.say("sweep")
    assert len(desk.say("status").lines) == 1
    assert "cancelled" in desk.say("status", "--all").lines[1]
    assert "cancelled" in desk.say("status", "-t", "cancelled").lines[1]
    assert len(desk.say("status", "-t", "running,held").lines) == 1
    assert len(desk.say("status", "-t", "all").lines) == 2


def test_an_unknown_state_is_an_error_that_lists_the_states(desk: Desk) -> None:
    said = desk.say("status", "-t", "runing")
    assert said.code == 2
    assert "queued, running, recovering" in said.err


def test_runs_of_others_can_be_left_out(desk: Desk) -> None:
    desk.submit("mine")
    desk.environ["SUPERVISE_SLURM_USER"] = "bob"
    desk.submit("bobs")
    names = ("-n", "-o", "name")
    assert desk.say("status", *names).lines == ["mine", "bobs"]
    assert desk.say("status", *names, "--me").lines == ["bobs"]
    assert desk.say("status", *names, "-u", "alice").lines == ["mine"]


def test_scripts_get_json_fields_and_chosen_columns(desk: Desk) -> None:
    desk.submit()
    desk.say("sweep")
    desk.clock.sleep(timedelta(minutes=5))
    (row,) = desk.say("status", "--json").json()
    assert (row["run"], row["jobid"], row["state"], row["elapsed"], row["step"]) == (
        1,
        1,
        "running",
        300,
        None,
    )
    assert desk.say("status", "-P", "-o", "run,name,elapsed").out == "RUN|NAME|ELAPSED\n1|demo|00:05:00\n"
    assert desk.say("status", "-Pn", "-o", "run,name").out == "1|demo\n"
    assert desk.say("status", "-h", "--format=Name").out == "demo\n"


def test_an_unknown_column_is_an_error_that_names_the_nearest(desk: Desk) -> None:
    said = desk.say("status", "-o", "run,nmae")
    assert said.code == 2
    assert "no column NMAE (did you mean NAME?)" in said.err
    assert desk.say("status", "-o", ",").code == 2


def test_one_run_shows_its_allocations(desk: Desk) -> None:
    run = desk.submit()
    desk.say("sweep")
    said = desk.say("status", "demo")
    assert said.lines[0].startswith("run 1 demo of alice: running: ")
    assert said.lines[1] == f"folder {run.folder}"
    assert said.lines[3].split()[:6] == ["1", "1", "running", "R", "4", "node[001-004]"]
    (row,) = desk.say("status", "demo", "--json").json()
    assert row["nodelist"] == "node[001-004]"
    assert row["started"] == "2026-03-01T12:00:00+00:00"
    assert desk.say("status", "1", "-n", "-o", "no,jobid").out == "1 1\n"


def test_a_run_is_named_by_number_name_or_job_id(desk: Desk) -> None:
    desk.submit("first")
    desk.ledger().record_facts(1, 1, **AllocationFacts(job_id=918273))  # type: ignore[typeddict-item]
    for name in ("1", "first", "918273"):
        assert desk.say("status", name).lines[0].startswith("run 1 first ")


def test_a_name_of_several_runs_is_an_error_that_lists_them(desk: Desk) -> None:
    desk.submit("twin")
    desk.submit("twin", "--force")
    for command in ("status", "explain", "logs", "cancel", "resume"):
        said = desk.say(command, "twin")
        assert said.code == 2
        assert "names several runs; say the number:\n  2  twin  queued since 2026" in said.err
        assert "\n  1  twin" in said.err


@pytest.mark.parametrize(
    "name", ["77", "nobody", "99999999999999999999999", "%s", "'; DROP TABLE run; --", ""]
)
def test_a_run_that_is_not_there_is_exit_code_five(desk: Desk, name: str) -> None:
    said = desk.say("status", "--", name)
    assert said.code == 5
    assert "supervise status --all lists them" in said.err


def test_a_password_in_the_ledgers_url_is_not_shown(desk: Desk) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/ledger"
    for argv in (("status",), ("config", "show", "--origin"), ("config", "show", "--json")):
        said = desk.say(*argv, SUPERVISE_LEDGER=url)
        assert "secret" not in said.out + said.err
        assert "127.0.0.1" in said.out + said.err


def test_hostile_text_never_reaches_the_terminal_raw(desk: Desk) -> None:
    run = desk.submit("demo", "--job-name", "a|b")
    desk.say("sweep")
    ledger = desk.ledger()
    ledger.set_run_reason(run.id, ledger.run(run.id).state, EVIL)
    ledger.record_facts(1, 1, **AllocationFacts(slurm_state=EVIL, slurm_reason=EVIL))
    for argv in (("status",), ("status", "-P"), ("status", "1"), ("status", "--json"), ("explain", "1")):
        said = desk.say(*argv)
        assert said.code == 0
        assert all(char.isprintable() or char == "\n" for char in said.out), argv
        assert not any(line.startswith("run 9") for line in said.lines)
    assert {line.count("|") for line in desk.say("status", "-P").lines} == {10}


def test_a_terminal_cuts_lines_and_a_pipe_does_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit("a-rather-long-name-of-a-run")
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, desk.say("status").lines)) > 40
    monkeypatch.setattr(output, "_is_terminal", lambda: True)
    assert max(map(len, desk.say("status").lines)) <= 40
