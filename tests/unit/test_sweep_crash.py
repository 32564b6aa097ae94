"""Promises P1 and P2: a kill before or after any side effect doubles nothing and loses nothing."""

from collections import Counter
from pathlib import Path

import pytest

from supervisor.domain.action import ActionKind
from supervisor.domain.run import RunState
from tests.unit.world import Crash, Fuse, World


def crash_points(root: Path, after: bool) -> int:
    """Count the side effects of one whole story that nothing disturbs."""
    fuse = Fuse(0, after=after)
    story(World(root), fuse)
    return fuse.count


def story(world: World, fuse: Fuse) -> None:
    """Submit, lose a node, recover; the fuse may end the process anywhere, and then a new one goes on."""

    def survive(step: object) -> None:
        try:
            step()  # type: ignore[operator]
        except Crash:
            # Another process takes over: on this host the lease of the dead one is over at the latest then.
            world.pass_time(130)

    survive(lambda: world.submit(fuse=fuse))
    for _ in range(4):
        survive(lambda: world.sweep(fuse=fuse))
        world.pass_time(31)
    if not world.ledger.runs(None, None):
        # Killed before the run was stored: the user saw an error and submits again.
        world.submit(fuse=fuse)
        world.sweep(fuse=fuse)
    world.slurm.fail_node("node003")
    world.pass_time(15)
    for _ in range(6):
        survive(lambda: world.sweep(fuse=fuse))
        world.pass_time(31)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_side_effect_neither_doubles_nor_loses_anything(tmp_path: Path, after: bool) -> None:
    (tmp_path / "whole").mkdir()
    total = crash_points(tmp_path / "whole", after)
    assert total > 25
    for at in range(1, total + 1):
        root = tmp_path / str(at)
        root.mkdir()
        world, fuse = World(root), Fuse(at, after=after)
        story(world, fuse)
        where = fuse.where or f"effect {at} was not reached"
        (run,) = world.ledger.runs(None, None)
        assert len(world.live_jobs()) == 1, where
        assert Counter(world.tokens()).most_common(1)[0][1] == 1, where
        assert run.state in {RunState.QUEUED, RunState.RUNNING}, (where, run)
        drains = [action for action in world.ledger.actions(run.id) if action.kind is ActionKind.DRAIN]
        assert len(drains) == 1, where
        assert world.slurm.calls["drain"] == 1 or "drain" in where, where
        history = world.ledger.allocations(run.id)
        assert len(history) == 2, (where, history)
        assert "node003" in history[-1].excluded, where
        world.finish(run)
        world.pass_time(31)
        world.sweep()
        assert world.ledger.run(run.id).state is RunState.DONE, where
        world.ledger.close()
