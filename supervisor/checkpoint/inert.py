"""Reads a DCP ``.metadata`` from standard input and prints what it describes as JSON, running nothing in it.

``.metadata`` is a pickle, and a pickle is a program. Here every global that it names becomes an inert
class, so nothing is imported and nothing of it is called. What remains possible is to eat memory and
processor time, so this file runs as a program of its own, under limits that it sets before it reads
(``python -I -S inert.py MAX_BYTES MAX_MEMORY MAX_CPU_SECONDS``), and it imports nothing of the package.

Exit codes: 0 described; 3 not a DCP metadata, the reason on standard output as JSON; anything else,
also a signal, means that the limits or the interpreter stopped it.
"""

import gc
import io
import json
import math
import os
import pickle
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

Key = tuple[str, tuple[int, ...] | None]
"""Name of an item and where its chunk starts in the tensor; None for bytes."""


_TOO_LARGE = 1 << 62


class Malformed(Exception):
    """The metadata is not what DCP writes."""


class Chunk:
    """Stands for ``ChunkStorageMetadata``. Bare, so that the C unpickler fills it on its fast path."""


class StorageInfo:
    """Stands for ``_StorageInfo``."""


class Index:
    """Stands for ``MetadataIndex``; hashed by identity, whatever the pickle puts into it."""


class Inert:
    """Stands for anything else: takes all arguments, all state and all items, and does nothing."""

    def __new__(cls, *_args: object, **_options: object) -> "Inert":
        """Make an instance out of anything."""
        return object.__new__(cls)

    def __init__(self, *_args: object, **_options: object) -> None:
        """Take anything."""

    def __setstate__(self, state: object) -> None:
        """Keep named fields and drop every other state (TensorProperties has a tuple)."""
        if isinstance(state, dict):
            self.__dict__.update(state)

    def _ignore(self, *_args: object) -> None:
        """Take an item."""

    append = extend = add = __setitem__ = _ignore


class Recorder(type):
    """Class of the stand-ins for what DCP does not write: a call of one of them (REDUCE) is noted."""

    called: ClassVar[set[str]] = set()

    def __call__(cls, *args: object, **options: object) -> object:
        """Note the call that unpickling for real would make."""
        Recorder.called.add(cls.__name__)
        return super().__call__(*args, **options)


class Foreign(Inert, metaclass=Recorder):
    """Stands for what DCP does not write; one subclass for each global.

    Making an instance and filling in its fields is taken for a class of the user's own planner. Adding
    items is noted like a call: with ``sys.path`` as the global it would change the process that loads.
    """

    @classmethod
    def _note(cls, *_args: object) -> None:
        Recorder.called.add(cls.__name__)

    append = extend = add = __setitem__ = _note


class Tensor(Inert):
    """Stands for ``TensorStorageMetadata``."""


class Bytes(Inert):
    """Stands for ``BytesStorageMetadata``."""


class Metadata(Inert):
    """Stands for ``Metadata``."""


_METADATA = "torch.distributed.checkpoint.metadata"
_KNOWN: dict[tuple[str, str], type] = {
    (_METADATA, "Metadata"): Metadata,
    (_METADATA, "TensorStorageMetadata"): Tensor,
    (_METADATA, "BytesStorageMetadata"): Bytes,
    (_METADATA, "ChunkStorageMetadata"): Chunk,
    (_METADATA, "MetadataIndex"): Index,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): StorageInfo,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}
_HARMLESS = {
    (_METADATA, "TensorProperties"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    (_METADATA, "StorageMeta"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "PurePosixPath"),
}
"""What stock DCP writes beside the classes above (torch 2.13.0, Python 3.11 to 3.14)."""

_DTYPE = re.compile(r"bool|(?:q?u?int|b?float|complex|bits)[0-9]+[0-9a-z_]*")
"""Names under ``torch`` that are dtypes; ``torch.load`` is none of them."""


class InertUnpickler(pickle.Unpickler):
    """Loads any pickle into inert objects."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.foreign: set[str] = set()
        self._made: dict[tuple[str, str], type] = dict(_KNOWN)

    def find_class(self, module: str, name: str) -> type:
        """Return an inert stand-in; never imports."""
        key = (str(module), str(name))
        if key not in self._made:
            if key in _HARMLESS or (key[0] == "torch" and _DTYPE.fullmatch(key[1])):
                self._made[key] = Inert
            else:
                label = ".".join(key).replace("\0", "?").encode("ascii", "backslashreplace").decode()[:200]
                self.foreign.add(label)
                self._made[key] = Recorder(label, (Foreign,), {})
        return self._made[key]

    def persistent_load(self, pid: object) -> None:
        """Refer to nothing outside the pickle."""


def describe(data: bytes) -> dict[str, Any]:
    """Return what the metadata in ``data`` describes.

    Returns:
        ``files``: name to bytes that it must at least have; ``problems``: what contradicts itself;
        ``foreign`` and ``called``: globals that DCP does not write, and those that loading would call.

    Raises:
        Malformed: if it is not a DCP metadata.
    """
    unpickler = InertUnpickler(data)
    root = unpickler.load()
    if not isinstance(root, Metadata):
        raise Malformed(f"holds a {type(root).__name__}, not a DCP Metadata")
    tensors, storage = vars(root).get("state_dict_metadata"), vars(root).get("storage_data")
    if type(tensors) is not dict or type(storage) is not dict:
        raise Malformed("lacks state_dict_metadata or storage_data")
    problems: list[str] = []
    described = set(_describe_items(tensors, problems))
    num_items = len(described)
    files, extra = _match_storage(storage, described)
    # A failed writer thread leaves described chunks without a storage entry (torch 2.13, pytorch#191391).
    for left, text in ((described, "described but stored nowhere"), (extra, "stored but not described")):
        if left:
            first = min(left, key=repr)[0]
            problems.append(f"{len(left)} of {num_items} chunks {text}, e.g. of {first[:200]}")
    return {
        "files": files,
        "num_items": num_items,
        "problems": problems[:20],
        "foreign": sorted(unpickler.foreign)[:20],
        "called": sorted(Recorder.called)[:20],
    }


def _describe_items(tensors: dict[Any, Any], problems: list[str]) -> Iterator[Key]:
    for name, item in tensors.items():
        if type(name) is not str:
            raise Malformed("an entry of the state dict has no name")
        if isinstance(item, Bytes):
            yield (name, None)
            continue
        fields = vars(item) if isinstance(item, Tensor) else {}
        size, chunks = fields.get("size"), fields.get("chunks")
        if type(chunks) is not list:
            raise Malformed(f"{name[:200]}: neither a tensor nor bytes")
        num_elements = 0
        for chunk in chunks:
            shape = vars(chunk) if type(chunk) is Chunk else {}
            num_elements += math.prod(_ints(shape.get("sizes"), name))
            yield (name, _ints(shape.get("offsets"), name))
        expected = math.prod(_ints(size, name))
        if num_elements != expected:
            problems.append(f"{name[:200]}: its chunks hold {num_elements} of {expected} elements")


def _match_storage(storage: dict[Any, Any], described: set[Key]) -> tuple[dict[str, int], set[Key]]:
    """Take what is stored out of ``described``; return the bytes needed by file, and the stored rest."""
    files: dict[str, int] = {}
    extra: set[Key] = set()
    for index, info in storage.items():
        if type(index) is not Index or type(info) is not StorageInfo:
            raise Malformed("a storage entry is of another kind")
        key, place = vars(index), vars(info)
        name, offset = key.get("fqn"), key.get("offset")
        path, start, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if (
            type(name) is not str
            or type(path) is not str
            or type(start) is not int
            or type(length) is not int
        ):
            raise Malformed("a storage entry lacks its name or place")
        if start < 0 or length < 0:
            raise Malformed(f"{path[:200]}: an entry lies at a negative place")
        item = (name, None if offset is None else _ints(offset, name))
        if item in described:
            described.remove(item)
        else:
            extra.add(item)
        if start + length > files.get(path, -1):
            files[path] = start + length
    return files, extra


def _ints(value: object, name: str) -> tuple[int, ...]:
    if type(value) is tuple and len(value) <= 64:
        for item in value:
            if type(item) is not int or not 0 <= item < _TOO_LARGE:
                break
        else:
            return value
    raise Malformed(f"{name[:200]}: a size or offset is no list of numbers")


def _set_limits(max_memory: int, max_cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_seconds, max_cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _main(arguments: list[str]) -> int:
    max_bytes, max_memory, max_cpu_seconds = (int(argument) for argument in arguments)
    _set_limits(max_memory, max_cpu_seconds)
    # Hundreds of thousands of small objects, none in a cycle: collecting costs 3.5 times the loading.
    gc.disable()
    data = sys.stdin.buffer.read(max_bytes + 1)
    if len(data) > max_bytes:
        answer, code = {"malformed": f"is larger than {max_bytes} bytes"}, 3
    else:
        try:
            answer, code = describe(data), 0
        except MemoryError:
            raise
        except Malformed as error:
            answer, code = {"malformed": str(error)}, 3
        # What broken bytes raise inside the unpickler is any exception at all.
        except Exception as error:  # noqa: BLE001
            answer, code = (
                {"malformed": f"cannot be read as a pickle ({type(error).__name__}: {error})"[:400]},
                3,
            )
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    # Not sys.exit: taking millions of objects apart would cost more than reading them did.
    os._exit(_main(sys.argv[1:]))
