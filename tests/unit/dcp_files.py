"""Makes checkpoints in the layout of torch.distributed.checkpoint without torch.

The classes below carry torch's module and class names while they are pickled, so that the bytes are those
that torch 2.13 writes, but for the sizes.
"""

import os
import pickle
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class Size(tuple[int, ...]):
    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        return Size, (tuple(self),)


class Record:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class TensorProperties:
    def __getstate__(self) -> tuple[bool, ...]:
        return (False, False, False, False, False)


@dataclass(frozen=True)
class Chunk:
    """One stored piece of a tensor: where it starts in the tensor and which file holds it."""

    tensor: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


def _torch_class(module: str, name: str, base: type = Record) -> Any:
    return type(name, (base,), {"__module__": module, "__qualname__": name})


Metadata = _torch_class(METADATA, "Metadata")
TensorStorageMetadata = _torch_class(METADATA, "TensorStorageMetadata")
BytesStorageMetadata = _torch_class(METADATA, "BytesStorageMetadata")
ChunkStorageMetadata = _torch_class(METADATA, "ChunkStorageMetadata")
MetadataIndex = _torch_class(METADATA, "MetadataIndex")
StorageInfo = _torch_class(FILESYSTEM, "_StorageInfo")
Properties = _torch_class(METADATA, "TensorProperties", TensorProperties)
Size.__module__, Size.__qualname__ = "torch", "Size"


def dump(value: object) -> bytes:
    """Pickle ``value`` with torch's names."""
    modules = {name: types.ModuleType(name) for name in ("torch", METADATA, FILESYSTEM)}
    modules["torch"].Size = Size  # type: ignore[attr-defined]
    for item in (
        Metadata,
        TensorStorageMetadata,
        BytesStorageMetadata,
        ChunkStorageMetadata,
        MetadataIndex,
        StorageInfo,
        Properties,
    ):
        setattr(modules[item.__module__], item.__qualname__, item)
    with patch.dict(sys.modules, modules):
        return pickle.dumps(value, protocol=4)


def chunks_of(num_tensors: int, num_files: int, *, rows: int = 4, length: int = 100) -> list[Chunk]:
    """Return chunks of tensors of shape (num_files * rows, 3), one chunk of each in every file."""
    return [
        Chunk(
            tensor=f"model.layer{tensor}.weight",
            offsets=(rank * rows, 0),
            sizes=(rows, 3),
            file=f"__{rank}_0.distcp",
            start=tensor * length,
            length=length,
        )
        for tensor in range(num_tensors)
        for rank in range(num_files)
    ]


def metadata_of(
    chunks: list[Chunk], *, stored: list[Chunk] | None = None, planner_data: object = None
) -> bytes:
    """Return the ``.metadata`` that describes ``chunks`` and knows where ``stored`` (all by default) are."""
    tensors: dict[str, Any] = {}
    for chunk in chunks:
        tensor = tensors.setdefault(
            chunk.tensor, TensorStorageMetadata(properties=Properties(), size=Size((0, 3)), chunks=[])
        )
        tensor.size = Size((tensor.size[0] + chunk.sizes[0], chunk.sizes[1]))
        tensor.chunks.append(ChunkStorageMetadata(offsets=Size(chunk.offsets), sizes=Size(chunk.sizes)))
    storage = {
        MetadataIndex(fqn=chunk.tensor, offset=Size(chunk.offsets), index=number): StorageInfo(
            relative_path=chunk.file, offset=chunk.start, length=chunk.length
        )
        for number, chunk in enumerate(chunks if stored is None else stored)
    }
    return dump(
        Metadata(
            state_dict_metadata=tensors, planner_data=planner_data, storage_data=storage, version="1.0.0"
        )
    )


def write_checkpoint(
    path: Path, *, num_tensors: int = 3, num_files: int = 2, metadata: bytes | None = None
) -> Path:
    """Write a whole checkpoint; ``metadata`` replaces its ``.metadata``."""
    chunks = chunks_of(num_tensors, num_files)
    path.mkdir(parents=True)
    sizes: dict[str, int] = {}
    for chunk in chunks:
        sizes[chunk.file] = max(sizes.get(chunk.file, 0), chunk.start + chunk.length)
    for name, size in sizes.items():
        (path / name).touch()
        os.truncate(path / name, size)
    (path / ".metadata").write_bytes(metadata_of(chunks) if metadata is None else metadata)
    return path


def set_mtime(path: Path, seconds: float) -> None:
    """Set the file's times to ``seconds`` since the epoch."""
    os.utime(path, (seconds, seconds))
