"""Finds ``templates/``, ``sql/``, ``plugins/`` and ``examples/``.

They lie beside the package in a checkout (also one that is installed editable) and inside it, under
``_share``, in a wheel.
"""

from pathlib import Path

from supervisor.errors import SupervisorError


def resource_dir(name: str) -> Path:
    """Return the folder ``name`` that ships with the package.

    Raises:
        SupervisorError: if the installation lacks it.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_share" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise SupervisorError(f"{package}: the folder {name}/ is missing from this installation; reinstall it")
