"""Write functions of batch normalization.

A call runs the stages whose range is not empty: all stages, or parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import BACKWARD, BLOCK, FLOAT, GROUP, LANES

VECTORS = range(GROUP // LANES)
"""The vectors of a group, processed together: their sums are independent."""


class RowPart(NamedTuple):
    """The rows [first, last) of part ``number``, and the floats of the tail or 0."""

    number: Value
    first: Value
    last: Value
    tail: Value


class Lanes(NamedTuple):
    """Lanes of a part: the place of their first floats, and the two vectors of `Wide.kept`.

    Further the count of pixels before them, and their own count.
    """

    first: Value
    kept: list[Value]
    before: Value
    count: Value


class Wide:
    """Loops over rows, written into ``code``, whose ``numbers`` are the integers of `Rows`."""

    def __init__(self, code: Code, numbers: list[Value], scratch: Value) -> None:
        self._code, self._scratch = code, scratch
        self.channels, self.width, self.rows, self.tail, self.parts = numbers
        self._pixels = code.whole(self.width, self.channels)

    @contextmanager
    def each_part(self, first: Value, last: Value, again: bool = False) -> Iterator[RowPart]:
        """Write a loop over parts; ``again`` reverses it, to reuse the cache's last reads."""
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
        """Write ``make(place, column, left)`` for each vector of the part.

        ``left`` counts the floats up to the tail's end, or is None in rows. ``read`` are the
        pointers to prefetch.
        """
        with self._code.each(part.first, part.last) as row, self.each_group() as columns:
            self.fetch(read, row, columns)
            for column in columns:
                make(self.place(row, column), column, None)
        with self.each_of_tail(part) as (place, column, left):
            make(place, column, left)

    @contextmanager
    def each_group(self) -> Iterator[list[Value]]:
        """Write a loop over groups of a row, with the columns of their vectors."""
        code = self._code
        with code.each(0, self.width, GROUP) as column:
            yield [code.sum(column, LANES * v) for v in VECTORS]

    @contextmanager
    def each_of_tail(self, part: RowPart) -> Iterator[tuple[Value, Value, Value]]:
        """Write a loop over the vectors of a tail: place, column, and remaining floats."""
        code = self._code
        with code.each(0, part.tail, LANES) as column:
            yield self.place(self.rows, column), column, code.less(part.tail, column)

    def fetch(self, pointers: Sequence[Value], row: Value, columns: list[Value]) -> None:
        """Prefetch for these columns of the row."""
        for pointer in pointers:
            self._code.fetch(pointer, self.place(row, columns[0]), GROUP * FLOAT)

    def place(self, row: Value, column: Value) -> Value:
        """Return the byte offset of the column of the row."""
        code = self._code
        return code.times(code.sum(code.times(row, self.width), column), FLOAT)

    def load(self, pointer: Value, place: Value, left: Value) -> Value:
        """Load a vector of ``left`` floats, followed by zeros; None loads a whole vector."""
        code = self._code
        if left is None:
            return code.floats(pointer, place)
        return code.some_floats(pointer, place, code.first(left))

    def store(self, value: Value, pointer: Value, place: Value, left: Value) -> None:
        """Store a vector; the counterpart of `load`."""
        if left is None:
            self._code.store(value, pointer, place)
        else:
            self._code.store_some(value, pointer, place, self._code.first(left))

    def kept(self, part: Value, number: int, column: Value) -> Value:
        """Return the place in scratch of a part's sums, ``number`` 0 or 1."""
        return self.place(self._code.sum(self._code.times(part, 2), number), column)

    def clear(self, part: RowPart) -> None:
        """Set the sums of a part to zero."""
        zero = self._code.number(0.0)
        with self.each_group() as columns:
            for column in columns:
                for number in (0, 1):
                    place = self.kept(part.number, number, column)
                    self._code.store(zero, self._scratch, place)

    def spread(self, number: int, column: Value) -> Value:
        """Return the place in scratch, after the sums, of a channel value for all lanes."""
        return self.place(self._code.sum(self._code.times(self.parts, 2), number), column)

    @contextmanager
    def each_channels(self, first: Value, last: Value) -> Iterator[tuple[Value, Value]]:
        """Write a loop over vectors of channels: each start, and the channels that remain.

        The loop runs once for the range [0, 1) of its stage.
        """
        code = self._code
        with code.each(first, last), code.each(0, self.channels, LANES) as channel:
            yield channel, code.less(self.channels, channel)

    def repeat(self, vector: Value, number: int, channel: Value, left: Value) -> None:
        """Store a channel vector in `spread`, for each pixel of a row."""
        code = self._code
        with code.each(0, self._pixels) as pixel:
            column = code.sum(code.times(pixel, self.channels), channel)
            code.store_some(vector, self._scratch, self.spread(number, column), code.first(left))

    def fold(self, channel: Value, totals: dict[str, Value], add: Callable[[Lanes], None]) -> None:
        """Write ``add`` of all lanes of channels, from ``channel`` on, to the ``totals``."""
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


_MEAN, _SCALE, _SHIFT, _CONSTANT, _SLOPE = range(BACKWARD)
"""Vectors repeated along a row; only the backward kernel uses the last two."""


def forward() -> Code:
    """Write a function of y, x, gamma, beta, mean, variance, 1 / sqrt(variance + epsilon), scratch.

    Integer arguments: `Rows`' numbers, the bits of epsilon and of the least y (NaN without relu),
    and a range for each stage: partial statistics (parts), reduction (1), preparation of channels
    (1), normalization (parts).
    """
    return _NormForward().code


def backward() -> Code:
    """Write a function of dx, dgamma, dbeta, dy, x, gamma, beta, mean, inverse and scratch.

    Integer arguments: `Rows`' numbers, 0 for statistics that depend on x, the bits of the largest y
    with slope zero (NaN without relu), and a range for each stage: preparation of channels (1),
    partial sums (parts), reduction (1), dx (parts).
    """
    return _NormBackward().code


class _NormForward:
    """The forward function, with statistics by shifted sums.

    Each block of rows is summed about the mean of the rows before it. The squares about that mean
    are as large as their share of the total, so little cancels, whatever the order. Means are
    relative to the first row, since floats far from zero are too coarse for small differences.
    """

    def __init__(self) -> None:
        code = self.code = Code("batch_norm", pointers=8, numbers=15)
        given = code.arguments
        self.y, self.x, self.gamma, self.beta, self.mean, self.var, self.inverse = given[:7]
        self.scratch, wide, (epsilon, least) = given[7], given[8:13], given[13:15]
        self.epsilon, self.least = code.held(epsilon), code.held(least)
        self.wide = Wide(code, wide, self.scratch)
        read, folded, prepared, made = zip(given[15::2], given[16::2], strict=True)
        with self.wide.each_part(*read) as part:
            self._statistics(part)
        self._fold(*folded)
        self._prepare(*prepared)
        with self.wide.each_part(*made, again=True) as part:
            self.wide.sweep(part, [self.x], self._normalise)

    def _statistics(self, part: RowPart) -> None:
        code, wide = self.code, self.wide
        wide.clear(part)
        with code.each(part.first, part.last, BLOCK) as first:
            last = code.lesser(code.sum(first, BLOCK), part.last)
            with wide.each_group() as columns:
                means = [self._mean(part, column) for column in columns]
                sums = {(v, k): code.number(0.0) for v in VECTORS for k in (0, 1)}
                with code.each(first, last, kept=sums) as row:
                    wide.fetch([self.x], row, columns)
                    for v in VECTORS:
                        value = code.floats(self.x, wide.place(row, columns[v]))
                        apart = self._apart(value, *means[v])
                        sums[v, 0] = code.add(sums[v, 0], apart)
                        sums[v, 1] = code.add_product(sums[v, 1], apart, apart)
                for v in VECTORS:
                    self._join(part, last, columns[v], sums[v, 0], sums[v, 1])
        with wide.each_of_tail(part) as (place, column, left):
            value = wide.load(self.x, place, left)
            apart = code.some(self._apart(value, *self._mean(part, column)), left)
            after = code.sum(part.last, 1)
            self._join(part, after, column, apart, code.multiply(apart, apart))

    def _mean(self, part: RowPart, column: Value) -> tuple[Value, Value]:
        """Return the part's first row, and the mean relative to it of the rows read."""
        start = self.code.floats(self.x, self.wide.place(part.first, column))
        return start, self.code.floats(self.scratch, self.wide.kept(part.number, 0, column))

    def _apart(self, value: Value, start: Value, mean: Value) -> Value:
        return self.code.subtract(self.code.subtract(value, start), mean)

    def _join(
        self, part: RowPart, last: Value, column: Value, total: Value, squares: Value
    ) -> None:
        """Merge sums about the mean of the lane into its statistics up to row ``last``."""
        code, wide, scratch = self.code, self.wide, self.scratch
        places = [wide.kept(part.number, k, column) for k in (0, 1)]
        mean, spread = (code.floats(scratch, place) for place in places)
        step = code.divide(total, code.counted(code.less(last, part.first)))
        code.store(code.add(mean, step), scratch, places[0])
        spread = code.add(spread, code.subtract(squares, code.multiply(total, step)))
        code.store(spread, scratch, places[1])

    def _fold(self, first: Value, last: Value) -> None:
        code, wide = self.code, self.wide
        with wide.each_channels(first, last) as (channel, left):
            place = code.times(channel, FLOAT)
            start = code.some_floats(self.x, place, code.first(left))
            totals = {name: code.number(0.0) for name in ("mean", "spread", "count")}

            def add(lanes: Lanes) -> None:
                mean, spread = lanes.kept
                total = code.add(lanes.before, lanes.count)
                here = code.some_floats(self.x, lanes.first, code.first(left))
                mean = code.add(code.subtract(here, start), mean)
                apart = code.subtract(mean, totals["mean"])
                step = code.multiply(apart, code.divide(lanes.count, total))
                totals["mean"] = code.add(totals["mean"], step)
                between = code.multiply(step, lanes.before, apart)
                totals["spread"] = code.add(totals["spread"], code.add(spread, between))
                totals["count"] = total

            wide.fold(channel, totals, add)
            var = code.divide(totals["spread"], totals["count"])
            code.store_some(code.add(start, totals["mean"]), self.mean, place, code.first(left))
            code.store_some(var, self.var, place, code.first(left))

    def _prepare(self, first: Value, last: Value) -> None:
        code, wide = self.code, self.wide
        with wide.each_channels(first, last) as (channel, left):
            place, one = code.times(channel, FLOAT), code.number(1.0)
            var = code.some_floats(self.var, place, code.first(left), one)
            inverse = code.divide(one, code.root(code.add(var, self.epsilon)))
            code.store_some(inverse, self.inverse, place, code.first(left))
            _spread(self.code, wide, channel, left, (self.mean, self.gamma, self.beta), inverse)

    def _normalise(self, place: Value, column: Value, left: Value) -> None:
        value = self.wide.load(self.x, place, left)
        made = _normalised(self.code, self.wide, self.scratch, column, value)[1]
        self.wide.store(self.code.at_least(made, self.least), self.y, place, left)


class _NormBackward:
    def __init__(self) -> None:
        code = self.code = Code("batch_norm_backward", pointers=10, numbers=15)
        given = code.arguments
        self.dx, self.dgamma, self.dbeta, self.dy, self.x = given[:5]
        self.gamma, self.beta, self.mean, self.inverse, self.scratch = given[5:10]
        wide, (self.fixed, limit) = given[10:15], given[15:17]
        self.limit, self.wide = code.held(limit), Wide(code, wide, self.scratch)
        prepared, read, folded, made = zip(given[17::2], given[18::2], strict=True)
        self._prepare(*prepared)
        with self.wide.each_part(*read) as part:
            self._sums(part)
        self._fold(*folded)
        with self.wide.each_part(*made, again=True) as part:
            self.wide.sweep(part, [self.x, self.dy], self._gradient)

    def _prepare(self, first: Value, last: Value) -> None:
        code = self.code
        with self.wide.each_channels(first, last) as (channel, left):
            vectors = self.mean, self.gamma, self.beta
            place = code.times(channel, FLOAT)
            inverse = code.some_floats(self.inverse, place, code.first(left))
            _spread(code, self.wide, channel, left, vectors, inverse)

    def _slope(self, place: Value, column: Value, left: Value) -> tuple[Value, Value, Value]:
        """Return x minus its mean, the slope at the relu's y, and the scale."""
        value = self.wide.load(self.x, place, left)
        apart, y, scale = _normalised(self.code, self.wide, self.scratch, column, value)
        slope = self.wide.load(self.dy, place, left)
        return apart, self.code.if_above(y, self.limit, slope), scale

    def _sums(self, part: RowPart) -> None:
        code, wide = self.code, self.wide
        wide.clear(part)
        with code.each(part.first, part.last, BLOCK) as first:
            last = code.lesser(code.sum(first, BLOCK), part.last)
            with wide.each_group() as columns:
                sums = {(v, k): code.number(0.0) for v in VECTORS for k in (0, 1)}
                with code.each(first, last, kept=sums) as row:
                    wide.fetch([self.x, self.dy], row, columns)
                    for v in VECTORS:
                        place = wide.place(row, columns[v])
                        apart, slope, _ = self._slope(place, columns[v], None)
                        sums[v, 0] = code.add(sums[v, 0], slope)
                        sums[v, 1] = code.add_product(sums[v, 1], slope, apart)
                for v in VECTORS:
                    self._join(part, columns[v], sums[v, 0], sums[v, 1])
        with wide.each_of_tail(part) as (place, column, left):
            apart, slope, _ = self._slope(place, column, left)
            self._join(part, column, slope, code.multiply(slope, apart))

    def _join(self, part: RowPart, column: Value, total: Value, products: Value) -> None:
        for k, more in enumerate((total, products)):
            place = self.wide.kept(part.number, k, column)
            made = self.code.add(self.code.floats(self.scratch, place), more)
            self.code.store(made, self.scratch, place)

    def _fold(self, first: Value, last: Value) -> None:
        code, wide = self.code, self.wide
        with wide.each_channels(first, last) as (channel, left):
            totals = {name: code.number(0.0) for name in ("slopes", "products", "count")}

            def add(lanes: Lanes) -> None:
                for name, more in zip(("slopes", "products"), lanes.kept, strict=True):
                    totals[name] = code.add(totals[name], more)
                totals["count"] = code.add(lanes.before, lanes.count)

            wide.fold(channel, totals, add)
            place = code.times(channel, FLOAT)
            gamma = code.some_floats(self.gamma, place, code.first(left))
            inverse = code.some_floats(self.inverse, place, code.first(left))
            dgamma = code.multiply(totals["products"], inverse)
            code.store_some(totals["slopes"], self.dbeta, place, code.first(left))
            code.store_some(dgamma, self.dgamma, place, code.first(left))
            share = code.divide(code.multiply(gamma, inverse), totals["count"])
            constant = code.multiply(share, totals["slopes"])
            wide.repeat(constant, _CONSTANT, channel, left)
            wide.repeat(code.multiply(share, inverse, dgamma), _SLOPE, channel, left)

    def _gradient(self, place: Value, column: Value, left: Value) -> None:
        code, wide = self.code, self.wide
        apart, slope, scale = self._slope(place, column, left)
        constant = code.floats(self.scratch, wide.spread(_CONSTANT, column))
        by_x = code.floats(self.scratch, wide.spread(_SLOPE, column))
        # Fixed statistics do not depend on x, even if x is NaN.
        of_mean = code.if_first(
            self.fixed, code.add_product(constant, apart, by_x), code.number(0.0)
        )
        made = code.subtract(code.multiply(slope, scale), of_mean)
        wide.store(made, self.dx, place, left)


def _spread(
    code: Code, wide: Wide, channel: Value, left: Value, vectors: tuple[Value, ...], inverse: Value
) -> None:
    """Repeat mean, scale and shift of channels for their lanes."""
    place = code.times(channel, FLOAT)
    mean, gamma, beta = (code.some_floats(vector, place, code.first(left)) for vector in vectors)
    wide.repeat(mean, _MEAN, channel, left)
    wide.repeat(code.multiply(gamma, inverse), _SCALE, channel, left)
    wide.repeat(beta, _SHIFT, channel, left)


def _normalised(
    code: Code, wide: Wide, scratch: Value, column: Value, value: Value
) -> tuple[Value, Value, Value]:
    """Return ``value`` minus the mean, y before the relu, and the scale.

    Backward computes the same bits as forward.
    """
    mean, scale, shift = (
        code.floats(scratch, wide.spread(k, column)) for k in (_MEAN, _SCALE, _SHIFT)
    )
    apart = code.subtract(value, mean)
    return apart, code.add_product(shift, apart, scale), scale
