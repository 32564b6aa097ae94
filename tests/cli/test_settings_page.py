"""docs/settings.md names every setting with its variable, default and meaning.

To write its table anew: SUPERVISE_WRITE_GOLDEN=1 python -m pytest tests/cli/test_settings_page.py
"""

import json
import os
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from supervisor.settings import Settings, leaf_names, load_settings, variable_name
from tests.cli.desk import ROOT, Desk

PAGE = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def field(name: str) -> FieldInfo:
    """Return the field behind a dotted name."""
    model: type[BaseModel] = Settings
    *parents, leaf = name.split(".")
    for parent in parents:
        inner = model.model_fields[parent].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return model.model_fields[leaf]


def table() -> Iterator[str]:
    """Return the lines of the table."""
    defaults = Settings().model_dump(mode="json")
    yield "| setting | variable | default | meaning |"
    yield "|---|---|---|---|"
    for name in leaf_names():
        value = defaults
        for part in name.split("."):
            value = value[part]
        shown = f"`{json.dumps(value)}`" if value not in ("", [], {}) else "empty"
        yield f"| `{name}` | `{variable_name(name)}` | {shown} | {field(name).description} |"


def test_the_page_names_every_setting() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + "\n".join(table()) + "\n" + END + after
    if os.environ.get("SUPERVISE_WRITE_GOLDEN"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


def test_every_setting_says_what_it_means() -> None:
    for name in leaf_names():
        assert field(name).description, name


def test_the_example_of_the_page_loads(desk: Desk) -> None:
    example = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    (desk.root / "site.toml").write_text(example)
    loaded = load_settings({"HOME": str(desk.root)}, site_file=desk.root / "site.toml")
    assert loaded.origin("budgets") != "default"
    assert loaded.values.nodes.modes


def test_what_config_show_prints_is_a_settings_file(desk: Desk) -> None:
    printed = desk.say("config", "show", SUPERVISE_NODES_MODES="gpu=act", SUPERVISE_BUDGETS="node_fail=3")
    path = desk.root / "site.toml"
    path.write_text(printed.out)
    loaded = load_settings({"HOME": str(desk.root)}, site_file=path)
    assert loaded.values.nodes.modes == {"gpu": "act"}
    assert loaded.values.slurm.user == "alice"
