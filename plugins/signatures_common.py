"""Bundled plugin: the signatures that every training can meet."""

from collections.abc import Iterable
from pathlib import Path

from supervisor.hooks import hookimpl


@hookimpl
def supervise_signature_packs() -> Iterable[Path]:
    """Return the packs that lie beside this file."""
    return sorted((Path(__file__).parent / "signatures").glob("*.yaml"))
