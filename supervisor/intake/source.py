"""From a job file to a spec; every problem at once, with line, column, and what was probably meant."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor.domain.spec import JobSpec
from supervisor.errors import SpecError
from supervisor.intake.document import Document, ValuePath, parse, read_text
from supervisor.intake.passthrough import parse_passthrough
from supervisor.intake.starter import json_schema, starter

__all__ = ["json_schema", "load_spec", "parse_passthrough", "starter"]

_UNION_BRANCHES = {("str",), ("int",), ("bool",)}
"""How pydantic ends the location of a value under slurm.extra, once for each type that it might have had."""
_DOTTED = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")
_NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})


def load_spec(path: Path, overrides: Mapping[str, object] = _NO_OVERRIDES) -> JobSpec:
    """Read a job file.

    Args:
        path: the file.
        overrides: values of the command line by their dotted place (``slurm.partition``); they replace what
            the file says, and a problem with one is named for its option (``--partition: ...``).

    Raises:
        SpecError: if the file cannot be read or accepted; it lists every problem, in the file's order.
    """
    document = parse(read_text(path))
    if not document.problems and not isinstance(document.value, dict):
        what = "is empty" if document.value is None else "must hold a mapping such as 'name: llama-7b'"
        place = document.values.get((), (1, 1))
        document.problems.append((place, f"the job file {what}; supervise init writes one to start from"))
    if document.problems:
        raise SpecError(_in_order(path, document.problems))
    flags = {_override(document.value, dotted, value): dotted for dotted, value in overrides.items()}
    try:
        return JobSpec.model_validate(_without_empty(document.value, ()))
    except ValidationError as error:
        problems: list[tuple[tuple[int, int], str]] = []
        options: list[str] = []
        for details in error.errors(include_url=False):
            where, by_key = _locate(details, document, flags)
            text = _explain(details)
            if where in flags:
                options.append(f"{_option_name(flags[where])}: {text}")
            else:
                places = document.keys if by_key else document.values
                problems.append((places.get(where) or document.values.get(where) or (1, 1), text))
        raise SpecError([*options, *_in_order(path, problems)]) from error


def _in_order(path: Path, problems: Sequence[tuple[tuple[int, int], str]]) -> list[str]:
    unique = dict.fromkeys(sorted(problems))
    return [f"{path}:{line}:{column}: {text}" for (line, column), text in unique]


def _without_empty(value: Any, path: ValuePath) -> Any:
    """Leave out known keys without a value: a section whose lines are all commented out is not there."""
    if not isinstance(value, dict):
        return value
    known = _keys_at(path)
    return {
        key: _without_empty(item, (*path, key))
        for key, item in value.items()
        if item is not None or key not in known
    }


def _override(data: dict[str, Any], dotted: str, value: object) -> ValuePath:
    """Put a value of the command line in its place and return its path."""
    *parents, last = dotted.split(".", 2)
    if parents == ["nodes"] and isinstance(data.get("nodes"), int):
        data["nodes"] = {"min": data["nodes"], "want": data["nodes"]}
    for name in parents:
        if not isinstance(data.get(name), dict):
            data[name] = {}
        data = data[name]
    data[last] = value
    return (*parents, last)


def _option_name(dotted: str) -> str:
    first, _, rest = dotted.partition(".")
    name = {"name": "job-name", "nodes": "nodes"}.get(first) or rest.removeprefix("extra.")
    return f"--{name.replace('_', '-')}"


def _locate(
    details: ErrorDetails, document: Document, flags: Mapping[ValuePath, str]
) -> tuple[ValuePath, bool]:
    """Return the path of what is wrong, and whether its key is meant rather than its value."""
    location = tuple(details["loc"])
    by_key = details["type"] == "extra_forbidden" or location[-1:] == ("[key]",)
    known = flags.keys() | document.values.keys()
    where = location
    # The end of a location may name a branch of a union, or a key that is missing.
    while where and where not in known:
        where = where[:-1]
    if details["type"] == "missing":
        return where, True
    if details["type"] == "value_error":
        # A rule about several values says which ones it is about.
        message = details["msg"]
        for dotted in _DOTTED.findall(message):
            if tuple(dotted.split(".")) in known:
                return tuple(dotted.split(".")), False
        for path in known:
            if (
                path[:-1] == where
                and path
                and re.search(rf"(?<!\w){re.escape(str(path[-1]))}(?!\w)", message)
            ):
                return path, False
    return where, by_key


def _explain(details: ErrorDetails) -> str:
    """Return what is wrong in plain words; pydantic's own are for programmers."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if details["loc"][-1:] in _UNION_BRANCHES:
        return f"must be text, a whole number, true or false, not {_show(value)}"
    location = tuple(name for name in details["loc"] if name != "[key]")
    if kind == "extra_forbidden":
        return f"unknown key {_show(location[-1])}; {_suggest(location)}"
    if kind == "missing":
        place = ".".join(map(str, location[:-1]))
        return f"missing key {str(location[-1])!r}" + (f" in {place}" if place else "")
    if kind == "value_error":
        return str(context.get("error", details["msg"]))
    if kind in {"enum", "literal_error"}:
        expected = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = difflib.get_close_matches(str(value), expected, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"write one of: {', '.join(expected)}"
        return f"{_show(value)} is not possible here; {hint}"
    return _explain_type(kind, context, value, location)


def _explain_type(kind: str, context: Mapping[str, Any], value: object, location: ValuePath) -> str:
    if value is None:
        return "has no value"
    shown = _show(value)
    keys = ", ".join(sorted(_keys_at(location))[:6])
    texts = {
        "model_type": f"must be a mapping with keys such as {keys}, not {shown}",
        "dict_type": f"must be a mapping (name: value), not {shown}",
        "tuple_type": f"must be a list, not {shown}",
        "string_type": f"must be text, not {shown}; put it in quotes",
        "string_too_short": "must not be empty",
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "greater_than_equal": f"must be at least {context.get('ge')}, not {shown}",
        "less_than_equal": f"must be at most {context.get('le')}, not {shown}",
        # pydantic has several of each: int_type, int_parsing, int_from_float, ...
        "int": f"must be a whole number, not {shown}",
        "bool": f"must be true or false, not {shown}",
    }
    return texts.get(kind) or texts.get(kind.partition("_")[0]) or f"cannot be {shown}"


def _show(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return ascii(value)[:80] if not str(value).isprintable() else repr(value)[:80]


def _suggest(location: ValuePath) -> str:
    """Return which key was probably meant, at this level first and then anywhere."""
    key = str(location[-1])
    here = sorted(_keys_at(location[:-1]))
    near = difflib.get_close_matches(key.lower().replace("-", "_"), here, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    everywhere = _all_keys(JobSpec)
    elsewhere = [dotted for dotted in everywhere if dotted.rpartition(".")[2] == key.replace("-", "_")]
    if elsewhere:
        return f"did you mean {elsewhere[0]!r}?"
    return f"valid keys here: {', '.join(here)}"


def _keys_at(location: ValuePath) -> list[str]:
    model: type[BaseModel] | None = JobSpec
    for name in location:
        model = next((part for key, part in _parts(model) if key == name), None) if model else None
    return [key for key, _ in _parts(model)] if model else []


def _parts(model: type[BaseModel]) -> list[tuple[str, type[BaseModel] | None]]:
    """Return a model's keys as they are written, each with the model of its value where it has one."""
    return [(field.alias or name, _model_in(field.annotation)) for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {dict, tuple}:
        return None
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for key, part in _parts(model):
        found.append(prefix + key)
        if part is not None:
            found += _all_keys(part, f"{prefix}{key}.")
    return found
