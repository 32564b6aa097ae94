"""Several threads and processes at once, and processes that die at the worst moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import supervisor
from supervisor.clock import ManualClock
from supervisor.domain.action import Action, ActionKind
from supervisor.domain.run import Allocation, AllocationState, Run, RunState
from supervisor.ledger import Ledger

NewRun = Callable[[Ledger], tuple[Run, Allocation, Action]]

_PLANNER = """
import sys
from supervisor.clock import SystemClock
from supervisor.domain.run import RunState
from supervisor.ledger import Ledger, NewAllocation

url, name = sys.argv[1:]
with Ledger.open(url, SystemClock()) as ledger:
    print("ready", flush=True)
    for line in sys.stdin:
        planned = ledger.plan_allocation(
            int(line),
            expected=RunState.QUEUED,
            allocation=NewAllocation(token=f"{name}-{line.strip()}", num_nodes=2),
            action_payload="",
            decision=None,
            diagnosis=None,
        )
        print("lost" if planned is None else "won", flush=True)
"""

_VICTIM = """
import sys, time
from supervisor.clock import SystemClock
from supervisor.ledger import Ledger
from supervisor.ledger.events import add_event

clock = SystemClock()
with Ledger.open(sys.argv[1], clock) as ledger, ledger._write() as connection:
    if connection.dialect.name == "sqlite":
        # A small cache makes SQLite write pages into the file before the commit.
        connection.exec_driver_sql("PRAGMA cache_size = 5")
    for number in range(2000):
        add_event(connection, at=clock.now(), kind="half", text="x" * 500)
    print("ready", flush=True)
    time.sleep(60)
"""


def _start(script: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(supervisor.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _write(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate(timeout=20)


def test_of_three_threads_exactly_one_moves_each_run(ledger: Ledger, new_run: NewRun) -> None:
    runs = [new_run(ledger)[0].id for _ in range(100)]

    def move(actor: int) -> list[bool]:
        return [
            ledger.advance_run(run_id, expected=RunState.QUEUED, to=RunState.RUNNING, reason=f"by {actor}")
            for run_id in runs
        ]

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(move, range(3)))
    assert [sum(won) for won in zip(*outcomes, strict=True)] == [1] * 100
    assert [event.kind for event in ledger.events()].count("run_state") == 100


def test_of_three_threads_exactly_one_claims_each_action(ledger: Ledger) -> None:
    def claim(actor: int) -> list[bool]:
        return [
            ledger.start_action(ledger.plan_action(ActionKind.DRAIN, f"drain:{number}").id, f"host:{actor}")
            for number in range(100)
        ]

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(claim, range(3)))
    assert [sum(won) for won in zip(*outcomes, strict=True)] == [1] * 100
    assert len(ledger.open_actions()) == 100


def test_of_three_threads_exactly_one_takes_over_an_expired_lease(ledger: Ledger, clock: ManualClock) -> None:
    for number in range(20):
        assert ledger.acquire_lease(f"lease{number}", "gone", timedelta(minutes=1))
    clock.sleep(timedelta(minutes=1))

    def take(actor: int) -> list[bool]:
        return [
            ledger.acquire_lease(f"lease{number}", str(actor), timedelta(hours=1)) for number in range(20)
        ]

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(take, range(3)))
    assert [sum(won) for won in zip(*outcomes, strict=True)] == [1] * 20


def test_of_three_processes_exactly_one_plans_the_next_allocation(
    ledger: Ledger, ledger_url: str, new_run: NewRun
) -> None:
    processes = [_start(_PLANNER, [ledger_url, f"p{number}"]) for number in range(3)]
    try:
        assert [_read(process) for process in processes] == ["ready"] * 3
        for _ in range(20):
            run = new_run(ledger)[0]
            ledger.advance_allocation(run.id, 1, expected=AllocationState.PLANNED, to=AllocationState.REFUSED)
            for process in processes:
                _write(process, f"{run.id}\n")
            assert sorted(_read(process) for process in processes) == ["lost", "lost", "won"]
            assert [row.no for row in ledger.live_allocations() if row.run_id == run.id] == [2]
            assert len(ledger.actions(run.id)) == 2
    finally:
        _end(processes)


def test_four_that_open_a_fresh_ledger_at_once_all_find_it_whole(ledger_url: str, clock: ManualClock) -> None:
    together = Barrier(4)

    def open_it(actor: int) -> int:
        together.wait(timeout=20)
        with Ledger.open(ledger_url, clock) as ledger:
            return ledger.append_event("opened", str(actor))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(open_it, range(4))) == [1, 2, 3, 4]


def test_a_process_killed_inside_a_transaction_leaves_a_whole_ledger(
    ledger: Ledger, ledger_url: str, new_run: NewRun
) -> None:
    run, allocation, _ = new_run(ledger)
    victim = _start(_VICTIM, [ledger_url])
    try:
        assert _read(victim) == "ready"
        if ledger_url.startswith("sqlite"):
            path = Path(ledger_url.removeprefix("sqlite:///"))
            assert path.stat().st_size > 500_000
            assert path.with_name("ledger.db-journal").exists()
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.wait(timeout=20) == -signal.SIGKILL
    finally:
        _end([victim])
    assert ledger.runs() == (run,)
    assert ledger.allocations(run.id) == (allocation,)
    assert [event.kind for event in ledger.events()] == [
        "run_created",
        "allocation_planned",
        "action_planned",
    ]
    assert ledger.advance_run(run.id, expected=RunState.QUEUED, to=RunState.RUNNING, reason="goes on")
    assert {finding.severity for finding in ledger.check()} == {"ok"}
