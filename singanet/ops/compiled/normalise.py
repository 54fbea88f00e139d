"""Batch normalisation over wide rows of pixels, with or without a relu after it.

A call does those stages of which the range is not empty: all of them, or the parts of one.
"""

from __future__ import annotations

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.rows import BACKWARD, BLOCK
from singanet.ops.compiled.sizes import FLOAT
from singanet.ops.compiled.wide import VECTORS, Lanes, RowPart, Wide

_MEAN, _SCALE, _SHIFT, _CONSTANT, _SLOPE = range(BACKWARD)
"""What is repeated along a row: the last two by the backward kernel alone."""


def forward() -> Code:
    """A function of y, x, gamma, beta, mean, variance, 1 / sqrt(variance + epsilon) and scratch.

    Of the numbers of `Rows`, of epsilon's bits and those of the least y, which is NaN without a
    relu; of the range of each stage: of parts whose statistics are taken, of 1 that they are put
    together, of 1 that channels are prepared, and of parts that are normalised.
    """
    return _NormForward().code


def backward() -> Code:
    """A function of dx, dgamma, dbeta, dy, x, gamma, beta, mean, inverse and scratch.

    Of the numbers of `Rows`, of 0 for statistics that depend on x, and of the bits of the limit
    up to which y has no slope, which is NaN without a relu; of the range of each stage: of 1 that
    channels are prepared, of parts that are summed up, of 1 that the sums are put together, and of
    parts of dx.
    """
    return _NormBackward().code


class _NormForward:
    """Statistics are shifted sums: each block of rows about the mean of those before it.

    The squares about that mean are of the size of what they add to the sum about the mean of all,
    so that little cancels, whatever comes first. Means are told from the first row on, since far
    from zero floats are too coarse for what they differ by.
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
        """The first row of the part, and from there on the mean of what was read of it."""
        start = self.code.floats(self.x, self.wide.place(part.first, column))
        return start, self.code.floats(self.scratch, self.wide.kept(part.number, 0, column))

    def _apart(self, value: Value, start: Value, mean: Value) -> Value:
        return self.code.subtract(self.code.subtract(value, start), mean)

    def _join(
        self, part: RowPart, last: Value, column: Value, total: Value, squares: Value
    ) -> None:
        """Add sums about the mean of the lane to what was before, with which they are so many."""
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
        """x less its mean, the slope of the relu's y, and the scale."""
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
        # Of fixed statistics x has no part in it, be it no number.
        of_mean = code.if_first(
            self.fixed, code.add_product(constant, apart, by_x), code.number(0.0)
        )
        made = code.subtract(code.multiply(slope, scale), of_mean)
        wide.store(made, self.dx, place, left)


def _spread(
    code: Code, wide: Wide, channel: Value, left: Value, vectors: tuple[Value, ...], inverse: Value
) -> None:
    """Mean, scale and shift of channels for their lanes, by mean, gamma and beta."""
    place = code.times(channel, FLOAT)
    mean, gamma, beta = (code.some_floats(vector, place, code.first(left)) for vector in vectors)
    wide.repeat(mean, _MEAN, channel, left)
    wide.repeat(code.multiply(gamma, inverse), _SCALE, channel, left)
    wide.repeat(beta, _SHIFT, channel, left)


def _normalised(
    code: Code, wide: Wide, scratch: Value, column: Value, value: Value
) -> tuple[Value, Value, Value]:
    """``value`` less the mean, the y of it before the relu, and the scale.

    Backward makes the same bits of it as forward did.
    """
    mean, scale, shift = (
        code.floats(scratch, wide.spread(k, column)) for k in (_MEAN, _SCALE, _SHIFT)
    )
    apart = code.subtract(value, mean)
    return apart, code.add_product(shift, apart, scale), scale
