"""The arrays of an ``.onnx`` file, or of a file beside it."""

from __future__ import annotations

import os
import stat
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.budget import Budget, checked_shape
from singanet.codecs.onnx.vocabulary import BFLOAT16, DTYPES
from singanet.errors import FileAccessError, FileFormatError, UnsafeFileError
from singanet.schema.onnx_pb2 import TensorProto
from singanet.types import Array

_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIELDS = {"f4": "float_data", "f8": "double_data", "i8": "int64_data", "u4": "uint64_data",
           "u8": "uint64_data"}  # fmt: skip


def array_of(tensor: Any, folder: Path, where: str, budget: Budget) -> Array:
    """The array of a ``TensorProto``, read-only. Errors: `FileFormatError`, `UnsafeFileError`."""
    place = f"{where}, array {tensor.name[:60]!r}"
    if tensor.HasField("segment") or tensor.data_type not in DTYPES:
        raise _wrong(
            place,
            "floats, whole numbers or booleans of 8 bits and more, in one piece",
            "a segment" if tensor.HasField("segment") else f"data type {tensor.data_type}",
        )
    half = tensor.data_type == BFLOAT16
    stored = (np.dtype("u2") if half else DTYPES[tensor.data_type]).newbyteorder("<")
    shape = checked_shape(tensor.dims, stored.itemsize, 1 << 40, lambda e, r: _wrong(place, e, r))
    count = prod(shape)
    if tensor.data_location == TensorProto.DataLocation.EXTERNAL:
        raw = _outside(tensor, folder, place, count * stored.itemsize, budget)
        array = np.frombuffer(raw, stored)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * stored.itemsize:
            raise _wrong(place, f"{count * stored.itemsize} bytes", f"{len(tensor.raw_data)} bytes")
        array = np.frombuffer(tensor.raw_data, stored)
    else:
        array = _typed(tensor, stored, count, place, half)
    if half:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array = array.reshape(shape).astype(DTYPES[tensor.data_type], copy=False)
    array.flags.writeable = False
    return array


def _typed(tensor: Any, stored: np.dtype[Any], count: int, place: str, half: bool) -> Array:
    """The numbers in the field for the type; 16 bits and fewer lie in int32's, halves by bits."""
    name = _FIELDS.get(f"{stored.kind}{stored.itemsize}", "int32_data")
    filled = [each for each in _TYPED if len(getattr(tensor, each))]
    values = getattr(tensor, name)
    if filled not in ([], [name]) or len(values) != count:
        raise _wrong(place, f"{count} numbers in {name}", f"{len(values)}, and {filled}")
    if stored.kind == "f" and stored.itemsize == 2:
        bits = np.fromiter(values, np.int32, count).astype(np.uint16)
        return bits.view(np.float16)
    if name == "int32_data":
        wide = np.fromiter(values, np.int32, count)
        return wide.astype(np.uint16 if half else stored)
    return np.fromiter(values, stored.newbyteorder("="), count)


def _outside(tensor: Any, folder: Path, place: str, nbytes: int, budget: Budget) -> bytes:
    """The bytes of an array in a file beside the model's, which may not leave its folder."""
    about = {entry.key: entry.value for entry in tensor.external_data}
    location = about.get("location", "")
    parts = location.replace("\\", "/").split("/")
    if not location or os.path.isabs(location) or any(p in ("", ".", "..") for p in parts[:-1]):
        raise _unsafe(place, repr(location)[:80])
    path = folder.joinpath(*parts)
    if parts[-1] in ("", ".", "..") or "\0" in location or ":" in location:
        raise _unsafe(place, repr(location)[:80])
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _unsafe(place, repr(location)[:80])
    try:
        # Not one that was put there in the meantime either.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except (OSError, ValueError) as error:
        raise FileAccessError(
            place,
            expected=f"the file {location[:80]!r} beside the model's",
            received=str(error)[:120],
            advice="keep the files of a model together, as they were exported",
        ) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(handle)
        raise _unsafe(place, f"{location[:60]!r}, which is linked or no file")
    with os.fdopen(handle, "rb") as stream:
        try:
            start = int(about.get("offset", "0"))
            length = int(about.get("length", str(nbytes)))
        except ValueError:
            raise _wrong(place, "an offset and a length in bytes", str(about)[:80]) from None
        if length != nbytes or not 0 <= start <= status.st_size - length:
            received = f"{length} from {start} on, of {status.st_size}"
            raise _wrong(place, f"{nbytes} bytes inside of {location[:60]!r}", received)
        # What is really there was paid for by who wrote it.
        budget.grant(nbytes)
        budget.spend(nbytes)
        stream.seek(start)
        return stream.read(nbytes)


def _wrong(place: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        place, expected=expected, received=received, advice="export the model again"
    )


def _unsafe(place: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        place,
        expected="external data in a plain file inside the model's folder",
        received=received,
        advice="keep the files of a model together, and do not trust this one",
    )
