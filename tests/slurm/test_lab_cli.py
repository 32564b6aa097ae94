"""supervise lab, as a person types it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.lab import lab
from supervisor.errors import LabError


def invoke(*argv: str) -> Result:
    return CliRunner().invoke(lab, list(argv), catch_exceptions=False)


def test_a_lab_is_brought_up_broken_mended_and_taken_down(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "lab"))
    up = invoke("up", "--nodes", "2", "--gpus-per-node", "1", "--conf", "MaxJobCount=77", *where)
    assert up.exit_code == 0
    assert up.output.startswith("2 nodes of Slurm ")
    try:
        exports = invoke("env", *where).output.splitlines()
        conf = f"{tmp_path}/lab/etc/slurm.conf"
        assert exports == [
            f"export SLURM_CONF={conf}",
            f"export SUPERVISE_LEDGER=sqlite:///{tmp_path}/lab/ledger.db",
        ]
        shown = subprocess.run(
            ["scontrol", "show", "config"],
            env={"PATH": os.environ["PATH"], "SLURM_CONF": conf},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        assert "MaxJobCount             = 77" in shown.stdout
        facts = json.loads(invoke("status", "--json", *where).output)
        assert facts["nodes"] == {"node001": "IDLE", "node002": "IDLE"}
        assert invoke("kill-node", "2", *where).output == "node002: 1 processes killed\n"
        assert "slurmd.node002       dead" in invoke("status", *where).output.splitlines()
        assert invoke("return-node", "node002", *where).output == "node002: back\n"
        assert invoke("hang-node", "1", *where).output == "node001: 1 processes stopped\n"
        assert "slurmd.node001       frozen" in invoke("status", *where).output
        assert invoke("return-node", "1", *where).exit_code == 0
        assert "1 processes of Slurm stopped" in invoke("isolate-node", "1", *where).output
    finally:
        down = invoke("down", *where)
    assert down.exit_code == 0
    assert "is down" in down.output
    with pytest.raises(LabError, match="no lab"):
        invoke("status", *where)


def test_bad_numbers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nodes must lie between"):
        invoke("up", "--nodes", "0", "--dir", str(tmp_path / "lab"))
    assert not (tmp_path / "lab").exists()


def test_help_names_every_command() -> None:
    text = invoke("--help").output
    for name in ("up", "status", "env", "kill-node", "hang-node", "isolate-node", "return-node", "down"):
        assert f"  {name} " in text
