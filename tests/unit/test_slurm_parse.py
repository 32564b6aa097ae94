import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.facts import JobState, NodeBase, NodeFlag
from supervisor.slurm.parse_jobs import (
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    draw_nonce,
    parse_sacct,
    parse_squeue,
    squeue_format,
)
from supervisor.slurm.parse_nodes import parse_config, parse_nodes, parse_partitions
from supervisor.slurm.states import (
    read_canceller,
    read_count,
    read_exit,
    read_job_id,
    read_job_state,
    read_node_state,
    read_nodes,
    read_time,
    split_reason,
)

RECORDED = Path(__file__).parent.parent / "recorded"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
NONCE = "x0123456789abcdef0123456789abcdefx"


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / name).read_text()


def squeue_row(**fields: str) -> str:
    values = {
        "JobID": "7",
        "State": "RUNNING",
        "Reason": "None",
        "SubmitTime": "1796086800",
        "StartTime": "1796086801",
        "EndTime": "N/A",
        "NumNodes": "2",
        "NodeList": "n[1-2]",
        "Partition": "main",
        "UserName": "alice",
        "RestartCnt": "0",
        "exit_code": "0",
        "Comment": "(null)",
        "Name": "job",
    } | fields
    return "".join(values[name] + NONCE for name in SQUEUE_FIELDS) + "\n"


def sacct_row(**fields: str) -> str:
    values = dict.fromkeys(SACCT_FIELDS, "") | {
        "JobIDRaw": "7",
        "State": "FAILED",
        "ExitCode": "3:0",
        "NNodes": "1",
        "ElapsedRaw": "5",
    }
    return NONCE.join((values | fields)[name] for name in SACCT_FIELDS) + "\n"


def test_every_kind_of_job_in_a_recorded_squeue_reply_is_read() -> None:
    rows = {row.job_id: row for row in parse_squeue(recorded("22.05.8", "squeue-nonce.txt"), NONCE)}

    assert {int(number): (row.state, row.reason) for number, row in rows.items()} == {
        1: (JobState.RUNNING, ""),
        2: (JobState.RUNNING, ""),
        3: (JobState.CANCELLED, "Priority"),
        4: (JobState.CANCELLED, ""),
        5: (JobState.FAILED, "NonZeroExitCode"),
        6: (JobState.FAILED, "JobLaunchFailure"),
        7: (JobState.NODE_FAIL, "NodeDown"),
        8: (JobState.RUNNING, ""),
        9: (JobState.PENDING, "JobArrayTaskLimit"),
        10: (JobState.PENDING, "PartitionNodeLimit"),
        11: (JobState.FAILED, "BadConstraints"),
        13: (JobState.RUNNING, ""),
    }
    by_number = {int(number): row for number, row in rows.items()}
    assert by_number[7].nodes == ("node002", "node003")
    assert by_number[8].restart_count == 1
    assert (by_number[5].exit_code, by_number[5].exit_signal) == (3, 0)
    assert (by_number[6].exit_code, by_number[6].exit_signal) == (0, 9)
    assert by_number[4].name == "a|b\n99|FAKE|NODE_FAIL"
    assert by_number[4].comment == "supervise:abcdefghijklmnop|x\n99|FAKE|evil JobState=FAKE"
    assert by_number[4].submit_at == datetime(2026, 12, 1, 1, 15, 26, tzinfo=UTC)
    assert by_number[10].start_at is None
    assert by_number[10].num_nodes == 9


def test_every_kind_of_job_in_a_recorded_sacct_reply_is_read() -> None:
    rows = {int(row.job_id): row for row in parse_sacct(recorded("22.05.8", "sacct-nonce.txt"), NONCE)}

    assert {number: row.state for number, row in rows.items()} == {
        1: JobState.RUNNING,
        2: JobState.RUNNING,
        3: JobState.CANCELLED,
        4: JobState.CANCELLED,
        5: JobState.FAILED,
        6: JobState.FAILED,
        7: JobState.NODE_FAIL,
        8: JobState.REQUEUED,
        10: JobState.PENDING,
        11: JobState.FAILED,
        12: JobState.NODE_FAIL,
    }
    assert rows[4].cancelled_by == 0
    assert rows[4].raw_state == "CANCELLED by 0"
    assert rows[4].name == "a|b\n99|FAKE|NODE_FAIL"
    assert (rows[6].exit_code, rows[6].exit_signal) == (0, 9)
    assert rows[7].nodes == ("node002", "node003")


FORGERIES = [
    "x\n99|FAKE|evil",
    "\n99 FAKE\n",
    "99xFAKEx",
    f"{draw_nonce()}FAKE{draw_nonce()}",
    " JobState=FAKE NodeName=evil",
    "|||||||||||||",
    "\x1f\x00\r\n",
]


@pytest.mark.parametrize("text", FORGERIES)
def test_no_name_or_comment_makes_a_row_or_moves_a_column(text: str) -> None:
    reply = squeue_row(Comment=text, Name=text) + squeue_row(JobID="8")
    rows = parse_squeue(reply, NONCE)
    assert [(row.job_id, row.state, row.comment, row.name) for row in rows] == [
        (7, JobState.RUNNING, text, text),
        (8, JobState.RUNNING, "", "job"),
    ]

    reply = sacct_row(Comment=text, JobName=text) + sacct_row(JobIDRaw="8", JobName="job")
    books = parse_sacct(reply, NONCE)
    assert [(row.job_id, row.state, row.comment, row.name) for row in books] == [
        (7, JobState.FAILED, text, text),
        (8, JobState.FAILED, "", "job"),
    ]


@given(name=st.text(), comment=st.text())
def test_any_text_comes_back_as_it_is(name: str, comment: str) -> None:
    (row,) = parse_squeue(squeue_row(Name=name, Comment=comment), NONCE)

    assert row.name == ("" if name == "(null)" else name)
    assert row.comment == ("" if comment == "(null)" else comment)


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_reply_that_is_cut_short_is_an_error_and_not_fewer_jobs(cut: int) -> None:
    whole = squeue_row() + squeue_row(JobID="8")
    cut_short = whole[:-cut]
    if cut_short == squeue_row():
        pytest.fail("the cut fell on a row's end; choose other steps")
    with pytest.raises(ValueError, match="squeue"):
        parse_squeue(cut_short, NONCE)


def test_each_call_draws_another_nonce_that_cannot_be_read_as_a_column_width() -> None:
    nonces = {draw_nonce() for _ in range(100)}

    assert len(nonces) == 100
    assert all(nonce[0].isalpha() and "," not in nonce and ":" not in nonce for nonce in nonces)
    assert squeue_format("xyz").startswith("JobID:xyz,State:xyz,")


def test_rows_without_a_plain_id_are_left_out() -> None:
    reply = squeue_row(JobID="13_[2-3%1]") + squeue_row(JobID="15+1") + squeue_row(JobID="8")

    assert [row.job_id for row in parse_squeue(reply, NONCE)] == [8]


def test_a_node_list_that_cannot_be_read_costs_the_list_and_not_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        (row,) = parse_squeue(squeue_row(NodeList="n[1-"), NONCE)

    assert row.nodes == ()
    assert row.num_nodes == 2
    assert "node list" in caplog.text


PARSERS: list[tuple[Callable[[str], object], str]] = [
    (lambda reply: parse_squeue(reply, NONCE), recorded("22.05.8", "squeue-nonce.txt")),
    (lambda reply: parse_sacct(reply, NONCE), recorded("22.05.8", "sacct-nonce.txt")),
    (parse_nodes, recorded("26.05.5", "scontrol-show-node-oneline.txt")),
    (parse_partitions, recorded("26.05.5", "scontrol-show-partition-oneline.txt")),
    (parse_config, recorded("26.05.5", "scontrol-show-config.txt")),
]


@given(st.data())
def test_mutated_replies_are_read_or_are_a_value_error(data: st.DataObject) -> None:
    parse, text = data.draw(st.sampled_from(PARSERS))
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 400)))
    mutated = text[:start] + data.draw(st.text(max_size=30)) + text[stop:]
    with contextlib.suppress(ValueError):
        assert parse(mutated) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_read_the_same_in_every_version(version: str) -> None:
    rows = {str(row.name): row for row in parse_nodes(recorded(version, "scontrol-show-node-oneline.txt"))}

    assert rows["node005"].drained
    assert rows["node005"].reason == "gpu: Xid 79 fallen off the bus [supervisor]"
    assert rows["node005"].reason_user == "root"
    assert rows["node005"].reason_at is not None
    assert rows["node005"].gres == "gpu:8"
    assert (rows["node006"].base, rows["node006"].flags) == (
        NodeBase.DOWN,
        frozenset({"NOT_RESPONDING"}),
    )
    assert rows["node006"].down
    assert rows["node007"].flags == {NodeFlag.MAINTENANCE, NodeFlag.RESERVED}
    assert not rows["node007"].usable
    assert rows["node011"].usable
    assert (rows["node015"].base, rows["node015"].flags) == (
        NodeBase.UNKNOWN,
        frozenset({"DRAIN", "INVALID_REG"}),
    )
    assert rows["node015"].reason.startswith("gres/gpu count reported lower than configured")
    assert rows["node017"].down
    assert NodeFlag.FAIL in rows["node017"].flags
    assert rows["node021"].partitions == ("off", "short", "main")
    assert (rows["node000"].cpus, rows["node000"].memory_mib) == (4, 2000)
    assert rows["node000"].boot_at is not None
    assert rows["node012"].boot_at is None


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_and_controller_read_the_same_in_every_version(version: str) -> None:
    rows = {
        row.name: row for row in parse_partitions(recorded(version, "scontrol-show-partition-oneline.txt"))
    }

    assert (rows["short"].max_nodes, rows["short"].max_time_s) == (1, 300)
    assert not rows["off"].up
    assert rows["main"].default
    assert rows["main"].max_nodes is None
    assert rows["main"].max_time_s is None
    assert "node022" in rows["main"].nodes
    controller = parse_config(recorded(version, "scontrol-show-config.txt"))
    assert controller.version == version
    assert controller.min_job_age_s == 7200
    assert controller.slurm_user == "root"


RECORD = "NodeName={name} CPUTot=4 RealMemory=1000 State={state} Partitions=main CfgTRES=cpu=4"


def test_a_reason_that_looks_like_fields_changes_no_field() -> None:
    line = (
        RECORD.format(name="n1", state="IDLE")
        + " Reason=x State=DOWN NodeName=evil [bob@5] [root@1796086846]"
    )

    (row,) = parse_nodes(line + "\n")
    assert (row.name, row.base, row.reason, row.reason_user) == (
        "n1",
        NodeBase.IDLE,
        "x State=DOWN NodeName=evil [bob@5]",
        "root",
    )


def test_a_node_of_which_there_are_two_records_is_not_used_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = [
        RECORD.format(name="n1", state="IDLE") + " Comment=x",
        RECORD.format(name="n2", state="DOWN") + " Reason=forged [root@5]",
        RECORD.format(name="n2", state="IDLE"),
    ]
    with caplog.at_level(logging.WARNING):
        rows = parse_nodes("\n".join(lines))

    assert [row.name for row in rows] == ["n1"]
    assert "n2" in caplog.text


def test_a_line_that_is_no_whole_record_makes_no_node(caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        RECORD.format(name="n1", state="IDLE") + " Comment=x",
        "NodeName=evil State=DOWN",
        "State=DOWN",
        "NodeName=n[1-9] CPUTot=4 RealMemory=1 State=DOWN CfgTRES=x",
        RECORD.format(name="n2", state="MIXED"),
    ]
    with caplog.at_level(logging.WARNING):
        rows = parse_nodes("\n".join(lines))

    assert [(row.name, row.base) for row in rows] == [("n1", NodeBase.IDLE), ("n2", NodeBase.MIXED)]
    assert "evil" in caplog.text


def test_a_reply_without_a_single_record_is_an_error() -> None:
    with pytest.raises(ValueError, match="no node record"):
        parse_nodes("slurm_load_node error: something\n")


def test_a_word_of_a_newer_slurm_is_kept_and_makes_nothing_usable() -> None:
    assert read_job_state("EXPEDITING") is JobState.UNKNOWN
    assert read_node_state("IDLE+DRAIN+BLOCKED") == (NodeBase.IDLE, frozenset({"DRAIN", "BLOCKED"}))
    base, flags = read_node_state("HIBERNATING+CLOUD")
    assert base is NodeBase.UNKNOWN
    assert flags == {"HIBERNATING", "CLOUD"}


@pytest.mark.parametrize(
    ("text", "base", "flag"),
    [
        ("DOWN*", NodeBase.DOWN, NodeFlag.NOT_RESPONDING),
        ("IDLE~", NodeBase.IDLE, NodeFlag.POWERED_DOWN),
        ("MIXED#", NodeBase.MIXED, NodeFlag.POWERING_UP),
        ("IDLE$", NodeBase.IDLE, NodeFlag.MAINTENANCE),
        ("idle-", NodeBase.IDLE, NodeFlag.PLANNED),
        ("ALLOCATED@", NodeBase.ALLOCATED, NodeFlag.REBOOT_REQUESTED),
    ],
)
def test_suffixes_of_node_states_are_flags(text: str, base: NodeBase, flag: NodeFlag) -> None:
    assert read_node_state(text) == (base, frozenset({flag.value}))


@pytest.mark.parametrize(
    ("text", "state", "uid"),
    [
        ("CANCELLED by 1000", JobState.CANCELLED, 1000),
        ("CANCELLED+", JobState.CANCELLED, None),
        ("NODE_FAIL", JobState.NODE_FAIL, None),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY, None),
        ("COMPLETED by 5", JobState.COMPLETED, None),
        ("", JobState.UNKNOWN, None),
        ("%", JobState.UNKNOWN, None),
    ],
)
def test_job_states_are_read(text: str, state: JobState, uid: int | None) -> None:
    assert read_job_state(text) is state
    assert read_canceller(text) == uid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3:0", (3, 0)),
        ("0:9", (0, 9)),
        ("768", (3, 0)),
        ("9", (0, 9)),
        ("139", (0, 11)),
        ("", (None, None)),
        ("4294967294", (None, None)),
        ("x", (None, None)),
    ],
)
def test_exit_codes_are_read_as_text_and_as_wait_status(
    text: str, expected: tuple[int | None, int | None]
) -> None:
    assert read_exit(text) == expected


@pytest.mark.parametrize(
    "text", ["Unknown", "N/A", "None", "NONE", "", "0", "4294967294", "tomorrow", "9" * 12]
)
def test_no_time_is_none(text: str) -> None:
    assert read_time(text) is None


def test_times_are_read_as_seconds_and_as_iso() -> None:
    expected = datetime(2026, 12, 1, 1, 0, tzinfo=UTC)

    assert read_time("1796086800") == expected
    assert read_time("2026-12-01T01:00:00") == expected


@pytest.mark.parametrize(
    "text", ["13_[2-3%1]", "13_1", "15+1", "15.batch", "123;c", "", "-1", "1e3", "9" * 11]
)
def test_ids_that_are_no_plain_job_are_none(text: str) -> None:
    assert read_job_id(text) is None


def test_counts_are_read_where_slurm_adds_to_them() -> None:
    assert (read_count("4-4"), read_count("1000M"), read_count(""), read_count("4294967294")) == (
        4,
        1000,
        0,
        0,
    )


def test_a_forged_node_range_is_refused_before_it_is_unfolded() -> None:
    started = time.monotonic()
    for text in ("n[0-99999999]", "n[0-9999]x[0-9999]", "n[1-2,0-999999999999999999999]"):
        with pytest.raises(ValueError, match="more than"):
            read_nodes(text)
    assert time.monotonic() - started < 1.0


def test_reasons_are_split_from_their_stamp() -> None:
    at = datetime(2026, 12, 1, 1, 0, tzinfo=UTC)

    assert split_reason("a | b = c [pid 3] [root@1796086800]") == ("a | b = c [pid 3]", "root", at)
    assert split_reason("a [root@1796086800]        second line [bob@5]x") == ("a", "root", at)
    assert split_reason("a [root@1796086800] Comment=x [bob@5]") == ("a", "root", at)
    assert split_reason("no stamp") == ("no stamp", "", None)
