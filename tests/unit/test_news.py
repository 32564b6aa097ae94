"""News: once for each decision, through plugins; and plugins or packs that are broken."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from supervisor.clock import ManualClock
from supervisor.errors import SettingsError
from supervisor.hooks import load_plugins, load_signatures
from supervisor.ledger.store import Ledger
from supervisor.sweep.circle import Sweep
from tests.unit.facts import NOW
from tests.unit.world import World


def notify(target: str, subject: str, body: str, *plugins: Path) -> bool | None:
    found: bool | None = load_plugins(plugins).hook.supervise_notify(
        target=target, subject=subject, body=body
    )
    return found


class MailServer:
    """The least of SMTP (RFC 5321) that a client needs, for one mail after another."""

    def __init__(self, server: socket.socket, refuse: bool) -> None:
        self._server = server
        self._refuse = refuse
        self.mails: list[str] = []
        self.recipients: list[str] = []

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def mail(self) -> Message:
        (text,) = self.mails
        return message_from_string(text)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rw", newline="\r\n", encoding="utf-8") as stream:
                self._talk(stream)

    def _talk(self, stream: object) -> None:
        def answer(text: str) -> None:
            stream.write(text + "\r\n")  # type: ignore[attr-defined]
            stream.flush()  # type: ignore[attr-defined]

        answer("220 sink")
        for line in stream:  # type: ignore[attr-defined]
            word = line.split(":")[0].strip().upper()
            if word == "DATA":
                answer("354 go on")
                lines = []
                for text in stream:  # type: ignore[attr-defined]
                    if text.rstrip("\r\n") == ".":
                        break
                    lines.append(text.replace("\r\n", "\n"))
                self.mails.append("".join(lines))
            if word == "RCPT TO":
                self.recipients.append(line.partition(":")[2].strip())
            if word == "QUIT":
                answer("221 bye")
                return
            answer("550 no such box" if self._refuse and word == "RCPT TO" else "250 ok")


@contextmanager
def mail_server(*, refuse: bool = False) -> Iterator[MailServer]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        sink = MailServer(server, refuse)
        thread = threading.Thread(target=sink.serve)
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=30)


def test_news_by_mail_arrive() -> None:
    with mail_server() as sink:
        assert notify(f"smtp://127.0.0.1:{sink.port}/me@example.org", "run 1 demo: hold", "why\nand how\n")
    assert sink.recipients == ["<me@example.org>"]
    assert sink.mail["Subject"] == "run 1 demo: hold"
    assert sink.mail["To"] == "me@example.org"
    assert sink.mail.get_payload() == "why\nand how\n"


def test_a_hostile_subject_adds_no_header() -> None:
    with mail_server() as sink:
        subject = "run 1 x\r\nBcc: all@example.org\n\nbody\x1b[2J"
        assert notify(f"smtp://127.0.0.1:{sink.port}/me", subject, "\x1b[2Jwhy\n.\nRCPT TO: <x>\n")
    assert sink.recipients == ["<me>"]
    assert "Bcc" not in sink.mail
    assert sink.mail["Subject"] == "run 1 x Bcc: all@example.org body?[2J"
    assert "\x1b" not in sink.mails[0]


@pytest.mark.parametrize("address", ["", "me%0aBcc:all@example.org", "me%00"])
def test_a_hostile_address_gets_nothing(address: str) -> None:
    with mail_server() as sink:
        assert notify(f"smtp://127.0.0.1:{sink.port}/{address}", "x", "y") is False
    assert sink.mails == []


def test_a_mail_that_is_refused_or_finds_no_server_is_not_delivered() -> None:
    with mail_server(refuse=True) as sink:
        assert notify(f"smtp://127.0.0.1:{sink.port}/me", "x", "y") is False
        port = sink.port
    assert notify(f"smtp://127.0.0.1:{port}/me", "x", "y") is False
    assert notify("smtp://127.0.0.1:99999999/me", "x", "y") is False


def test_news_in_a_file_are_one_json_line_each(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/my%20news.jsonl"
    assert notify(target, "first\nline", "body | \x1b")
    assert notify(target, "second", "")
    lines = (tmp_path / "my news.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"subject": "first\nline", "body": "body | \x1b"},
        {"subject": "second", "body": ""},
    ]


def test_a_file_that_cannot_be_written_is_not_delivered(tmp_path: Path) -> None:
    assert notify(f"file://{tmp_path}", "x", "y") is False
    assert notify(f"file://{tmp_path}/nowhere/news", "x", "y") is False


def test_a_target_that_no_plugin_knows_is_nobodys() -> None:
    assert notify("slack://team", "x", "y") is None


class Ear:
    """Hears news; ``fails`` is what happens instead."""

    def __init__(self, fails: BaseException | bool | None = True) -> None:
        self.heard: list[tuple[str, str]] = []
        self.fails = fails

    def __call__(self, target: str, subject: str, body: str) -> bool | None:
        self.heard.append((target, subject))
        if isinstance(self.fails, BaseException):
            raise self.fails
        return self.fails


def sweep(world: World, ear: Ear, *targets: str) -> tuple[str, ...]:
    made = Sweep(
        world.ledger,
        world.slurm,
        world.clock,
        policy=world.policy,
        signatures=(),
        owner="alice",
        notify=ear,
        notify_targets=targets,
    )
    return made.run().lines


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_decision_is_told_once_to_each_target(world: World) -> None:
    ear = Ear()
    world.submit(name="demo", notify=["file:///a", "file:///b"])
    sweep(world, ear, "file:///site", "file:///a")
    assert ear.heard == []
    world.slurm.fail_node("node001")
    world.pass_time(30)
    for _ in range(3):
        sweep(world, ear, "file:///site", "file:///a")
    told = "run 1 demo: resubmit"
    assert ear.heard == [("file:///a", told), ("file:///b", told), ("file:///site", told)]


def test_a_run_that_waits_is_told_once_for_all_sweeps(world: World) -> None:
    ear = Ear()
    world.submit()
    world.sweep()
    for number in range(2, 7):
        world.slurm.drain_by_admin(f"node{number:03d}", "maintenance")
    world.slurm.fail_node("node001")
    for _ in range(5):
        world.pass_time(30)
        sweep(world, ear, "file:///a")
    assert ear.heard == [("file:///a", "run 1 demo: wait")]


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (RuntimeError("no\x1bnet"), "its plugin failed: RuntimeError"),
        (False, "it could not be delivered"),
        (None, "no plugin knows such a target"),
    ],
)
def test_news_that_cannot_be_told_stop_nothing(
    world: World, fails: BaseException | bool | None, why: str
) -> None:
    ear = Ear(fails)
    run = world.submit()
    world.sweep()
    world.slurm.fail_node("node001")
    world.pass_time(30)
    lines = sweep(world, ear, "file:///a", "file:///b")
    assert [target for target, _ in ear.heard] == ["file:///a", "file:///b"]
    assert sum(f"news for file:///a: {why}" in line for line in lines) == 1
    assert world.last(run).no == 2
    sweep(world, ear, "file:///a", "file:///b")
    assert len(ear.heard) == 2
    assert world.ledger.open_actions() == ()


HOOK = "from supervisor.hooks import hookimpl\n@hookimpl\n"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "SystemExit"),
        (HOOK + "def supervise_notify(nonsense): ...\n", "PluginValidationError"),
        (HOOK + "def supervise_nonsense(): ...\n", "PluginValidationError"),
        (HOOK + "def supervise_signature_packs(): raise KeyError('x')\n", "KeyError"),
        (HOOK + "def supervise_signature_packs(): return None\n", "TypeError"),
    ],
)
def test_a_broken_plugin_is_named_by_its_file(tmp_path: Path, code: str, what: str) -> None:
    (tmp_path / "good.py").write_text("")
    broken = tmp_path / "broken.py"
    broken.write_text(code)
    with pytest.raises(SettingsError) as caught:
        load_signatures(load_plugins([tmp_path]))
    assert str(caught.value).startswith(f"{broken}: the plugin cannot be loaded: {what}")


def test_a_plugin_may_be_any_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from supervisor.hooks import hookimpl\n"
        "@dataclass\nclass Box:\n    name: str\n"
        "@hookimpl\ndef supervise_notify(target, subject):\n"
        "    return Box(subject).name == 'x' if target == 'box:' else None\n"
    )
    assert notify("box:", "x", "", tmp_path) is True
    assert notify("box:", "y", "", tmp_path) is False


def pack(tmp_path: Path, text: str) -> Path:
    (tmp_path / "packs.py").write_text(
        "from pathlib import Path\nfrom supervisor.hooks import hookimpl\n"
        "@hookimpl\ndef supervise_signature_packs():\n    return [Path(__file__).with_name('pack.yaml')]\n"
    )
    path = tmp_path / "pack.yaml"
    path.write_text(text)
    return path


GOOD = "id: site.x, class: data, confidence: 0.5, cause: c"


def test_a_pack_of_ones_own_is_added(tmp_path: Path) -> None:
    pack(tmp_path, f"- {{{GOOD}, pattern: 'x+'}}\n")
    added = load_signatures(load_plugins([tmp_path]))
    assert len(added) == len(load_signatures(load_plugins())) + 1
    assert [item.advice for item in added if item.id == "site.x"] == [""]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"- {{{GOOD}, pattern: '('}}", "signature site.x: missing ), unterminated subpattern"),
        (
            "- {id: site.x, class: bad_luck, confidence: 1, cause: c, pattern: x}",
            "signature site.x: 'bad_luck' is not",
        ),
        (f"- {{{GOOD}}}", "signature site.x: pattern is missing"),
        ("- {class: data}", "signature 1: confidence is missing"),
        (f"- {{{GOOD}, pattern: x, echo: 'false'}}", "signature site.x: confidence is a number"),
        (
            "- {id: y, class: data, confidence: 3, cause: c, pattern: x}",
            "signature y: confidence is a number",
        ),
        (f"- {{{GOOD}, pattern: x, pattren: y}}", "signature site.x: unknown key pattren"),
        (f"- {{{GOOD}, pattern: 7}}", "signature site.x: "),
        ("- just words", "signature 1: an entry is a mapping"),
        ("words", "a signature pack is a list of entries"),
        ("- [", "the signature pack cannot be read"),
        ("", "a signature pack is a list of entries"),
    ],
)
def test_a_wrong_pack_is_named_with_its_entry(tmp_path: Path, text: str, what: str) -> None:
    path = pack(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_signatures(load_plugins([tmp_path]))
    assert str(caught.value).startswith(f"{path}: {what}")


def test_a_pack_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = pack(tmp_path, "")
    path.unlink()
    with pytest.raises(SettingsError, match=r"pack\.yaml: the signature pack cannot be read"):
        load_signatures(load_plugins([tmp_path]))


def test_a_plugin_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere: no such directory"):
        load_plugins([tmp_path / "nowhere"])


def test_the_ledger_keeps_whom_was_told(world: World, tmp_path: Path) -> None:
    world.submit(notify=["file:///a"])
    sweep(world, Ear())
    world.slurm.fail_node("node001")
    world.pass_time(30)
    sweep(world, Ear())
    again = Ledger.open(f"sqlite:///{tmp_path}/ledger.db", ManualClock(NOW))
    assert [a.detail for a in again.actions(1) if a.kind == "notify"] == ["told file:///a"]
