"""What is known of a lab right now: its daemons by their processes, its nodes by the controller's word."""

import re
from dataclasses import dataclass
from enum import StrEnum

from supervisor.errors import LabError
from supervisor.lab.daemons import daemon_key
from supervisor.lab.host import clean_environ, run
from supervisor.lab.layout import Layout
from supervisor.lab.processes import read_process
from supervisor.lab.record import Record

_SCONTROL_TIMEOUT_S = 15.0
_NODE = re.compile(r"^NodeName=(\S+).*?\sState=(\S+)", re.MULTILINE)


class Vital(StrEnum):
    """What the process of a daemon does."""

    ALIVE = "alive"
    FROZEN = "frozen"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFact:
    """One daemon of the lab; ``pid`` is None when it is dead."""

    name: str
    vital: Vital
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """The state of a lab; ``nodes`` maps a node to its State words, None when the controller is silent."""

    root: str
    slurm_version: str
    daemons: tuple[DaemonFact, ...]
    nodes: dict[str, str] | None

    @property
    def all_idle(self) -> bool:
        """Tell whether every node is idle and answers."""
        return self.nodes is not None and set(self.nodes.values()) == {"IDLE"}


def daemon_names(record: Record) -> tuple[str, ...]:
    """Return the names of the daemons that the lab is made of, in the order of their start."""
    accounting = ("mariadbd", "slurmdbd") if record.spec.accounting else ()
    nodes = tuple(f"slurmd.{node}" for node in record.spec.node_names())
    return ("munged", *accounting, "slurmctld", *nodes)


def read_daemon(layout: Layout, name: str) -> DaemonFact:
    """Look at the process of one daemon."""
    key = daemon_key(layout, name)
    process = read_process(key.pid) if key else None
    if key is None or process is None:
        return DaemonFact(name=name, vital=Vital.DEAD, pid=None)
    return DaemonFact(name=name, vital=Vital.FROZEN if process.is_frozen else Vital.ALIVE, pid=key.pid)


def read_nodes(layout: Layout, timeout_s: float = _SCONTROL_TIMEOUT_S) -> dict[str, str] | None:
    """Ask the controller for the State of every node; None when it does not answer."""
    argv = ["scontrol", "show", "node", "--oneliner"]
    environ = clean_environ({"SLURM_CONF": str(layout.conf)})
    try:
        answer = run(argv, environ, timeout_s=timeout_s)
    except LabError:
        return None
    if answer.returncode != 0:
        return None
    return dict(_NODE.findall(answer.stdout))


def read_status(layout: Layout, record: Record) -> LabStatus:
    """Read the state of the whole lab."""
    return LabStatus(
        root=str(layout.root),
        slurm_version=f"{record.slurm_version[0]}.{record.slurm_version[1]:02d}",
        daemons=tuple(read_daemon(layout, name) for name in daemon_names(record)),
        nodes=read_nodes(layout),
    )
