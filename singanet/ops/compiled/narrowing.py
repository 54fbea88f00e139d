"""Write functions that narrow matrices of floats, `LANES` columns at a time.

The formulas are those of `singanet.checkpoint.gguf_blocks.eighths` and
`singanet.params.narrow.fitted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES
from singanet.ops.narrow import BLOCK, GROUP, PANEL, RANGES

_VECTOR = FLOAT * LANES
_TINY = float(np.finfo(np.float32).tiny)


def to_words() -> Code:
    """Write a function that stores floats in a `Bfloat16Matrix`, rounded to nearest.

    Its pointers: floats (inputs, outputs), without NaN, and words. Its integers: inputs, outputs
    and bytes between inputs; then pairs of inputs and panels of the words.
    """
    code = Code("to_words", pointers=2, numbers=5)
    values, words, inputs, outputs, across, pairs, panels = code.arguments
    with code.each(0, panels) as panel, code.each(0, pairs) as pair:
        for v in range(PANEL // LANES):
            column = code.sum(code.times(panel, PANEL), LANES * v)
            lanes = code.first(code.less(outputs, column))
            both = []
            for odd in (0, 1):
                line = code.sum(code.times(pair, 2), odd)
                place = code.sum(code.times(line, across), code.times(column, FLOAT))
                there = code.where(code.within(line, inputs), lanes)
                both.append(code.to_upper(code.some_floats(values, place, there)))
            line = code.sum(code.times(panel, pairs), pair)
            at = code.sum(code.times(line, FLOAT * PANEL), _VECTOR * v)
            code.store_ints(code.halves_of(*both), words, at)
    return code


def to_blocks(kind: str) -> Code:
    """Write a function that stores floats in a slab of a `BlockMatrix` of the ``kind``.

    Its pointers: floats (inputs, outputs), all finite, codes, scales and minima. Its integers:
    inputs, outputs and bytes between inputs; then groups and panels of the slab.
    """
    return (_Eighths if kind == "Q8_0" else _Fitted)(kind).code


class _Narrowing:
    """The function's state, shared by its parts."""

    def __init__(self, kind: str) -> None:
        code = self.code = Code(f"to_{kind}", pointers=4, numbers=5)
        values, self.codes, self.scales, self.minima = code.arguments[:4]
        inputs, outputs, across, groups, panels = code.arguments[4:]
        self.memory = code.room(BLOCK)
        with (
            code.each(0, groups) as group,
            code.each(0, panels) as panel,
            code.each(0, PANEL, LANES) as beside,
        ):
            column = code.sum(code.times(panel, PANEL), beside)
            lanes = code.first(code.less(outputs, column))
            steps = GROUP // 4 if kind == "Q8_0" else BLOCK // 4
            unit = code.sum(code.times(group, panels), panel)
            self.start = code.times(code.sum(code.times(unit, steps * PANEL), beside), FLOAT)
            for block in (0, 1):
                first = code.sum(code.times(group, GROUP), BLOCK * block)
                with code.when(code.below(first, inputs)):
                    # Copied first: lines of a matrix share few places of the nearest cache.
                    ends = {"low": code.number(np.inf), "high": code.number(-np.inf)}
                    with code.each(0, BLOCK, kept=ends) as k:
                        line = code.times(code.sum(first, k), across)
                        place = code.sum(line, code.times(column, FLOAT))
                        some = code.some_floats(values, place, lanes)
                        code.store(some, self.memory, code.times(k, _VECTOR))
                        ends["low"] = code.at_most(some, ends["low"])
                        ends["high"] = code.at_least(some, ends["high"])
                    line = code.times(code.sum(code.times(group, 2), block), panels, PANEL)
                    self.place = code.times(code.sum(line, column), FLOAT // 2)
                    self.narrow(block, ends["low"], ends["high"])

    def narrow(self, block: int, low: Value, high: Value) -> None:
        """Store a block of the columns, whose numbers are in the memory."""
        raise NotImplementedError

    def number(self, k: Value) -> Value:
        """Return the numbers of an input of the block."""
        return self.code.floats(self.memory, self.code.times(k, _VECTOR))

    def nearest(self, vector: Value) -> Value:
        """Return floats of up to 2^22 rounded to whole numbers, halves to even ones."""
        code, powers = self.code, self.code.number(1.5 * 2.0**23)
        return code.subtract(code.add(vector, powers), powers)

    def inverse(self, scale: Value, least: float, other: float) -> Value:
        """Return 1 / scale, or ``other`` of scales up to ``least``."""
        code = self.code
        bits = code.above(scale, code.number(least))
        return code.choose(bits, code.divide(code.number(1.0), scale), code.number(other))

    def at(self, step: Value) -> Value:
        """Return the place of the codes of four inputs."""
        return self.code.sum(self.start, self.code.times(step, FLOAT * PANEL))


class _Eighths(_Narrowing):
    def narrow(self, block: int, low: Value, high: Value) -> None:
        code, nothing = self.code, self.code.number(0.0)
        top = code.at_least(code.size_of(low), code.size_of(high))
        scale = code.divide(top, code.number(127.0))
        inverse = self.inverse(scale, float(np.nextafter(np.float32(_TINY), 0)), 0.0)
        with code.each(0, BLOCK // 4) as step:
            whole = []
            for k in range(4):
                value = self.number(code.sum(code.times(step, 4), k))
                size = code.size_of(code.multiply(value, inverse))
                # Halves are rounded away from zero.
                floor = self.nearest(size)
                one = code.number(1.0)
                floor = code.choose(code.above(floor, size), code.subtract(floor, one), floor)
                less = code.above(code.number(0.5), code.subtract(size, floor))
                made = code.choose(less, floor, code.add(floor, one))
                negative = code.above(nothing, value)
                made = code.choose(negative, code.subtract(nothing, made), made)
                whole.append(code.rounded(made))
            at = self.at(code.sum(step, BLOCK // 4 * block))
            code.store_ints(code.four_bytes(whole), self.codes, at)
        code.store_halves(scale, self.scales, self.place)


Halves: TypeAlias = tuple[Value, Value, Value]
"""Scale and minimum as float16 has them, and the inverse of the scale."""


class _Fitted(_Narrowing):
    def narrow(self, block: int, low: Value, high: Value) -> None:
        code = self.code
        span = code.subtract(high, low)
        self.best = code.number(np.inf), code.number(0.0), low
        for part in RANGES:
            step = code.divide(code.multiply(span, code.number(part)), code.number(15.0))
            begin = code.add(low, code.multiply(span, code.number((1 - part) / 2)))
            halves = self._halves(step, begin)
            keys = "codes", "squares", "products", "values", "error"
            sums = {key: code.number(0.0) for key in keys}
            with code.each(0, BLOCK, kept=sums) as k:
                value = self.number(k)
                made, above = self._code(value, halves), code.subtract(value, low)
                sums["codes"] = code.add(sums["codes"], made)
                sums["squares"] = code.add_product(sums["squares"], made, made)
                sums["products"] = code.add_product(sums["products"], made, above)
                sums["values"] = code.add(sums["values"], above)
                sums["error"] = self._error(sums["error"], value, made, halves)
            self._improve(sums["error"], halves)
            line = self._refitted([sums[key] for key in keys[:4]], low, *halves[:2])
            halves, sums = self._halves(*line), {"error": code.number(0.0)}
            with code.each(0, BLOCK, kept=sums) as k:
                value = self.number(k)
                made = self._code(value, halves)
                sums["error"] = self._error(sums["error"], value, made, halves)
            self._improve(sums["error"], halves)
        _, scale, least = self.best
        halves = scale, least, self.inverse(scale, 0.0, 1.0)
        with code.each(0, BLOCK // 4) as step:
            places = [code.sum(code.times(step, 4), k) for k in range(4)]
            whole = [code.rounded(self._code(self.number(place), halves)) for place in places]
            made = code.four_bytes(whole)
            if block:
                made = code.with_upper(code.ints(self.codes, self.at(step)), made)
            code.store_ints(made, self.codes, self.at(step))
        code.store_halves(scale, self.scales, self.place)
        code.store_halves(least, self.minima, self.place)

    def _code(self, value: Value, halves: Halves) -> Value:
        """Return the nearest whole number from 0 to 15."""
        code, (_, least, factor) = self.code, halves
        made = code.multiply(code.subtract(value, least), factor)
        made = code.at_most(code.at_least(made, code.number(0.0)), code.number(15.0))
        return self.nearest(made)

    def _halves(self, scale: Value, least: Value) -> Halves:
        scale, least = self.code.through_half(scale), self.code.through_half(least)
        return scale, least, self.inverse(scale, 0.0, 1.0)

    def _error(self, error: Value, value: Value, made: Value, halves: Halves) -> Value:
        code, (scale, least, _) = self.code, halves
        off = code.subtract(code.add(code.multiply(made, scale), least), value)
        return code.add_product(error, off, off)

    def _improve(self, error: Value, halves: Halves) -> None:
        """Take scale and minimum in the lanes with a smaller error."""
        better = self.code.above(self.best[0], error)
        pairs = zip((error, *halves[:2]), self.best, strict=True)
        found = [self.code.choose(better, new, old) for new, old in pairs]
        self.best = found[0], found[1], found[2]

    def _refitted(
        self, sums: Sequence[Value], low: Value, scale: Value, least: Value
    ) -> tuple[Value, Value]:
        """Return the least-squares line of values by codes; without one, the old line."""
        code, (codes, squares, products, values) = self.code, sums
        mean, part = code.multiply(codes, code.number(1 / BLOCK)), code.number(1 / BLOCK)
        size = code.subtract(squares, code.multiply(codes, mean))
        slope = code.subtract(products, code.multiply(mean, values))
        slope = code.divide(slope, code.at_least(size, code.number(_TINY)))
        start = code.subtract(
            code.add(low, code.multiply(values, part)), code.multiply(slope, mean)
        )
        nothing = code.number(0.0)
        for each in (size, slope):
            fits = code.above(each, nothing)
            slope, start = code.choose(fits, slope, scale), code.choose(fits, start, least)
        return slope, start
