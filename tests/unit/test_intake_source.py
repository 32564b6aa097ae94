"""Job files: every problem at once, in plain words, at its line and column."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.spec import JobSpec
from supervisor.errors import SpecError, UsageError
from supervisor.intake.document import MAX_BYTES
from supervisor.intake.source import json_schema, load_spec, parse_passthrough, starter

GOOD = "name: a\nnodes: 2\nlaunch: {command: x}\n"


def load(tmp_path: Path, text: str | bytes, overrides: dict[str, object] | None = None) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_spec(path, overrides or {})


def problems(tmp_path: Path, text: str | bytes, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text, overrides)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


BAD_FILES = [
    ("", "1:1: the job file is empty; supervise init writes one to start from"),
    ("# only a comment\n", "1:1: the job file is empty; supervise init writes one to start from"),
    ("- a\n", "1:1: the job file must hold a mapping such as 'name: llama-7b'; supervise init"),
    ("a: b: c\n", "1:5: a ': ' where no value can begin; check the indentation, or put the text in quotes"),
    ("a:\n\tb: 1\n", "2:1: a tab; YAML is indented with blanks only"),
    ("a: [1\n", "2:1: this is not YAML: expected ',' or ']'"),
    ("a: 'b\n", "2:1: this is not YAML: found unexpected end of stream"),
    ("name: a\nname: b\n", "2:1: key 'name' is given twice; the first one is at 1:1"),
    ("a: {b: 1, b: 2}\n", "1:11: key 'b' is given twice; the first one is at 1:5"),
    ("a: !!python/object:os.system x\n", "1:4: YAML tags ('tag:yaml.org,2002:python/object:os.syste') are"),
    ("!x a: 1\n", "1:1: YAML tags"),
    ("%YAML 1.1\n---\na: 1\n", "2:1: YAML directives (%) are not allowed"),
    ("a: 1\n---\nb: 2\n", "2:1: a second document; a job file holds one"),
    ("a: *q\n", "1:4: *q stands for nothing: &q is not above it"),
    ("a: &x [*x]\n", "1:8: *x stands for nothing: &x is not above it"),
    ("<<: {a: 1}\n", "1:1: merge keys (<<) are not allowed"),
    ("? [a]\n: 1\n", "1:3: a key must be a word"),
    ("[" * 3000, "1:42: nested too deeply; this is no job file"),
    (b"a: \xff\n", "1:4: byte 0xff is not UTF-8; save the file as UTF-8"),
    (b"a: 1\nb: \xc3(\n", "2:4: byte 0xc3 is not UTF-8; save the file as UTF-8"),
    ("a: \x01\n", "1:4: a character that YAML does not allow"),
    ('name: "\\0"\n', "1:7: holds a NUL or half a character"),
    ('name: "\\ud800"\n', "1:7: holds a NUL or half a character"),
    ("a:\n" + "- x\n" * 30_000, "20000:3: more than 20000 values; this is no job file"),
    ("name: a\n", "1:1: missing key 'launch'"),
    (GOOD + "slurm:\n  partitoin: gpu\n", "5:3: unknown key 'partitoin'; did you mean 'partition'?"),
    (
        GOOD + "slurm:\n  gpus-per-node: 8\n",
        "5:3: unknown key 'gpus-per-node'; did you mean 'gpus_per_node'?",
    ),
    (GOOD + "partition: gpu\n", "4:1: unknown key 'partition'; did you mean 'slurm.partition'?"),
    (GOOD + "zzz: 1\n", "4:1: unknown key 'zzz'; valid keys here: batch, checkpoint, done, launch, name,"),
    (GOOD + "slurm: {time: 1-0x}\n", "4:15: '1-0x' is not a Slurm time"),
    (GOOD + "slurm: {mem: 1q}\n", "4:14: '1q' is not a memory size"),
    (GOOD + "slurm: {exclude: 'n[1-99999999]'}\n", "4:18: node list 'n[1-99999999]' names more than"),
    (GOOD + "slurm: {cpus_per_task: many}\n", "4:24: must be a whole number, not 'many'"),
    (GOOD + "slurm: {exclusive: 3}\n", "4:20: must be true or false, not 3"),
    (GOOD + "slurm: {partition: ''}\n", "4:20: must not be empty"),
    (GOOD + "slurm: {partition: [a]}\n", "4:20: must be text, not a list; put it in quotes"),
    (GOOD + "slurm: gpu\n", "4:8: must be a mapping with keys such as account, chdir, comment, constraint,"),
    (
        GOOD + "slurm: {extra: {mail-type: END, requeue: true}}\n",
        "4:33: --requeue belongs to the supervisor:",
    ),
    (GOOD + "slurm: {extra: {requ: true}}\n", "4:17: 'requ' is an abbreviation"),
    (
        GOOD + "slurm: {extra: {partition: x}}\n",
        "4:17: --partition belongs to the supervisor: write slurm.partition",
    ),
    (GOOD + "slurm: {extra: {a: [1]}}\n", "4:17: 'a' is an abbreviation"),
    (GOOD + "slurm: {extra: {mail-type: [1]}}\n", "4:28: must be text, a whole number, true or false, not a"),
    (
        GOOD + "slurm: {comment: 'supervise:aaaaaaaaaaaaaaaa'}\n",
        "4:18: must not hold a mark of the supervisor",
    ),
    (GOOD + "recovery: {budgets: {user_cod: 1}}\n", "4:22: 'user_cod' is not possible here; did you mean"),
    (GOOD + "recovery: {budgets: {unknown: -1}}\n", "4:31: must be at least 0, not -1"),
    (
        GOOD + "recovery: {ladder: [resubmit, spar]}\n",
        "4:31: 'spar' is not possible here; did you mean 'spare'?",
    ),
    (GOOD + "batch: {global: 7, micro: 2}\n", "4:17: no size from nodes.want=2 down to nodes.min=2 divides"),
    (GOOD + "notify: me\n", "4:9: must be a list, not 'me'"),
    ("name: true\nnodes: 2\nlaunch: {command: x}\n", "1:7: must be text, not true; put it in quotes"),
    ("name: a\nnodes: true\nlaunch: {command: x}\n", "2:8: must be a mapping with keys such as min, spares"),
    (
        "name: a\nnodes: {min: true, want: 1}\nlaunch: {command: x}\n",
        "2:14: must be a whole number, not true",
    ),
    ("name: a\nnodes: {min: 4, want: 2}\nlaunch: {command: x}\n", "2:14: nodes.min (4) is greater than"),
    ("name: a\nnodes: 1\nlaunch:\n  command:\n", "4:3: missing key 'command' in launch"),
    (
        "name: a\nnodes: 1\nlaunch:\n  command: x\n  env: {1A: x}\n",
        "5:9: '1A' is not a name of an environment",
    ),
    ("name: a\nnodes: 1\nlaunch: {command: x, env: {UID: 1}}\n", "3:28: UID cannot be set in a bash script"),
    ("name: a\nnodes: 1\nlaunch: {command: x, signal: USR3}\n", "3:30: 'USR3' is not possible here; did you"),
    ("name: a\nnodes: 1\nlaunch: {command: x, signal_before: 1d}\n", "3:37: must be at most 65535 seconds"),
    ("name: 'a\\b'\nnodes: 1\nlaunch: {command: x}\n'x\\ny': 1\n", "4:1: unknown key"),
]


@pytest.mark.parametrize(("text", "problem"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_job_file_is_refused_at_the_right_place(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    found = problems(tmp_path, text)
    assert found[0].startswith(f"job.yaml:{problem}")
    assert not any("pydantic" in line or "http" in line for line in found)


def test_every_problem_is_told_at_once_in_the_files_order(tmp_path: Path) -> None:
    text = (
        "nodes: {min: 4, want: 2, stepp: 1}\nslurm:\n  tim: 3\n  cpus_per_task: x\nlaunch: {signal: TERM}\n"
    )
    assert problems(tmp_path, text) == [
        "job.yaml:1:1: missing key 'name'",
        "job.yaml:1:26: unknown key 'stepp'; did you mean 'step'?",
        "job.yaml:3:3: unknown key 'tim'; did you mean 'time'?",
        "job.yaml:4:18: must be a whole number, not 'x'",
        "job.yaml:5:1: missing key 'command' in launch",
    ]


def test_texts_stay_as_they_are_written(tmp_path: Path) -> None:
    text = """\
name: yes
nodes: 010
slurm: {time: 12:00:00, mem: 0x10G, qos: 007, comment: on, account: 2024-01-01}
launch:
  command: "off"
  env: {A: 1e3, B: 0.10, C: "{{ 7*7 }}", D: 0o17, E: 1:30}
"""
    text = text.replace("0x10G", "10G")
    spec = load(tmp_path, text)
    slurm = spec.slurm
    assert (spec.name, spec.nodes.want, spec.launch.command) == ("yes", 10, "off")
    assert (slurm.time, slurm.mem, slurm.qos, slurm.comment) == ("12:00:00", "10G", "007", "on")
    assert slurm.account == "2024-01-01"
    assert spec.launch.env == {"A": "1e3", "B": "0.10", "C": "{{ 7*7 }}", "D": "0o17", "E": "1:30"}


def test_a_section_whose_lines_are_all_commented_out_is_not_there(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "slurm:\n  # time: 3\nbatch:\n")
    assert spec.slurm.time is None
    assert spec.batch is None


def test_anchors_may_be_used_and_used_again(tmp_path: Path) -> None:
    text = "name: &n a\nnodes: 2\nlaunch: {command: *n, env: {A: *n, B: &n b, C: *n}}\n"
    assert load(tmp_path, text).launch.env == {"A": "a", "B": "b", "C": "b"}


def test_a_bomb_of_aliases_is_refused_in_a_moment(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    for level in range(1, 9):
        bomb += f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]\n"
    assert "aliases make more than 20000 values" in problems(tmp_path, bomb)[0]


def test_files_that_are_no_job_files_are_refused_by_name(tmp_path: Path) -> None:
    missing, big, pipe = tmp_path / "missing", tmp_path / "big", tmp_path / "pipe"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    os.mkfifo(pipe)
    expected = {
        missing: f"{missing}: there is no such file; supervise init {missing} writes one to start from",
        big: f"{big}: is longer than 1 MiB; this is no job file",
        tmp_path: f"{tmp_path}: is a directory; name the job file in it",
        pipe: f"{pipe}: is not a file",
        Path("/dev/zero"): "/dev/zero: is not a file",
    }
    for path, message in expected.items():
        with pytest.raises(SpecError) as caught:
            load_spec(path)
        assert caught.value.problems == [message]


def test_an_unreadable_file_is_told_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor.intake.document.os.open", refuse)
    with pytest.raises(SpecError, match=r"job\.yaml: cannot be read: Permission denied"):
        load_spec(tmp_path / "job.yaml")


def test_overrides_replace_values_and_are_named_for_their_options(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        GOOD + "slurm: {partition: a, cpus_per_task: wrong}\n",
        {
            "slurm.partition": "b",
            "slurm.cpus_per_task": "4",
            "nodes.want": "5",
            "slurm.extra.mail-type": "END",
        },
    )
    assert (spec.slurm.partition, spec.slurm.cpus_per_task) == ("b", 4)
    assert (spec.nodes.min, spec.nodes.want) == (2, 5)
    assert spec.slurm.extra == {"mail-type": "END"}
    assert problems(
        tmp_path,
        GOOD + "zzzz: 1\n",
        {
            "slurm.partition": "",
            "name": "a\nb",
            "nodes.min": "5",
            "nodes.want": "4",
            "slurm.extra.array": "1",
        },
    ) == [
        "--job-name: must not hold line breaks or control characters",
        "--nodes: nodes.min (5) is greater than nodes.want (4)",
        "--partition: must not be empty",
        "--array: --array belongs to the supervisor: a run is one job; submit several job files instead",
        f"job.yaml:4:1: unknown key 'zzzz'; valid keys here: {', '.join(sorted(JobSpec.model_fields))}",
    ]


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_fail_otherwise_than_with_problems(text: str) -> None:
    from supervisor.intake.document import parse

    document = parse(text)
    assert document.problems or document.value is None or document.values


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=200))
def test_any_printable_name_survives_the_way_through_a_file(tmp_path_factory: Any, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / "job.yaml"
    path.write_text(f"name: {json.dumps(name, ensure_ascii=False)}\nnodes: 1\nlaunch: {{command: x}}\n")
    assert load_spec(path).name == name


@pytest.mark.parametrize("name", ["llama", 'it\'s "{x}" \\ \U0001f600', "\n\t", "a" * 300])
def test_the_starter_loads_as_it_is(tmp_path: Path, name: str) -> None:
    text = starter(name)
    assert text.startswith("# yaml-language-server: $schema=")
    assert load(tmp_path, text).launch.template == "torchrun"
    assert load(tmp_path, text.replace("# done:\n#   file", "done:\n  file")).done is not None


def test_the_schema_keeps_descriptions_and_the_short_forms() -> None:
    schema = json_schema()
    assert schema["properties"]["nodes"]["anyOf"][1]["type"] == "integer"
    assert "SlurmOptions" in schema["$defs"]
    assert schema["$defs"]["SlurmOptions"]["properties"]["partition"]["description"] == "Partition (queue)."
    assert schema["$defs"]["Nodes"]["properties"]["min"]["minimum"] == 1
    assert "global" in schema["$defs"]["Batch"]["properties"]
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_options_after_the_dashes_find_their_places() -> None:
    words = [
        "--mail-type=END",
        "--exclusive",
        "-p",
        "x",
        "-Ay",
        "-N2-4",
        "-t1:30",
        "--mail-user",
        "me",
        "-HO",
    ]
    assert parse_passthrough(words) == {
        "slurm.extra.mail-type": "END",
        "slurm.exclusive": True,
        "slurm.partition": "x",
        "slurm.account": "y",
        "nodes.min": "2",
        "nodes.want": "4",
        "slurm.time": "1:30",
        "slurm.extra.mail-user": "me",
        "slurm.extra.hold": True,
        "slurm.extra.overcommit": True,
    }
    assert parse_passthrough(["--job-name=a b", "--comment=c"]) == {"name": "a b", "slurm.comment": "c"}


def test_options_that_belong_to_the_supervisor_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        parse_passthrough(["--requeue", "-o", "x", "foo", "-Z", "--array=3", "-p", "--nodes=x", "-w", "n1"])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("--requeue belongs to the supervisor: ")
    assert lines[1] == "--output belongs to the supervisor: logs are kept per allocation in the run folder"
    assert lines[2] == "'foo' after -- is not an option of sbatch"
    assert lines[3] == "-Z: sbatch has no such option"
    assert lines[4].startswith("--array belongs to the supervisor: ")
    assert lines[5] == "--partition: a value is missing"
    assert lines[6] == "--nodes: write a number or MIN-MAX"
    assert lines[7].startswith("--nodelist belongs to the supervisor: ")
