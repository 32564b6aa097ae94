"""Where the files of a lab lie, and the text of its configuration files (pure: nothing here touches disk)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import LabError
from supervisor.lab.spec import LabSpec, PartitionSpec

# The kernel's sun_path holds 108 bytes with its closing NUL.
_SOCKET_PATH_LIMIT = 107
# slurmstepd listens on <spool>/<node>/<node>_<job>.<step>; this is the longest such name.
_LONGEST_SOCKET = "spool/node256/node256_4294967295.4294967295.4294967295"

# Slurm has no way to quote a path in slurm.conf, and expands %h, %n and the like in some of them.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.+@/:-]*")

# CgroupPlugin=disabled is unknown before; without it slurmd of 24.11 and later dies where no cgroup
# file system is mounted. The v1 plugin of older versions looks at nothing until somebody uses it.
_CGROUP_DISABLED_SINCE = (24, 11)
# SchedulerParameters=requeue_delay; older versions wait for the job credential to expire instead.
_REQUEUE_DELAY_SINCE = (26, 5)

_REPEATABLE = frozenset({"nodename", "partitionname", "nodeset", "downnodes"})


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one lab. ``short`` holds what must have a short path: the root, or a folder in /tmp."""

    root: Path
    short: Path

    @property
    def record(self) -> Path:
        """What was brought up: spec, ports, version."""
        return self.root / "lab.json"

    @property
    def conf(self) -> Path:
        """The cluster's slurm.conf."""
        return self.root / "etc" / "slurm.conf"

    @property
    def log(self) -> Path:
        """The folder of all logs."""
        return self.root / "log"

    @property
    def pids(self) -> Path:
        """The folder of our pid files."""
        return self.root / "run"

    @property
    def munge(self) -> Path:
        """The folder of munged's key and seed."""
        return self.root / "munge"

    @property
    def sockets(self) -> Path:
        """The folder of the sockets of munged and MariaDB."""
        return self.short / "sock"

    @property
    def spool(self) -> Path:
        """The folder of every slurmd's spool, in which slurmstepd makes its sockets."""
        return self.short / "spool"

    @property
    def munge_socket(self) -> Path:
        """The socket of the private munged."""
        return self.sockets / "munge.sock"

    @property
    def database(self) -> Path:
        """The data folder of the private MariaDB."""
        return self.root / "db"

    @property
    def database_socket(self) -> Path:
        """The socket of the private MariaDB."""
        return self.sockets / "mariadb.sock"

    def folders(self) -> tuple[Path, ...]:
        """Return every folder to make."""
        names = ("etc", "log", "run", "munge", "state", "dev", "db")
        return (*(self.root / name for name in names), self.sockets, self.spool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The TCP ports of a lab on loopback."""

    controller: int
    database: int
    nodes: tuple[int, ...]


def check_root(root: Path) -> None:
    """Refuse a folder whose path slurm.conf cannot carry.

    Raises:
        LabError: the path holds a blank, a '%' or another character that Slurm reads as something else.
    """
    if not _PLAIN_PATH.fullmatch(str(root)):
        raise LabError(
            f"lab: {root}: Slurm cannot carry this path (only letters, digits and _ . + @ : / -); "
            "choose another folder with --dir"
        )


def fits_sockets(folder: Path) -> bool:
    """Tell whether the sockets of a lab in ``folder`` keep within the kernel's limit (unix(7))."""
    return len(str(folder / _LONGEST_SOCKET).encode()) <= _SOCKET_PATH_LIMIT


def render_slurm_conf(
    layout: Layout, spec: LabSpec, ports: Ports, *, user: str, host: str, version: tuple[int, int]
) -> str:
    """Return slurm.conf (slurm.conf(5)) of a lab run by ``user`` on machine ``host`` (short name)."""
    settings = _settings(layout, spec, ports, user=user, host=host)
    if version >= _REQUEUE_DELAY_SINCE:
        settings["SchedulerParameters"] += ",requeue_delay=1"
    repeated: list[str] = []
    for line in spec.extra_conf:
        key, value = line.split("=", 1)
        if key.strip().lower() in _REPEATABLE:
            repeated.append(line)
        else:
            _replace(settings, key.strip(), value.strip())
    lines = [f"{key}={value}" for key, value in settings.items()]
    gres = f" Gres=gpu:{spec.gpus_per_node}" if spec.gpus_per_node else ""
    lines += [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={spec.cpus_per_node} "
        f"RealMemory={spec.memory_mb}{gres} State=UNKNOWN"
        for name, port in zip(spec.node_names(), ports.nodes, strict=True)
    ]
    lines += [_partition(each, default=index == 0) for index, each in enumerate(spec.partitions)]
    return "\n".join([*lines, *repeated]) + "\n"


def _settings(layout: Layout, spec: LabSpec, ports: Ports, *, user: str, host: str) -> dict[str, str]:
    settings = {
        "ClusterName": spec.cluster_name,
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(ports.controller),
        # Without these two the daemons listen on every address of the machine.
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        # cred_expire is also how long a requeued job waits before it may start again (120 s by default).
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={spec.requeue_delay_s}",
        "StateSaveLocation": str(layout.root / "state"),
        "SlurmdSpoolDir": str(layout.spool / "%n"),
        "SlurmctldPidFile": str(layout.pids / "slurmctld.slurm-pid"),
        "SlurmdPidFile": str(layout.pids / "slurmd.%n.slurm-pid"),
        "SlurmctldLogFile": str(layout.log / "slurmctld.log"),
        "SlurmdLogFile": str(layout.log / "slurmd.%n.log"),
        "SlurmctldSyslogDebug": "quiet",
        "SlurmdSyslogDebug": "quiet",
        "SlurmdParameters": "config_overrides",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SchedulerType": "sched/backfill",
        # The default delay makes the first batch job of a fresh controller wait for 3 s.
        "SchedulerParameters": "bf_interval=5,batch_sched_delay=0",
        "MpiDefault": "none",
        "TreeWidth": "65533",
        "SlurmdTimeout": str(spec.slurmd_timeout_s),
        "MessageTimeout": "2",
        "KillWait": "5",
        "ReturnToService": "1",
        "JobRequeue": "1",
        "MinJobAge": str(spec.min_job_age_s),
    }
    if spec.gpus_per_node:
        settings["GresTypes"] = "gpu"
    if spec.accounting:
        settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
        settings["AccountingStorageHost"] = "127.0.0.1"
        settings["AccountingStoragePort"] = str(ports.database)
        # Connections to slurmdbd do not look at AuthInfo; for munge this "password" is the socket's path.
        settings["AccountingStoragePass"] = str(layout.munge_socket)
        settings["AccountingStoreFlags"] = "job_comment"
    return settings


def _replace(settings: dict[str, str], key: str, value: str) -> None:
    # Slurm compares keys without regard to case; a key given twice is an error in its log.
    for known in settings:
        if known.lower() == key.lower():
            settings[known] = value
            return
    settings[key] = value


def _partition(spec: PartitionSpec, *, default: bool) -> str:
    limit = "UNLIMITED" if spec.max_nodes is None else str(spec.max_nodes)
    chosen = "YES" if default else "NO"
    return (
        f"PartitionName={spec.name} Nodes={spec.nodes} Default={chosen} State=UP "
        f"MaxTime={spec.max_time} MaxNodes={limit}"
    )


def render_cgroup_conf(version: tuple[int, int]) -> str:
    """Return cgroup.conf: a lab never touches the machine's control groups."""
    plugin = "disabled" if version >= _CGROUP_DISABLED_SINCE else "cgroup/v1"
    return f"CgroupPlugin={plugin}\n"


def render_gres_conf(devices: Sequence[Path]) -> str:
    """Return gres.conf: one dummy GPU for each of ``devices``, the same on every node."""
    return "".join(f"Name=gpu File={device}\n" for device in devices)


def render_slurmdbd_conf(layout: Layout, ports: Ports, *, user: str) -> str:
    """Return slurmdbd.conf; MariaDB knows ``user`` by the socket's credentials, so there is no password."""
    settings: Mapping[str, str] = {
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(ports.database),
        "SlurmUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "LogFile": str(layout.log / "slurmdbd.log"),
        "PidFile": str(layout.pids / "slurmdbd.slurm-pid"),
        "DebugLevelSyslog": "quiet",
        "MessageTimeout": "5",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": user,
        "StorageLoc": "slurm_acct",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
