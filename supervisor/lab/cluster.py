"""The lab as one object: what tests, the demo, the benchmarks and the command line work with."""

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from supervisor.clock import Clock, SystemClock
from supervisor.errors import LabError
from supervisor.lab import faults
from supervisor.lab.bringup import at_work, bring_up, clear_away, layout_of, ownership_of
from supervisor.lab.host import Host, inspect_host
from supervisor.lab.record import Record, read_record
from supervisor.lab.spec import LabSpec
from supervisor.lab.status import LabStatus, read_status


def default_directory() -> Path:
    """Return the folder of the lab where none is given: $XDG_STATE_HOME/supervisor/lab."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "supervisor" / "lab"


class Lab:
    """A living lab. As a context manager it is taken down at the end, whatever happens inside."""

    def __init__(self, root: Path, record: Record, clock: Clock) -> None:
        self.root = root
        self._record = record
        self._layout = layout_of(root, record)
        self._own = ownership_of(self._layout)
        self._clock = clock

    @classmethod
    def up(cls, directory: Path, spec: LabSpec, clock: Clock | None = None) -> Self:
        """Bring up a lab in ``directory`` and return it once all nodes are idle.

        Raises:
            LabError: programs are missing, a lab lives there already, or a daemon did not come up (its
                last log lines are quoted; everything that was started is stopped again).
        """
        clock = clock or SystemClock()
        root = directory.expanduser().resolve()
        return cls(root, bring_up(root, spec, clock), clock)

    @classmethod
    def open(cls, directory: Path, clock: Clock | None = None) -> Self:
        """Return the lab that was brought up in ``directory``, dead or alive.

        Raises:
            LabError: there is none.
        """
        root = directory.expanduser().resolve()
        record = read_record(root)
        if record is None:
            raise LabError(
                f"lab: there is no lab in {root}; bring one up with: supervise lab up --dir {root}"
            )
        return cls(root, record, clock or SystemClock())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def spec(self) -> LabSpec:
        """What the lab was asked to be."""
        return self._record.spec

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return self._record.spec.node_names()

    @property
    def slurm_version(self) -> tuple[int, int]:
        """Slurm's version, such as (22, 5)."""
        return self._record.slurm_version

    def env(self) -> dict[str, str]:
        """Return the variables that point Slurm's commands at this lab."""
        return {"SLURM_CONF": str(self._layout.conf)}

    def status(self) -> LabStatus:
        """Read which daemons live and what the controller says of the nodes."""
        return read_status(self._layout, self._record)

    def node(self, name: str) -> str:
        """Return the node that a person means by "node003" or "3".

        Raises:
            LabError: the lab has no such node.
        """
        wanted = f"node{int(name):03d}" if re.fullmatch(r"[0-9]{1,4}", name) else name
        if wanted not in self.nodes:
            raise LabError(f"lab: no node {name!r}; this lab has {self.nodes[0]} to {self.nodes[-1]}")
        return wanted

    def processes(self, node: str | None = None) -> tuple[int, ...]:
        """Return the pids of the lab's living processes, or of one node's."""
        return tuple(process.key.pid for process in self._own.processes(node))

    def kill_node(self, name: str) -> int:
        """Cut the power of a node: slurmd, slurmstepd and tasks at once. Return how many processes died."""
        return faults.kill_node(self._own, self.node(name), self._clock)

    def hang_node(self, name: str) -> int:
        """Stop every process of a node. Return how many."""
        return faults.hang_node(self._own, self.node(name), self._clock)

    def isolate_node(self, name: str) -> int:
        """Stop slurmd and slurmstepd of a node while its tasks run on. Return how many were stopped."""
        return faults.isolate_node(self._own, self.node(name), self._clock)

    def return_node(self, name: str) -> None:
        """Bring a node back that was killed, hung or isolated; returns when the controller sees it.

        Raises:
            LabError: it does not come back within 30 s.
        """
        host = self._host()
        faults.return_node(
            self.node(name),
            own=self._own,
            layout=self._layout,
            record=self._record,
            host=host,
            clock=self._clock,
        )

    def freeze_controller(self) -> None:
        """Stop slurmctld (SIGSTOP)."""
        faults.freeze_controller(self._layout, self._clock)

    def thaw_controller(self) -> None:
        """Let a stopped slurmctld go on."""
        faults.thaw_controller(self._layout)

    def kill_controller(self) -> None:
        """End slurmctld (SIGKILL)."""
        faults.kill_controller(self._layout, self._clock)

    def start_controller(self) -> None:
        """Start slurmctld again on its saved state."""
        faults.start_controller(self._layout, self._record, self._host(), self._clock)

    def _host(self) -> Host:
        # Root may look at and end another account's lab, but a daemon that it starts there would be root's.
        if self.root.stat().st_uid != os.geteuid():
            raise LabError(f"lab: {self.root} belongs to another account; start its daemons as that account")
        return inspect_host(accounting=False)

    def down(self) -> None:
        """End every process of the lab and remove its files; only its logs stay. Safe to call twice.

        Raises:
            LabError: another command is at work on it, or a process survives SIGKILL.
        """
        if not self.root.exists():
            return
        with at_work(self.root):
            clear_away(self._layout, self._clock)
