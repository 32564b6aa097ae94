import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.checkpoint.retention import apply_prune, prune
from tests.unit.dcp_files import set_mtime, write_checkpoint

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


def age(path: Path, hours: float) -> Path:
    for item in (*path.iterdir(), path):
        set_mtime(item, (NOW - timedelta(hours=hours)).timestamp())
    return path


def unfinished(path: Path, hours: float) -> Path:
    write_checkpoint(path)
    (path / ".metadata").unlink()
    return age(path, hours)


def removed_steps(root: Path, keep: int = 2, **options: object) -> list[int]:
    plan = prune(root, keep=keep, now=NOW, **options)  # type: ignore[arg-type]
    return [item.checkpoint.step for item in plan.removals]


@pytest.mark.parametrize(("keep", "expected"), [(0, [2, 1]), (1, [2, 1]), (2, [2, 1]), (3, [1]), (9, [])])
def test_the_newest_stay_and_never_fewer_than_two(root: Path, keep: int, expected: list[int]) -> None:
    for step in (1, 2, 3, 4):
        write_checkpoint(root / f"step-{step}")
    assert removed_steps(root, keep) == expected


def test_only_whole_saves_count_as_kept(root: Path) -> None:
    for step in (1, 2, 3, 4):
        write_checkpoint(root / f"step-{step}")
    os.truncate(root / "step-4" / "__0_0.distcp", 1)
    assert removed_steps(root) == [1]


def test_what_is_protected_or_linked_to_stays(root: Path) -> None:
    for step in range(1, 7):
        write_checkpoint(root / f"step-{step}")
    (root / "best").symlink_to("step-2")
    assert removed_steps(root, protect=[root / "step-3"]) == [4, 1]


def test_an_unfinished_save_goes_when_older_than_a_whole_one_and_left_alone(root: Path) -> None:
    unfinished(root / "step-1", hours=2)
    unfinished(root / "step-2", hours=0.5)
    write_checkpoint(root / "step-3")
    unfinished(root / "step-4", hours=2)
    assert removed_steps(root) == [1]


def test_without_a_whole_save_nothing_goes(root: Path) -> None:
    unfinished(root / "step-1", hours=99)
    assert removed_steps(root) == []


def test_what_an_ended_attempt_still_wrote_does_not_count_as_whole(root: Path) -> None:
    for name in ("step-1-a1", "step-2-a1", "step-3-a1"):
        age(write_checkpoint(root / name), hours=5)
    age(write_checkpoint(root / "step-4-a1"), hours=2)
    ended = {1: NOW - timedelta(hours=3)}
    assert removed_steps(root, ended=ended) == [1]


def test_another_layout_is_never_removed(root: Path) -> None:
    for step in (3, 4):
        write_checkpoint(root / f"step-{step}")
    (root / "step-1").mkdir()
    (root / "step-1" / "model.safetensors").touch()
    age(root / "step-1", hours=99)
    assert removed_steps(root) == []


def test_a_plan_touches_nothing_and_applying_it_leaves_no_trace_in_the_root(root: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(root / f"step-{step}")
    plan = prune(root, keep=2, now=NOW)
    assert len(list(root.iterdir())) == 3
    assert apply_prune(plan) == (root / "step-1",)
    assert sorted(item.name for item in root.iterdir()) == ["step-2", "step-3"]
    assert list((root.parent / ".ckpt.trash").iterdir()) == []
    assert apply_prune(plan) == ()


def test_a_crash_while_removing_leaves_nothing_that_looks_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        write_checkpoint(root / f"step-{step}")

    def crash(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        apply_prune(prune(root, keep=2, now=NOW))
    assert not (root / "step-1" / ".metadata").exists()


def test_a_directory_that_was_replaced_since_the_plan_stays(root: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(root / f"step-{step}")
    plan = prune(root, keep=2, now=NOW)
    (root / "step-1").rename(root.parent / "moved")
    write_checkpoint(root / "step-1")
    assert apply_prune(plan) == ()
    assert (root / "step-1" / ".metadata").exists()


def test_a_trash_directory_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(root / f"step-{step}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".ckpt.trash").symlink_to(tmp_path / "elsewhere")
    apply_prune(prune(root, keep=2, now=NOW))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (root / "step-1").exists()


def test_a_missing_directory_needs_no_pruning(root: Path) -> None:
    assert prune(root, keep=2, now=NOW).removals == ()
