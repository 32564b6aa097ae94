"""Settings: four layers, each value knows its origin, every mistake is named."""

from datetime import timedelta
from pathlib import Path

import pytest

from supervisor.domain.failure import FailureClass
from supervisor.domain.policy import Mode
from supervisor.errors import SettingsError
from supervisor.settings import leaf_names, load_settings, variable_name


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site.toml"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "SUPERVISE_CONFIG": str(tmp_path / "user.toml")}


def test_later_layers_win_and_every_value_knows_where_it_came_from(
    site: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    site.write_text('ledger = "sqlite:////site.db"\n[nodes]\nmode = "advise"\nmax_drains = 3\n')
    (tmp_path / "user.toml").write_text('[nodes]\nmode = "observe"\navoid_for = "2h"\n')
    environ["SUPERVISE_NODES_MODE"] = "act"
    loaded = load_settings(environ, flags={"ledger": "sqlite:////flag.db"}, site_file=site)
    assert loaded.values.ledger == "sqlite:////flag.db"
    assert loaded.values.nodes.mode is Mode.ACT
    assert loaded.values.nodes.max_drains == 3
    assert loaded.values.nodes.avoid_for == timedelta(hours=2)
    assert [loaded.origin(n) for n in ("ledger", "nodes.mode", "nodes.max_drains", "nodes.avoid_for")] == [
        "command line",
        "$SUPERVISE_NODES_MODE",
        str(site),
        str(tmp_path / "user.toml"),
    ]
    assert loaded.origin("submit.grace") == "default"


def test_a_fresh_install_only_observes_nodes(site: Path, environ: dict[str, str]) -> None:
    assert load_settings(environ, site_file=site).values.policy().nodes.mode is Mode.OBSERVE


def test_the_ledger_lies_in_the_state_directory_unless_told(site: Path, environ: dict[str, str]) -> None:
    environ["XDG_STATE_HOME"] = "/state"
    assert load_settings(environ, site_file=site).values.ledger == "sqlite:////state/supervisor/ledger.db"


def test_every_mistake_is_named_at_once_with_its_file(site: Path, environ: dict[str, str]) -> None:
    site.write_text('[nodes]\nmod = "act"\nmax_percent = 400\n')
    environ["SUPERVISE_SUBMIT_GRACE"] = "soon"
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, site_file=site)
    text = str(caught.value)
    assert f"{site}: nodes.mod: no such setting" in text
    assert f"{site}: nodes.max_percent:" in text
    assert "$SUPERVISE_SUBMIT_GRACE: submit.grace:" in text


@pytest.mark.parametrize("content", ["nodes = [", "\xff\xfe"])
def test_a_file_that_is_not_toml_is_named(site: Path, environ: dict[str, str], content: str) -> None:
    site.write_bytes(content.encode("latin-1"))
    with pytest.raises(SettingsError, match=str(site)):
        load_settings(environ, site_file=site)


def test_tables_and_lists_can_come_from_variables(site: Path, environ: dict[str, str]) -> None:
    environ |= {
        "SUPERVISE_NODES_MODES": "gpu=act, cpu=observe",
        "SUPERVISE_BUDGETS": "node_fail=3",
        "SUPERVISE_TEMPLATES": "/a:/b",
    }
    values = load_settings(environ, site_file=site).values
    assert values.nodes.modes == {"gpu": Mode.ACT, "cpu": Mode.OBSERVE}
    assert values.budgets == {FailureClass.NODE_FAIL: 3}
    assert values.templates == ("/a", "/b")


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [variable_name(name) for name in leaf_names()]
    assert len(set(variables)) == len(variables)
    assert "SUPERVISE_LEDGER" in variables
