"""The public plugin interface, and the loading of plugins.

A plugin is a Python module with functions marked ``@hookimpl`` (from this module). Bundled ones lie in
``plugins/`` and use nothing but this interface and ``supervisor.domain``; a site puts its own into
``/etc/supervisor/plugins``, a user names directories in the setting ``plugins``, and a package registers an
entry point in the group ``supervisor``.
"""

import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import pluggy
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from supervisor.domain.failure import FailureClass
from supervisor.domain.signature import Signature
from supervisor.errors import SettingsError
from supervisor.resources import resource_dir

PROJECT = "supervisor"
SITE_PLUGINS = Path("/etc/supervisor/plugins")
_SIGNATURE_KEYS = frozenset({"id", "class", "pattern", "confidence", "echo", "cause", "advice"})

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
        SettingsError: if a directory is missing or a plugin cannot be loaded; it names the file.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    named = [Path(directory).expanduser() for directory in directories]
    for directory in named:
        if not directory.is_dir():
            raise SettingsError(f"plugins: {directory}: no such directory; mend the setting")
    for directory in (resource_dir("plugins"), SITE_PLUGINS, *named):
        for file in sorted(directory.glob("*.py")):
            module = _import_file(file)
            with _plugin_errors(str(file)):
                manager.register(module, name=str(file))
                manager.check_pending()
    with _plugin_errors(f"an installed package (entry point group {PROJECT})"):
        manager.load_setuptools_entrypoints(PROJECT)
        manager.check_pending()
    return manager


@contextmanager
def _plugin_errors(where: str) -> Iterator[None]:
    """Name the plugin for whatever it does when it is loaded or asked; SystemExit is one of those things."""
    try:
        yield
    except (Exception, SystemExit) as error:
        # pluggy names the plugin by its repr on lines of their own; ``where`` says it better.
        text = " ".join(str(error).split())
        raise SettingsError(
            f"{where}: the plugin cannot be loaded: {type(error).__name__}: {text}; mend it or take it away"
        ) from error


def load_signatures(manager: pluggy.PluginManager) -> tuple[Signature, ...]:
    """Read all signature packs.

    Raises:
        SettingsError: if a pack is malformed; it names the file and the signature.
    """
    signatures: list[Signature] = []
    for plugin in manager.hook.supervise_signature_packs.get_hookimpls():
        with _plugin_errors(plugin.plugin_name):
            packs = [Path(path) for path in cast(Iterable[Path], plugin.function())]
        for path in packs:
            signatures.extend(_read_pack(path))
    return tuple(signatures)


def _import_file(file: Path) -> ModuleType:
    # Two plugins of one name, a site's and a user's, are two modules.
    name = f"supervisor_plugin_{file.stem}_{zlib.crc32(os.fsencode(file)):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{file}: is not a Python file that can be loaded")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules[name] = module
    with _plugin_errors(str(file)):
        spec.loader.exec_module(module)
    return module


def _read_pack(path: Path) -> list[Signature]:
    try:
        entries = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise SettingsError(f"{path}: the signature pack cannot be read: {error}") from error
    if not isinstance(entries, list):
        raise SettingsError(
            f"{path}: a signature pack is a list of entries, see plugins/signatures/common.yaml"
        )
    return [_read_signature(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _read_signature(path: Path, number: int, entry: object) -> Signature:
    name = entry.get("id", number) if isinstance(entry, dict) else number
    try:
        if not isinstance(entry, dict):
            raise TypeError("an entry is a mapping with id, class, pattern, confidence and cause")
        unknown = entry.keys() - _SIGNATURE_KEYS
        if unknown:
            raise ValueError(f"unknown key {', '.join(sorted(map(str, unknown)))}")
        confidence, echo = float(entry["confidence"]), entry.get("echo", False)
        if not 0 <= confidence <= 1 or not isinstance(echo, bool):
            raise ValueError("confidence is a number from 0 to 1, echo is true or false")
        return Signature(
            id=str(entry["id"]),
            failure_class=FailureClass(entry["class"]),
            pattern=re.compile(entry["pattern"]),
            confidence=confidence,
            echo=echo,
            cause=str(entry["cause"]),
            advice=str(entry.get("advice", "")),
        )
    except KeyError as error:
        raise SettingsError(f"{path}: signature {name}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, re.error) as error:
        raise SettingsError(f"{path}: signature {name}: {error}") from error
