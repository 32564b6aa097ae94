"""supervise submit, init, schema: from a job file to a run, and everything that can be wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.facts import Refused
from supervisor.domain.run import RunState
from supervisor.intake.source import load_spec
from tests.cli.desk import Desk, supervise


def tree(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}


def test_a_submission_answers_as_sbatch_does_with_hints_on_standard_error(desk: Desk) -> None:
    said = desk.say("submit", str(desk.write_job()))
    assert (said.code, said.out) == (0, "Submitted batch job 1 as run 1 on 4 nodes\n")
    assert "supervise status 1" in said.err


def test_a_parsable_answer_is_one_line(desk: Desk) -> None:
    said = desk.say("submit", "--parsable", str(desk.write_job()))
    assert (said.code, said.out) == (0, "1;1\n")


def test_a_dry_run_contacts_nobody_and_writes_nothing(desk: Desk, tmp_path: Path) -> None:
    desk.write_job()
    before = tree(tmp_path)
    # No program of Slurm is on PATH, and the ledger's folder can never be made.
    said = supervise(
        "submit",
        "--dry-run",
        "demo.yaml",
        cwd=tmp_path,
        environ={"SUPERVISE_LEDGER": "sqlite:////dev/null/x.db"},
    )
    assert (said.code, said.err) == (0, "")
    assert "#!/bin/bash" in said.out
    assert said.lines[-1].startswith("sbatch --job-name=demo --partition=main")
    assert tree(tmp_path) == before


def test_a_dry_run_prints_what_is_submitted(desk: Desk) -> None:
    job = desk.write_job()
    planned = desk.say("submit", "--dry-run", str(job), "-t", "30", "--", "--mail-type=END", "-H")
    words = planned.lines[-1]
    assert "--time=00:30:00" in words or "--time=30" in words
    assert "--mail-type=END" in words
    assert "--hold" in words
    assert desk.slurm.calls == {}


def test_a_hostile_job_file_cannot_move_the_cursor_in_a_dry_run(desk: Desk) -> None:
    job = desk.root / "evil.yaml"
    setup = 'setup: "\\e]0;owned\\a"'
    job.write_text(f'name: evil\nnodes: 1\nlaunch: {{command: "echo \\e[2J \\x9b", {setup}}}\n')
    said = desk.say("submit", "--dry-run", str(job))
    assert said.code == 0
    assert "echo ?[2J ?" in said.out
    assert all(char.isprintable() or char in "\n\t" for char in said.out + said.err)


def test_test_only_asks_slurm_and_leaves_nothing_behind(desk: Desk, tmp_path: Path) -> None:
    job = desk.write_job()
    before = tree(tmp_path)
    said = desk.say("submit", "--test-only", str(job))
    assert (said.code, said.out) == (0, "would start at 2026-03-01T12:00:00Z on 4 nodes\n")
    assert tree(tmp_path) == before
    assert desk.slurm.calls["submit"] == 0


def test_test_only_says_what_slurm_says(desk: Desk) -> None:
    job = desk.write_job()
    for number in range(1, 6):
        desk.slurm.drain_by_admin(f"node00{number}", "maintenance")
    said = desk.say("submit", "--test-only", str(job))
    assert said.code == 1
    assert "Slurm would refuse it: Requested node configuration is not available" in said.err


@pytest.mark.parametrize("option", [(), ("--test-only",)])
def test_a_silent_slurm_is_exit_code_three_and_nothing_is_stored(desk: Desk, option: tuple[str, ...]) -> None:
    job = desk.write_job()
    desk.slurm.freeze()
    said = desk.say("submit", str(job), *option)
    assert said.code == 3
    assert "nothing was submitted, try again" in said.err
    desk.slurm.thaw()
    assert desk.say("status", "--json", "--all").json() == []


def test_no_slurm_at_all_is_exit_code_three(desk: Desk, tmp_path: Path) -> None:
    desk.write_job()
    said = supervise("submit", "demo.yaml", cwd=tmp_path, environ={})
    assert said.code == 3
    assert "Traceback" not in said.err
    assert "scontrol" in said.err


def test_waiting_ends_with_success_when_the_run_is_done(desk: Desk) -> None:
    job = desk.write_job()
    desk.clock.events = [lambda: None, lambda: desk.end_training(desk.ledger().run(1))]
    said = desk.say("submit", "--wait", str(job))
    assert said.code == 0
    assert said.out == "Submitted batch job 1 as run 1 on 4 nodes\n"
    assert said.err.splitlines()[-1].startswith("run 1 done: ")


def test_waiting_ends_with_the_trainings_own_code(desk: Desk) -> None:
    job = desk.write_job()

    def fail() -> None:
        run = desk.ledger().run(1)
        desk.write_log(run, "Traceback (most recent call last):\nNameError: name 'x' is not defined\n")
        desk.end_training(run, 7)

    desk.clock.events = [fail]
    said = desk.say("submit", "-W", str(job))
    assert said.code == 7
    assert "run 1 failed: " in said.err


def test_waiting_ends_with_one_when_the_run_is_cancelled(desk: Desk) -> None:
    job = desk.write_job()
    desk.clock.events = [lambda: desk.say("cancel", "1")]
    assert desk.say("submit", "--wait", str(job)).code == 1


def test_options_override_the_job_file(desk: Desk) -> None:
    said = desk.say("submit", str(desk.write_job()), "-J", "other", "-N", "1-3")
    assert said.code == 0
    run = desk.ledger().run(1)
    spec = json.loads(run.spec_json)
    assert (run.name, spec["nodes"]["min"], spec["nodes"]["want"]) == ("other", 1, 3)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--nodse=4",), "Did you mean one of: '--nodes'"),
        (("--partitoin", "gpu"), "--partition"),
        (("--mail-type=END",), "Options of sbatch go after --, as in: -- --mail-type=END"),
        (("-N", "few"), "--nodes: 'few' is neither a number nor MIN-MAX"),
        (("-N", "4-"), "--nodes"),
        (("-N", "0"), "--nodes"),
        (("-t", "tomorrow"), "--time"),
        (("--", "--array=1-3"), "--array belongs to the supervisor: a run is one job"),
        (("--", "gpu"), "'gpu' after -- is not an option of sbatch"),
        (("--", "-Z"), "-Z: sbatch has no such option"),
        (("--", "--requ"), "abbreviation"),
    ],
)
def test_a_wrong_option_is_a_usage_error_with_a_hint(desk: Desk, argv: tuple[str, ...], text: str) -> None:
    said = desk.say("submit", str(desk.write_job()), *argv)
    assert said.code == 2
    assert text in said.err
    assert desk.slurm.calls == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "job.yaml: there is no such file; supervise init job.yaml writes one"),
        ("", "the job file is empty"),
        ("- a\n- b\n", "must hold a mapping"),
        ("name: a\nname: b\n", "job.yaml:2:1:"),
        ("name: a\nlaunch: {command: x}\nslurm: {partion: gpu}\n", "partition"),
        ("name: a\nnodes: {min: 4, want: 2}\nlaunch: {command: x}\n", "job.yaml:2:"),
        ("name: [\n", "job.yaml:"),
        ("name: a\nnodes: 1\nlaunch: {command: x}\nslurm: {time: 12:00:00}\n", ""),
        ("name: \x1b[2J\n", "job.yaml"),
        ("name: a\nnodes: 1\nlaunch: {command: x, template: nope}\n", "nope"),
    ],
)
def test_a_wrong_job_file_is_an_error_with_its_place(desk: Desk, content: str | None, text: str) -> None:
    path = desk.root / "job.yaml"
    if content is not None:
        path.write_text(content)
    said = desk.say("submit", "--dry-run", "job.yaml")
    assert said.code == (0 if not text else 2)
    assert text in said.err
    assert all(char.isprintable() or char == "\n" for char in said.err)


def test_a_job_file_that_cannot_be_read_is_an_error(desk: Desk) -> None:
    (desk.root / "job.yaml").mkdir()
    said = desk.say("submit", "job.yaml")
    assert said.code == 2
    assert "job.yaml" in said.err


def test_an_unknown_partition_is_refused_before_anything_is_stored(desk: Desk) -> None:
    said = desk.say("submit", str(desk.write_job()), "-p", "gpu")
    assert said.code == 2
    assert "there is no partition 'gpu'; there are: main" in said.err
    assert desk.say("status", "--all", "-n").out == ""


def test_more_nodes_than_the_partition_has_is_refused(desk: Desk) -> None:
    said = desk.say("submit", str(desk.write_job()), "-N", "9")
    assert said.code == 2
    assert desk.slurm.calls["submit"] == 0


def test_a_refusal_of_slurms_holds_the_run_and_is_exit_code_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.write_job()
    with monkeypatch.context() as strict:
        strict.setattr(desk.slurm, "submit", lambda *_: Refused(message="Invalid qos\x1b[2J"))
        said = desk.say("submit", str(job))
    assert (said.code, said.out) == (1, "")
    assert said.err == "supervise: run 1 is held: Slurm refused it: Invalid qos?[2J\n"
    told = desk.say("explain", "1").out
    assert "allocation 1: Slurm refused it: Invalid qos?[2J" in told
    assert "mend the cause, then: supervise resume 1" in told
    assert desk.say("resume", "1").out == "run 1 demo is queued: submitted as job 1\n"


def test_two_runs_with_one_checkpoint_directory_are_refused_unless_forced(desk: Desk) -> None:
    desk.submit()
    said = desk.say("submit", str(desk.write_job()))
    assert said.code == 4
    assert "run 1 (demo, queued) saves to" in said.err
    assert desk.say("submit", "--force", str(desk.write_job())).code == 0


def test_a_working_directory_that_is_not_there_is_named(desk: Desk) -> None:
    said = desk.say("submit", str(desk.write_job()), "-D", "nowhere")
    assert said.code == 1
    assert "nowhere: there is no such directory" in said.err
    assert desk.slurm.calls["submit"] == 0


def test_init_writes_a_file_that_loads_and_never_overwrites_one(desk: Desk) -> None:
    said = desk.say("init")
    assert (said.code, said.out) == (
        0,
        "job.yaml is written; edit it, then: supervise submit --dry-run job.yaml\n",
    )
    assert load_spec(desk.root / "job.yaml").name == desk.root.name
    (desk.root / "job.yaml").write_text("mine")
    said = desk.say("init")
    assert said.code == 2
    assert "exists already; --force overwrites it" in said.err
    assert (desk.root / "job.yaml").read_text() == "mine"
    assert desk.say("init", "--force").code == 0
    assert desk.say("init", "nowhere/job.yaml").code == 2


def test_what_init_writes_can_be_submitted(desk: Desk) -> None:
    desk.say("init", "train.yaml")
    assert desk.say("submit", "train.yaml").code == 0
    assert desk.ledger().run(1).state is RunState.QUEUED


def follow(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the object schema behind references and alternatives."""
    for choice in part.get("anyOf", ()):
        if "$ref" in choice or "properties" in choice:
            return follow(schema, choice)
    return schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def check_keys(schema: dict[str, Any], part: dict[str, Any], value: object) -> None:
    """Check that every key of ``value`` is in the schema and every required one in ``value``."""
    part = follow(schema, part)
    if not isinstance(value, dict) or "properties" not in part:
        return
    assert set(value) <= set(part["properties"])
    assert set(part.get("required", ())) <= set(value)
    for key, inner in value.items():
        check_keys(schema, part["properties"][key], inner)


def test_the_schema_fits_the_starter_file_and_refuses_unknown_keys(desk: Desk) -> None:
    schema = desk.say("schema").json()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    desk.say("init", "train.yaml")
    spec = load_spec(desk.root / "train.yaml").model_dump(by_alias=True, mode="json", exclude_unset=True)
    check_keys(schema, schema, spec)
    references = [word for word in json.dumps(schema).split('"') if word.startswith("#/$defs/")]
    assert {word.rpartition("/")[2] for word in references} <= schema["$defs"].keys()
