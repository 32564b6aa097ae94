"""supervise nodes, ledger, config, and a ledger in trouble."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import pytest

from supervisor.ledger.store import Ledger
from supervisor.settings import leaf_names
from tests.cli.desk import Desk, Said, supervise

EVERY_KIND = (
    ("status",),
    ("explain", "1"),
    ("cancel", "1"),
    ("sweep",),
    ("sweep", "--quiet"),
    ("ledger", "query", "open_actions"),
)


def fail_node(desk: Desk) -> None:
    desk.environ["SUPERVISE_NODES_MODE"] = "act"
    desk.submit()
    desk.say("sweep")
    desk.slurm.fail_node("node002")
    desk.clock.sleep(timedelta(seconds=30))
    desk.say("sweep")


def test_nodes_that_are_drained_or_avoided_are_listed_with_their_state(desk: Desk) -> None:
    fail_node(desk)
    desk.ledger().avoid("node005", 1, desk.clock.now() + timedelta(hours=1), "slow")
    said = desk.say("nodes")
    assert said.code == 0
    assert said.lines[0].split() == ["NODE", "STATE", "OURS", "UNTIL", "RUN", "REASON"]
    assert said.lines[1].split()[:4] == [
        "node002",
        "DOWN+DRAIN+NOT_RESPONDING",
        "drained",
        "2026-03-02T12:00:30Z",
    ]
    assert said.lines[2].split()[:3] == ["node005", "ALLOCATED", "avoided"]
    assert len(desk.say("nodes", "--all", "-n").lines) == 6


def test_a_drain_of_ours_is_listed_when_its_avoid_is_over(desk: Desk) -> None:
    fail_node(desk)
    desk.clock.sleep(timedelta(days=2))
    assert desk.say("nodes", "-n", "-o", "node,ours,until").lines == ["node002 drained -"]


def test_nodes_are_listed_without_states_when_slurm_is_silent(desk: Desk) -> None:
    fail_node(desk)
    desk.slurm.freeze()
    said = desk.say("nodes")
    assert said.code == 3
    assert said.lines[1].split()[:2] == ["node002", "unknown"]
    assert "Slurm does not answer" in said.err


def test_a_node_is_cleared_by_name_or_list(desk: Desk) -> None:
    until = desk.clock.now() + timedelta(hours=1)
    for name in ("node001", "node002", "node004"):
        desk.ledger().avoid(name, None, until, "slow")
    assert desk.say("nodes", "clear", "node001").out == "node001 may be used again by our runs\n"
    assert desk.say("nodes", "clear", "node[001-003]").out == "node002 may be used again by our runs\n"
    said = desk.say("nodes", "clear", "node001")
    assert said.code == 5
    assert "nothing is held against node001" in said.err
    assert desk.say("nodes", "clear", "@group").code == 2
    assert desk.say("nodes", "clear", "n[0-999999999]").code == 2
    assert desk.say("nodes", "-n", "-o", "node").out == "node004\n"


def test_every_query_is_listed_and_runs(desk: Desk) -> None:
    fail_node(desk)
    names = desk.say("ledger", "list", "-n", "-o", "name").out.split()
    assert {"failures_by_class", "failures_by_node", "attempts_of_run", "lost_time"} <= set(names)
    for name in names:
        said = desk.say("ledger", "query", name, *(["run=1"] if name.endswith("of_run") else []))
        if said.code == 2:
            said = desk.say("ledger", "query", name, "run=1")
        assert said.code == 0, said.err
    (row,) = desk.say("ledger", "query", "failures_by_node", "--json").json()
    assert row["node"] == "node002"


def test_an_unknown_query_names_the_nearest(desk: Desk) -> None:
    said = desk.say("ledger", "query", "failures_by_clas")
    assert said.code == 5
    assert "did you mean failures_by_class?" in said.err


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ((), "takes run, given: none"),
        (("run=1", "no=2"), "takes run, given: no, run"),
        (("run",), "'run' is not KEY=VALUE"),
    ],
)
def test_wrong_parameters_are_a_usage_error(desk: Desk, parameters: tuple[str, ...], text: str) -> None:
    said = desk.say("ledger", "query", "attempts_of_run", *parameters)
    assert said.code == 2
    assert text in said.err


@pytest.mark.parametrize(
    "value", ["9" * 40, "1 OR 1=1", "'; DROP TABLE run; --", "\N{ARABIC-INDIC DIGIT ONE}", ""]
)
def test_a_hostile_parameter_is_a_value_and_nothing_else(desk: Desk, value: str) -> None:
    fail_node(desk)
    said = desk.say("ledger", "query", "attempts_of_run", f"run={value}", "-n")
    assert said.code == 0
    assert "Traceback" not in said.err
    assert desk.say("status", "1").code == 0


def test_a_sound_ledger_is_found_sound(desk: Desk) -> None:
    desk.submit()
    said = desk.say("ledger", "check")
    assert said.code == 0, said.out
    assert "no damage found" in said.out


def test_settings_are_shown_with_their_origin(desk: Desk) -> None:
    (desk.root / "site.toml").write_text(
        'notify = ["mailto:ops"]\n[nodes]\nmode = "advise"\nmodes = {gpu = "act"}\n'
    )
    said = desk.say("config", "show", "--origin")
    assert said.code == 0
    assert f'nodes.mode = "advise"  # {desk.root}/site.toml' in said.lines
    assert f'nodes.modes = {{"gpu" = "act"}}  # {desk.root}/site.toml' in said.lines
    assert 'slurm.user = "alice"  # $SUPERVISE_SLURM_USER' in said.lines
    assert 'submit.grace = "00:00:30"  # default' in said.lines
    assert [line.partition(" = ")[0] for line in desk.say("config", "show").lines] == list(leaf_names())
    assert desk.say("config", "show", "--json", "--origin").json()["nodes.mode"] == {
        "value": "advise",
        "origin": f"{desk.root}/site.toml",
    }
    assert desk.say("--ledger", "sqlite:////x.db", "config", "path").out.endswith("supervisor/config.toml\n")


def test_a_wrong_setting_is_exit_code_two_for_every_command(desk: Desk) -> None:
    for argv in (("status",), ("sweep", "--quiet"), ("config", "show")):
        said = desk.say(*argv, SUPERVISE_NODES_MODE="drain\x1b")
        assert said.code == 2
        assert "$SUPERVISE_NODES_MODE: nodes.mode: " in said.err
        assert "\x1b" not in said.err


def test_directories_of_the_settings_must_be_there(desk: Desk) -> None:
    desk.write_job()
    said = desk.say("submit", "--dry-run", "demo.yaml", SUPERVISE_TEMPLATES="/nowhere")
    assert said.code == 2
    assert "$SUPERVISE_TEMPLATES: templates: /nowhere: no such directory" in said.err
    said = desk.say("sweep", SUPERVISE_PLUGINS="/nowhere")
    assert said.code == 2
    assert "/nowhere" in said.err


def in_trouble(said: Said) -> None:
    assert said.code == 3, said
    assert said.err.startswith("supervise: ledger ")
    assert "Traceback" not in said.err


def test_a_ledger_that_cannot_be_made_is_exit_code_three(desk: Desk) -> None:
    for argv in EVERY_KIND:
        in_trouble(desk.say(*argv, SUPERVISE_LEDGER="sqlite:////dev/null/ledger.db"))
        in_trouble(desk.say(*argv, SUPERVISE_LEDGER="sqlite:////proc/ledger.db"))


def test_a_ledger_url_that_makes_no_sense_is_named(desk: Desk) -> None:
    in_trouble(desk.say("status", SUPERVISE_LEDGER="mysql://x/y"))
    in_trouble(desk.say("status", SUPERVISE_LEDGER="sqlite://"))


def test_a_file_that_is_no_ledger_is_left_alone(desk: Desk) -> None:
    (desk.root / "ledger.db").write_text("precious notes, and more than a page of them\n" * 200)
    said = desk.say("status")
    in_trouble(said)
    assert (desk.root / "ledger.db").read_text().startswith("precious")


def test_a_ledger_of_a_newer_version_is_left_alone(desk: Desk) -> None:
    desk.submit()
    connection = sqlite3.connect(desk.root / "ledger.db")
    connection.execute("UPDATE ledger_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    for argv in EVERY_KIND:
        said = desk.say(*argv)
        in_trouble(said)
        assert "a newer supervisor wrote it: upgrade this installation" in said.err


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_ledger_that_stays_locked_is_exit_code_three(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()
    impatient = partial(Ledger.open, timeout=timedelta(seconds=0.1))
    monkeypatch.setattr(Ledger, "open", impatient)
    with _locked(desk.root / "ledger.db"):
        for argv in EVERY_KIND:
            said = desk.say(*argv)
            in_trouble(said)
            assert "another process is writing and did not finish in time" in said.err
    assert desk.say("sweep").code == 0


def test_a_ledger_on_a_full_disk_is_exit_code_three_and_keeps_what_it_has(desk: Desk, tmp_path: Path) -> None:
    run = desk.submit()
    size = (tmp_path / "ledger.db").stat().st_size
    desk.write_job("second")

    # A limit of the file size is what a full disk or quota looks like to SQLite.
    said = supervise(
        "cancel",
        "1",
        cwd=tmp_path,
        environ=desk.environ,
        preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, (size // 2, size // 2)),
    )
    assert said.code == 3
    assert said.err.startswith("supervise: ledger ")
    assert "Traceback" not in said.err
    assert desk.run(run) == run


def test_a_termination_ends_the_slurm_command_that_was_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hanging = tmp_path / "bin" / "scontrol"
    hanging.parent.mkdir()
    hanging.write_text(f"#!/bin/sh\necho $$ >{pid_file}.new\nmv {pid_file}.new {pid_file}\nexec sleep 120\n")
    hanging.chmod(0o755)
    environment = {
        "PATH": f"{hanging.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SUPERVISE_LEDGER": f"sqlite:///{tmp_path}/ledger.db",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "sweep"], env=environment, cwd=Path(__file__).parents[2]
    )
    until = time.monotonic() + 30
    while not pid_file.exists() and time.monotonic() < until:
        process.poll()
    child = int(pid_file.read_text())
    process.terminate()
    assert process.wait(timeout=20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
