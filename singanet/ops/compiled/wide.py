"""Loops over rows of pixels: what is known of a lane lies in as many floats as a row has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.rows import GROUP
from singanet.ops.compiled.sizes import FLOAT, LANES

VECTORS = range(GROUP // LANES)
"""Of a group, which are gone over together: their sums do not wait for each other."""


class RowPart(NamedTuple):
    """Rows from the ``first`` to one past the ``last``, and the floats of the tail or none."""

    number: Value
    first: Value
    last: Value
    tail: Value


class Lanes(NamedTuple):
    """What lanes of a part have: the place of their first floats, and the two vectors `kept`.

    Further how many pixels they have, and those before them.
    """

    first: Value
    kept: list[Value]
    before: Value
    count: Value


class Wide:
    """Loops over rows, written into ``code``, whose ``numbers`` are those of `Rows`."""

    def __init__(self, code: Code, numbers: list[Value], scratch: Value) -> None:
        self._code, self._scratch = code, scratch
        self.channels, self.width, self.rows, self.tail, self.parts = numbers
        self._pixels = code.whole(self.width, self.channels)

    @contextmanager
    def each_part(self, first: Value, last: Value, again: bool = False) -> Iterator[RowPart]:
        """A loop over parts; ``again`` from the end, as what was read last is still in a cache."""
        code = self._code
        with code.each(first, last) as number:
            yield self._part(code.less(self.parts, code.sum(number, 1)) if again else number)

    def _part(self, number: Value) -> RowPart:
        code = self._code
        after = code.sum(number, 1)
        first, last = (code.whole(code.times(k, self.rows), self.parts) for k in (number, after))
        return RowPart(number, first, last, code.times(code.whole(after, self.parts), self.tail))

    def sweep(
        self, part: RowPart, read: Sequence[Value], make: Callable[[Value, Value, Value], None]
    ) -> None:
        """``make`` each vector of the part, of its place, column and the floats up to the end.

        The pointers that it has ``read`` are told, see `fetch`.
        """
        with self._code.each(part.first, part.last) as row, self.each_group() as columns:
            self.fetch(read, row, columns)
            for column in columns:
                make(self.place(row, column), column, None)
        with self.each_of_tail(part) as (place, column, left):
            make(place, column, left)

    @contextmanager
    def each_group(self) -> Iterator[list[Value]]:
        """A loop over groups of a row: the columns where their vectors begin."""
        code = self._code
        with code.each(0, self.width, GROUP) as column:
            yield [code.sum(column, LANES * v) for v in VECTORS]

    @contextmanager
    def each_of_tail(self, part: RowPart) -> Iterator[tuple[Value, Value, Value]]:
        """A loop over the vectors of a tail: place, column, and the floats up to its end."""
        code = self._code
        with code.each(0, part.tail, LANES) as column:
            yield self.place(self.rows, column), column, code.less(part.tail, column)

    def fetch(self, pointers: Sequence[Value], row: Value, columns: list[Value]) -> None:
        """Have brought near what is read soon, if these columns of the row are now."""
        for pointer in pointers:
            self._code.fetch(pointer, self.place(row, columns[0]), GROUP * FLOAT)

    def place(self, row: Value, column: Value) -> Value:
        """The bytes up to the column of the row."""
        code = self._code
        return code.times(code.sum(code.times(row, self.width), column), FLOAT)

    def load(self, pointer: Value, place: Value, left: Value) -> Value:
        """A vector, of which there are so many floats ``left``, and then zeros; None for all."""
        code = self._code
        if left is None:
            return code.floats(pointer, place)
        return code.some_floats(pointer, place, code.first(left))

    def store(self, value: Value, pointer: Value, place: Value, left: Value) -> None:
        """The counterpart of `load`."""
        if left is None:
            self._code.store(value, pointer, place)
        else:
            self._code.store_some(value, pointer, place, self._code.first(left))

    def kept(self, part: Value, number: int, column: Value) -> Value:
        """A place in scratch for what is summed up of lanes of a part: number 0 or 1."""
        return self.place(self._code.sum(self._code.times(part, 2), number), column)

    def clear(self, part: RowPart) -> None:
        """Begin the sums of a part with nothing."""
        zero = self._code.number(0.0)
        with self.each_group() as columns:
            for column in columns:
                for number in (0, 1):
                    place = self.kept(part.number, number, column)
                    self._code.store(zero, self._scratch, place)

    def spread(self, number: int, column: Value) -> Value:
        """A place in scratch, behind those, for what all lanes have of their channel."""
        return self.place(self._code.sum(self._code.times(self.parts, 2), number), column)

    @contextmanager
    def each_channels(self, first: Value, last: Value) -> Iterator[tuple[Value, Value]]:
        """A loop over vectors of channels, from 0 to 1 for once: the first, and how many follow."""
        code = self._code
        with code.each(first, last), code.each(0, self.channels, LANES) as channel:
            yield channel, code.less(self.channels, channel)

    def repeat(self, vector: Value, number: int, channel: Value, left: Value) -> None:
        """Put what channels have into `spread`, for each pixel of a row."""
        code = self._code
        with code.each(0, self._pixels) as pixel:
            column = code.sum(code.times(pixel, self.channels), channel)
            code.store_some(vector, self._scratch, self.spread(number, column), code.first(left))

    def fold(self, channel: Value, totals: dict[str, Value], add: Callable[[Lanes], None]) -> None:
        """``add`` to the ``totals`` of channels, from this on, what all lanes of theirs have."""
        code = self._code
        with code.each(0, self.parts, kept=totals) as number:
            part = self._part(number)
            rows = code.less(part.last, part.first)
            tail = code.whole(part.tail, self.channels)
            before = code.times(part.first, self._pixels)
            with code.each(0, self._pixels, kept=totals) as pixel:
                column = code.sum(code.times(pixel, self.channels), channel)
                kept = [code.floats(self._scratch, self.kept(number, k, column)) for k in (0, 1)]
                here, after = (code.lesser(k, tail) for k in (pixel, code.sum(pixel, 1)))
                earlier = code.sum(before, code.times(pixel, rows), here)
                count = code.sum(rows, code.less(after, here))
                first = self.place(part.first, column)
                add(Lanes(first, kept, code.counted(earlier), code.counted(count)))
