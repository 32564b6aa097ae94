"""The demo's training, run as a user would run it: torchrun, real processes, real kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.checkpoint.choice import choose, verify
from supervisor.domain.checkpoint import CheckpointState

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
STEPS = 12
TIMEOUT = 120


def start(folder: Path, world: int, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Start a training in ``folder``, without what this test session itself got from a supervisor."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISE_", "SLURM_"))
    }
    folder.mkdir(parents=True, exist_ok=True)
    launcher = (
        [] if world == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    )
    return subprocess.Popen(
        [
            *(sys.executable, *launcher, str(SCRIPT)),
            *(f"--steps={STEPS}", "--checkpoint-every=3", f"--checkpoint-dir={folder / 'ckpt'}"),
            *options,
        ],
        env=environ
        | {"OMP_NUM_THREADS": "1", "SUPERVISE_PROGRESS": str(folder / "progress.jsonl")}
        | {"MASTER_PORT": str(29400 + os.getpid() % 500)}
        | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        _kill_all(process.pid)
        raise
    return process.returncode, output + errors


def losses(folder: Path) -> dict[int, float]:
    lines = (folder / "progress.jsonl").read_text().splitlines()
    return {item["step"]: item["loss"] for item in map(json.loads, lines)}


def wait_for_step(folder: Path, process: subprocess.Popen[str], step: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "progress.jsonl").exists() and step in losses(folder):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached: {process.returncode}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four ranks that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(start(folder, 4))
    assert code == 0, output
    return folder


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_loss_curve_is_the_same_at_every_world_size(
    tmp_path: Path, undisturbed: Path, world: int
) -> None:
    code, output = finish(start(tmp_path, world))
    assert code == 0, output
    assert f"world={world}" in output
    assert losses(tmp_path) == pytest.approx(losses(undisturbed), rel=1e-9)


def test_the_loss_falls_and_the_end_is_recorded(undisturbed: Path) -> None:
    curve = losses(undisturbed)
    assert list(curve) == list(range(1, STEPS + 1))
    assert curve[STEPS] < curve[1] - 0.2
    done = json.loads((undisturbed / "done.json").read_text())
    assert (done["final_step"], done["final_loss"], done["world"]) == (STEPS, curve[STEPS], 4)


def test_a_killed_training_resumes_at_another_size_and_ends_with_the_same_loss(
    tmp_path: Path, undisturbed: Path
) -> None:
    first = start(tmp_path, 4, "--step-time=0.2")
    wait_for_step(tmp_path, first, 7)
    _kill_all(first.pid)
    first.communicate(timeout=TIMEOUT)
    result = choose(tmp_path / "ckpt")
    assert result.chosen is not None
    assert (result.chosen.step, result.chosen.attempt, result.chosen.saved_world) == (6, 0, 4)
    resume = {"SUPERVISE_RESUME_FROM": str(result.chosen.path), "SUPERVISE_ATTEMPT": "1"}
    code, output = finish(start(tmp_path, 3, **resume))
    assert code == 0, output
    assert "step=7 " in output
    assert "step=6 " not in output
    done = json.loads((tmp_path / "done.json").read_text())
    assert done["first_step"] == 6
    assert done["final_loss"] == pytest.approx(losses(undisturbed)[STEPS], rel=1e-9)


@pytest.mark.parametrize("how", ["file", "signal"])
def test_a_training_that_is_asked_to_stop_saves_and_says_so(tmp_path: Path, how: str) -> None:
    process = start(tmp_path, 1, "--step-time=0.2", SUPERVISE_STOP_FILE=str(tmp_path / "stop"))
    wait_for_step(tmp_path, process, 2)
    if how == "file":
        (tmp_path / "stop").touch()
    else:
        process.send_signal(signal.SIGUSR1)
    code, output = finish(process)
    assert code == 85
    chosen = choose(tmp_path / "ckpt").chosen
    assert chosen is not None
    assert f"stopped early at step {chosen.step}" in output
    assert not (tmp_path / "done.json").exists()


def test_a_checkpoint_is_never_written_twice(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / "step-00000003-a0").mkdir(parents=True)
    code, output = finish(start(tmp_path, 1))
    assert code != 0
    assert "is never written twice" in output


class TestWhatTorchWrote:
    """The verifier against real shards and real metadata."""

    @pytest.fixture
    def real(self, undisturbed: Path, tmp_path: Path) -> Path:
        path = tmp_path / "step-00000012-a0"
        shutil.copytree(undisturbed / "ckpt" / path.name, path)
        return path

    def test_is_committed_at_its_world_size(self, real: Path) -> None:
        found = verify(real)
        assert (found.state, found.reasons, found.saved_world) == (CheckpointState.COMMITTED, (), 4)

    def test_every_byte_of_every_shard_is_needed(self, real: Path) -> None:
        for shard in real.glob("*.distcp"):
            size = shard.stat().st_size
            os.truncate(shard, size - 1)
            assert verify(real).state is CheckpointState.CORRUPT
            os.truncate(shard, size)
            os.utime(shard, (0, 0))
        assert verify(real).state is CheckpointState.COMMITTED

    def test_a_shard_of_a_second_save_is_seen(self, real: Path) -> None:
        later = (real / ".metadata").stat().st_mtime + 5
        os.utime(real / "__2_0.distcp", (later, later))
        assert "re-saved" in verify(real).reasons[0]

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
    def test_a_cut_metadata_is_corrupt(self, real: Path, share: float) -> None:
        os.truncate(real / ".metadata", int((real / ".metadata").stat().st_size * share))
        assert verify(real).state is CheckpointState.CORRUPT


def _kill_all(launcher: int) -> None:
    """Kill the launcher and its ranks at once; each rank has a session of its own, so no group holds all."""
    ranks = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher:
            ranks.append(int(status.parent.name))
    for pid in (launcher, *ranks):
        os.kill(pid, signal.SIGKILL)
