import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.checkpoint import choice
from supervisor.checkpoint.choice import choose, find, verify
from supervisor.domain.checkpoint import Checkpoint, CheckpointState
from tests.unit.dcp_files import set_mtime, write_checkpoint

END = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def commit_at(path: Path, moment: datetime) -> None:
    for item in path.iterdir():
        set_mtime(item, moment.timestamp())


def test_the_newest_is_chosen_by_number_and_not_by_string_or_time(tmp_path: Path) -> None:
    for name in ("step-9", "step-100", "step-20"):
        write_checkpoint(tmp_path / name)
    commit_at(tmp_path / "step-100", END - timedelta(days=9))
    assert [item.step for item in find(tmp_path)] == [100, 20, 9]
    chosen = choose(tmp_path).chosen
    assert chosen is not None
    assert chosen.step == 100


def test_of_two_saves_of_one_step_the_later_attempt_wins(tmp_path: Path) -> None:
    for name in ("step-5", "step-5-a2", "step-5-a10"):
        write_checkpoint(tmp_path / name)
    assert [item.attempt for item in find(tmp_path)] == [10, 2, None]


def test_what_is_not_whole_is_skipped_with_its_reason(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1")
    write_checkpoint(tmp_path / "step-2")
    os.truncate(tmp_path / "step-2" / "__0_0.distcp", 10)
    write_checkpoint(tmp_path / "step-3")
    (tmp_path / "step-3" / ".metadata").unlink()
    result = choose(tmp_path)
    assert result.chosen is not None
    assert result.chosen.step == 1
    assert [(item.step, reason.partition(":")[0]) for item, reason in result.skipped] == [
        (3, "partial"),
        (2, "corrupt"),
    ]
    assert not result.is_blind


def test_verification_stops_at_the_first_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(5):
        write_checkpoint(tmp_path / f"step-{step}")
    seen: list[str] = []

    def note(path: Path, *, skew: timedelta) -> Checkpoint:
        seen.append(path.name)
        return verify(path, skew=skew)

    monkeypatch.setattr(choice, "verify", note)
    choose(tmp_path)
    assert seen == ["step-4"]


def test_a_bad_newest_one_costs_one_step_back(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write_checkpoint(tmp_path / f"step-{step}")
    result = choose(tmp_path, before_step=30)
    assert result.chosen is not None
    assert result.chosen.step == 20
    assert [reason for _, reason in result.skipped] == ["not before step 30"]
    assert not result.is_blind


def test_what_an_ended_attempt_still_writes_is_not_accepted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-10-a1")
    write_checkpoint(tmp_path / "step-20-a1")
    commit_at(tmp_path / "step-10-a1", END - timedelta(minutes=1))
    commit_at(tmp_path / "step-20-a1", END + timedelta(minutes=1))
    result = choose(tmp_path, ended={1: END})
    assert result.chosen is not None
    assert result.chosen.step == 10
    assert result.skipped[0][1] == "written by attempt 1 60 s after its allocation ended"
    later = choose(tmp_path, ended={1: END}, margin=timedelta(minutes=2)).chosen
    assert later is not None
    assert later.step == 20


@pytest.mark.parametrize("ended", [{}, {2: END}])
def test_an_attempt_that_has_not_ended_may_write(tmp_path: Path, ended: dict[int, datetime]) -> None:
    write_checkpoint(tmp_path / "step-20-a1")
    assert choose(tmp_path, ended=ended).chosen is not None


def test_a_save_without_an_attempt_in_its_name_is_not_ruled_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-20")
    assert choose(tmp_path, ended={0: END, 1: END}).chosen is not None


def test_a_missing_or_empty_directory_holds_nothing_and_is_no_error(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        result = choose(directory)
        assert (result.chosen, result.skipped, result.is_blind) == (None, (), False)


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = choose(tmp_path / "file")
    assert result.chosen is None
    assert result.is_blind
    assert "Not a directory" in result.unreadable


def test_a_save_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "step-1")

    def fail(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(choice, "format_of", fail)
    result = choose(tmp_path)
    assert result.is_blind
    assert "Input/output error" in result.skipped[0][1]


def test_links_files_and_other_names_are_never_candidates(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "real")
    for name in (".trash-step-9", "step-9.tmp", "notes"):
        write_checkpoint(tmp_path / name)
    (tmp_path / "step-7").symlink_to(tmp_path / "real")
    (tmp_path / "step-8").touch()
    assert find(tmp_path) == ()


def test_the_cheap_scan_verifies_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-2")
    (tmp_path / "step-3").mkdir()
    assert [(item.state, item.reasons) for item in find(tmp_path)] == [
        (CheckpointState.PARTIAL, ("no .metadata: the save was not finished (0 shard files)",)),
        (CheckpointState.UNKNOWN, ("not verified yet",)),
    ]


def test_a_name_that_tells_no_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a name such as step-120"):
        verify(tmp_path / "latest")


def test_the_room_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; import supervisor.checkpoint.choice, supervisor.checkpoint.retention;"
        "print({'torch', 'click', 'pydantic', 'sqlalchemy'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert output.stdout == "set()\n"
