"""Layered settings: site file, user file, ``SUPERVISE_*`` variables, flags; each value knows its origin."""

import getpass
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from supervisor.domain.failure import FailureClass
from supervisor.domain.policy import Mode, NodePolicy, Policy
from supervisor.domain.units import format_slurm_time, parse_duration
from supervisor.errors import SettingsError

SITE_FILE = Path("/etc/supervisor/config.toml")


def _read_duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, timedelta):
        return value
    raise ValueError("must be a duration such as 30s, 5m, 2h or 1d, in quotes")


Duration = Annotated[timedelta, BeforeValidator(_read_duration), PlainSerializer(format_slurm_time)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SlurmSettings(_Part):
    """How Slurm is spoken to."""

    timeout: Duration = Field(timedelta(seconds=20), description="Longest wait for one Slurm command.")
    user: str = Field("", description="Whose jobs are looked at; empty for the caller's own.")


class SubmitSettings(_Part):
    """Submissions."""

    grace: Duration = Field(
        timedelta(seconds=30), description="How long a doubtful submission is searched for before a retry."
    )


class SweepSettings(_Part):
    """Sweeps."""

    lease: Duration = Field(timedelta(minutes=2), description="How long a silent sweep keeps others out.")
    lost_after: Duration = Field(
        timedelta(minutes=30), description="How long a job may be nowhere to be found before its run is held."
    )
    completing_patience: Duration = Field(
        timedelta(seconds=20),
        description="How long nodes may take to come back from an ended job unsuspected.",
    )
    paused: bool = Field(False, description="Look, but do nothing.")


class NodeSettings(_Part):
    """What may be done about nodes."""

    mode: Mode = Field(Mode.OBSERVE, description="observe, advise or act.")
    modes: dict[str, Mode] = Field(default_factory=dict, description="The mode for single partitions.")
    avoid_for: Duration = Field(timedelta(days=1), description="How long our runs keep off a bad node.")
    max_drains: int = Field(8, ge=0, description="Most nodes that the supervisor keeps drained at once.")
    max_percent: float = Field(10.0, ge=0, le=100, description="The same in percent of eligible nodes.")
    max_per_window: int = Field(4, ge=0, description="Most drains within the window.")
    window: Duration = Field(timedelta(hours=1), description="The window for max_per_window.")
    shared_percent: float = Field(
        50.0, gt=0, le=100, description="Share of a run's nodes that fail at once without any being blamed."
    )


class Settings(_Part):
    """All settings with their defaults."""

    ledger: str = Field("", description="URL of the ledger; empty for a SQLite file in the state directory.")
    templates: tuple[str, ...] = Field(
        (), description="Template directories, searched before the bundled one."
    )
    plugins: tuple[str, ...] = Field((), description="Directories with plugins of the site or of the user.")
    notify: tuple[str, ...] = Field(
        (), description="Where news of every run goes, besides its own notify list."
    )
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    submit: SubmitSettings = Field(default_factory=SubmitSettings)
    sweep: SweepSettings = Field(default_factory=SweepSettings)
    nodes: NodeSettings = Field(default_factory=NodeSettings)
    budgets: dict[FailureClass, int] = Field(default_factory=dict, description="Retries per failure class.")

    def policy(self) -> Policy:
        """Return what decisions need to know of the settings."""
        nodes = self.nodes
        return Policy(
            nodes=NodePolicy(
                mode=nodes.mode,
                partition_modes=dict(nodes.modes),
                avoid_for=nodes.avoid_for,
                max_drains=nodes.max_drains,
                max_percent=nodes.max_percent,
                max_per_window=nodes.max_per_window,
                window=nodes.window,
                shared_percent=nodes.shared_percent,
            ),
            budgets=dict(self.budgets),
            completing_patience=self.sweep.completing_patience,
            lost_after=self.sweep.lost_after,
            submit_grace=self.submit.grace,
            paused=self.sweep.paused,
        )


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings together with where each value came from (dotted name → file, variable, flag or default)."""

    values: Settings
    origins: Mapping[str, str]

    def origin(self, name: str) -> str:
        """Return where the value of ``name`` came from."""
        return self.origins.get(name, "default")


def leaf_names(model: type[BaseModel] = Settings, prefix: str = "") -> tuple[str, ...]:
    """Return the dotted names of all settings, such as ``nodes.mode``."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names.extend(leaf_names(inner, f"{prefix}{name}."))
        else:
            names.append(prefix + name)
    return tuple(names)


def variable_name(name: str) -> str:
    """Return the environment variable for a setting: ``nodes.mode`` → ``SUPERVISE_NODES_MODE``."""
    return "SUPERVISE_" + name.replace(".", "_").upper()


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the user's settings file (XDG base directories)."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return Path(base) / "supervisor" / "config.toml"


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return where the user's ledger lies unless the settings say otherwise."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local/state")
    return Path(base) / "supervisor"


def load_settings(
    environ: Mapping[str, str],
    *,
    flags: Mapping[str, object] | None = None,
    site_file: Path = SITE_FILE,
) -> LoadedSettings:
    """Read all layers, later ones over earlier ones.

    Args:
        environ: the environment; ``SUPERVISE_CONFIG`` replaces the user's file.
        flags: dotted setting name → value from the command line; None values are ignored.
        site_file: the site's file.

    Raises:
        SettingsError: if a file cannot be read, or a value or name makes no sense; every problem at once.
    """
    names = leaf_names()
    raw: dict[str, object] = {}
    origins: dict[str, str] = {}
    problems: list[str] = []
    user = Path(environ["SUPERVISE_CONFIG"]) if environ.get("SUPERVISE_CONFIG") else user_file(environ)
    for path in (site_file, user):
        for name, value in _flatten(_read_toml(path), names):
            raw[name], origins[name] = value, str(path)
    for name in names:
        variable = variable_name(name)
        if variable in environ:
            raw[name], origins[name] = _from_variable(name, environ[variable]), f"${variable}"
    for name, value in (flags or {}).items():
        if value is not None:
            raw[name], origins[name] = value, "command line"
    try:
        values = Settings.model_validate(_nest(raw))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            name = ".".join(str(part) for part in item["loc"])
            origin = next((origins[key] for key in origins if name == key or name.startswith(key + ".")), "")
            problems.append(f"{origin or 'settings'}: {name}: {_plain(item['msg'], item['type'])}")
        raise SettingsError("\n".join(problems)) from error
    if not values.ledger:
        path = state_dir(environ) / "ledger.db"
        values = values.model_copy(update={"ledger": f"sqlite:///{path}"})
    return LoadedSettings(values=values, origins=origins)


def caller_name() -> str:
    """Return the login name of the calling user."""
    return getpass.getuser()


def _plain(message: str, kind: str) -> str:
    if kind == "extra_forbidden":
        return "no such setting (supervise config show lists all)"
    return message.removeprefix("Value error, ")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read: {error}; mend its permissions or move it away"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from error


def _flatten(tree: dict[str, Any], names: tuple[str, ...], prefix: str = "") -> list[tuple[str, object]]:
    """Return dotted names and values; a table that is itself a setting (``nodes.modes``) stays whole."""
    flat: list[tuple[str, object]] = []
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in names:
            flat.extend(_flatten(value, names, name + "."))
        else:
            flat.append((name, value))
    return flat


def _nest(flat: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return tree


def _from_variable(name: str, text: str) -> object:
    """Read lists as ``a:b`` and tables as ``key=value,key=value``; everything else stays text."""
    if name in {"templates", "plugins"}:
        return tuple(part for part in text.split(":") if part)
    if name == "notify":
        return tuple(part for part in text.split(",") if part)
    if name in {"nodes.modes", "budgets"}:
        pairs = [part.partition("=") for part in text.split(",") if part]
        return {key.strip(): value.strip() for key, _, value in pairs}
    return text
