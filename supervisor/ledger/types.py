"""Column types: what a value looks like in Python, and what an admin sees in the table."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from supervisor.domain.ids import NodeName
from supervisor.domain.nodeset import fold, unfold
from supervisor.errors import LedgerError

WordT = TypeVar("WordT", bound=StrEnum)


def format_time(moment: datetime) -> str:
    """Return ``moment`` as UTC text of fixed width, so that text order is time order.

    Raises:
        ValueError: if ``moment`` is naive.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{moment!r} has no time zone; the ledger stores aware times only")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def clean_text(text: str) -> str:
    """Return ``text`` without what a database cannot hold: NUL (PostgreSQL) and lone surrogates (UTF-8)."""
    return "".join(
        "\ufffd" if character == "\0" or "\ud800" <= character <= "\udfff" else character
        for character in text
    )


def to_json(value: object) -> str:
    """Return ``value`` as JSON text; times become UTC text, sets sorted lists, paths text."""
    return clean_text(json.dumps(value, ensure_ascii=False, sort_keys=True, default=_jsonable))


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime: timestamptz on PostgreSQL; readable, sortable UTC text on SQLite."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return what the column is made of."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Refuse a naive time with ValueError."""
        if value is None:
            return None
        text = format_time(value)
        return text if dialect.name == "sqlite" else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Return an aware time in UTC, whatever the session's time zone is."""
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if dialect.name == "sqlite" else value
        return moment.astimezone(UTC)


class CleanText(TypeDecorator[str]):
    """Text from anywhere; what a database cannot hold is replaced by U+FFFD."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Clean the text."""
        return None if value is None else clean_text(str(value))


class JsonText(TypeDecorator[Any]):
    """A JSON value in a text column, the same on both dialects and readable by hand."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Write JSON."""
        return None if value is None else to_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """Read JSON."""
        return None if value is None else json.loads(value)


class NodeNames(TypeDecorator[tuple[NodeName, ...]]):
    """Node names in Slurm's bracket notation (``gpu[001-003,007]``)."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Iterable[NodeName] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Fold the names; a word that is no node name is a ValueError."""
        return None if value is None else fold(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[NodeName, ...]:  # noqa: ARG002
        """Unfold the names."""
        return unfold(value or "")


class PathText(TypeDecorator[Path]):
    """A path. It is stored exactly, so bytes that are not UTF-8 are refused rather than replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Path | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Refuse with ValueError what could not be read back."""
        if value is None:
            return None
        text = str(value)
        if clean_text(text) != text:
            raise ValueError(f"path {text!r} is not UTF-8 and cannot be stored; rename the folder")
        return text

    def process_result_value(self, value: str | None, dialect: Dialect) -> Path | None:  # noqa: ARG002
        """Return a path."""
        return None if value is None else Path(value)


class Word(TypeDecorator[WordT], Generic[WordT]):
    """One of our stored words (a StrEnum's value)."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, words: type[WordT]) -> None:
        super().__init__()
        self.words = words

    def process_bind_param(self, value: WordT | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Write the word; one that does not exist is a ValueError."""
        return None if value is None else str(self.words(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> WordT | None:  # noqa: ARG002
        """Read the word.

        Raises:
            LedgerError: if this version does not know the word.
        """
        if value is None:
            return None
        try:
            return self.words(value)
        except ValueError as error:
            raise LedgerError(
                f"the ledger holds {value!r} where one of {', '.join(self.words)} is expected; "
                "somebody edited it by hand, or a newer version wrote it: upgrade this installation"
            ) from error
