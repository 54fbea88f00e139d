"""PyTorch's checkpoints, read without running code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import Budget, Refusal, checked_shape, is_int
from singanet.checkpoint.entry import (
    Entry,
    as_bools,
    bytes_of,
    check_name,
    check_unique,
    read_bytes,
)
from singanet.checkpoint.halves import BFLOAT, widen
from singanet.checkpoint.npz import open_archive, place_of, zip_errors
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.safetensors import DTYPES
from singanet.data.pickles import ALLOWED, Global, Made, run_program
from singanet.errors import FileFormatError, SingaNetError, UnsafeFileError
from singanet.types import Array, Shape

# PyTorch's names of types, with safetensors' names.
_TYPES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": BFLOAT,
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_BYTES = "UntypedStorage"
_TENSORS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")
_PARAMETER = "_rebuild_parameter"
# Other objects in a training's checkpoint; none is constructed.
_OTHERS = ("Size", "device", "float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
NAMES = frozenset(
    {
        *ALLOWED,
        ("torch.storage", _BYTES),
        *(("torch._utils", name) for name in (*_TENSORS, _PARAMETER)),
        *(("torch", name) for name in (*_TYPES, *_OTHERS, _BYTES)),
    }
)
"""Every name that a PyTorch file may reference; NumPy's occur in trainings."""


@dataclass(slots=True)
class Storage:
    """A run of ``count`` elements of ``kind``, or of bytes if "", stored as ``key``."""

    key: str
    kind: str
    count: int

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.count * width(self.kind)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of ``storage``; ``start`` and ``strides`` are in elements of ``kind``."""

    storage: Storage
    kind: str
    start: int
    shape: Shape
    strides: Shape
    negated: bool = False
    """Whether the sign of the stored elements is inverted, as in ``z.conj().imag``."""

    @property
    def span(self) -> int:
        """The number of elements from the first to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype when read: bfloat16 becomes float32."""
        return np.dtype("<f4" if self.kind == BFLOAT else DTYPES[self.kind])


def width(kind: str) -> int:
    """Return the bytes of an element."""
    return 2 if kind == BFLOAT else np.dtype(DTYPES[kind]).itemsize if kind else 1


def storage_of(description: Any, seen: dict[str, Storage]) -> Storage:
    """Return the storage of a persistent id; ``seen`` has the earlier ones.

    Raises TypeError or ValueError for other ids, and for a key of two kinds.
    """
    tag, kind, key, _, count, *view = description
    if tag != "storage" or not isinstance(kind, Global) or any(view):
        raise TypeError
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and is_int(count, 0)):
        raise TypeError
    if len(key) > 20 or count >= 1 << 62:
        raise ValueError
    name = "" if kind.name == _BYTES else _TYPES[kind.name]
    found = seen.setdefault(key, Storage(key, name, count))
    if (found.kind, found.count) != (name, count):
        raise ValueError
    return found


def tensor_of(value: Any, limit: int, refuse: Refusal) -> StoredTensor | None:
    """Return the tensor that ``value`` represents, None for other objects.

    It takes at most ``limit`` bytes and is within its storage. Errors: as ``refuse`` returns.
    """
    if isinstance(value, Made) and value.maker == _PARAMETER:
        value = value.args[0] if value.args else None
    if not isinstance(value, Made) or value.maker not in _TENSORS:
        return None
    try:
        storage, start, shape, strides, _, _, *more = value.args
        kind = storage.kind
        if value.maker == _TENSORS[1]:
            kind = _TYPES[more.pop(0).name]
        negated = _negated(more, kind)
        shape, strides = _sizes(shape), _sizes(strides)
        axes = checked_shape(shape, width(kind), limit, refuse)
        if not kind or not is_int(start, 0) or len(strides) != len(axes):
            raise TypeError
        if any(not is_int(step, 0) for step in strides):
            raise TypeError
    except SingaNetError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError):
        raise refuse("a tensor written by PyTorch", "another construction") from None
    found = StoredTensor(storage, kind, int(start), axes, tuple(map(int, strides)), negated)
    if (found.start + found.span) * width(kind) > storage.nbytes:
        received = f"{found.span} after the first {found.start}"
        raise refuse(f"elements within the {storage.nbytes} bytes of a storage", received)
    return found


def _negated(more: Sequence[Any], kind: str) -> bool:
    """Return the negation mark, the last argument. Raises TypeError for other marks."""
    marks = {name: mark for each in more if each for name, mark in dict(each).items() if mark}
    if marks.keys() - {"neg"} or (marks and kind not in ("F16", "F32", "F64")):
        raise TypeError
    return bool(marks)


def _sizes(value: Any) -> Sequence[Any]:
    """Return a tuple, or the tuple of a ``torch.Size``."""
    if isinstance(value, Made) and value.maker == "Size":
        (value,) = value.args
    if type(value) is not tuple:
        raise TypeError
    return value


MAGIC = 0x1950A86A20F9469CFC6C
"""The pickled number at the start of the stream."""
PROGRAM = "/data.pkl"
"""The suffix of the name of the zip's first member."""
_MOST_STEPS = 2_000_000
"""The maximum steps of all pickles of a file, for 50,000 tensors."""
_PROTOCOL = 1001
_PIECE = 1 << 20
_PER_NAME = 400
"""The bytes in memory of a tensor or nested dict, with its `Entry` and names."""


class TorchReader(StreamReader):
    """A reader of the tensors of a state dict, or of a training with names like ``model/0.weight``.

    Nothing in the file is imported, called or constructed. Strides are resolved; bfloat16 is read
    as float32. Other objects in dicts are ignored.
    """

    format = "torch"

    def __init__(self, path: Path) -> None:
        self._tensors: dict[str, StoredTensor] = {}
        self._storages: dict[str, Storage] = {}
        self._places: dict[str, int] = {}
        self._unchecked: dict[str, zipfile.ZipInfo] = {}
        super().__init__(path)

    def _list(self) -> None:
        budget = Budget(self._size, self._damaged, _MOST_STEPS)
        start = self._stream.read(4)
        self._stream.seek(0)
        zipped = start == b"PK\3\4"
        found = self._zip_object(budget) if zipped else self._stream_object(budget)
        self.version = "PyTorch"
        for name, tensor in self._flat(found, "", budget):
            # The bytes read and the bytes made: a view may have few elements that are far apart.
            nbytes = int(np.prod(tensor.shape, dtype=np.int64)) * width(tensor.kind)
            budget.spend(max(nbytes, tensor.span * width(tensor.kind)))
            if name in self.entries:
                raise self._damaged("distinct names of tensors", f"two called {name[:80]!r}")
            self.entries[name] = Entry(name, tensor.shape, tensor.dtype, nbytes)
            self._tensors[name] = tensor
        check_unique(self.entries, self.where)
        if not self.entries:
            raise self._damaged("a state dict: tensors by name", _what(found))

    def _program(self, stream: Any, size: int, budget: Budget) -> Any:
        outside = partial(storage_of, seen=self._storages)
        return run_program(stream, size, budget, self._unsafe, NAMES, outside)

    def _zip_object(self, budget: Budget) -> Any:
        archive = self._archive = open_archive(self._stream, self._size, self.where)
        members = {info.filename: info for info in archive.infolist()}
        programs = [name for name in members if name.endswith(PROGRAM)]
        if len(programs) != 1 or len(members) != len(archive.infolist()):
            raise self._damaged(f"one member called ...{PROGRAM}, and none twice", str(programs))
        root = programs[0].removesuffix(PROGRAM)
        if f"{root}/constants.pkl" in members:
            raise self._unsafe("the state dict of a module", "a TorchScript module with code")
        with zip_errors(self.where):
            order = members.get(f"{root}/byteorder")
            if order is not None:
                with archive.open(order) as member:  # deflated, it may have any size
                    if member.read(8) != b"little":
                        raise self._damaged("numbers with the low byte first", "another order")
            budget.spend(members[programs[0]].file_size)
            program = archive.read(members[programs[0]])
        found = self._program(io.BytesIO(program), len(program), budget)
        for key, storage in self._storages.items():
            info = members.get(f"{root}/data/{key}")
            if info is None or info.compress_type or info.file_size != storage.nbytes:
                received = "none" if info is None else f"{info.file_size}, or packed"
                raise self._damaged(f"{storage.nbytes} bytes of data/{key}", received)
            with zip_errors(self.where):
                self._places[key] = place_of(self._stream, info)
            self._unchecked[key] = info
        return found

    def _stream_object(self, budget: Budget) -> Any:
        start = [self._program(self._stream, self._size, budget) for _ in range(3)]
        about = start.pop()
        if start != [MAGIC, _PROTOCOL] or type(about) is not dict or not about.get("little_endian"):
            raise self._damaged(f"protocol {_PROTOCOL}, the low byte first", "another")
        found = self._program(self._stream, self._size, budget)
        keys = self._program(self._stream, self._size, budget)
        if type(keys) is not list or not all(isinstance(key, str) for key in keys):
            raise self._damaged("the keys of the storages", _what(keys))
        at = self._stream.tell()
        for key in keys:
            self._stream.seek(at)
            count = int.from_bytes(self._stream.read(8), "little")
            storage = self._storages.get(key)
            if storage is None or count != storage.count or key in self._places:
                raise self._damaged(f"a storage {key[:20]!r} of its size, once", str(count))
            self._places[key] = at + 8
            at += 8 + storage.nbytes
            if at > self._size:
                raise self._damaged(f"{storage.nbytes} bytes of {key[:20]!r}", "the file's end")
        if len(self._places) != len(self._storages):
            raise self._damaged("every storage in the file", "fewer")
        return found

    def _flat(self, value: Any, path: str, budget: Budget) -> Iterator[tuple[str, StoredTensor]]:
        """Yield the tensors in nested dicts of ``value``, with their paths of keys."""
        if type(value) is not dict:
            return
        with budget.deeper():
            for key, item in value.items():
                # A hostile file may reference a dict many times, each with its own names.
                budget.spend(len(path) + (_PER_NAME if isinstance(item, (dict, Made)) else 0))
                if type(item) is dict:
                    yield from self._flat(item, f"{path}{_text(key)}/", budget)
                elif (tensor := tensor_of(item, _most(self._size), self._damaged)) is not None:
                    yield check_name(f"{path}{_text(key)}", self.where), tensor

    def _read(self, entry: Entry) -> Array:
        tensor = self._tensors[entry.name]
        key, size = tensor.storage.key, width(tensor.kind)
        where = f"{self.where}, array {entry.name!r}"
        if (info := self._unchecked.pop(key, None)) is not None:
            with zip_errors(where), self._archive.open(info) as member:
                while member.read(_PIECE):
                    pass  # zipfile verifies the checksum at the end
        flat = np.empty(tensor.span, "<u2" if tensor.kind == BFLOAT else entry.dtype)
        self._stream.seek(self._places[key] + tensor.start * size)
        read_bytes(self._stream, bytes_of(flat), self._hasher, where)
        steps = [step * size for step in tensor.strides]
        view = np.ndarray(tensor.shape, flat.dtype, flat, 0, steps)
        array = np.negative(view, order="C") if tensor.negated else np.array(view, order="C")
        return widen(array) if tensor.kind == BFLOAT else as_bools(array)

    def _unsafe(self, expected: str, received: str) -> UnsafeFileError:
        return UnsafeFileError(
            self.where,
            expected=expected,
            received=received,
            advice="write torch.save(module.state_dict(), path) with tensors "
            "converted by tensor.float(), or use safetensors",
        )

    def _damaged(self, expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=expected,
            received=received,
            advice="write it again with torch.save(module.state_dict(), path)",
        )


def _most(size: int) -> int:
    return 8 * size + (1 << 20)


def _text(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _what(value: Any) -> str:
    plain = isinstance(value, (dict, list, tuple, str, bytes, int, float, type(None)))
    return f"a {type(value).__name__} without any" if plain else "a tensor alone, or another object"
