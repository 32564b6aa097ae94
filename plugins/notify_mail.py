"""Bundled plugin: news by mail.

``mailto:me@example.org`` goes through the machine's own mail server, and a lone name is a mailbox on this
machine; ``smtp://mail.example.org:25/me@example.org`` names the server.
"""

import getpass
import smtplib
import socket
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

from supervisor.hooks import hookimpl

TIMEOUT_S = 10
_PORT = 25


@hookimpl
def supervise_notify(target: str, subject: str, body: str) -> bool | None:
    """Send a mail where ``target`` is a ``mailto:`` address or an ``smtp:`` URL."""
    if not target.startswith(("mailto:", "smtp:")):
        return None
    try:
        parts = urlsplit(target)
        host, port = parts.hostname or "localhost", parts.port or _PORT
        message = _write(unquote(parts.path).lstrip("/"), subject, body)
        with smtplib.SMTP(host, port, timeout=TIMEOUT_S) as server:
            server.send_message(message)
    except (OSError, ValueError, smtplib.SMTPException):
        return False
    return True


def _write(address: str, subject: str, body: str) -> EmailMessage:
    if not address or not address.isprintable():
        raise ValueError(f"{address!r} is no mail address")
    message = EmailMessage()
    # Names of runs and words of logs are in here: a header takes one line, and a mail is read on a terminal.
    message["Subject"] = _printable(" ".join(subject.split()))
    message["From"] = f"{getpass.getuser()}@{socket.getfqdn()}"
    message["To"] = address
    message.set_content(_printable(body))
    return message


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
