import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from supervisor.slurm.process import MAX_STDERR, clean_environment, run_command

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def run(code: str, timeout_s: float = 20.0, **limits: int):  # type: ignore[no-untyped-def]
    return run_command([sys.executable, "-c", code], environment=ENVIRONMENT, timeout_s=timeout_s, **limits)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pid: int) -> bool:
    for _ in range(200):
        if not is_alive(pid):
            return True
        threading.Event().wait(0.02)
    return False


def test_output_and_exit_code_are_returned() -> None:
    result = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")

    assert (result.rc, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.clean
    assert not result.timed_out
    assert "exit code 3: err" in result.explain()


def test_a_timeout_kills_the_whole_process_group() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    result = run(code, timeout_s=2.0)

    assert result.timed_out
    assert result.rc is None
    assert not result.clean
    assert wait_until_dead(int(result.stdout))


def test_a_command_that_ignores_sigterm_is_killed_all_the_same() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

    assert run(code, timeout_s=1.0).timed_out


def test_a_stopped_command_does_not_hold_its_caller() -> None:
    result = run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout_s=1.0)

    assert result.timed_out


def test_megabytes_on_stderr_neither_block_nor_are_kept() -> None:
    result = run("import sys; sys.stderr.write('x' * 20_000_000); sys.stderr.flush(); print('done')")

    assert result.rc == 0
    assert result.stdout == "done\n"
    assert len(result.stderr) == MAX_STDERR


def test_a_flood_on_stdout_ends_the_command_and_is_no_clean_answer() -> None:
    result = run("while True: print('x' * 1000)", max_stdout=100_000)

    assert result.flooded
    assert not result.clean
    assert result.rc is None
    assert len(result.stdout) == 100_000


def test_megabytes_on_stdout_are_read_whole() -> None:
    result = run("import sys; sys.stdout.write('y' * 5_000_000)")

    assert result.clean
    assert len(result.stdout) == 5_000_000


def test_a_grandchild_that_holds_the_pipes_does_not_delay_the_answer_and_is_ended() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid)\n"
    )
    result = run(code)

    assert result.clean
    assert wait_until_dead(int(result.stdout))


def test_there_is_nothing_to_read_on_stdin() -> None:
    assert run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_a_command_has_a_session_of_its_own() -> None:
    assert run("import os; print(os.getsid(0) == os.getpid())").stdout == "True\n"


def test_a_missing_program_is_a_result() -> None:
    result = run_command(["/nowhere/squeue"], environment={}, timeout_s=5)

    assert result.rc is None
    assert not result.clean
    assert "No such file" in result.not_started
    assert "/nowhere/squeue" in result.explain()


def test_an_argument_list_that_is_too_long_is_a_result() -> None:
    result = run_command(["/bin/true", "x" * 200_000], environment={}, timeout_s=5)

    assert "too long" in result.not_started


@pytest.mark.parametrize("argv", [["/bin/tr\0ue"], ["/bin/true", "a\0b"]])
def test_a_nul_byte_is_a_result_too(argv: list[str]) -> None:
    assert run_command(argv, environment={}, timeout_s=5).not_started


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    result = run(r"import sys; sys.stdout.buffer.write(b'caf\xe9\n')")

    assert result.stdout == "caf\ufffd\n"


def test_no_descriptor_is_left_open() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    run("pass")
    before = count()
    run("pass")
    run("import time; time.sleep(60)", timeout_s=0.3)
    assert count() == before


def test_a_kernel_without_pidfd_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)

    assert run("print('x' * 1_000_000)").stdout == "x" * 1_000_000 + "\n"
    assert run("import time; time.sleep(60)", timeout_s=0.5).timed_out
    held = run("import subprocess as s; print(s.Popen(['sleep', '600']).pid)")
    assert held.clean
    assert wait_until_dead(int(held.stdout))


def test_death_by_a_signal_shows_as_a_negative_code() -> None:
    assert run("import os; os.kill(os.getpid(), 9)").rc == -signal.SIGKILL


def test_variables_that_change_slurms_commands_are_dropped_and_named() -> None:
    base = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CONF_SERVER": "head",
        "SLURM_JWT": "secret",
        "SLURM_CLUSTERS": "other",
        "SLURM_TIME_FORMAT": "relative",
        "SBATCH_ACCOUNT": "x",
        "SALLOC_QOS": "x",
        "SQUEUE_FORMAT": "%i",
        "SACCT_FORMAT": "jobid",
        "SINFO_FORMAT": "%n",
        "SCANCEL_STATE": "PENDING",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "de_DE.UTF-8",
    }
    environment, dropped = clean_environment(base)

    assert environment == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CONF_SERVER": "head",
        "SLURM_JWT": "secret",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s",
    }
    assert dropped == (
        "SACCT_FORMAT",
        "SALLOC_QOS",
        "SBATCH_ACCOUNT",
        "SCANCEL_STATE",
        "SINFO_FORMAT",
        "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT",
        "SQUEUE_FORMAT",
    )


def test_a_submission_keeps_the_users_time_zone_and_locale_for_the_job() -> None:
    environment, _ = clean_environment({"TZ": "Asia/Tokyo", "SBATCH_ACCOUNT": "x"}, pinned=False)

    assert environment == {"TZ": "Asia/Tokyo"}


def test_the_environment_is_all_that_the_command_gets() -> None:
    os.environ["SQUEUE_FORMAT"] = "%i"
    try:
        result = run("import os; print('SQUEUE_FORMAT' in os.environ)")
    finally:
        del os.environ["SQUEUE_FORMAT"]

    assert result.stdout == "False\n"
