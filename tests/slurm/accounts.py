"""Gives up root in a child, so that a test sees what an ordinary account of the machine sees."""

import codecs
import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A system account of every Debian machine; Slurm refuses an account without a name.
ACCOUNT = "games"


def as_ordinary_account(work: Callable[[], dict[str, Any]], home: Path) -> dict[str, Any]:
    """Do ``work`` in a child that gave up root for good, and return what it found.

    The child is forked and not a new interpreter, since that may lie in a folder closed to the account.
    Where the tests run without root already, the work is done right here.
    """
    if os.geteuid() != 0:
        return work()
    # Where Python lies in root's home, the account cannot load what is first needed after the fork.
    for encoding in ("ascii", "idna", "latin-1"):
        codecs.lookup(encoding)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            account = pwd.getpwnam(ACCOUNT)
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
            os.environ.update(HOME=str(home), USER=ACCOUNT, LOGNAME=ACCOUNT)
            os.chdir("/")
            answer: dict[str, Any] = work()
        except BaseException as error:  # noqa: BLE001
            answer = {"error": repr(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found: dict[str, Any] = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in found, found["error"]
    return found
