import os
import pickle
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.checkpoint.choice import verify
from supervisor.checkpoint.pickles import UnreadablePickle, describe_metadata
from supervisor.domain.checkpoint import CheckpointState
from tests.unit.dcp_files import Chunk, chunks_of, metadata_of, set_mtime, write_checkpoint

COMMITTED, PARTIAL = CheckpointState.COMMITTED, CheckpointState.PARTIAL
CORRUPT, UNKNOWN = CheckpointState.CORRUPT, CheckpointState.UNKNOWN


class Payload:
    """Runs a command when it is unpickled for real."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_a_whole_save_is_committed(tmp_path: Path) -> None:
    found = verify(write_checkpoint(tmp_path / "step-120-a7", num_files=4))
    assert (found.state, found.reasons, found.format) == (COMMITTED, (), "dcp")
    assert (found.step, found.attempt, found.saved_world) == (120, 7, 4)
    assert found.committed_at is not None
    assert found.size_bytes == sum(item.stat().st_size for item in found.path.iterdir())


def test_a_save_killed_in_the_middle_is_partial(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    (path / ".metadata").rename(path / ".metadata.tmp")
    found = verify(path)
    assert found.state is PARTIAL
    assert "not finished (2 shard files)" in found.reasons[0]


def test_an_empty_directory_is_partial(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    assert verify(tmp_path / "step-1").state is PARTIAL


def test_leftovers_of_an_older_larger_world_do_no_harm(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    (path / "__7_0.distcp").write_bytes(b"")
    (path / ".metadata.tmp").write_bytes(b"")
    assert verify(path).state is COMMITTED


def test_a_truncated_shard_is_corrupt_and_the_reason_says_how_much_is_missing(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    os.truncate(path / "__1_0.distcp", 299)
    set_mtime(path / "__1_0.distcp", 0)
    found = verify(path)
    assert found.state is CORRUPT
    assert found.reasons == ("__1_0.distcp: 1 of 300 bytes are missing",)


def test_a_missing_shard_is_corrupt(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    (path / "__0_0.distcp").unlink()
    assert verify(path).reasons == ("__0_0.distcp: No such file or directory",)


def test_a_chunk_that_no_writer_stored_is_corrupt(tmp_path: Path) -> None:
    chunks = chunks_of(3, 2)
    path = write_checkpoint(tmp_path / "step-1", metadata=metadata_of(chunks, stored=chunks[1:]))
    found = verify(path)
    assert found.state is CORRUPT
    assert "1 of 6 chunks described but stored nowhere" in found.reasons[0]


def test_a_tensor_with_a_hole_is_corrupt(tmp_path: Path) -> None:
    chunks = chunks_of(1, 2)
    data = metadata_of(chunks).replace(b"K\x08K\x03", b"K\x09K\x03")
    assert data != metadata_of(chunks)
    found = verify(write_checkpoint(tmp_path / "step-1", metadata=data))
    assert found.state is CORRUPT
    assert "hold 24 of 27 elements" in found.reasons[0]


def test_a_shard_newer_than_the_commit_point_was_saved_over(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    committed = (path / ".metadata").stat().st_mtime
    set_mtime(path / "__0_0.distcp", committed + 3)
    found = verify(path)
    assert found.state is CORRUPT
    assert "re-saved over an older checkpoint" in found.reasons[0]
    assert verify(path, skew=timedelta(seconds=10)).state is COMMITTED


@pytest.mark.parametrize("name", ["../step-2/__0_0.distcp", "/etc/passwd", "..", "a\0b", ""])
def test_a_file_outside_of_the_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "step-2")
    chunk = Chunk(tensor="w", offsets=(0, 0), sizes=(1, 3), file=name, start=0, length=1)
    found = verify(write_checkpoint(tmp_path / "step-1", metadata=metadata_of([chunk])))
    assert found.state is CORRUPT
    assert "outside of the checkpoint" in found.reasons[0]


def test_a_shard_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    (path / "__0_0.distcp").rename(tmp_path / "elsewhere")
    (path / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    found = verify(path)
    assert (found.state, found.reasons) == (CORRUPT, ("__0_0.distcp: is a symbolic link",))


def test_a_linked_directory_on_the_way_to_a_shard_is_refused(tmp_path: Path) -> None:
    outside = write_checkpoint(tmp_path / "outside")
    chunk = Chunk(tensor="w", offsets=(0, 0), sizes=(1, 3), file="sub/__0_0.distcp", start=0, length=1)
    path = write_checkpoint(tmp_path / "step-1", metadata=metadata_of([chunk]))
    (path / "sub").symlink_to(outside)
    assert verify(path).state is CORRUPT


@pytest.mark.parametrize("data", [b"", b"not a pickle", pickle.dumps({"a": 1}), pickle.dumps(5)[:-1]])
def test_a_commit_point_that_dcp_did_not_write_is_corrupt(tmp_path: Path, data: bytes) -> None:
    assert verify(write_checkpoint(tmp_path / "step-1", metadata=data)).state is CORRUPT


def test_a_checkpoint_of_nothing_is_corrupt(tmp_path: Path) -> None:
    assert verify(write_checkpoint(tmp_path / "step-1", metadata=metadata_of([]))).state is CORRUPT


def test_a_commit_point_that_is_a_link_or_a_pipe_is_corrupt(tmp_path: Path) -> None:
    linked, piped = write_checkpoint(tmp_path / "step-1"), write_checkpoint(tmp_path / "step-2")
    (linked / ".metadata").rename(tmp_path / "metadata")
    (linked / ".metadata").symlink_to(tmp_path / "metadata")
    (piped / ".metadata").unlink()
    os.mkfifo(piped / ".metadata")
    assert verify(linked).state is CORRUPT
    assert verify(piped).state is CORRUPT


def test_a_hostile_pickle_runs_nothing_and_is_not_handed_on(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    alone = write_checkpoint(tmp_path / "step-1", metadata=pickle.dumps(Payload(target)))
    hidden = write_checkpoint(
        tmp_path / "step-2", metadata=metadata_of(chunks_of(3, 2), planner_data=Payload(target))
    )
    assert verify(alone).state is CORRUPT
    found = verify(hidden)
    assert found.state is UNKNOWN
    assert "would call or change posix.system" in found.reasons[0]
    assert not target.exists()


@pytest.mark.parametrize(
    ("opcodes", "state"),
    [
        (b"\x8c\x05/evila", UNKNOWN),  # APPEND
        (b"(\x8c\x05/evile", UNKNOWN),  # APPENDS
        (b"(\x8c\x05/evil\x90", UNKNOWN),  # ADDITEMS
        (b"K\x00\x8c\x05/evils", CORRUPT),  # SETITEM
        (b"}b", CORRUPT),  # BUILD
    ],
)
def test_changing_a_foreign_global_counts_as_running(
    tmp_path: Path, opcodes: bytes, state: CheckpointState
) -> None:
    good = metadata_of(chunks_of(3, 2), planner_data="planner")
    hostile = good.replace(b"\x8c\x07planner", b"\x8c\x03sys\x8c\x04path\x93" + opcodes)
    assert hostile != good
    assert verify(write_checkpoint(tmp_path / "step-1", metadata=hostile)).state is state


def test_a_foreign_class_that_is_only_filled_is_noted(tmp_path: Path) -> None:
    data = metadata_of(chunks_of(3, 2), planner_data=Path)
    found = verify(write_checkpoint(tmp_path / "step-1", metadata=data))
    assert found.state is COMMITTED
    assert "names pathlib.Path, which DCP does not write" in found.reasons[0]


def test_a_pickle_that_eats_memory_is_stopped(tmp_path: Path) -> None:
    # LONG_BINPUT with a huge index makes the memo grow to gigabytes.
    found = verify(write_checkpoint(tmp_path / "step-1", metadata=b"\x80\x04Nr\xff\xff\xff\x7f."))
    assert found.state in {UNKNOWN, CORRUPT}


def test_a_pickle_that_never_ends_is_stopped(tmp_path: Path) -> None:
    # A dict key that is a pair of the pair of the pair ...: hashing it takes 2**64 steps.
    bomb = b"\x80\x04}(" + b")" + b"2\x86" * 64 + b"Nu."
    path = tmp_path / "bomb"
    path.write_bytes(bomb)
    fd = os.open(path, os.O_RDONLY)
    began = time.monotonic()
    try:
        with pytest.raises(UnreadablePickle) as caught:
            describe_metadata(fd, len(bomb), timeout=1.0)
    finally:
        os.close(fd)
    assert not caught.value.is_malformed
    assert time.monotonic() - began < 10


def test_metadata_per_rank_cannot_be_judged(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1")
    (path / ".metadata").rename(path / "__0.metadata")
    found = verify(path)
    assert found.state is UNKNOWN
    assert "use_collectives=False" in found.reasons[0]


def test_another_layout_is_unknown_and_not_partial(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "model.safetensors").write_bytes(b"x")
    found = verify(tmp_path / "checkpoint-5")
    assert (found.state, found.format) == (UNKNOWN, "unknown")


def test_hostile_names_are_printed_as_text(tmp_path: Path) -> None:
    chunk = Chunk(tensor="w", offsets=(0, 0), sizes=(1, 3), file="\x1b[2Jx\n", start=0, length=1)
    found = verify(write_checkpoint(tmp_path / "step-1", metadata=metadata_of([chunk])))
    assert found.reasons == ("?[2Jx?: No such file or directory",)


def test_two_thousand_files_are_verified_in_about_a_second(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "step-1", num_tensors=50, num_files=2000)
    began = time.monotonic()
    found = verify(path)
    assert (found.state, found.saved_world) == (COMMITTED, 2000)
    # A fraction of a second on an idle machine; the rest is for a busy one.
    assert time.monotonic() - began < 5


GOOD = metadata_of(chunks_of(2, 2))
mutations = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutations, cut=st.integers(1, len(GOOD)))
def test_no_damage_to_the_metadata_raises_or_makes_up_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, mutation: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(GOOD)
    for position, value in mutation:
        data[position] = value
    root = tmp_path_factory.mktemp("mutated")
    path = write_checkpoint(root / "step-1", num_tensors=2, metadata=bytes(data[:cut]))
    assert verify(path).state is not PARTIAL
    for shard in path.glob("*.distcp"):
        shard.unlink()
    assert verify(path).state is not COMMITTED


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, len(GOOD) - 1), shard=st.integers(0, 1), length=st.integers(0, 199))
def test_a_short_metadata_or_a_short_shard_is_never_committed(
    tmp_path_factory: pytest.TempPathFactory, cut: int, shard: int, length: int
) -> None:
    root = tmp_path_factory.mktemp("short")
    path = write_checkpoint(root / "step-1", num_tensors=2)
    os.truncate(path / f"__{shard}_0.distcp", length)
    assert verify(path).state is CORRUPT
    whole = write_checkpoint(root / "step-2", num_tensors=2, metadata=GOOD[:cut])
    assert verify(whole).state is CORRUPT
