"""Pickled dicts of plain values and arrays, as old data sets come; nothing in them is run."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from singanet.base.budget import Budget
from singanet.data.pickles import Made, StoredText, pieces, recognise, run_program, text
from singanet.errors import DataError, SingaNetError
from singanet.types import Array

_MOST_STEPS = 600_000
"""The largest file of CIFAR-100 has 150,000 labels and names, with a step or two for each."""


def load_plain_pickle(content: bytes, where: str) -> dict[str, Any]:
    """The dict in a pickle: of numbers, text, flat lists of them, numeric arrays (read-only).

    Keys come as str; text that Python 2 wrote comes as bytes. Errors: `DataError` with the
    instruction, or the name, that is not allowed, and for a file that makes more than ten times
    its size.
    """

    def refuse(expected: str, received: str) -> DataError:
        return DataError(
            where,
            expected=expected,
            received=received,
            advice="get the file again from its publisher",
        )

    budget = Budget(len(content), refuse, _MOST_STEPS)
    stream = io.BytesIO(content)
    value = run_program(stream, len(content), budget, refuse)
    if type(value) is not dict:
        raise refuse("a pickled dict", f"a {type(value).__name__}")

    def plain(entry: Any) -> Any:
        if isinstance(entry, StoredText):
            budget.spend(entry.size)
            return b"".join(pieces(stream, entry))
        if not (entry is None or isinstance(entry, int | bytes | str)):
            raise refuse("numbers, texts, lists of these and arrays", f"a {type(entry).__name__}")
        return entry

    def flat(entry: Any) -> Any:
        if isinstance(entry, Made):
            found = recognise(entry, len(content), refuse, refuse)
            return _array(plain(found.data), found.dtype, found.shape, found.fortran_order)
        if isinstance(entry, list | tuple):
            budget.spend(8 * len(entry), len(entry))  # one list may be there under many keys
            return type(entry)(plain(each) for each in entry)
        return plain(entry)

    try:
        return {text(key): flat(entry) for key, entry in value.items()}
    except SingaNetError:
        raise
    except (TypeError, ValueError) as error:
        raise refuse("a pickled dict of plain values", f"{error}"[:200]) from error


def _array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> Array:
    flat = np.frombuffer(data, dtype)
    if flat.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{len(data)} bytes for shape {shape} of {dtype}")
    return flat.reshape(shape, order="F" if fortran else "C")
