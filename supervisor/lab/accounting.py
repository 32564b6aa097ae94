"""The optional slurmdbd of a lab and its private MariaDB: a socket, a data folder of its own, no network."""

from datetime import timedelta

from supervisor.clock import Clock
from supervisor.errors import LabError
from supervisor.lab.daemons import Daemon, launch, wait_ready
from supervisor.lab.host import Host, accepts, clean_environ, listens, run
from supervisor.lab.layout import Layout, Ports, render_slurmdbd_conf
from supervisor.lab.processes import MARKER

_PATIENCE = timedelta(seconds=60)
_INSTALL_TIMEOUT_S = 120.0


def start_accounting(layout: Layout, ports: Ports, host: Host, clock: Clock) -> None:
    """Make the database and start MariaDB and slurmdbd; slurmdbd creates its tables itself.

    Raises:
        LabError: one of them did not come up.
    """
    conf = layout.conf.with_name("slurmdbd.conf")
    conf.touch(mode=0o600)
    conf.write_text(render_slurmdbd_conf(layout, ports, user=host.user), encoding="utf-8")
    _install_database(layout, host)
    launch(_mariadbd(layout, host), layout)
    wait_ready("mariadbd", layout, lambda: listens(layout.database_socket), clock, _PATIENCE)
    launch(_slurmdbd(layout, host), layout)
    wait_ready("slurmdbd", layout, lambda: accepts(ports.database), clock, _PATIENCE)


def _install_database(layout: Layout, host: Host) -> None:
    # Socket authentication: the account that runs the lab is the database's root, and there is no password.
    answer = run(
        [
            host.programs["mariadb-install-db"],
            "--no-defaults",
            f"--user={host.user}",
            f"--datadir={layout.database}",
            "--skip-test-db",
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={host.user}",
        ],
        clean_environ({MARKER: str(layout.root)}),
        timeout_s=_INSTALL_TIMEOUT_S,
    )
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr).strip().splitlines()[-8:]
        raise LabError("lab: mariadb-install-db failed:\n" + "\n".join(f"  {line}" for line in said))


def _mariadbd(layout: Layout, host: Host) -> Daemon:
    return Daemon(
        name="mariadbd",
        argv=(
            host.programs["mariadbd"],
            "--no-defaults",
            f"--user={host.user}",
            f"--datadir={layout.database}",
            f"--socket={layout.database_socket}",
            f"--pid-file={layout.pids / 'mariadbd.mariadb-pid'}",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
        ),
    )


def _slurmdbd(layout: Layout, host: Host) -> Daemon:
    # StorageHost=localhost makes the MariaDB client take the socket that this variable names.
    return Daemon(
        name="slurmdbd",
        argv=(host.programs["slurmdbd"], "-D"),
        environ=(("MYSQL_UNIX_PORT", str(layout.database_socket)),),
    )
