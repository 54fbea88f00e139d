"""Headers of arrays in a file before they are read, and arrays that a writer is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

import numpy as np

from singanet.checkpoint.names import check_name, check_unique
from singanet.errors import ArgumentError
from singanet.types import Array, Shape, StandIn

_KINDS = "biuf"


@dataclass(frozen=True, slots=True)
class Entry:
    """An array in a file: ``dtype`` is that of the array read, ``stored`` the bytes it takes.

    ``kind`` names the file's type where it is none of NumPy's, such as ``BF16`` or ``Q8_0``.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    stored: int
    checksum: str = ""
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Source:
    """An array to be written; ``fetch`` produces it when its turn comes.

    ``parts``, where given, produces it in runs of rows, for formats that write as they get it.
    ``kind`` says of what type the words are that it produces, where that is none of NumPy's.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    fetch: Callable[[], Array]
    parts: Callable[[], Iterable[Array]] | None = None
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """The array in host memory, C-contiguous and little-endian."""
        return np.asarray(self._fetched(), dtype=self.dtype, order="C").reshape(self.shape)

    def held(self) -> Source:
        """A source of a copy of the array as it is now."""
        # What was fetched may be the live array.
        array = np.array(self.array())
        return replace(self, fetch=lambda: array, parts=None)

    def pieces(self) -> Iterator[Array]:
        """`array` one run of rows after the other, where it comes so or would have to be copied."""
        if self.parts is not None:
            for part in self.parts():
                yield np.asarray(part, dtype=self.dtype, order="C")
            return
        value = self._fetched()
        if value.shape != self.shape or (value.flags.c_contiguous and value.dtype == self.dtype):
            yield np.asarray(value, dtype=self.dtype, order="C").reshape(self.shape)
            return
        for rows in runs_of_rows(self.shape, self.dtype.itemsize):
            yield np.asarray(value[rows], dtype=self.dtype, order="C")

    def _fetched(self) -> Array:
        value = self.fetch()
        expect_values(value, f"array {self.name!r}")
        value = value.get() if hasattr(value, "get") else value
        return np.asarray(value)


def expect_values(value: Any, where: str) -> None:
    """Errors: `ArgumentError` for an array that only stands for the values."""
    if isinstance(value, StandIn):
        raise value.refused(where)


def total_bytes(sources: Iterable[Source]) -> int:
    """Bytes of all arrays of ``sources``."""
    return sum(source.nbytes for source in sources)


RUN = 4 << 20
"""Bytes of a run of rows."""


def runs_of_rows(shape: Shape, itemsize: int) -> Iterator[slice | EllipsisType]:
    """Which rows come together where an array of ``shape`` comes in runs of about `RUN` bytes."""
    if not shape:
        yield ...
        return
    if 0 in shape:
        return  # any number of rows of nothing
    count = max(1, RUN // max(1, math.prod(shape[1:]) * itemsize))
    for start in range(0, shape[0], count):
        yield slice(start, min(start + count, shape[0]))


def run_shape(shape: Shape, rows: slice | EllipsisType) -> Shape:
    """The shape of one of `runs_of_rows`."""
    return (rows.stop - rows.start, *shape[1:]) if isinstance(rows, slice) else shape


State = Mapping[str, Any] | Sequence[Source]
"""A state dict, or sources that produce its arrays one at a time."""


def sources_of(state: State, where: str) -> list[Source]:
    """``state`` as sources, names and types checked. Errors: `ArgumentError`, `FileFormatError`.

    Arrays may be NumPy or CuPy; anything but booleans, integers and floats is refused.
    """
    if isinstance(state, Mapping):
        sources = [_source(name, value, where) for name, value in state.items()]
    else:
        sources = _all_sources(state, where)
    check_unique((check_name(source.name, where) for source in sources), where)
    return sources


def _all_sources(state: Any, where: str) -> list[Source]:
    sources = list(state) if isinstance(state, Sequence) else [state]
    for source in sources:
        if not isinstance(source, Source):
            raise ArgumentError(
                where,
                expected="a dict from parameter name to array, or a list of Source",
                received=f"{str(source)[:60]!r}, a {type(source).__name__}",
                advice="pass for example dict(zip(net.param_names(), net.param_values()))",
            )
    return sources


def _source(name: Any, value: Any, where: str) -> Source:
    if not isinstance(name, str):
        raise ArgumentError(
            where,
            expected="names that are strings",
            received=repr(name),
            advice="pass a dict from parameter name to array",
        )
    value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
    if value.dtype.kind not in _KINDS:
        raise ArgumentError(
            f"{where}, array {name!r}",
            expected="booleans, integers or floats",
            received=f"the type {value.dtype}",
            advice="convert the array, or leave it out",
        )
    expect_values(value, f"{where}, array {name!r}")
    return Source(name, tuple(value.shape), np.dtype(value.dtype).newbyteorder("<"), lambda: value)
