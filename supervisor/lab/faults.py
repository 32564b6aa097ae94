"""The faults that a lab can suffer, each as real as signals can make it."""

import signal
from datetime import timedelta

from supervisor.clock import Clock
from supervisor.errors import LabError
from supervisor.lab.daemons import daemon_key, last_lines, launch, slurmctld, slurmd, wait_ready
from supervisor.lab.host import Host, accepts
from supervisor.lab.layout import Layout
from supervisor.lab.processes import Ownership, Process, ProcessKey, freeze, kill, send, stop
from supervisor.lab.record import Record
from supervisor.lab.status import Vital, read_daemon, read_nodes

_PATIENCE = timedelta(seconds=30)
_KILL_PATIENCE = timedelta(seconds=15)
_POLL = timedelta(milliseconds=100)
# State words of scontrol and the suffix that say that the controller has not heard of the node again.
_LOST = ("*", "DOWN", "NOT_RESPONDING", "UNKNOWN")


def kill_node(own: Ownership, node: str, clock: Clock) -> int:
    """Cut the power of ``node``: slurmd, slurmstepd and their tasks die at once. Return how many died.

    They are first stopped and then killed, so none of them sees another's death.

    Raises:
        LabError: a process survives SIGKILL.
    """
    return len(kill(lambda: own.processes(node), clock, _KILL_PATIENCE))


def hang_node(own: Ownership, node: str, clock: Clock) -> int:
    """Stop (SIGSTOP) every process of ``node``, as a machine that hangs. Return how many were stopped."""
    return len(freeze(lambda: own.processes(node), clock))


def isolate_node(own: Ownership, node: str, clock: Clock) -> int:
    """Stop slurmd and slurmstepd of ``node`` while its tasks run on, as a machine that lost its network.

    Slurm sets the node DOWN and ends the job, and the tasks go on writing: the writer from the grave.
    """
    return len(freeze(lambda: [each for each in own.processes(node) if _is_slurms(each)], clock))


def _is_slurms(process: Process) -> bool:
    return process.name.startswith(("slurmd", "slurmstepd"))


def _is_lost(state: str) -> bool:
    """Say whether the controller misses a node; a drained one stays DOWN when it is seen again (22.05)."""
    seen_again = "DRAIN" in state and "NOT_RESPONDING" not in state and "UNKNOWN" not in state
    return not seen_again and any(word in state for word in _LOST)


def return_node(
    node: str, *, own: Ownership, layout: Layout, record: Record, host: Host, clock: Clock
) -> None:
    """Bring ``node`` back: wake what was stopped, start slurmd where it is dead, wait for the controller.

    Slurm itself ends what is left there of jobs that it has given up meanwhile.

    Raises:
        LabError: slurmd does not come up, or the controller does not see it again within 30 s.
    """
    name = f"slurmd.{node}"
    for process in own.processes(node):
        if process.is_frozen:
            send(process.key, signal.SIGCONT)
    if daemon_key(layout, name) is None:
        launch(slurmd(host, node), layout)
        port = record.ports.nodes[record.spec.node_names().index(node)]
        wait_ready(name, layout, lambda: accepts(port), clock, _PATIENCE)
    deadline = clock.now() + _PATIENCE
    while True:
        state = (read_nodes(layout) or {}).get(node, "UNKNOWN")
        if not _is_lost(state):
            return
        if clock.now() >= deadline:
            raise LabError(
                f"lab: {node} is back but its state is {state} after {_PATIENCE.total_seconds():g} s\n"
                f"{last_lines(layout, name)}"
            )
        clock.sleep(_POLL)


def freeze_controller(layout: Layout, clock: Clock) -> None:
    """Stop slurmctld (SIGSTOP): commands are taken by the kernel, and nobody answers.

    Raises:
        LabError: there is no living slurmctld.
    """
    stop([_controller(layout)], clock)


def thaw_controller(layout: Layout) -> None:
    """Let a stopped slurmctld go on; requests that came meanwhile are served then.

    Raises:
        LabError: there is no living slurmctld.
    """
    send(_controller(layout), signal.SIGCONT)


def kill_controller(layout: Layout, clock: Clock) -> None:
    """End slurmctld (SIGKILL).

    Raises:
        LabError: it survives that.
    """
    key = daemon_key(layout, "slurmctld")
    own = Ownership(root=layout.root, conf=layout.conf)
    # slurmscriptd is its child and ends by itself.
    kill(lambda: [each for each in own.processes() if each.key == key], clock, _KILL_PATIENCE)


def start_controller(layout: Layout, record: Record, host: Host, clock: Clock) -> None:
    """Start slurmctld again on its saved state; does nothing where it is alive.

    Raises:
        LabError: it does not come up.
    """
    if read_daemon(layout, "slurmctld").vital is not Vital.DEAD:
        return
    launch(slurmctld(host), layout)
    wait_ready("slurmctld", layout, lambda: accepts(record.ports.controller), clock, _PATIENCE)


def _controller(layout: Layout) -> ProcessKey:
    key = daemon_key(layout, "slurmctld")
    if key is None:
        raise LabError(f"lab: the slurmctld of {layout.root} is dead; start it or take the lab down")
    return key
