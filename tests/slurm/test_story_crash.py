"""Promises P1 and P2 on a real Slurm: SIGKILL at each step of a resubmission."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.domain.action import OPEN_ACTIONS, ActionKind
from supervisor.domain.run import AllocationState, Run, RunState
from supervisor.lab import Lab, LabSpec
from supervisor.slurm.commands import CommandSlurm
from supervisor.sweep.circle import Sweep
from tests.slurm.story import Story, wait
from tests.unit.world import LEDGER_EFFECTS, SLURM_EFFECTS, Fused

VICTIM = "node002"
SLURMS_REASON = "Not responding"


class Killer:
    """Counts side effects and ends the process with SIGKILL before or after the one with number ``at``."""

    def __init__(self, at: int, *, after: bool, notes: Path) -> None:
        self.at = at
        self.after = after
        self.notes = notes
        self.count = 0

    def guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            self.count += 1
            mine = self.count == self.at
            if mine:
                self.notes.write_text(f"{'after' if self.after else 'before'} {name} (effect {self.at})")
            if mine and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return guarded


def sweep_and_die(story: Story, killer: Killer) -> bool:
    """Sweep in a process of its own that ``killer`` ends; say whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            app = story.app
            ledger: Any = Fused(app.ledger, LEDGER_EFFECTS, killer)  # type: ignore[arg-type]
            slurm: Any = Fused(CommandSlurm(story.environment, app.clock), SLURM_EFFECTS, killer)  # type: ignore[arg-type]
            sweep = Sweep(
                ledger, slurm, app.clock, policy=app.settings.policy(), signatures=(), owner=app.owner
            )
            sweep.run()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def restore_victim(story: Story) -> None:
    """Make the dead node look as Slurm left it, whoever drained it meanwhile."""
    story.slurm("scontrol", "update", f"nodename={VICTIM}", "state=undrain", f"reason={SLURMS_REASON}")


def submit_all(lab: Lab, folder: Path, points: list[tuple[int, bool]]) -> list[tuple[Story, Run, Killer]]:
    """Start one run for each way to die, each with a ledger of its own, all on the node that will be lost."""
    cases: list[tuple[Story, Run, Killer]] = []
    for at, after in points:
        root = folder / f"{at}-{'after' if after else 'before'}"
        root.mkdir()
        story = Story(lab, root, SUPERVISE_SUBMIT_GRACE="1s")
        story.shim(
            "sbatch",
            f'case " $* " in *" --test-only "*) exec $real "$@" ;; esac\nexec $real -w {VICTIM} "$@"',
        )
        run = story.submit(nodes="1", slurm="", pause=1)
        (story.bin / "sbatch").unlink()
        cases.append((story, run, Killer(at, after=after, notes=root / "where")))
    return cases


def check_converged(story: Story, run: Run, where: str) -> None:
    """Check that one job lives, the node is drained once, and nothing is open or lost."""
    first, second = story.history(run)
    assert first.failure_class == "node_fail", where
    assert first.state is AllocationState.ENDED, where
    assert story.state(run) in {RunState.QUEUED, RunState.RUNNING}, where
    assert story.jobs_of(second) == [second.job_id], where
    assert story.jobs_of(first) == [first.job_id], where
    assert [str(node) for node in second.excluded] == [VICTIM], where
    actions = story.ledger.actions(run.id)
    assert not [action for action in actions if action.state in OPEN_ACTIONS], where
    assert [a.node for a in actions if a.kind is ActionKind.DRAIN] == [VICTIM], where
    assert [str(row.node) for row in story.ledger.our_drains("lab")] == [VICTIM], where
    assert f"Reason=supervise: node_fail run {run.id}.1" in story.node(VICTIM), where


def test_a_sweep_killed_at_any_side_effect_of_a_resubmission_doubles_and_loses_nothing(
    tmp_path: Path,
) -> None:
    points = [(1, False), *((at, True) for at in range(1, 26))]
    killed: list[str] = []
    with Lab.up(tmp_path / "lab", LabSpec(nodes=2, cpus_per_node=len(points), slurmd_timeout_s=4)) as lab:
        cases = submit_all(lab, tmp_path, points)
        for case, run, _ in cases:
            case.sweep_until_state(run, RunState.RUNNING)
        story = cases[0][0]
        story.lose(VICTIM)
        wait(lambda: len(story.jobs("NODE_FAIL")) == len(cases), "all are lost")
        for case, run, killer in cases:
            restore_victim(story)
            if sweep_and_die(case, killer):
                killed.append(killer.notes.read_text())
            where = killer.notes.read_text() if killer.notes.exists() else "not killed"
            converge(case, run, where)
            check_converged(case, run, where)
            case.slurm("scancel", str(case.last(run).job_id))
            case.ledger.close()
    effects = {text.split()[1] for text in killed}
    assert {"drain", "submit", "plan_action", "start_action", "settle_action", "plan_allocation"} <= effects
    assert len(killed) < len(points), "more side effects than ways to die"


def converge(story: Story, run: Run, where: str) -> None:
    """Sweep until the next allocation has a job, and once more."""

    def is_submitted() -> bool:
        return len(story.history(run)) == 2 and story.last(run).job_id is not None

    story.sweep_until(is_submitted, where, 20)
    story.sweep()
