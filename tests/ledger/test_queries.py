"""The admin queries tell one small story right, in our hands and in those of sqlite3 and psql."""

import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor.clock import ManualClock
from supervisor.domain.action import Action, ActionKind
from supervisor.domain.decision import Decision, Diagnosis, Verdict
from supervisor.domain.failure import FailureClass
from supervisor.domain.ids import AllocationNo, JobId, NodeName, Token
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.errors import LedgerError, NothingMatched, UsageError
from supervisor.ledger import Ledger, NewAllocation
from supervisor.resources import resource_dir

NewRun = Callable[[Ledger], tuple[Run, Allocation, Action]]
START = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
FAR = datetime(2199, 1, 1, tzinfo=UTC)
QUERIES = sorted(path.stem for path in (resource_dir("sql") / "admin").glob("*.sql"))


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def story(ledger: Ledger, clock: ManualClock, new_run: NewRun) -> Ledger:
    """Run 1 lost gpu007 once and goes on; run 2 has not started."""
    run, _, submit = new_run(ledger)
    new_run(ledger)
    ledger.start_action(submit.id, "login1:7")
    ledger.advance_allocation(
        run.id,
        1,
        expected=AllocationState.PLANNED,
        to=AllocationState.PENDING,
        job_id=JobId(41),
        submitted_at=_at(1),
    )
    ledger.advance_allocation(
        run.id,
        1,
        expected=AllocationState.PENDING,
        to=AllocationState.RUNNING,
        started_at=_at(61.5),
        nodes=(NodeName("gpu006"), NodeName("gpu007")),
    )
    ledger.record_facts(run.id, 1, first_step_at=_at(81.5), last_step=400)
    ledger.advance_allocation(
        run.id,
        1,
        expected=AllocationState.RUNNING,
        to=AllocationState.ENDED,
        ended_at=_at(3600),
        noticed_at=_at(3607.25),
        failure_class=FailureClass.NODE_FAIL,
        slurm_state="NODE_FAIL",
    )
    decision = Decision(
        run_id=run.id, allocation_no=AllocationNo(1), verdict=Verdict.RESUBMIT, rule="node-lost", text="again"
    )
    diagnosis = Diagnosis(
        failure_class=FailureClass.NODE_FAIL, nodes=(NodeName("gpu007"),), summary="lost", confidence=1.0
    )
    ledger.record_decision(decision, diagnosis, _at(3607))
    planned = ledger.plan_allocation(
        run.id,
        expected=RunState.QUEUED,
        allocation=NewAllocation(token=Token("second"), num_nodes=3, excluded=(NodeName("gpu007"),)),
        action_payload="",
        decision=decision,
        diagnosis=diagnosis,
    )
    assert planned is not None
    ledger.record_facts(run.id, 2, submitted_at=_at(3610), started_at=_at(3612))
    ledger.plan_action(ActionKind.DRAIN, "drain:gpu007:1", run.id, node="gpu007")
    ledger.avoid("gpu007", None, FAR, "NODE_FAIL")
    ledger.avoid("gpu008", run.id, START - timedelta(days=400), "over long ago")
    return ledger


def test_failures_by_class(story: Ledger) -> None:
    columns, rows = story.run_named_query("failures_by_class")
    assert columns == ("failure_class", "failures", "runs", "mean_detection_s", "last_ended_at")
    assert rows == [("node_fail", 1, 1, pytest.approx(7.3, abs=0.11), "2026-12-01T09:00:00.000000Z")]


def test_failures_by_node_count_a_failure_once_however_often_it_was_judged(story: Ledger) -> None:
    _, rows = story.run_named_query("failures_by_node")
    assert rows == [("gpu007", "node_fail", 1, 1, "2026-12-01T09:00:07.000000Z")]


def test_attempts_of_a_run(story: Ledger) -> None:
    columns, rows = story.run_named_query("attempts_of_run", {"run": "1"})
    shown = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(row["no"], row["job_id"], row["state"], row["failure_class"]) for row in shown] == [
        (1, 41, "ended", "node_fail"),
        (2, None, "planned", None),
    ]
    assert shown[0]["nodes"] == "gpu[006-007]"
    assert shown[1]["excluded"] == "gpu007"
    assert story.run_named_query("attempts_of_run", {"run": 99})[1] == []


def test_lost_time_per_allocation_and_per_run(story: Ledger) -> None:
    _, rows = story.run_named_query("lost_time")
    assert rows == [
        (1, "llama", 1, 60.5, 20.0, 7.25, 87.75),
        (1, "llama", 2, 2.0, None, None, 2.0),
        (1, "llama", None, 62.5, 20.0, 7.25, 89.75),
        (2, "llama", 1, None, None, None, 0),
        (2, "llama", None, None, None, None, 0),
    ]


def test_open_actions(story: Ledger) -> None:
    columns, rows = story.run_named_query("open_actions")
    shown = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(row["kind"], row["state"], row["run_id"], row["node"], row["actor"]) for row in shown] == [
        ("submit", "acting", 1, None, "login1:7"),
        ("submit", "planned", 2, None, ""),
        ("submit", "planned", 1, None, ""),
        ("drain", "planned", 1, "gpu007", ""),
    ]


def test_avoided_nodes_leave_out_what_is_over(story: Ledger) -> None:
    _, rows = story.run_named_query("avoided_nodes")
    assert [row[:4] for row in rows] == [("gpu007", None, "2199-01-01T00:00:00.000000Z", "NODE_FAIL")]


def test_every_query_has_a_title_and_runs_by_hand(story: Ledger, ledger_url: str) -> None:
    titles = dict(story.queries())
    assert sorted(titles) == QUERIES
    assert all(titles.values())
    for name in QUERIES:
        path = resource_dir("sql") / "admin" / f"{name}.sql"
        if ledger_url.startswith("sqlite"):
            database = ledger_url.removeprefix("sqlite:///")
            command = ["sqlite3", "-readonly", "-cmd", ".parameter set :run 1", database, f".read {path}"]
        else:
            command = [
                "psql",
                "-X",
                "-qAt",
                "-v",
                "ON_ERROR_STOP=1",
                "-v",
                "run=1",
                "-f",
                str(path),
                ledger_url,
            ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, env=dict(os.environ)
        )
        assert (done.returncode, done.stderr) == (0, "")
        takes_run = ":run" in path.read_text(encoding="utf-8")
        _, rows = story.run_named_query(name, {"run": 1} if takes_run else {})
        assert len(done.stdout.splitlines()) == len(rows) > 0


def test_a_query_that_is_asked_for_wrongly_says_what_it_takes(story: Ledger) -> None:
    with pytest.raises(NothingMatched, match="did you mean lost_time"):
        story.run_named_query("losttime")
    with pytest.raises(NothingMatched, match="no query is called"):
        story.run_named_query("../../etc/passwd")
    with pytest.raises(UsageError, match="takes run, given: none"):
        story.run_named_query("attempts_of_run")
    with pytest.raises(UsageError, match="takes no parameter, given: run"):
        story.run_named_query("lost_time", {"run": 1})


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE run SET name = 'x'",
        "DELETE FROM run",
        "CREATE TABLE x (y INTEGER)",
        "SELECT 1; COMMIT; DELETE FROM avoid",
    ],
)
def test_an_admin_query_cannot_write(
    ledger: Ledger, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "evil.sql").write_text(f"-- Evil\n{text};\n")
    monkeypatch.setattr("supervisor.ledger.queries.resource_dir", lambda _name: tmp_path)
    ledger.avoid("gpu001", None, FAR, "stays")
    with pytest.raises(LedgerError, match=r"read-only|readonly|one statement|cannot execute"):
        ledger.run_named_query("evil")
    assert len(ledger.avoided(START)) == 1
    ledger.append_event("sweep", "writing still works")
