"""Observing: absent is not ended, a reused id is not our job, what jobs wrote is never trusted."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.clock import ManualClock
from supervisor.domain.evidence import Phase
from supervisor.domain.facts import JobRow, JobState, Known, Reading, Unknown
from supervisor.domain.folder import RunFolder, run_folder
from supervisor.domain.ids import AllocationNo, JobId, find_token, format_token
from supervisor.observe.folder import (
    mask_secrets,
    read_claim,
    read_exit_marker,
    read_log_tail,
    read_progress,
)
from supervisor.observe.scheduler import ClusterView, is_same_job, locate
from supervisor.slurm.simulated import SimulatedSlurm
from tests.unit.facts import NOW, SECOND, TOKEN, allocation, job, marker, names

NO = AllocationNo(1)


class Answers(SimulatedSlurm):
    """A cluster that gives prepared answers about single jobs and accounting."""

    def __init__(self, single: Reading[JobRow | None], accounting: Reading[tuple[JobRow, ...]]) -> None:
        super().__init__(ManualClock(NOW), nodes=names(1))
        self._single = single
        self._accounting = accounting

    def job(self, job_id: JobId) -> Reading[JobRow | None]:
        return self._single

    def accounting(self, job_ids: object, since: datetime) -> Reading[tuple[JobRow, ...]]:
        return self._accounting


GONE: Reading[JobRow | None] = Known(None, NOW)
SILENT = Unknown("timed out", NOW)


def view(*rows: JobRow) -> ClusterView:
    return ClusterView(jobs=Known(rows, NOW), nodes=Known((), NOW))


def test_the_live_list_is_believed_first() -> None:
    found = locate(allocation(), view=view(job(JobState.RUNNING)), slurm=Answers(GONE, SILENT), marker=None)
    assert (found.phase, found.why) == (Phase.RUNNING, "squeue")


def test_a_job_that_the_list_lacks_is_looked_up_in_accounting_and_then_in_the_folder() -> None:
    ended = Known((job(JobState.FAILED),), NOW)
    by_accounting = locate(allocation(), view=view(), slurm=Answers(GONE, ended), marker=None)
    by_marker = locate(allocation(), view=view(), slurm=Answers(GONE, SILENT), marker=marker(0))
    assert (by_accounting.phase, by_accounting.why) == (Phase.ENDED, "sacct")
    assert (by_marker.phase, by_marker.why) == (Phase.ENDED, "exit marker")


def test_p3_a_job_that_no_source_knows_is_missing_and_not_ended() -> None:
    found = locate(allocation(), view=view(), slurm=Answers(GONE, Known((), NOW)), marker=None)
    assert found.phase is Phase.MISSING


def test_p3_a_failed_look_up_is_blind_and_not_missing() -> None:
    found = locate(allocation(), view=view(), slurm=Answers(SILENT, SILENT), marker=None)
    assert found.phase is Phase.BLIND


def test_accounting_that_still_calls_a_vanished_job_running_is_not_believed() -> None:
    runaway = Known((job(JobState.RUNNING),), NOW)
    found = locate(allocation(), view=view(), slurm=Answers(GONE, runaway), marker=None)
    assert found.phase is Phase.MISSING


def test_a_later_job_with_a_reused_id_is_not_ours() -> None:
    other = job(JobState.FAILED, comment="supervise:zzzzzzzzzzzzzzzz")
    found = locate(allocation(), view=view(other), slurm=Answers(Known(other, NOW), SILENT), marker=None)
    assert found.phase is Phase.MISSING


def test_a_job_whose_comment_a_site_rewrote_is_known_by_id_and_submit_time() -> None:
    mine = allocation(submitted_at=NOW - 600 * SECOND)
    same = job(JobState.RUNNING, comment="site text")
    reused = job(JobState.RUNNING, comment="site text", submit_at=NOW - 10 * SECOND)
    assert is_same_job(mine, same)
    assert not is_same_job(mine, reused)


def test_a_completing_job_without_a_marker_may_still_be_training() -> None:
    rows = view(job(JobState.COMPLETING))
    without = locate(allocation(), view=rows, slurm=Answers(GONE, SILENT), marker=None)
    with_marker = locate(allocation(), view=rows, slurm=Answers(GONE, SILENT), marker=marker(1))
    assert (without.phase, with_marker.phase) == (Phase.RUNNING, Phase.COMPLETING)


def test_a_state_word_of_a_newer_slurm_is_watched_and_never_taken_for_an_end() -> None:
    rows = view(job(JobState.UNKNOWN))
    found = locate(allocation(), view=rows, slurm=Answers(GONE, SILENT), marker=None)
    assert found.phase is Phase.RUNNING


@given(before=st.text(max_size=40), after=st.text(max_size=40))
def test_a_token_is_found_in_a_comment_whatever_surrounds_it(before: str, after: str) -> None:
    assert find_token(f"{before} {format_token(TOKEN)} {after}") == TOKEN


def test_a_name_becomes_a_folder_name_that_no_file_system_minds() -> None:
    folder = run_folder(Path("/work"), "../$(touch x)/\n'", "abcdefgh")
    assert folder.parent == Path("/work/.supervise")
    assert folder.name == "touch_x-abcdefgh"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    for path in (folder.exit_marker(NO), folder.log(NO), folder.progress(NO), folder.claim(NO) / "job"):
        path.parent.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", '{"rc": "x"}', '{"rc": 1}', '{"rc":1,"reason":"r","at":1e99,"job_id":1}', "\0"],
)
def test_a_marker_that_makes_no_sense_is_no_marker(folder: RunFolder, content: str) -> None:
    folder.exit_marker(NO).write_text(content)
    assert read_exit_marker(folder, NO) is None


def test_a_marker_that_is_a_link_or_a_pipe_is_no_marker(folder: RunFolder, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.write_text(json.dumps({"rc": 0, "reason": "x", "at": 1.0, "job_id": 7}))
    folder.exit_marker(NO).symlink_to(real)
    assert read_exit_marker(folder, NO) is None
    folder.exit_marker(NO).unlink()
    os.mkfifo(folder.exit_marker(NO))
    assert read_exit_marker(folder, NO) is None


def test_marker_and_claim_are_read_back(folder: RunFolder) -> None:
    folder.exit_marker(NO).write_text(json.dumps({"rc": 3, "reason": "step_ended", "at": 5.5, "job_id": 7}))
    (folder.claim(NO) / "job").write_text(json.dumps({"job_id": 7, "token": TOKEN}))
    found = read_exit_marker(folder, NO)
    assert found is not None
    assert (found.rc, found.job_id) == (3, 7)
    assert read_claim(folder, NO) == (7, TOKEN)


def test_progress_passes_over_a_torn_last_line(folder: RunFolder) -> None:
    lines = [json.dumps({"step": step, "loss": 1.0, "time": 100.0 + step}) for step in (5, 6, 7)]
    folder.progress(NO).write_text("\n".join(lines) + '\n{"step": 8, "ti')
    found = read_progress(folder, NO)
    assert found is not None
    assert (found.first_step, found.last_step) == (5, 7)
    assert found.last_at - found.first_at == timedelta(seconds=2)


def test_log_lines_keep_their_true_numbers_in_a_long_log(folder: RunFolder) -> None:
    folder.log(NO).write_text("".join(f"line {n}\n" for n in range(1, 100_001)))
    last = read_log_tail(folder, NO)[-1]
    assert (last.number, last.text) == (100_000, "line 100000")


def test_a_log_that_is_not_text_is_read_all_the_same(folder: RunFolder) -> None:
    folder.log(NO).write_bytes(b"\xff\xfe\0binary\n" + b"x" * 5_000_000 + b"\nend\n")
    lines = read_log_tail(folder, NO)
    assert lines[-1].text == "end"
    assert all(len(line.text) <= 2000 for line in lines)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("WANDB_API_KEY=0123456789abcdef", "0123456789abcdef"),
        ("export HF_TOKEN='hf_abcdefghijklmnop'", "hf_abcdefghijklmnop"),
        ("Authorization: Bearer eyJhbGciOi.J9", "eyJhbGciOi"),
        ("postgresql://sup:geheim@db/ledger", "geheim"),
        ('{"password": "hunter22"}', "hunter22"),
    ],
)
def test_secrets_are_masked_before_a_line_goes_anywhere(text: str, secret: str) -> None:
    assert secret not in mask_secrets(text)
    assert "***" in mask_secrets(text)


def test_ordinary_lines_are_not_masked() -> None:
    line = "step=120 loss=2.31 tokens per second: 12000"
    assert mask_secrets(line) == line
