"""The job file's models: what they refuse, whoever makes them, and what they derive."""

import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from supervisor.domain.spec import OWNED_OPTIONS, JobSpec


def spec(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "x", "nodes": 2, "launch": {"command": "x"}} | parts)


def refusal(**parts: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(**parts)
    return str(caught.value)


def test_a_lone_number_of_nodes_is_both_bounds() -> None:
    for nodes in (4, {"want": 4}, {"min": 4}):
        assert (spec(nodes=nodes).nodes.min, spec(nodes=nodes).nodes.want) == (4, 4)


def test_sizes_go_down_by_the_step_and_keep_the_batch_whole() -> None:
    nodes = {"min": 2, "want": 9, "step": 2}
    assert spec(nodes=nodes).sizes() == (9, 7, 5, 3)
    batch = {"global": 48, "micro": 4}
    assert spec(nodes={"min": 1, "want": 8}, batch=batch).sizes() == (6, 4, 3, 2, 1)
    launch = {"command": "x", "procs_per_node": 2}
    assert spec(nodes={"min": 1, "want": 8}, batch=batch, launch=launch).sizes() == (6, 3, 2, 1)


@pytest.mark.parametrize(
    ("parts", "ranks"),
    [
        ({}, 1),
        ({"slurm": {"gpus_per_node": 8}}, 8),
        ({"slurm": {"gpus_per_node": "a100:4"}}, 4),
        ({"slurm": {"ntasks_per_node": 3}}, 3),
        ({"slurm": {"gpus_per_node": 8}, "launch": {"command": "x", "procs_per_node": 2}}, 2),
    ],
)
def test_ranks_per_node_follow_the_gpus_unless_told(parts: dict[str, Any], ranks: int) -> None:
    assert spec(**parts).ranks_per_node() == ranks


def test_a_spec_survives_the_ledger() -> None:
    one = spec(
        batch={"global": 64},
        slurm={"time": 90, "extra": {"mail-type": "END", "contiguous": True}},
        recovery={"budgets": {"user_code": 0}},
    )
    assert JobSpec.model_validate_json(one.model_dump_json(by_alias=True)) == one
    assert json.loads(one.model_dump_json(by_alias=True))["batch"]["global"] == 64
    assert one.time_limit() == timedelta(minutes=90)


@pytest.mark.parametrize("name", sorted(OWNED_OPTIONS))
def test_an_option_of_the_supervisor_cannot_come_in_by_the_back_door(name: str) -> None:
    assert "belongs to the supervisor" in refusal(slurm={"extra": {name: True}})


@pytest.mark.parametrize("name", ["requ", "arra", "part", "no-req", "exp", "t", "tim", "wai"])
def test_an_abbreviated_option_cannot_come_in_by_the_back_door(name: str) -> None:
    assert "is an abbreviation" in refusal(slurm={"extra": {name: "1"}})


@pytest.mark.parametrize("name", ["", "Mail", "a b", "a=b", "-x", "a\nb", "gpus_per_node", "mail-type\n"])
def test_what_is_no_option_name_is_refused(name: str) -> None:
    assert "is not a long sbatch option name" in refusal(slurm={"extra": {name: "x"}})


@pytest.mark.parametrize(
    "name", ["mem-per-gpu", "time-min", "gpus-per-task", "licenses", "dependency", "nice", "switches"]
)
def test_other_options_pass(name: str) -> None:
    assert spec(slurm={"extra": {name: "1"}}).slurm.extra == {name: "1"}


@pytest.mark.parametrize(
    "parts",
    [
        {"name": "a\nb"},
        {"name": "a\x00b"},
        {"slurm": {"partition": "a\nb"}},
        {"slurm": {"extra": {"mail-user": "a\nb"}}},
        {"slurm": {"time": "90\n"}},
        {"checkpoint": {"dir": "a\nb"}},
        {"done": {"file": "a\x00"}},
        {"slurm": {"comment": "a\x00"}},
        {"launch": {"command": "a\x00"}},
        {"launch": {"command": "x", "env": {"A": "a\x00"}}},
        {"launch": {"command": "x", "env": {"A\n": "a"}}},
    ],
)
def test_what_no_argument_or_variable_can_hold_is_refused(parts: dict[str, Any]) -> None:
    assert refusal(**parts)


def test_a_comment_leaves_room_for_our_mark_in_bytes() -> None:
    assert spec(slurm={"comment": "x" * 990}).slurm.comment == "x" * 990
    assert "at most 990 bytes" in refusal(slurm={"comment": "\u4e16" * 331})
    assert "mark of the supervisor" in refusal(slurm={"comment": "x supervise:abcdefghijklmnop y"})


def test_a_signal_comes_no_earlier_than_sbatch_allows() -> None:
    assert spec(launch={"command": "x", "signal_before": "18h"}).launch.signal_before == "18h"
    assert "at most 65535 seconds" in refusal(launch={"command": "x", "signal_before": "19h"})


def test_true_is_no_number() -> None:
    assert "not true or false" in refusal(nodes={"min": True, "want": 2})
    assert "not true or false" in refusal(slurm={"cpus_per_task": True})
