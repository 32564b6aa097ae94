"""Reads a YAML file into plain values and remembers where each one stands.

The values are built from the parser's events, so that nothing in a file can make objects: no tags, no merge
keys, no directives, and aliases only within bounds. Plain scalars are read by the core schema of YAML 1.2:
``yes`` and ``12:00:00`` are text.
"""

import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from supervisor.errors import SpecError

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000
"""Scalars, lists and mappings in one file, those that aliases stand for counted each time."""
MAX_DEPTH = 40

Place = tuple[int, int]
"""Line and column, both from 1."""
ValuePath = tuple[str | int, ...]
"""Keys and indices that lead to a value."""

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


class WrittenInt(int):
    """A whole number that prints as it was written: where a text is meant, ``010`` is "010" and not "10"."""

    text: str

    def __str__(self) -> str:
        return self.text


class WrittenFloat(float):
    """A number that prints as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Document:
    """A file's values and places; ``problems`` holds what is wrong with its YAML as (place, text)."""

    value: Any = None
    keys: dict[ValuePath, Place] = field(default_factory=dict)
    """Where the key of a value stands; the value itself where it has none."""
    values: dict[ValuePath, Place] = field(default_factory=dict)
    problems: list[tuple[Place, str]] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Return the text of a job file.

    Raises:
        SpecError: if it cannot be read, is too long, or is no UTF-8.
    """
    try:
        # O_NONBLOCK: a named pipe without a writer must not hold us.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError([f"{path}: is not a file"])
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise SpecError([f"{path}: is a directory; name the job file in it"]) from error
    except FileNotFoundError as error:
        raise SpecError(
            [f"{path}: there is no such file; supervise init {path} writes one to start from"]
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError([f"{path}: cannot be read: {reason}"]) from error
    if len(data) > MAX_BYTES:
        raise SpecError([f"{path}: is longer than 1 MiB; this is no job file"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        line, column = _place_of(before)
        raise SpecError(
            [f"{path}:{line}:{column}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"]
        ) from error


def parse(text: str) -> Document:
    """Parse one YAML document; what is wrong is collected in its ``problems``."""
    document = Document()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ruamel warns of anchors that are used again; that is allowed.
            _Builder(document).build(iter(YAML(typ="safe", pure=True).parse(text)))
    except _Refused as error:
        document.problems.append((error.place, error.text))
    except ReaderError as error:
        document.problems.append((_place_of(text[: error.position]), "a character that YAML does not allow"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        document.problems.append((place, _in_plain_words(error)))
    except (YAMLError, RecursionError, ValueError) as error:
        document.problems.append(((1, 1), f"this is not YAML: {str(error)[:200]}"))
    return document


class _Refused(Exception):
    """Something that a job file may not hold; reading ends here."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place
        self.text = text


class _Builder:
    """Builds values from events; recursion is bounded by MAX_DEPTH and work by MAX_VALUES."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._anchors: dict[str, Any] = {}
        self._events: Iterator[Any] = iter(())
        self._count = 0

    def build(self, events: Iterator[Any]) -> None:
        """Read the only document of a stream."""
        self._events = events
        seen = False
        for event in events:
            if not isinstance(event, DocumentStartEvent):
                continue
            if seen:
                raise _Refused(_start(event), "a second document; a job file holds one")
            seen = True
            if event.version or event.tags:
                raise _Refused(_start(event), "YAML directives (%) are not allowed")
            self._document.value = self._value(next(events), ())

    def _value(self, event: Any, path: ValuePath) -> Any:
        place = _start(event)
        self._count += 1
        if self._count > MAX_VALUES:
            raise _Refused(place, f"more than {MAX_VALUES} values; this is no job file")
        if len(path) > MAX_DEPTH:
            raise _Refused(place, "nested too deeply; this is no job file")
        self._document.values.setdefault(path, place)
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if event.tag is not None:
            raise _Refused(place, f"YAML tags ({str(event.tag)[:40]!r}) are not allowed")
        if isinstance(event, MappingStartEvent):
            value: Any = self._mapping(path)
        elif isinstance(event, SequenceStartEvent):
            value = self._sequence(path)
        elif isinstance(event, ScalarEvent):
            value = self._scalar(event)
        else:
            raise _Refused(place, "something that is no value")
        if event.anchor:
            self._anchors[str(event.anchor)] = value
        return value

    def _mapping(self, path: ValuePath) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        first: dict[Any, Place] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            place = _start(event)
            if not isinstance(event, ScalarEvent):
                raise _Refused(place, "a key must be a word")
            key = str(event.value)
            if key == "<<" and not event.style:
                raise _Refused(place, "merge keys (<<) are not allowed")
            if event.tag is not None:
                raise _Refused(place, f"YAML tags ({str(event.tag)[:40]!r}) are not allowed")
            self._check_text(key, place)
            if key in first:
                line, column = first[key]
                self._document.problems.append(
                    (place, f"key {key[:60]!r} is given twice; the first one is at {line}:{column}")
                )
            first.setdefault(key, place)
            self._document.keys.setdefault((*path, key), place)
            value = self._value(next(self._events), (*path, key))
            result.setdefault(key, value)
        return result

    def _sequence(self, path: ValuePath) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            result.append(self._value(event, (*path, len(result))))
        return result

    def _scalar(self, event: ScalarEvent) -> Any:
        text = str(event.value)
        self._check_text(text, _start(event))
        return text if event.style else _plain(text)

    def _check_text(self, text: str, place: Place) -> None:
        if "\x00" in text or _SURROGATE.search(text):
            self._document.problems.append((place, "holds a NUL or half a character (\\ud800 to \\udfff)"))

    def _alias(self, event: AliasEvent) -> Any:
        if event.anchor not in self._anchors:
            raise _Refused(
                _start(event), f"*{event.anchor} stands for nothing: &{event.anchor} is not above it"
            )
        value = self._anchors[event.anchor]
        # What it stands for is counted each time: nine lines of nine aliases each are 387 million values.
        self._count += _size(value, MAX_VALUES)
        if self._count > MAX_VALUES:
            raise _Refused(_start(event), f"aliases make more than {MAX_VALUES} values of this file")
        return value


def _plain(text: str) -> Any:
    """Read a plain scalar by the core schema of YAML 1.2 (section 10.3.2), without infinities."""
    if text in _WORDS:
        return _WORDS[text]
    number: WrittenInt | WrittenFloat
    # Python refuses to read numbers of thousands of digits; nothing in a job file has more than a few.
    if len(text) > 40:
        return text
    if _INT.fullmatch(text):
        number = WrittenInt(text)
    elif _OCTAL.fullmatch(text):
        number = WrittenInt(text[2:], 8)
    elif _HEX.fullmatch(text):
        number = WrittenInt(text[2:], 16)
    elif _FLOAT.fullmatch(text):
        number = WrittenFloat(text)
    else:
        return text
    number.text = text
    return number


def _size(value: Any, limit: int) -> int:
    """Return how many values ``value`` is made of, counting no further than ``limit``."""
    count, rest = 0, [value]
    while rest and count <= limit:
        item = rest.pop()
        count += 1
        if isinstance(item, dict):
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
    return count


def _start(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _place_of(before: str) -> Place:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _in_plain_words(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "something that cannot be read")
    if r"'\t'" in problem or "tab" in problem.lower():
        return "a tab; YAML is indented with blanks only"
    if "mapping values are not allowed" in problem:
        return "a ': ' where no value can begin; check the indentation, or put the text in quotes"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"this is not YAML: {problem}{context}"
