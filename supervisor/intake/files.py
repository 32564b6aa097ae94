"""Puts a plan's files into the run folder: private, whole or not at all, and as often as one likes."""

import os
import secrets
import stat
from pathlib import Path

from supervisor.domain.folder import PARENT
from supervisor.domain.submission import SubmissionPlan
from supervisor.errors import SupervisorError

_SUBFOLDERS = ("scripts", "claims", "journal", "exit", "logs", "progress", "stop")


def write_files(plan: SubmissionPlan) -> None:
    """Make the run folder (0700) and write the plan's files; may be repeated.

    Raises:
        SupervisorError: if something cannot be written, or the folder is somebody else's.
    """
    root = plan.script.parent.parent
    for name in _SUBFOLDERS:
        _make_private(root / name)
    for file in plan.files:
        write_private_file(
            file.path, file.content.encode("utf-8", "surrogateescape"), executable=file.executable
        )


def write_private_file(path: Path, data: bytes, *, executable: bool = False) -> None:
    """Write ``data`` so that a crash leaves the old file or the new one; its folders are made where missing.

    Raises:
        SupervisorError: if it cannot be written, or its folder is somebody else's.
    """
    _make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700 if executable else 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SupervisorError(
            f"{path}: cannot be written: {error.strerror}; nothing was submitted"
        ) from error


def _make_private(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, from ``.supervise`` on; the rest must be there."""
    parts = folder.parts
    first = parts.index(PARENT) if PARENT in parts else len(parts) - 1
    for depth in range(first + 1, len(parts) + 1):
        step = Path(*parts[:depth])
        try:
            step.mkdir(mode=0o700)
            _sync_folder(step.parent)
        except FileExistsError:
            _check_ours(step)
        except FileNotFoundError as error:
            raise SupervisorError(
                f"{step.parent}: there is no such directory; the run folder is made in the working directory "
                "(slurm.chdir), which must exist"
            ) from error
        except OSError as error:
            raise SupervisorError(
                f"{step}: cannot be made: {error.strerror}; the run folder needs a directory that you can "
                "write to (slurm.chdir)"
            ) from error


def _check_ours(folder: Path) -> None:
    """Refuse a folder of somebody else's, also behind a link: what lies in it is run with our rights."""
    try:
        entries = (folder.lstat(), folder.stat())
    except OSError as error:
        raise SupervisorError(f"{folder}: cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(entries[1].st_mode):
        raise SupervisorError(f"{folder}: is not a directory; move it away")
    if any(entry.st_uid != os.geteuid() for entry in entries):
        raise SupervisorError(
            f"{folder}: belongs to another user, who could change what your jobs run; "
            "set slurm.chdir to a directory of your own"
        )
    if entries[1].st_mode & 0o022:
        raise SupervisorError(f"{folder}: others may write to it; run: chmod go-w {folder}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
