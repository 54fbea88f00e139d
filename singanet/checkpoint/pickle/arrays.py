"""Arrays as NumPy pickles them: recognised, and checked, before any is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.pickle.tokens import Global, Made, Text
from singanet.checkpoint.streaming import check_shape
from singanet.errors import FileFormatError, UnsafeFileError

_CODE = re.compile(r"[<>=|]?([biuf]\d{1,2})")


@dataclass(frozen=True, slots=True)
class Pickled:
    """An array whose bytes are ``data``, as ``dtype`` in the given order."""

    entry: Entry
    dtype: np.dtype[Any]
    fortran_order: bool
    data: bytes | Text


def recognise(name: str, value: Any, size: int, where: str) -> Pickled:
    """``value`` as an array; ``size`` is that of the file, above which no claim is believed.

    Errors: `UnsafeFileError` for arrays of objects, `FileFormatError` for anything else.
    """
    where = f"{where}, array {name!r}"
    if isinstance(value, (int, float)):
        return _number(name, value, where)
    if not isinstance(value, Made):
        raise _refused(where, type(value).__name__)
    try:
        if value.maker == "_reconstruct" and isinstance(value.args[0], Global):
            _, shape, kind, fortran, data = value.state
        elif value.maker == "_frombuffer":
            data, kind, shape, order = value.args
            fortran = text(order) == "F"
        else:
            (kind, data), shape, fortran = value.args, (), False
        dtype = _dtype(kind, where)
        if not isinstance(data, (bytes, Text)):
            raise _refused(where, "no bytes for its elements")
        axes = check_shape(shape, dtype.itemsize, size, where)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise _refused(where, f"an array put together otherwise ({error})") from None
    stored = data.size if isinstance(data, Text) else len(data)
    entry = Entry(name, axes, dtype.newbyteorder("<"), stored)
    return Pickled(entry, dtype, bool(fortran), data)


def text(value: Any) -> str:
    """A short string of either Python as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError("no string")
    return value


def _dtype(value: Any, where: str) -> np.dtype[Any]:
    if not isinstance(value, Made) or value.maker != "dtype":
        raise _refused(where, "no type")
    code = text(value.args[0])
    found = _CODE.fullmatch(code)
    if code.lstrip("<>=|").startswith("O"):
        raise UnsafeFileError(
            where,
            expected="an array of numbers",
            received="an array of Python objects",
            advice="do not load it; ask its author for an array of numbers",
        )
    if not found:
        raise _refused(where, f"the type {code[:40]!r}")
    order = text(value.state[1]) if value.state else "="
    return np.dtype(found[1]).newbyteorder(">" if order == ">" else "<")


def _number(name: str, value: float, where: str) -> Pickled:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise _refused(where, "a number of more than 64 bits")
    array = np.array(value)
    dtype = array.dtype.newbyteorder("<")
    data = array.astype(dtype).tobytes()
    return Pickled(Entry(name, (), dtype, len(data)), dtype, False, data)


def _refused(where: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected="a NumPy array of booleans, integers or floats",
        received=received,
        advice="remove it from the dict before pickling, or use safetensors or npz",
    )
