"""What a lab needs of the machine: the programs, their version, free ports, the account, dummy devices."""

import contextlib
import os
import pwd
import random
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import LabError

# Below the kernel's ephemeral ports (32768 and up), so that no outgoing connection takes one of ours.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_COMMAND_TIMEOUT_S = 20.0

# program -> Debian package
_NEEDED = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "srun": "slurm-client",
}
_NEEDED_FOR_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine and account that a lab runs on; ``programs`` maps a name to its absolute path."""

    programs: Mapping[str, str]
    version: tuple[int, int]
    user: str
    name: str


def search_path() -> str:
    """Return PATH with the sbin folders, which an ordinary Debian account lacks."""
    return ":".join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def inspect_host(*, accounting: bool) -> Host:
    """Find the programs, their version and the account.

    Raises:
        LabError: programs are missing (the Debian packages are named), or the account has no name.
    """
    wanted = _NEEDED | (_NEEDED_FOR_ACCOUNTING if accounting else {})
    found = {name: shutil.which(name, path=search_path()) for name in wanted}
    missing = sorted(name for name, path in found.items() if path is None)
    if missing:
        packages = " ".join(sorted({wanted[name] for name in missing}))
        raise LabError(
            f"lab: {', '.join(missing)} not found on this machine; install the Debian packages: "
            f"apt-get install --no-install-recommends {packages}"
        )
    programs = {name: path for name, path in found.items() if path is not None}
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise LabError(f"lab: uid {uid} has no entry in the password database; Slurm needs a name") from None
    # slurmd and slurmctld compare NodeHostname with the short name, as gethostname_short(3) cuts it.
    name = socket.gethostname().split(".")[0]
    return Host(programs=programs, version=_version(programs["slurmctld"]), user=user, name=name)


def _version(slurmctld: str) -> tuple[int, int]:
    answer = run([slurmctld, "-V"], clean_environ({}))
    found = re.search(r"(\d+)\.(\d+)", answer.stdout)
    if not found:
        raise LabError(f"lab: {slurmctld} -V gave no version: {(answer.stdout + answer.stderr).strip()!r}")
    return int(found[1]), int(found[2])


def clean_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Return a small environment plus ``extra``: nothing of another cluster or job leaks into the lab."""
    kept = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "TZ") if name in os.environ}
    return {**kept, "PATH": search_path(), "LC_ALL": "C", **extra}


def run(
    argv: list[str], environ: Mapping[str, str], timeout_s: float = _COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said, whatever its exit status.

    Raises:
        LabError: it cannot be started or takes longer than ``timeout_s`` seconds.
    """
    try:
        return subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
            # mariadb-install-db carries the lab's marker, and so must not be found in a person's session.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"lab: {' '.join(argv)} gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise LabError(f"lab: {argv[0]} cannot be started: {error.strerror}") from error


@contextlib.contextmanager
def reserve_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Find ``count`` free TCP ports of loopback by binding them, and keep them from others inside the block.

    Bound without SO_REUSEADDR, a port is refused to every other lab that looks for one. Set afterwards, the
    option lets our daemon (Slurm sets it too) bind and listen although we still hold the port: no gap.

    Raises:
        LabError: there are not that many free ports.
    """
    candidates = list(range(_FIRST_PORT, _LAST_PORT))
    random.SystemRandom().shuffle(candidates)
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in candidates:
            if len(ports) == count:
                break
            holder = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                holder.close()
                continue
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports.append(port)
        if len(ports) < count:
            raise LabError(f"lab: only {len(ports)} of {count} TCP ports are free on 127.0.0.1")
        yield tuple(ports)


def accepts(port: int) -> bool:
    """Tell whether somebody listens on ``port`` of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listens(path: Path) -> bool:
    """Tell whether somebody listens on the Unix socket ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(path)) == 0


def make_devices(folder: Path, count: int) -> tuple[Path, ...]:
    """Return ``count`` dummy GPU devices: own null devices for root, else terminals, else plain files.

    Slurm sets CUDA_VISIBLE_DEVICES only for character devices; it never opens them here. With plain files
    (an ordinary account in a container without /dev/tty0...) the GPUs still count, without that variable.
    """
    paths = tuple(folder / f"nvidia{number}" for number in range(count))
    try:
        for path in paths:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        terminals = tuple(Path(f"/dev/tty{number}") for number in range(count))
        if all(terminal.is_char_device() for terminal in terminals):
            return terminals
        for path in paths:
            path.touch()
    return paths
