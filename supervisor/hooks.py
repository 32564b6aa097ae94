"""The public plugin interface, and the loading of plugins.

A plugin is a Python module with functions marked ``@hookimpl`` (from this module). Bundled ones lie in
``plugins/`` and use nothing but this interface and ``supervisor.domain``; a site puts its own into
``/etc/supervisor/plugins``, a user names directories in the setting ``plugins``, and a package registers an
entry point in the group ``supervisor``.
"""

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import pluggy
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from supervisor.domain.failure import FailureClass
from supervisor.domain.signature import Signature
from supervisor.errors import SettingsError
from supervisor.resources import resource_dir

PROJECT = "supervisor"
SITE_PLUGINS = Path("/etc/supervisor/plugins")

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """What a plugin may implement; every hook is optional."""

    @hookspec
    def supervise_signature_packs(self) -> Iterable[Path]:  # type: ignore[empty-body]
        """Return YAML files with signatures of failures."""

    @hookspec(firstresult=True)
    def supervise_notify(self, target: str, subject: str, body: str) -> bool | None:
        """Deliver news to ``target`` (such as ``mailto:me``); None where the scheme is not yours.

        False or an exception means that it was not delivered.
        """


def load_plugins(directories: Sequence[str | Path] = ()) -> pluggy.PluginManager:
    """Load the bundled plugins, the site's, those in ``directories``, and installed ones.

    Raises:
        SettingsError: if a plugin cannot be imported.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    for directory in (resource_dir("plugins"), SITE_PLUGINS, *map(Path, directories)):
        for file in sorted(directory.glob("*.py")):
            manager.register(_import_file(file), name=str(file))
    manager.load_setuptools_entrypoints(PROJECT)
    manager.check_pending()
    return manager


def load_signatures(manager: pluggy.PluginManager) -> tuple[Signature, ...]:
    """Read all signature packs.

    Raises:
        SettingsError: if a pack is malformed; it names the file and the signature.
    """
    signatures: list[Signature] = []
    for paths in manager.hook.supervise_signature_packs():
        for path in paths:
            signatures.extend(_read_pack(path))
    return tuple(signatures)


def _import_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"supervisor_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{file}: is not a Python file that can be loaded")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(
            f"{file}: the plugin cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return module


def _read_pack(path: Path) -> list[Signature]:
    try:
        entries = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        return [
            Signature(
                id=entry["id"],
                failure_class=FailureClass(entry["class"]),
                pattern=re.compile(entry["pattern"]),
                confidence=float(entry["confidence"]),
                echo=bool(entry.get("echo", False)),
                cause=entry["cause"],
                advice=entry.get("advice", ""),
            )
            for entry in entries
        ]
    except (OSError, YAMLError, KeyError, TypeError, ValueError, re.error) as error:
        raise SettingsError(f"{path}: is no signature pack: {type(error).__name__}: {error}") from error
