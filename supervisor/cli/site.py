"""supervise nodes, ledger, config: for admins and the curious."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.output import Column, Style, print_rows, style_options
from supervisor.cli.text import clean, clean_lines
from supervisor.domain.facts import Known, NodeRow
from supervisor.domain.ids import NodeName
from supervisor.domain.nodeset import unfold
from supervisor.errors import LedgerError, NothingMatched, SlurmUnavailable, UsageError
from supervisor.ledger.failures import mask_url
from supervisor.settings import Settings, leaf_names, user_file

_NODES = [
    Column(name="NODE"),
    Column(name="STATE"),
    Column(name="OURS"),
    Column(name="UNTIL"),
    Column(name="RUN", right=True),
    Column(name="REASON"),
]


@click.group(invoke_without_command=True)
@click.option("-a", "--all", "everything", is_flag=True, help="Nodes that nothing is held against, too.")
@style_options
@click.pass_context
def nodes(
    ctx: click.Context,
    *,
    everything: bool,
    as_json: bool,
    parsable: bool,
    noheader: bool,
    columns: str | None,
) -> None:
    """List nodes that our runs keep off or that we drained, with their state in Slurm.

    OURS is avoided (our runs keep off until UNTIL) or drained (by us, in Slurm).
    """
    if ctx.invoked_subcommand is not None:
        return
    app: App = ctx.obj
    style = Style(json=as_json, parsable=parsable, noheader=noheader, format=columns)
    reading = app.slurm.nodes()
    states = {row.name: row for row in reading.value} if isinstance(reading, Known) else {}
    controller = app.slurm.controller()
    cluster = controller.value.cluster if isinstance(controller, Known) else ""
    drained = {row.node: row for row in app.ledger.our_drains(cluster)}
    avoided = app.ledger.avoided(app.clock.now())
    rows: list[list[object]] = []
    for item in avoided:
        ours = "drained" if item.node in drained else "avoided"
        rows.append([item.node, _state(states, item.node), ours, item.until, item.run_id, item.reason])
    for name in sorted(drained.keys() - {item.node for item in avoided}):
        drain = drained[name]
        rows.append([name, _state(states, name), "drained", None, drain.run_id, drain.reason])
    if everything:
        others = sorted(states.keys() - {row[0] for row in rows})
        rows += [[name, _state(states, name), None, None, None, states[name].reason] for name in others]
    print_rows(_NODES, rows, style)
    if not isinstance(reading, Known):
        raise SlurmUnavailable(f"Slurm does not answer, so the states are not known: {reading.why}")


def _state(states: Mapping[NodeName, NodeRow], name: NodeName) -> str:
    found = states.get(name)
    return "+".join([found.base, *sorted(found.flags)]) if found else "unknown"


@nodes.command()
@click.argument("node")
@pass_app
def clear(app: App, node: str) -> None:
    """Let our runs use NODE again; a node list such as node[001-003] is taken as well.

    Slurm's own state is not touched: scontrol update nodename=NODE state=resume does that.
    """
    try:
        names = unfold(node)
    except ValueError as error:
        raise UsageError(str(error)) from error
    lifted = [name for name in names if app.ledger.lift_avoid(name)]
    if not lifted:
        raise NothingMatched(f"nothing is held against {node}; supervise nodes lists what is")
    for name in lifted:
        click.echo(f"{name} may be used again by our runs")


@click.group()
def ledger() -> None:
    """Ask the ledger."""


@ledger.command("list")
@style_options
@pass_app
def list_queries(app: App, *, as_json: bool, parsable: bool, noheader: bool, columns: str | None) -> None:
    """List the named queries."""
    style = Style(json=as_json, parsable=parsable, noheader=noheader, format=columns)
    names = [Column(name="NAME"), Column(name="TITLE")]
    print_rows(names, [list(row) for row in app.ledger.queries()], style)


@ledger.command()
@click.argument("name")
@click.argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@style_options
@pass_app
def query(
    app: App,
    name: str,
    parameters: tuple[str, ...],
    *,
    as_json: bool,
    parsable: bool,
    noheader: bool,
    columns: str | None,
) -> None:
    """Run the named query NAME, for example: supervise ledger query attempts_of_run run=3."""
    style = Style(json=as_json, parsable=parsable, noheader=noheader, format=columns)
    values: dict[str, object] = {}
    for parameter in parameters:
        key, equals, value = parameter.partition("=")
        if not equals:
            raise UsageError(f"{parameter!r} is not KEY=VALUE")
        # 18 digits: a number beyond 64 bits is none that the database could hold.
        values[key] = int(value) if value.isdecimal() and len(value) <= 18 else value
    headers, rows = app.ledger.run_named_query(name, values)
    print_rows([Column(name=header.upper()) for header in headers], [list(row) for row in rows], style)


@ledger.command()
@pass_app
def check(app: App) -> None:
    """Look at the ledger's place, file system, version and soundness."""
    findings = app.ledger.check()
    for finding in findings:
        click.echo(clean_lines(f"{finding.severity:4} {finding.subject}: {finding.text}"))
    if any(finding.severity == "fail" for finding in findings):
        raise LedgerError("the ledger is not sound, see above")


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def show(app: App, *, origin: bool, as_json: bool) -> None:
    """Print every setting with its value, as a config.toml holds it; passwords are left out."""
    data = app.settings.model_dump(mode="json")
    flat = {name: _value(data, name) for name in leaf_names(Settings)}
    flat["ledger"] = mask_url(app.settings.ledger)
    if as_json:
        shown = {
            name: {"value": value, "origin": app.loaded.origin(name)} if origin else value
            for name, value in flat.items()
        }
        click.echo(json.dumps(shown, indent=2))
        return
    for name, value in flat.items():
        tail = f"  # {clean(app.loaded.origin(name))}" if origin else ""
        click.echo(f"{name} = {_toml(value)}{tail}")


@config.command()
@pass_app
def path(app: App) -> None:
    """Print where the user's settings file is looked for."""
    click.echo(Path(app.environ.get("SUPERVISE_CONFIG") or user_file(app.environ)))


def _toml(value: object) -> str:
    """Print as TOML: JSON, but for tables."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {json.dumps(item)}" for key, item in value.items())
        return f"{{{inner}}}"
    return json.dumps(value)


def _value(data: object, name: str) -> object:
    for part in name.split("."):
        data = data[part] if isinstance(data, dict) else None
    return data
