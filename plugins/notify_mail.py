"""Bundled plugin: news by mail, through the machine's own mail server (``mailto:me@example.org``)."""

import getpass
import smtplib
import socket
from email.message import EmailMessage
from urllib.parse import unquote

from supervisor.hooks import hookimpl

TIMEOUT_S = 10


@hookimpl
def supervise_notify(target: str, subject: str, body: str) -> bool | None:
    """Send a mail where ``target`` is a ``mailto:`` address; a lone name is a mailbox on this machine."""
    if not target.startswith("mailto:"):
        return None
    address = unquote(target.removeprefix("mailto:").lstrip("/"))
    message = EmailMessage()
    # A header takes one line; EmailMessage refuses more, so that no name can add a header of its own.
    message["Subject"] = " ".join(subject.split())
    message["From"] = f"{getpass.getuser()}@{socket.getfqdn()}"
    message["To"] = address
    message.set_content(body)
    try:
        with smtplib.SMTP("localhost", timeout=TIMEOUT_S) as server:
            server.send_message(message)
    except (OSError, smtplib.SMTPException):
        return False
    return True
