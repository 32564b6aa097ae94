"""Bundled plugin: news as JSON lines appended to a file (``file:///scratch/me/news.jsonl``), for scripts."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from supervisor.hooks import hookimpl


@hookimpl
def supervise_notify(target: str, subject: str, body: str) -> bool | None:
    """Append one line where ``target`` is a ``file:`` URL."""
    parts = urlsplit(target)
    if parts.scheme != "file":
        return None
    try:
        with Path(unquote(parts.path)).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"subject": subject, "body": body}) + "\n")
    except OSError:
        return False
    return True
