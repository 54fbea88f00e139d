"""Arrays as NumPy pickles them: recognised, and checked, before any is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.budget import Refusal, checked_shape
from singanet.data.pickles.tokens import Global, Made, StoredText
from singanet.errors import SingaNetError
from singanet.types import Shape

_CODE = re.compile(r"[<>=|]?([biuf]\d{1,2})")


@dataclass(frozen=True, slots=True)
class Pickled:
    """An array whose bytes are ``data``, as ``dtype`` in the given order."""

    shape: Shape
    dtype: np.dtype[Any]
    fortran_order: bool
    data: bytes | StoredText

    @property
    def stored(self) -> int:
        """Bytes that its data take in the file, escapes and all."""
        return self.data.size if isinstance(self.data, StoredText) else len(self.data)


def recognise(value: Any, size: int, refuse: Refusal, unsafe: Refusal) -> Pickled:
    """``value`` as an array; ``size`` is that of the file, above which no claim is believed.

    Errors: ``unsafe(...)`` for arrays of objects, ``refuse(...)`` for anything else.
    """
    expected = "a NumPy array of booleans, integers or floats"
    if not isinstance(value, Made):
        raise refuse(expected, type(value).__name__)
    try:
        if value.maker == "_reconstruct" and isinstance(value.args[0], Global):
            _, shape, kind, fortran, data = value.state
        elif value.maker == "_frombuffer":
            data, kind, shape, order = value.args
            fortran = text(order) == "F"
        else:
            (kind, data), shape, fortran = value.args, (), False
        dtype = _dtype(kind, unsafe)
        if not isinstance(data, (bytes, StoredText)):
            raise TypeError("no bytes for its elements")
        axes = checked_shape(shape, dtype.itemsize, size, refuse)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if isinstance(error, SingaNetError):
            raise
        raise refuse(expected, f"an array put together otherwise ({error})"[:200]) from None
    return Pickled(axes, dtype, bool(fortran), data)


def text(value: Any) -> str:
    """A short string of either Python as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError("no string")
    return value


def _dtype(value: Any, unsafe: Refusal) -> np.dtype[Any]:
    if not isinstance(value, Made) or value.maker != "dtype":
        raise TypeError("no type")
    code = text(value.args[0])
    found = _CODE.fullmatch(code)
    if code.lstrip("<>=|").startswith("O"):
        raise unsafe("an array of numbers", "an array of Python objects")
    if not found:
        raise TypeError(f"the type {code[:40]!r}")
    order = text(value.state[1]) if value.state else "="
    return np.dtype(found[1]).newbyteorder(">" if order == ">" else "<")
