"""Submission plans: options, scripts and files."""

import os
import re
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.folder import run_folder
from supervisor.domain.ids import AllocationNo, NodeName, RunId, Token, find_token
from supervisor.domain.spec import JobSpec
from supervisor.domain.submission import AllocationRequest
from supervisor.errors import SpecError, SupervisorError
from supervisor.intake.plan import describe, plan_submission, sbatch_options, write_files, write_private_file

GOLDEN = Path(__file__).parent / "golden"
TOKEN = Token("abcdefghijklmnop")
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60)


def spec(**parts: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "llama", "nodes": {"min": 2, "want": 4, "step": 2}, "launch": {"command": "python train.py"}}
        | parts
    )


def request(chdir: Path = Path("/data/me"), **parts: Any) -> AllocationRequest:
    job = parts.pop("spec", None) or spec()
    facts: dict[str, Any] = {
        "run_id": RunId(7),
        "uid": "abcdefgh",
        "spec": job,
        "folder": run_folder(chdir, job.name, "abcdefgh"),
        "chdir": chdir,
        "no": AllocationNo(3),
        "token": TOKEN,
        "num_nodes": job.nodes.want,
        "excluded": (),
        "resume_from": None,
        "resume_step": None,
    }
    return AllocationRequest(**(facts | parts))


def options_of(job: JobSpec, **parts: Any) -> tuple[str, ...]:
    return plan_submission(request(spec=job, **parts), template_dirs=()).options


FULL = {
    "name": "llama 7b",
    "nodes": {"min": 2, "want": 4, "step": 2, "spares": 1},
    "slurm": {
        "partition": "gpu",
        "account": "nlp",
        "qos": "high",
        "time": "2-00:00:00",
        "gpus_per_node": "a100:8",
        "cpus_per_task": 16,
        "mem": "0",
        "constraint": "a100&nvlink",
        "exclude": "node[001-002]",
        "exclusive": True,
        "comment": "mine",
        "extra": {"mail-type": "END", "contiguous": True, "hold": False, "nice": 5},
    },
    "launch": {
        "command": "python train.py --config c.yaml",
        "setup": "module load cuda\nsource .venv/bin/activate",
        "env": {"OMP_NUM_THREADS": 8, "NAME": "it's"},
    },
    "batch": {"global": 1024, "micro": 8},
    "checkpoint": {"dir": "ckpt"},
    "recovery": {"ladder": ["spare", "resubmit"]},
}


@pytest.mark.parametrize("template", ["torchrun", "srun"])
def test_scripts_and_options_are_as_they_were_reviewed(template: str) -> None:
    """Write them anew: ``SUPERVISE_WRITE_GOLDEN=1 pytest tests/unit/test_intake_plan.py``; read the diff."""
    job = JobSpec.model_validate(FULL | {"launch": FULL["launch"] | {"template": template}})  # type: ignore[operator]
    plan = plan_submission(
        request(
            spec=job,
            excluded=(NodeName("node002"), NodeName("node007")),
            resume_from="/data/me/ckpt/step-00000100-a2",
            resume_step=100,
            last_failure="node_fail",
        ),
        template_dirs=(),
    )
    text = describe(plan) + "\n"
    golden = GOLDEN / f"{template}.txt"
    if os.environ.get("SUPERVISE_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_same_request_gives_the_same_plan() -> None:
    assert plan_submission(request(), template_dirs=()) == plan_submission(request(), template_dirs=())


def test_the_job_asks_for_what_the_job_file_says() -> None:
    options = options_of(JobSpec.model_validate(FULL), excluded=(NodeName("node007"),))
    assert set(options) == {
        "--job-name=llama 7b",
        "--partition=gpu",
        "--account=nlp",
        "--qos=high",
        "--time=2-00:00:00",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--cpus-per-task=16",
        "--gpus-per-node=a100:8",
        "--mem=0",
        "--constraint=a100&nvlink",
        "--exclude=node[001-002,007]",
        "--exclusive",
        "--mail-type=END",
        "--contiguous",
        "--nice=5",
        "--signal=B:USR1@120",
        "--open-mode=append",
        "--no-requeue",
        f"--comment=mine supervise:{TOKEN}",
        "--chdir=/data/me",
        "--output=/data/me/.supervise/llama_7b-abcdefgh/logs/0003.out",
        "--export-file=/data/me/.supervise/llama_7b-abcdefgh/environment",
    }


def test_spares_are_not_taken_from_others_as_long_as_nothing_uses_them() -> None:
    job = spec(nodes={"want": 4, "spares": 2}, recovery={"ladder": ["spare", "resubmit"]})
    plan = plan_submission(request(spec=job), template_dirs=())
    assert "--nodes=4" in plan.options
    assert any("nodes.spares" in warning and "not used" in warning for warning in plan.warnings)


def test_a_prediction_asks_for_the_same_resources_and_names_no_file_of_the_run() -> None:
    job = JobSpec.model_validate(FULL)
    asked = sbatch_options(job, num_nodes=4, exclude=[NodeName("node007")])
    submitted = options_of(job, excluded=(NodeName("node007"),))
    assert set(asked) < set(submitted)
    assert not any(word.startswith(("--comment", "--output", "--export-file", "--chdir")) for word in asked)


def test_the_script_repeats_no_exclude_list() -> None:
    plan = plan_submission(request(excluded=(NodeName("node007"),)), template_dirs=())
    assert "--exclude=node007" in plan.options
    assert "#SBATCH --exclude" not in plan.files[0].content
    assert "#SBATCH --nodes=4\n" in plan.files[0].content


def test_a_comment_keeps_our_token_findable() -> None:
    (word,) = [
        w for w in options_of(spec(slurm={"comment": "supervise: not a mark"})) if w.startswith("--comment=")
    ]
    assert word == f"--comment=supervise: not a mark supervise:{TOKEN}"
    assert find_token(word) == TOKEN


@pytest.mark.parametrize(
    ("batch", "nodes", "expected"),
    [
        ({"global": 64, "micro": 8}, 4, {"GLOBAL_BATCH": 64, "MICRO_BATCH": 8, "ACCUMULATION": 2}),
        ({"global": 64}, 4, {"GLOBAL_BATCH": 64, "MICRO_BATCH": 16, "ACCUMULATION": 1}),
        ({"global": 63}, 4, {"GLOBAL_BATCH": 63}),
    ],
)
def test_the_batch_is_told_for_this_size(batch: dict[str, int], nodes: int, expected: dict[str, int]) -> None:
    job = spec(nodes=nodes, batch=batch)
    script = plan_submission(request(spec=job), template_dirs=()).files[0].content
    found = dict(
        re.findall(r"^export SUPERVISE_(GLOBAL_BATCH|MICRO_BATCH|ACCUMULATION)=(\d+)$", script, re.MULTILINE)
    )
    assert {name: int(value) for name, value in found.items()} == expected


def test_a_size_at_which_the_batch_does_not_divide_is_refused() -> None:
    with pytest.raises(SpecError, match="no whole number of micro-batches of 8 on 3 ranks"):
        plan_submission(request(spec=spec(batch={"global": 64, "micro": 8}), num_nodes=3), template_dirs=())


@pytest.mark.parametrize(
    ("parts", "warning"),
    [
        ({"slurm": {"time": "2"}}, "the training would be told to stop as soon as it starts"),
        ({}, "checkpoint.dir is not set"),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(parts: dict[str, Any], warning: str) -> None:
    warnings = plan_submission(request(spec=spec(**parts)), template_dirs=()).warnings
    assert any(warning in text for text in warnings)


@given(
    name=st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=60),
    command=TEXTS.filter(bool),
    setup=TEXTS,
    value=TEXTS,
    resume=TEXTS,
)
def test_hostile_values_are_words_in_the_scripts(
    name: str, command: str, setup: str, value: str, resume: str
) -> None:
    job = spec(
        name=name, launch={"command": command, "setup": setup, "env": {"A": value}, "template": "srun"}
    )
    plan = plan_submission(request(spec=job, resume_from=resume), template_dirs=())
    script, node_script = (file.content for file in plan.files)
    head = script[: script.index("\nset -u\n")]
    assert [line for line in head.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --open-mode=append",
        "#SBATCH --no-requeue",
    ]
    words = shlex.split(script, comments=True)
    assert f"SUPERVISE_NAME={name}" in words
    assert f"SUPERVISE_RESUME_FROM={resume}" in words
    words = shlex.split(node_script, comments=True)
    assert f"A={value}" in words
    assert command in words
    assert f"--job-name={name}" in plan.options


@pytest.mark.parametrize("template", ["torchrun", "srun"])
@pytest.mark.parametrize("text", ["x", "$(touch x) ' \" ` \\ \n#SBATCH --requeue\nEOF\n{{ 7*7 }} {% if %}"])
def test_the_scripts_are_valid_bash(tmp_path: Path, template: str, text: str) -> None:
    job = spec(
        launch={"template": template, "command": text, "setup": text, "env": {"A": text}}, batch={"global": 4}
    )
    for file in plan_submission(request(spec=job, last_failure=text), template_dirs=()).files:
        path = tmp_path / "script"
        path.write_text(file.content)
        done = subprocess.run(
            ["bash", "-n", str(path)], capture_output=True, text=True, timeout=20, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_template_of_the_users_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine.sbatch.j2").write_text("#!/bin/bash\n: {{ name | sh }}\n")
    plan = plan_submission(
        request(spec=spec(launch={"template": "mine", "command": "x"})), template_dirs=[tmp_path]
    )
    assert plan.files[0].content == "#!/bin/bash\n: llama\n"
    assert "/bin/bash -c x" in plan.files[1].content


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(SpecError, match=re.escape("nosuch.sbatch.j2: no such template in ")):
        plan_submission(request(spec=spec(launch={"template": "nosuch", "command": "x"})), template_dirs=())


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [("/x/50%j", "/x/50%%j"), ("/x/a\\n", "/x/a\\\\n"), ("/x/a\\n %j", "/x/a\\\\n %j"), ("/x/a b", "/x/a b")],
)
def test_the_output_pattern_means_the_log_and_nothing_else(folder: str, pattern: str) -> None:
    plan = plan_submission(request(folder=Path(folder)), template_dirs=())
    assert f"--output={pattern}/logs/0003.out" in plan.options


def test_files_are_private_and_writing_again_changes_nothing(tmp_path: Path) -> None:
    plan = plan_submission(request(tmp_path), template_dirs=())
    write_files(plan)
    write_files(plan)
    root = plan.script.parent.parent
    modes = {
        path.relative_to(root.parent).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in root.parent.rglob("*")
    }
    folders = {"claims", "exit", "journal", "logs", "progress", "scripts", "stop"}
    assert modes == {
        root.name: 0o700,
        **{f"{root.name}/{name}": 0o700 for name in folders},
        f"{root.name}/scripts/0003.sbatch": 0o700,
        f"{root.name}/scripts/0003.node.sh": 0o700,
    }
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    assert plan.script.read_text() == plan.files[0].content


def test_a_private_file_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / ".supervise" / "run" / "environment"
    write_private_file(path, b"one")
    write_private_file(path, b"two\0")
    assert path.read_bytes() == b"two\0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["environment"]


def test_a_missing_working_directory_is_told(tmp_path: Path) -> None:
    plan = plan_submission(request(tmp_path / "gone"), template_dirs=())
    with pytest.raises(SupervisorError, match=r"gone: there is no such directory; .*slurm\.chdir"):
        write_files(plan)


@pytest.mark.parametrize(("number", "text"), [(28, "No space left on device"), (122, "Disk quota exceeded")])
def test_a_full_disk_is_told_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    plan = plan_submission(request(tmp_path), template_dirs=())
    write_files(plan)
    before = plan.script.read_text()

    def full(_descriptor: int) -> None:
        raise OSError(number, text)

    changed = replace(plan, files=(replace(plan.files[0], content="new"),))
    monkeypatch.setattr("supervisor.intake.files.os.fsync", full)
    with pytest.raises(SupervisorError, match=f"0003.sbatch: cannot be written: {text}"):
        write_files(changed)
    assert plan.script.read_text() == before
    assert len(list(plan.script.parent.iterdir())) == 2


@pytest.mark.parametrize("linked", [True, False])
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    folder = tmp_path / ".supervise"
    if linked:
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir(mode=0o700)
    monkeypatch.setattr("supervisor.intake.files.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SupervisorError, match=r"\.supervise: belongs to another user"):
        write_files(plan_submission(request(tmp_path), template_dirs=()))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ".supervise"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SupervisorError, match=r"others may write to it; run: chmod go-w"):
        write_files(plan_submission(request(tmp_path), template_dirs=()))


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / ".supervise").write_text("")
    with pytest.raises(SupervisorError, match=r"\.supervise: is not a directory; move it away"):
        write_files(plan_submission(request(tmp_path), template_dirs=()))
