"""Replies of squeue and sacct as rows.

A job's name and comment may hold anything: ``|``, newlines, a whole forged row. So the columns are
separated by a nonce that is drawn anew for every call and that no job can know.
"""

import logging
import secrets
from collections.abc import Mapping

from supervisor.domain.facts import JobRow
from supervisor.slurm.states import (
    NOTHING,
    read_canceller,
    read_count,
    read_exit,
    read_job_id,
    read_job_state,
    read_nodes,
    read_text,
    read_time,
)

_log = logging.getLogger(__name__)

SQUEUE_FIELDS = (
    "JobID",
    "State",
    "Reason",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "NumNodes",
    "NodeList",
    "Partition",
    "UserName",
    "RestartCnt",
    "exit_code",
    "Comment",
    "Name",
)
"""Types of ``squeue -O``; without a size each is printed in full (22.05.8: only with a suffix)."""

SACCT_FIELDS = (
    "JobIDRaw",
    "State",
    "ExitCode",
    "Submit",
    "Start",
    "End",
    "NNodes",
    "NodeList",
    "Partition",
    "User",
    "Reason",
    "Comment",
    "JobName",
    "ElapsedRaw",
)
"""The first and the last hold digits only: sacct ends a row with a bare newline, which text must not touch.

``Restarts`` and ``FailedNode`` are absent: sacct 22.05 refuses the whole call over an unknown field.
"""


def draw_nonce() -> str:
    """Return a separator that no text in a reply can hold but by Slurm's own hand."""
    # Letters at both ends: digits after the colon would be read as a column width.
    return f"x{secrets.token_hex(16)}x"


def squeue_format(nonce: str) -> str:
    """Return the argument of ``squeue -O`` whose every column ends with ``nonce``."""
    return ",".join(f"{name}:{nonce}" for name in SQUEUE_FIELDS)


def parse_squeue(text: str, nonce: str) -> tuple[JobRow, ...]:
    """Read the reply to ``squeue --noheader -O squeue_format(nonce)``.

    Rows of array ranges and other things without a plain id are left out.

    Raises:
        ValueError: if the reply does not have the shape that was asked for (cut short, or an error text).
    """
    if not text.strip():
        return ()
    *cells, tail = text.split(nonce)
    if tail != "\n" or len(cells) % len(SQUEUE_FIELDS):
        raise ValueError("the reply of squeue does not have the columns that were asked for")
    rows = []
    for start in range(0, len(cells), len(SQUEUE_FIELDS)):
        row = cells[start : start + len(SQUEUE_FIELDS)]
        if start and not row[0].startswith("\n"):
            raise ValueError("the reply of squeue has a row that does not start on a line of its own")
        fields = dict(zip(SQUEUE_FIELDS, row, strict=True))
        job = _row(
            fields,
            job_id="JobID",
            submit="SubmitTime",
            start="StartTime",
            end="EndTime",
            count="NumNodes",
            user="UserName",
            name="Name",
            exit_code="exit_code",
        )
        if job is not None:
            rows.append(job)
    return tuple(rows)


def parse_sacct(text: str, nonce: str) -> tuple[JobRow, ...]:
    """Read the reply to ``sacct -X -D --noheader --parsable2 --delimiter=nonce -o SACCT_FIELDS``.

    Raises:
        ValueError: if the reply does not have the shape that was asked for.
    """
    if not text.strip():
        return ()
    if not text.endswith("\n"):
        raise ValueError("the reply of sacct is cut short")
    # Between two nonces at a row's end stand "ElapsedRaw\nJobIDRaw" and nothing else.
    cells = text.removesuffix("\n").split(nonce)
    stride = len(SACCT_FIELDS) - 1
    if len(cells) < stride + 1 or (len(cells) - 1) % stride:
        raise ValueError("the reply of sacct does not have the columns that were asked for")
    rows = []
    first = cells[0]
    for start in range(0, len(cells) - 1, stride):
        last, newline, following = cells[start + stride].partition("\n")
        at_end = start + stride == len(cells) - 1
        if bool(newline) == at_end:
            raise ValueError("the reply of sacct has a row that does not end where it should")
        row = (first, *cells[start + 1 : start + stride], last)
        fields = dict(zip(SACCT_FIELDS, row, strict=True))
        job = _row(
            fields,
            job_id="JobIDRaw",
            submit="Submit",
            start="Start",
            end="End",
            count="NNodes",
            user="User",
            name="JobName",
            exit_code="ExitCode",
        )
        if job is not None:
            rows.append(job)
        first = following
    return tuple(rows)


def _row(
    fields: Mapping[str, str],
    *,
    job_id: str,
    submit: str,
    start: str,
    end: str,
    count: str,
    user: str,
    name: str,
    exit_code: str,
) -> JobRow | None:
    number = read_job_id(fields[job_id])
    if number is None:
        return None
    code, sign = read_exit(fields[exit_code])
    try:
        nodes = read_nodes(fields["NodeList"])
    except ValueError as error:
        _log.warning("job %s: its node list is not used: %s", number, error)
        nodes = ()
    reason = fields["Reason"].strip()
    return JobRow(
        job_id=number,
        state=read_job_state(fields["State"]),
        raw_state=fields["State"].strip(),
        reason="" if reason in NOTHING else reason,
        user=fields[user].strip(),
        name=read_text(fields[name]),
        comment=read_text(fields["Comment"]),
        submit_at=read_time(fields[submit]),
        start_at=read_time(fields[start]),
        end_at=read_time(fields[end]),
        nodes=nodes,
        num_nodes=read_count(fields[count]),
        partition=fields["Partition"].strip(),
        restart_count=read_count(fields.get("RestartCnt", "")),
        exit_code=code,
        exit_signal=sign,
        cancelled_by=read_canceller(fields["State"]),
    )
