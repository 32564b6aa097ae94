"""supervise lab: a real Slurm on this machine, to try things on and to break."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from supervisor.clock import SystemClock
from supervisor.lab import Lab, LabSpec, default_directory

_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=default_directory,
    help="Folder of the lab.  [default: $XDG_STATE_HOME/supervisor/lab]",
)


def _on_node(command: Callable[..., Any]) -> Callable[..., Any]:
    return _DIRECTORY(click.argument("node")(command))


@click.group()
def lab() -> None:
    """Run a throw-away real Slurm cluster on this machine."""


@lab.command()
@click.option("--nodes", type=int, default=4, show_default=True, help="Number of nodes.")
@click.option("--gpus-per-node", type=int, default=0, show_default=True, help="Dummy GPUs on each node.")
@click.option("--cpus-per-node", type=int, default=4, show_default=True, help="CPUs that each node claims.")
@click.option("--accounting", is_flag=True, help="Add slurmdbd with a private MariaDB (sacct works).")
@click.option("--slurmd-timeout", type=int, default=5, show_default=True, help="SlurmdTimeout in seconds.")
@click.option(
    "--requeue-delay",
    type=int,
    default=5,
    show_default=True,
    help="Seconds that a requeued job waits; 120 in an ordinary Slurm.",
)
@click.option(
    "--conf", "extra", multiple=True, metavar="KEY=VALUE", help="A line for slurm.conf; repeatable."
)
@_DIRECTORY
def up(
    *,
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: int,
    accounting: bool,
    slurmd_timeout: int,
    requeue_delay: int,
    extra: tuple[str, ...],
    directory: Path,
) -> None:
    """Bring a lab up and wait until all nodes are idle."""
    spec = LabSpec(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_node=cpus_per_node,
        accounting=accounting,
        slurmd_timeout_s=slurmd_timeout,
        requeue_delay_s=requeue_delay,
        extra_conf=extra,
    )
    clock = SystemClock()
    started = clock.now()
    made = Lab.up(directory, spec, clock)
    seconds = (clock.now() - started).total_seconds()
    version = ".".join(f"{part:02d}" for part in made.slurm_version)
    click.echo(f"{nodes} nodes of Slurm {version} are idle after {seconds:.1f} s in {made.root}")
    click.echo(f'use it:   eval "$(supervise lab env --dir {shlex.quote(str(made.root))})"')
    click.echo(f"end it:   supervise lab down --dir {shlex.quote(str(made.root))}")


@lab.command()
@_DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(directory: Path, as_json: bool) -> None:
    """Show which daemons live and what state the nodes are in."""
    facts = Lab.open(directory).status()
    if as_json:
        click.echo(json.dumps(asdict(facts), indent=1))
        return
    click.echo(f"lab in {facts.root}, Slurm {facts.slurm_version}")
    for daemon in facts.daemons:
        pid = "" if daemon.pid is None else f"pid {daemon.pid}"
        click.echo(f"{daemon.name:<20} {daemon.vital:<8} {pid}".rstrip())
    if facts.nodes is None:
        click.echo("the controller does not answer, so the states of the nodes are unknown")
        return
    for node, state in facts.nodes.items():
        click.echo(f"{node:<20} {state}")


@lab.command()
@_DIRECTORY
def env(directory: Path) -> None:
    """Print the exports that point Slurm at the lab, and supervise at a ledger that goes with it."""
    one = Lab.open(directory)
    # A run of the lab in the user's real ledger would be looked for on the real cluster for ever.
    for name, value in (one.env() | {"SUPERVISE_LEDGER": f"sqlite:///{one.root}/ledger.db"}).items():
        click.echo(f"export {name}={shlex.quote(value)}")


@lab.command("kill-node")
@_on_node
def kill_node(node: str, directory: Path) -> None:
    """Cut the power of NODE: slurmd, slurmstepd and their tasks die at once."""
    one = Lab.open(directory)
    count = one.kill_node(node)
    click.echo(f"{one.node(node)}: {count} processes killed")


@lab.command("hang-node")
@_on_node
def hang_node(node: str, directory: Path) -> None:
    """Stop every process of NODE, as a machine that hangs."""
    one = Lab.open(directory)
    count = one.hang_node(node)
    click.echo(f"{one.node(node)}: {count} processes stopped")


@lab.command("isolate-node")
@_on_node
def isolate_node(node: str, directory: Path) -> None:
    """Cut NODE off: Slurm loses it while its tasks run on."""
    one = Lab.open(directory)
    count = one.isolate_node(node)
    click.echo(f"{one.node(node)}: {count} processes of Slurm stopped, its tasks run on")


@lab.command("return-node")
@_on_node
def return_node(node: str, directory: Path) -> None:
    """Bring NODE back; Slurm ends what was left there of jobs it gave up."""
    one = Lab.open(directory)
    one.return_node(node)
    click.echo(f"{one.node(node)}: back")


@lab.command()
@_DIRECTORY
def down(directory: Path) -> None:
    """End every process of the lab and remove its files, also after a crash; the logs stay."""
    one = Lab.open(directory)
    count = len(one.processes())
    one.down()
    click.echo(f"lab in {one.root} is down: {count} processes ended")
