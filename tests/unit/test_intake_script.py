"""The scripts without Slurm: signals on the way down, and what the batch script does when things are odd."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.folder import RunFolder, run_folder
from supervisor.domain.ids import AllocationNo, Token
from supervisor.domain.spec import JobSpec
from supervisor.domain.submission import AllocationRequest
from supervisor.intake.plan import plan_submission, write_files

HANDLER = """\
import os, signal, sys, time
def note(number, frame):
    global until
    until = min(until, time.monotonic() + 0.5)
    print(signal.Signals(number).name, flush=True)
for name in sys.argv[1].split(","):
    signal.signal(getattr(signal, name), note)
if sys.argv[2] == "parent" and os.fork() == 0:
    time.sleep(3)
    os._exit(0)
until = time.monotonic() + 3
print("ready", flush=True)
while time.monotonic() < until:
    time.sleep(0.02)
"""


def prepare(chdir: Path, no: int = 1, **launch: Any) -> RunFolder:
    spec = JobSpec.model_validate({"name": "x", "nodes": 1, "launch": {"template": "srun"} | launch})
    request = AllocationRequest(
        run_id=None,
        uid="abcdefgh",
        spec=spec,
        folder=run_folder(chdir, "x", "abcdefgh"),
        chdir=chdir,
        no=AllocationNo(no),
        token=Token("abcdefghijklmnop"),
        num_nodes=1,
        excluded=(),
        resume_from=None,
        resume_step=None,
    )
    write_files(plan_submission(request, template_dirs=()))
    return RunFolder(request.folder)


def start(
    script: Path, tmp_path: Path, *, scontrol: str = "#!/bin/bash\nexit 1\n", **variables: str
) -> "subprocess.Popen[str]":
    """Start a script as Slurm would, with commands of Slurm that do next to nothing."""
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "srun").write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    (commands / "scontrol").write_text(scontrol)
    for command in commands.iterdir():
        command.chmod(0o755)
    environ = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "5",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "n1",
    } | variables
    return subprocess.Popen(
        ["/bin/bash", str(script)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=30)
    return process.returncode, output


def until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def handler(tmp_path: Path, names: str, kind: str = "alone") -> str:
    program = tmp_path / "handler.py"
    program.write_text(HANDLER)
    return shlex.join([sys.executable, str(program), names, kind])


@pytest.mark.parametrize(
    ("told_by", "carrier", "handled", "told"),
    [
        ("USR1", signal.SIGUSR2, "SIGUSR1", 1),
        ("USR2", signal.SIGUSR1, "SIGUSR2", 1),
        ("TERM", signal.SIGUSR2, "SIGTERM", 1),
        ("USR1", signal.SIGUSR2, "SIGHUP", 0),
    ],
)
def test_the_node_script_tells_the_training_by_its_own_signal_if_it_handles_it(
    tmp_path: Path, told_by: str, carrier: signal.Signals, handled: str, told: int
) -> None:
    # Two commands, so that bash stays in between: it handles nothing and must not die.
    folder = prepare(tmp_path, command=f"{handler(tmp_path, handled)}; exit 9", signal=told_by)
    process = start(folder.node_script(AllocationNo(1)), tmp_path)
    until_ready(process)
    process.send_signal(carrier)
    assert finish(process) == (9, f"{handled}\n" * told)


def test_workers_below_a_process_that_was_told_are_left_to_it(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command=handler(tmp_path, "SIGUSR1", "parent"))
    process = start(folder.node_script(AllocationNo(1)), tmp_path)
    until_ready(process)
    process.send_signal(signal.SIGUSR2)
    assert finish(process) == (0, "SIGUSR1\n")


def test_term_reaches_a_training_that_handles_it_and_ends_one_that_does_not(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command=handler(tmp_path, "SIGTERM"))
    process = start(folder.node_script(AllocationNo(1)), tmp_path)
    until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (0, "SIGTERM\n")
    folder = prepare(tmp_path, command=handler(tmp_path, "SIGUSR1"))
    process = start(folder.node_script(AllocationNo(1)), tmp_path)
    until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "")


def test_the_training_is_not_ended_by_the_carrier_where_slurm_gives_it_to_every_process(
    tmp_path: Path,
) -> None:
    folder = prepare(tmp_path, command="kill -USR2 $$; echo alive")
    assert finish(start(folder.node_script(AllocationNo(1)), tmp_path)) == (0, "alive\n")


def test_setup_lines_cannot_disturb_the_script_around_them(tmp_path: Path) -> None:
    setup = "set -e\ntrap - TERM\ncd /\nsupervise_child=1\nIFS=x\nexport A='it''s'\nPATH=/nowhere"
    folder = prepare(tmp_path, command='echo "$A $PWD"', setup=setup, env={"PATH": "/usr/bin", "IFS": "y"})
    assert finish(start(folder.node_script(AllocationNo(1)), tmp_path)) == (0, "its /\n")


def entries(folder: RunFolder) -> list[str]:
    return [json.loads(line)["event"] for line in folder.journal(AllocationNo(1)).read_text().splitlines()]


def marker(folder: RunFolder, name: str = "0001.json") -> dict[str, Any]:
    return dict(json.loads((folder.root / "exit" / name).read_text()))


def test_the_batch_script_runs_the_training_and_leaves_its_code(tmp_path: Path) -> None:
    command = 'echo "$SUPERVISE_ATTEMPT|$SUPERVISE_RESUME_FROM|$RANK|$WORLD_SIZE|$(umask)"; exit 4'
    folder = prepare(tmp_path, command=command)
    previous = os.umask(0o022)
    try:
        code, output = finish(start(folder.script(AllocationNo(1)), tmp_path))
    finally:
        os.umask(previous)
    assert (code, output) == (4, "1||0|1|0022\n")
    assert entries(folder) == ["claimed", "step_started", "step_ended"]
    assert marker(folder) | {"at": 0} == {
        "token": "abcdefghijklmnop",
        "job_id": 5,
        "rc": 4,
        "signal": 0,
        "reason": "step_ended",
        "at": 0,
    }


def test_the_code_is_the_trainings_own_however_many_signals_come(tmp_path: Path) -> None:
    program = handler(tmp_path, "SIGUSR1,SIGUSR2,SIGTERM")
    folder = prepare(tmp_path, command=f"{program}; exit 7")
    process = start(folder.script(AllocationNo(1)), tmp_path)
    until_ready(process)
    for _ in range(5):
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 7
    assert output.count("SIGUSR1\n") >= 1
    assert marker(folder)["reason"] == "signalled"
    assert folder.stop_file(AllocationNo(1)).exists()


def test_a_second_copy_inside_the_same_job_does_not_train_and_leaves_the_marker_alone(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command="echo trains")
    assert finish(start(folder.script(AllocationNo(1)), tmp_path)) == (0, "trains\n")
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path))
    assert (code, output) == (77, "supervise: this job runs the script already\n")
    assert marker(folder)["rc"] == 0
    assert marker(folder, "0001.lost-5.json")["rc"] == 77


def test_a_claim_that_names_nobody_yet_is_somebody_elses(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command="echo trains")
    folder.claim(AllocationNo(1)).mkdir()
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path, SLURM_JOB_ID="6"))
    assert code == 77
    assert "another job holds the claim of this allocation: not yet named" in output
    assert not folder.exit_marker(AllocationNo(1)).exists()


def test_a_job_whose_number_begins_like_the_owners_is_not_the_owner(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command="echo trains")
    assert finish(start(folder.script(AllocationNo(1)), tmp_path, SLURM_JOB_ID="12"))[0] == 0
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path, SLURM_JOB_ID="1"))
    assert code == 77
    assert "another job holds the claim" in output


@pytest.mark.parametrize("claimed", [True, False])
def test_a_requeued_job_does_not_train(tmp_path: Path, claimed: bool) -> None:
    folder = prepare(tmp_path, command="echo trains")
    if claimed:
        finish(start(folder.script(AllocationNo(1)), tmp_path))
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path, SLURM_RESTART_COUNT="1"))
    assert code == 76
    assert "trains" not in output.replace("does not train", "")
    assert (marker(folder)["rc"], marker(folder)["reason"]) == (76, "requeued")
    assert entries(folder)[-1] == "requeued"


def test_an_older_allocation_is_fenced_by_a_newer_claim(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command="echo trains")
    folder.claim(AllocationNo(10)).mkdir()
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path))
    assert (code, output) == (77, "supervise: allocation 0010 of this run has started already\n")
    assert marker(folder)["reason"] == "claim_lost"


def test_a_claim_that_cannot_be_made_is_told_apart_from_a_lost_one(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command="echo trains")
    shutil.rmtree(folder.claims())
    code, output = finish(start(folder.script(AllocationNo(1)), tmp_path))
    assert code == 74
    assert "cannot claim the allocation" in output


PORTS = [(port, port + 997) for port in range(24321, 28000, 7)]


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_the_address_is_the_first_nodes_and_a_port_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    folder = prepare(tmp_path, command='echo "$MASTER_ADDR:$MASTER_PORT"')
    scontrol = """#!/bin/bash
case "$*" in
  "show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
  "show node --oneliner n1") echo "NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=o" ;;
  *) exit 1 ;;
esac
"""
    taken, port = next(pair for pair in PORTS if is_free(pair[0]) and is_free(pair[1]))
    with socket.create_server(("127.0.0.1", taken)):
        process = start(
            folder.script(AllocationNo(1)),
            tmp_path,
            scontrol=scontrol,
            SLURM_JOB_ID=str(taken),
            SLURM_JOB_NODELIST="n[1-2]",
        )
        assert finish(process) == (0, f"127.0.0.1:{port}\n")
