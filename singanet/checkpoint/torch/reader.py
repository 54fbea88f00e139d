"""Reading ``.pt`` files: the zip that PyTorch writes since 1.6, and the stream of before."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.budget import Budget
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.halves import BFLOAT, widen
from singanet.checkpoint.names import check_name, check_unique
from singanet.checkpoint.npz.archive import open_archive, place_of, zip_errors
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.streaming import as_bools, bytes_of, read_bytes
from singanet.checkpoint.torch.storages import (
    NAMES,
    Storage,
    StoredTensor,
    storage_of,
    tensor_of,
    width,
)
from singanet.data.pickles import Made, run_program
from singanet.errors import FileFormatError, UnsafeFileError
from singanet.types import Array

MAGIC = 0x1950A86A20F9469CFC6C
"""The number, pickled, at the beginning of the stream."""
PROGRAM = "/data.pkl"
"""The end of the name of the zip's first member."""
_MOST_STEPS = 2_000_000
"""Of all pickles of a file: 50,000 tensors."""
_PROTOCOL = 1001
_PIECE = 1 << 20
_PER_NAME = 400
"""Bytes that a tensor takes, or a dict on the way to one, with its `Entry` and names."""


class TorchReader(StreamReader):
    """The tensors of a state dict, or of a training, whose dicts are named ``model/0.weight``.

    Nothing in the file is imported, called or built. Strides are resolved; bfloat16 is read as
    float32. What is no tensor in dicts is left out.
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
            # What is read, and what is made of it: a view may be a few elements far apart.
            nbytes = int(np.prod(tensor.shape, dtype=np.int64)) * width(tensor.kind)
            budget.spend(max(nbytes, tensor.span * width(tensor.kind)))
            if name in self.entries:
                raise self._damaged("tensors of different names", f"two called {name[:80]!r}")
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
            raise self._unsafe("the state dict of a module", "one in TorchScript, with its code")
        with zip_errors(self.where):
            order = members.get(f"{root}/byteorder")
            if order is not None:
                with archive.open(order) as member:  # deflated, it may be of any size
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
        """The tensors in dicts in ``value``, each with the keys that lead to it."""
        if type(value) is not dict:
            return
        with budget.deeper():
            for key, item in value.items():
                # A dict may be reached by as many ways as a file asks for, each with its names.
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
                    pass  # to its end, where the checksum is compared
        flat = np.empty(tensor.span, "<u2" if tensor.kind == BFLOAT else entry.dtype)
        self._stream.seek(self._places[key] + tensor.start * size)
        read_bytes(self._stream, bytes_of(flat), self._beside, where)
        steps = [step * size for step in tensor.strides]
        view = np.ndarray(tensor.shape, flat.dtype, flat, 0, steps)
        array = np.negative(view, order="C") if tensor.negated else np.array(view, order="C")
        return widen(array) if tensor.kind == BFLOAT else as_bools(array)

    def _unsafe(self, expected: str, received: str) -> UnsafeFileError:
        return UnsafeFileError(
            self.where,
            expected=expected,
            received=received,
            advice="write torch.save(module.state_dict(), path) with numbers "
            "as tensor.float() gives them, or use safetensors",
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
