"""Pickled dicts of plain values and numeric arrays, as old data sets come; nothing in them is run.

A pickle is a program. This one is first read as a list of instructions, of which only those
that build plain values may occur, in bounds that memory can bear; then it is carried out with
stand-ins for the few names that NumPy's arrays use, so that no function named by the file is
ever looked up.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.types import Array

_ALLOWED = re.compile(
    "PROTO|STOP|MARK|FRAME|NONE|NEWTRUE|NEWFALSE|INT|BININT[12]?|LONG1?|STRING|(SHORT_)?BINSTRING|"
    "(SHORT_)?BINBYTES|UNICODE|(SHORT_)?BINUNICODE|(EMPTY_)?LIST|APPENDS?|(EMPTY_)?DICT|SETITEMS?|"
    "(EMPTY_)?TUPLE|TUPLE[123]|(LONG_)?BIN(PUT|GET)|PUT|GET|MEMOIZE|GLOBAL|REDUCE|BUILD"
)
# A data set needs a handful of each; without a bound, tuples in tuples overflow the stack when
# they are hashed, and one list named over and over takes for ever to look through.
_MOST_TUPLES = 1000
_MOST_ENTRIES = 1000
_NUMBERS = re.compile("[biuf][1248]")


def load_plain_pickle(content: bytes, where: str) -> dict[str, Any]:
    """The dict in a pickle: of numbers, text, flat lists of them, numeric arrays (read-only).

    Keys come as str; text that Python 2 wrote comes as bytes. Errors: `DataError` with the
    byte of the instruction, or the name, that is not allowed.
    """
    try:
        _check_instructions(content, where)
        value = _PlainUnpickler(io.BytesIO(content), where).load()
        return _flat_dict(value)
    except DataError:
        raise
    # A damaged pickle raises nearly anything, and all of it means the same.
    except Exception as error:
        raise _refused(
            where, "a pickled dict of plain values", f"{type(error).__name__}: {error}"
        ) from error


def _check_instructions(content: bytes, where: str) -> None:
    tuples = 0
    for code, argument, place in pickletools.genops(content):
        if not _ALLOWED.fullmatch(code.name):
            raise _refused(where, "plain values", f"the instruction {code.name}", place)
        tuples += code.name.startswith("TUPLE")
        # A number in the memo makes a table of that size.
        beyond = "PUT" in code.name and int(argument or 0) > len(content)
        if beyond or tuples > _MOST_TUPLES:
            raise _refused(where, "a plain pickle", f"an outsize {code.name}", place)


class _Dtype:
    """Stands in for ``numpy.dtype`` until its byte order is known."""

    def __init__(self, descr: Any, *flags: Any) -> None:
        self.descr = descr.decode("ascii") if isinstance(descr, bytes) else str(descr)
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])


class _Array:
    """Stands in for ``numpy.ndarray`` until its values are known."""

    array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran_order, values = state
        if not isinstance(dtype, _Dtype) or _NUMBERS.fullmatch(dtype.descr) is None:
            raise ValueError("an array of other things than numbers")
        kind = np.dtype(dtype.order.strip("|=") + dtype.descr)
        if math.prod(shape) * kind.itemsize != len(values) or any(size < 0 for size in shape):
            raise ValueError(f"{len(values)} bytes for shape {shape} of {kind}")
        flat = np.frombuffer(values, kind)
        self.array = flat.reshape(shape, order="F" if fortran_order else "C")


# Classes with a __setstate__ of their own, not functions: a pickle could set a function's
# attributes, and those would stay.
class _Reconstruct(_Array):
    """Stands in for the function that makes an empty array."""

    def __new__(cls, *arguments: Any) -> Any:
        return _Array()


class _Encode(_Array):
    """Stands in for ``codecs.encode``: so Python 3 writes bytes in the old protocols."""

    def __new__(cls, text: str, encoding: Any = None) -> Any:
        return text.encode("latin-1")


class _NoBytes(_Array):
    """Stands in for ``bytes()``: so Python 3 writes empty ones in the old protocols."""

    def __new__(cls) -> Any:
        return b""


_NAMES = {
    "__builtin__ bytes": _NoBytes,
    "numpy.core.multiarray _reconstruct": _Reconstruct,
    "numpy._core.multiarray _reconstruct": _Reconstruct,
    "numpy ndarray": _Array,
    "numpy dtype": _Dtype,
    "_codecs encode": _Encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str) -> None:
        super().__init__(stream, encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get(f"{module} {name}")
        if found is None:
            raise _refused(self._where, "plain values and arrays", f"the name {module}.{name}")
        return found


def _flat_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MOST_ENTRIES:
        raise ValueError(f"a {type(value).__name__}, or an outsize dict")
    return {_text(key): _flat(entry) for key, entry in value.items()}


def _flat(value: Any) -> Any:
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    entries = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(entry, int | bytes | str | None) for entry in entries):
        raise ValueError("an entry that is no number, text, list of these, or array")
    return value


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _refused(where: str, expected: str, received: str, byte: int | None = None) -> DataError:
    return DataError(
        where if byte is None else f"{where}, byte {byte}",
        expected=expected,
        received=received,
        advice="get the file again from its publisher",
    )
