"""Renders templates in which every value is data.

``autoescape`` escapes for HTML and is of no use in a shell script. Here a template can print two things only:
a whole number, and a word that went through the filter ``sh``. Anything else is an error, so a forgotten
filter is found when the template is rendered and not when somebody names a job ``$(reboot)``.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)
from jinja2.runtime import Undefined
from jinja2.sandbox import SandboxedEnvironment

from supervisor.errors import SpecError
from supervisor.resources import resource_dir

Value = str | int | tuple["Value", ...]
"""What a template gets: text, whole numbers, and sequences of them."""

_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class ShellWord(str):
    """Text that a shell reads as one word, or as a part of one; made by ``quote`` only."""

    __slots__ = ()


def quote(value: object) -> ShellWord:
    """Quote ``value`` as one shell word (the template filter ``sh``).

    Raises:
        ValueError: if it holds a NUL, which no argument and no script can, or is neither text nor a number.
    """
    if isinstance(value, Undefined):
        str(value)  # Raises jinja2's own error, which names what is undefined.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"sh takes text or a whole number, not {type(value).__name__}")
    text = str(value)
    if "\x00" in text:
        raise ValueError("a value holds a NUL character")
    return ShellWord(shlex.quote(text))


def _only_quoted(value: object) -> object:
    """Let through what a template may print (jinja2's ``finalize``)."""
    if isinstance(value, ShellWord | Undefined) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("a value is printed without the filter sh: write {{ name | sh }}")


class Renderer:
    """The templates of the user, then those of the site, then the bundled ones."""

    def __init__(self, template_dirs: Sequence[Path] = ()) -> None:
        folders = [*template_dirs, resource_dir("templates")]
        # Sandboxed: a template is the site's or the user's own, but it has no business in Python's insides.
        self._environment = SandboxedEnvironment(
            loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
            undefined=StrictUndefined,
            finalize=_only_quoted,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters["sh"] = quote
        self._where = ", ".join(str(folder) for folder in folders)

    def has(self, file: str) -> bool:
        """Say whether a template file of this name exists."""
        return file in self._environment.list_templates()

    def render(self, file: str, values: Mapping[str, Value]) -> str:
        """Render the template ``file``.

        Raises:
            SpecError: if it is missing or wrong, or uses a name that is not defined; the message names the
                template's file and line.
        """
        try:
            return self._environment.get_template(file).render(values)
        except TemplateNotFound as error:
            raise SpecError([f"{error.name}: no such template in {self._where}"]) from error
        except TemplateSyntaxError as error:
            raise SpecError([f"{error.filename or error.name}:{error.lineno}: {error.message}"]) from error
        except (TemplateError, ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise SpecError([f"{_place(error.__traceback__) or file}: {error}"]) from error


def check_template_name(name: str) -> None:
    """Refuse a template name that is not one plain word.

    Raises:
        SpecError: if it is not; ``../../x`` names a file anywhere.
    """
    if not _TEMPLATE_NAME.fullmatch(name):
        raise SpecError(
            [f"launch.template: {name!r} is not a template's name (letters, digits, '-' and '_')"]
        )


def _place(trace: TracebackType | None) -> str:
    """Return ``file:line`` of the innermost template frame (jinja2 gives templates their own frames)."""
    place = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.endswith(".j2"):
            place = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
