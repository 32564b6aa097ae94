"""A ledger on each dialect: a file, and a private PostgreSQL server without network."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import psycopg
import pytest

from supervisor.clock import ManualClock
from supervisor.domain.action import Action
from supervisor.domain.ids import Token
from supervisor.domain.run import Allocation, Run
from supervisor.ledger import Ledger, NewAllocation

START = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
_DEBIAN = "apt-get install postgresql"


@dataclass(frozen=True)
class PostgresServer:
    """A private server: one folder, one socket in it, gone with the test session."""

    folder: Path
    numbers: Iterator[int]

    def url(self, database: str) -> str:
        return f"postgresql://supervisor@/{database}?host={self.folder}"

    def create_database(self) -> str:
        name = f"ledger_{next(self.numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)


def _postgres_programs() -> Path:
    def version(folder: Path) -> float:
        return float(folder.parent.name)

    folders = sorted((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), key=version)
    if not folders:
        pytest.fail(
            f"PostgreSQL's programs are missing in /usr/lib/postgresql/*/bin; {_DEBIAN}", pytrace=False
        )
    return folders[-1]


def _account_prefix(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: root lends the folder to the postgres account."""
    if os.geteuid() != 0:
        return []
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        pytest.fail(f"there is no account postgres to run a server as; {_DEBIAN}", pytrace=False)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return [
        "setpriv",
        f"--reuid={account.pw_uid}",
        f"--regid={account.pw_gid}",
        "--clear-groups",
        "--inh-caps=-all",
    ]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = _postgres_programs()
    folder = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    prefix = _account_prefix(folder)
    data = folder / "data"
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c full_page_writes=off"

    def run(*arguments: str) -> None:
        with (folder / "commands.log").open("ab") as log:
            done = subprocess.run(
                [*prefix, *arguments],
                check=False,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=60,
            )
        if done.returncode != 0:
            pytest.fail(f"{arguments[0]}: {(folder / 'commands.log').read_text()}", pytrace=False)

    try:
        run(
            str(programs / "initdb"),
            f"--pgdata={data}",
            "--username=supervisor",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )
        pg_ctl = str(programs / "pg_ctl")
        log = str(folder / "server.log")
        run(pg_ctl, "start", "-w", "-t", "30", f"--pgdata={data}", f"--log={log}", f"--options={options}")
        try:
            yield PostgresServer(folder=folder, numbers=count(1))
        finally:
            run(pg_ctl, "stop", "-w", "-t", "30", "-m", "immediate", f"--pgdata={data}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that holds nothing yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/ledger.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def ledger(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, clock) as opened:
        yield opened


@pytest.fixture
def sqlite_ledger(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/state/ledger.db", clock) as opened:
        yield opened


@pytest.fixture
def new_run() -> Callable[[Ledger], tuple[Run, Allocation, Action]]:
    """Store one more run; every one has its own uid and token."""
    numbers = count(1)

    def store(ledger: Ledger) -> tuple[Run, Allocation, Action]:
        number = next(numbers)
        return ledger.create_run(
            uid=f"llama-{number:04d}",
            name="llama",
            owner="ada",
            cluster="c1",
            spec_json="{}",
            folder=Path(f"/home/ada/.supervise/llama-{number:04d}"),
            allocation=NewAllocation(token=Token(f"first{number:04d}"), num_nodes=4),
            action_payload='{"script": "x"}',
        )

    return store
