"""Everything that can be wrong with the place of a ledger."""

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

import supervisor
from supervisor.clock import ManualClock
from supervisor.domain.action import Action
from supervisor.domain.run import Allocation, Run
from supervisor.errors import LedgerError
from supervisor.ledger import Ledger, Severity
from supervisor.ledger.checks import check_place, probe_locks
from supervisor.ledger.filesystem import find_mount

NewRun = Callable[[Ledger], tuple[Run, Allocation, Action]]

_MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 21 0:33 / /home rw shared:9 - nfs4 server:/home rw,vers=4.2
41 21 0:34 / /scratch rw - lustre mds@tcp:/scratch rw
42 40 0:35 / /home/ada/with\\040space rw master:2 propagate_from:3 - gpfs gpfs1 rw
43 21 0:36 / /run rw - tmpfs tmpfs rw
44 21 0:37 / /data rw - ext4 /dev/sdb1 rw
45 44 0:38 / /data rw - beegfs beegfs_nodev rw
malformed line
"""


@contextmanager
def _as_ordinary_user() -> Iterator[None]:
    """Root may write everywhere; what is asked here is what a user sees."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_new_ledger_is_nobody_elses_business(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "ledger.db").stat().st_mode) == 0o600


def test_a_ledger_that_must_be_there_is_not_made(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(LedgerError, match="there is none"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db", clock, create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_not_filled_unasked(ledger_url: str, tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.db").touch(mode=0o600)
    with pytest.raises(LedgerError, match="no ledger in it yet"):
        Ledger.open(ledger_url, clock, create=False)
    with Ledger.open(ledger_url, clock) as ledger:
        assert ledger.runs() == ()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "give a file"),
        ("sqlite:///:memory:", "give a file"),
        ("sqlite:///file:x?mode=memory&uri=true", "give a file"),
        ("mysql://ada:secret@db/ledger", "not understood"),
        ("/home/ada/ledger.db", "cannot be read"),
        ("", "cannot be read"),
        ("sqlite:////dev/full", "not a regular file"),
        ("sqlite:////proc/nowhere/ledger.db", "cannot be created"),
        ("postgresql://ada:secret@/ledger?host=/nowhere", "cannot be reached"),
        ("postgresql://ada:secret@127.0.0.1:1/ledger", "cannot be reached"),
        ("postgresql://127.0.0.1:1/ledger?user=ada&password=secret", "cannot be reached"),
        ("postgresql://ada:secret@host:port/ledger", "cannot be read"),
    ],
)
def test_a_url_that_leads_nowhere_is_explained_without_its_password(
    url: str, said: str, clock: ManualClock
) -> None:
    with pytest.raises(LedgerError, match=said) as caught:
        Ledger.open(url, clock, timeout=timedelta(seconds=2))
    assert "secret" not in str(caught.value)


def test_a_ledger_of_a_newer_version_is_not_touched(ledger_url: str, clock: ManualClock) -> None:
    with Ledger.open(ledger_url, clock) as ledger, ledger._write() as connection:
        connection.execute(sa.text("UPDATE ledger_version SET version_num = '0999'"))
    with pytest.raises(LedgerError, match=r"version 0999, .* knows 0001 .*upgrade this installation"):
        Ledger.open(ledger_url, clock)


def test_a_word_of_a_newer_version_is_said_so(ledger: Ledger, new_run: NewRun) -> None:
    run, _, _ = new_run(ledger)
    with ledger._write() as connection:
        connection.execute(sa.text("UPDATE run SET state = 'teleporting'"))
    with pytest.raises(LedgerError, match="'teleporting' where one of queued"):
        ledger.run(run.id)


def test_a_locked_ledger_is_given_up_after_the_timeout(
    ledger: Ledger, ledger_url: str, clock: ManualClock, new_run: NewRun
) -> None:
    run, _, _ = new_run(ledger)
    with Ledger.open(ledger_url, clock, timeout=timedelta(seconds=0.3)) as second:
        with ledger._write() as connection:
            connection.execute(sa.text("UPDATE run SET reason = 'held'"))
            started = time.monotonic()
            with pytest.raises(LedgerError, match="another process is writing"):
                second.set_run_reason(run.id, run.state, "blocked")
            assert 0.2 < time.monotonic() - started < 5
        assert second.set_run_reason(run.id, run.state, "free again")


def test_a_full_disk_stores_nothing_of_the_step(sqlite_ledger: Ledger, new_run: NewRun) -> None:
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}").close()

    sa.event.listen(sqlite_ledger._engine, "connect", limit)
    stored = 0
    said = ""
    while not said:
        try:
            new_run(sqlite_ledger)
            stored += 1
        except LedgerError as error:
            said = str(error)
    assert "the disk or the quota is full; nothing of this step was stored" in said
    sa.event.remove(sqlite_ledger._engine, "connect", limit)
    runs = sqlite_ledger.runs()
    assert len(runs) == len(sqlite_ledger.live_allocations()) == len(sqlite_ledger.open_actions()) == stored
    assert len(sqlite_ledger.events()) == 3 * stored
    new_run(sqlite_ledger)


def test_a_file_that_may_not_grow_stores_nothing_of_the_step(
    sqlite_ledger: Ledger, tmp_path: Path, clock: ManualClock
) -> None:
    script = (
        "import sys; from supervisor.clock import SystemClock; from supervisor.ledger import Ledger\n"
        "with Ledger.open(sys.argv[1], SystemClock()) as ledger:\n"
        "    print('open', flush=True)\n"
        "    ledger.append_event('big', 'x' * 1_000_000)\n"
    )
    limit = (tmp_path / "state" / "ledger.db").stat().st_size + 100_000
    done = subprocess.run(
        [sys.executable, "-c", script, f"sqlite:///{tmp_path}/state/ledger.db"],
        env={**os.environ, "PYTHONPATH": str(Path(supervisor.__file__).parents[1])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "open\n"
    assert "LedgerError" in done.stderr
    assert "nothing of this step was stored" in done.stderr
    assert sqlite_ledger.events() == ()
    assert {finding.severity for finding in sqlite_ledger.check()} == {Severity.OK}


def test_a_ledger_that_this_user_may_not_write_is_named(clock: ManualClock, new_run: NewRun) -> None:
    folder = Path("/tmp") / f"ledger-readonly-{os.getpid()}"
    folder.mkdir(mode=0o755)
    path = folder / "ledger.db"
    try:
        with Ledger.open(f"sqlite:///{path}", clock) as ledger:
            new_run(ledger)
        path.chmod(0o444)
        with _as_ordinary_user(), Ledger.open(f"sqlite:///{path}", clock) as ledger:
            assert len(ledger.runs()) == 1
            with pytest.raises(LedgerError, match=rf"{path}: .*cannot write there"):
                ledger.append_event("x", "x")
        path.chmod(0o000)
        with _as_ordinary_user(), pytest.raises(LedgerError, match=rf"{path}: .*cannot write there"):
            Ledger.open(f"sqlite:///{path}", clock)
        folder.chmod(0o500)
        with _as_ordinary_user(), pytest.raises(LedgerError, match="Permission denied"):
            Ledger.open(f"sqlite:///{folder}/sub/ledger.db", clock)
    finally:
        folder.chmod(0o755)
        path.unlink(missing_ok=True)
        folder.rmdir()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: llama\n" * 200)
    with pytest.raises(LedgerError, match="not a ledger or it is damaged"):
        Ledger.open(f"sqlite:///{path}", clock)
    assert path.read_text() == "name: llama\n" * 200


def test_a_damaged_ledger_is_reported(sqlite_ledger: Ledger, tmp_path: Path, new_run: NewRun) -> None:
    for _ in range(30):
        new_run(sqlite_ledger)
    path = tmp_path / "state" / "ledger.db"
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (path.stat().st_size - 8192))
    assert Severity.FAIL in {finding.severity for finding in sqlite_ledger.check()}
    with pytest.raises(LedgerError, match="restore a backup"):
        sqlite_ledger.events()


def test_a_write_ahead_log_is_turned_off(sqlite_ledger: Ledger, tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "state" / "ledger.db"
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    assert Severity.FAIL in {finding.severity for finding in sqlite_ledger.check()}
    other.execute("SELECT * FROM run").fetchall()
    with pytest.raises(LedgerError, match="write-ahead log cannot be turned off"):
        Ledger.open(f"sqlite:///{path}", clock, timeout=timedelta(seconds=0.2))
    other.close()
    with Ledger.open(f"sqlite:///{path}", clock) as ledger:
        assert {finding.severity for finding in ledger.check()} == {Severity.OK}


def test_a_sound_ledger_has_only_good_findings(ledger: Ledger) -> None:
    findings = ledger.check()
    assert {finding.severity for finding in findings} == {Severity.OK}
    assert ledger.warnings == ()
    assert ledger.schema_version() == "0001"


def test_a_ledger_that_others_can_read_is_a_warning(sqlite_ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "state" / "ledger.db").chmod(0o644)
    warned = [finding for finding in sqlite_ledger.check() if finding.severity != Severity.OK]
    assert [(finding.subject, finding.severity) for finding in warned] == [("mode", Severity.WARN)]


@pytest.mark.parametrize(
    ("path", "kind", "networked"),
    [
        ("/var/lib/supervisor/x", "ext4", False),
        ("/home/ada/.local/x", "nfs4", True),
        ("/home/ada/with space/x", "gpfs", True),
        ("/scratch/x", "lustre", True),
        ("/scratchy/x", "ext4", False),
        ("/data/x", "beegfs", True),
    ],
)
def test_the_file_system_is_named(path: str, kind: str, networked: bool) -> None:
    mount = find_mount(Path(path), _MOUNTS)
    assert mount is not None
    assert (mount.kind, mount.networked) == (kind, networked)


def test_a_network_file_system_and_a_volatile_one_are_warned_of(
    sqlite_ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    path = tmp_path / "state" / "ledger.db"
    for kind, said in (("nfs4", "several hosts share"), ("tmpfs", "next reboot")):
        mounts = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path} rw - {kind} y rw\n"
        monkeypatch.setattr(
            "supervisor.ledger.checks.find_mount", lambda folder, text=mounts: find_mount(folder, text)
        )
        finding = check_place(path)
        assert finding.severity == Severity.WARN
        assert said in finding.text
        with Ledger.open(f"sqlite:///{path}", clock) as ledger:
            assert ledger.warnings == (finding,)


def test_a_folder_where_nothing_can_be_written_fails_the_probe() -> None:
    finding = probe_locks(Path("/proc"))
    assert (finding.severity, finding.subject) == (Severity.FAIL, "locks")
