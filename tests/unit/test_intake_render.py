"""Rendering: every value is data (promise P9), and a wrong template says where it is wrong."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import SpecError
from supervisor.intake.render import Renderer, check_template_name, quote

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=80)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    return path


@given(TEXTS)
def test_any_text_is_one_word_for_a_shell(text: str) -> None:
    assert shlex.split(quote(text)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "$(touch x)",
        "`touch x`",
        "'; touch x; '",
        "a\nb\n#SBATCH --requeue",
        "{{ 7*7 }}",
        "",
        "\u4e16 \U0001f600",
        "~",
        "-n",
        "!!",
    ],
)
def test_bash_gives_hostile_text_back_unchanged(tmp_path: Path, text: str) -> None:
    write(tmp_path, "t.j2", 'X={{ x | sh }}\nprintf %s "$X"\n')
    script = Renderer([tmp_path]).render("t.j2", {"x": text})
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True, cwd=tmp_path
    )
    assert done.stdout == text
    assert not (tmp_path / "x").exists()


def test_a_value_without_the_filter_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "t.j2", "one\ntwo {{ x }}\n")
    with pytest.raises(SpecError, match=re.escape(f"{path}:2: a value is printed without the filter sh")):
        Renderer([tmp_path]).render("t.j2", {"x": "text"})
    assert Renderer([tmp_path]).render("t.j2", {"x": 7}) == "one\ntwo 7\n"


def test_a_quoted_value_that_is_put_together_anew_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "t.j2", "{{ (x | sh) ~ x }}")
    with pytest.raises(SpecError, match="without the filter sh"):
        Renderer([tmp_path]).render("t.j2", {"x": "text"})


@pytest.mark.parametrize(
    "text",
    ["a\nb\n{{ wrong_name | sh }}\n", "a\nb\n{{ wrong_name }}\n", "a\n\n{% if wrong_name %}x{% endif %}\n"],
)
def test_an_undefined_name_is_told_with_file_and_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "t.j2", text)
    with pytest.raises(SpecError, match=re.escape(f"{path}:3: 'wrong_name' is undefined")):
        Renderer([tmp_path]).render("t.j2", {})


def test_an_undefined_name_in_a_partial_is_told_for_the_partial(tmp_path: Path) -> None:
    path = write(tmp_path, "partials/p.j2", "\n{{ nowhere | sh }}\n")
    write(tmp_path, "t.j2", "{% include 'partials/p.j2' %}\n")
    with pytest.raises(SpecError, match=re.escape(f"{path}:2: 'nowhere' is undefined")):
        Renderer([tmp_path]).render("t.j2", {})


def test_a_syntax_error_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "t.j2", "a\n{% if x %}\n")
    with pytest.raises(SpecError, match=re.escape(f"{path}:")) as caught:
        Renderer([tmp_path]).render("t.j2", {"x": 1})
    assert "endif" in str(caught.value)


def test_a_missing_template_is_told_with_the_folders_that_were_searched(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=re.escape("nothing.j2: no such template in")) as caught:
        Renderer([tmp_path]).render("nothing.j2", {})
    assert str(tmp_path) in str(caught.value)


def test_a_missing_partial_is_told_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, "t.j2", "{% include 'partials/gone.j2' %}\n")
    with pytest.raises(SpecError, match=re.escape("partials/gone.j2: no such template")):
        Renderer([tmp_path]).render("t.j2", {})


def test_the_users_folder_comes_before_the_sites_and_both_before_the_bundled(tmp_path: Path) -> None:
    user, site = tmp_path / "user", tmp_path / "site"
    write(user, "a.j2", "user")
    write(site, "a.j2", "site")
    write(site, "partials/claim.sh.j2", "site's claim")
    write(site, "b.j2", "{% include 'partials/claim.sh.j2' %}")
    renderer = Renderer([user, site])
    assert renderer.render("a.j2", {}) == "user"
    assert renderer.render("b.j2", {}) == "site's claim"
    assert renderer.has("torchrun.sbatch.j2")


def test_a_template_cannot_reach_into_python(tmp_path: Path) -> None:
    write(tmp_path, "t.j2", "{{ x.__class__.__mro__ | sh }}")
    with pytest.raises(SpecError):
        Renderer([tmp_path]).render("t.j2", {"x": "text"})


@pytest.mark.parametrize("value", ["a\x00b", None, True, 1.5, ["a"]])
def test_what_no_script_can_hold_is_no_word(value: object) -> None:
    with pytest.raises(ValueError, match=r"NUL|text or a whole number"):
        quote(value)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a.b", "x\n", "a" * 65])
def test_a_template_is_named_by_one_plain_word(name: str) -> None:
    with pytest.raises(SpecError, match="is not a template's name"):
        check_template_name(name)
