"""Write functions of pooling, relu and products of few rows."""

from __future__ import annotations

from typing import Any

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.engine import is_wide
from singanet.ops.compiled.sizes import FLOAT, LANES

AXES = 3
"""The axes of pixels: depth, height and width."""


def max_pool(vectors: int, keeps: bool) -> Code:
    """Write a function of x, y and, with ``keeps``, the positions of the maxima, a byte each.

    Integer arguments: number of channels, at least ``vectors`` vectors; for each axis size, output
    size, kernel, stride, padding before and dilation; the range of lines of y. A line has the width
    of y. A window of padding alone gives -inf.
    """
    return _MaxPool(vectors, keeps).code


class _MaxPool:
    def __init__(self, vectors: int, keeps: bool) -> None:
        pointers = 2 + keeps
        code = self.code = Code(f"max_pool_{vectors}_{keeps}", pointers, numbers=3 + 6 * AXES)
        self.x, self.y, *where = code.arguments[:pointers]
        self.where, self.vectors = where[0] if where else None, range(vectors)
        self.channels, *axes, first, last = code.arguments[pointers:]
        self.sizes, self.outs, self.kernels, self.strides, self.pads, self.dilations = (
            axes[k : k + AXES] for k in range(0, len(axes), AXES)
        )
        with code.each(first, last) as line:
            rest, height = code.whole(line, self.outs[1]), code.rest(line, self.outs[1])
            sample, depth = code.whole(rest, self.outs[0]), code.rest(rest, self.outs[0])
            lines = [self._inside(0, depth), self._inside(1, height)]
            with code.each(0, self.outs[2]) as column:
                pixel = code.sum(code.times(line, self.outs[2]), column)
                self._pool(sample, [*lines, self._inside(2, column)], pixel)

    def _inside(self, axis: int, at: Value) -> tuple[Value, Value, Value]:
        """Return a window's start, and the range of its positions inside the image."""
        code, spread = self.code, self.dilations[axis]
        start = code.less(code.times(at, self.strides[axis]), self.pads[axis])
        before = code.greater(code.less(0, start), 0)
        inside = code.greater(code.less(self.sizes[axis], start), 0)
        first, last = (
            code.whole(code.sum(pixels, code.less(spread, 1)), spread)
            for pixels in (before, inside)
        )
        return start, first, code.lesser(last, self.kernels[axis])

    def _pool(self, sample: Value, axes: list[tuple[Value, Value, Value]], pixel: Value) -> None:
        """Write the maxima of a window for all channels."""
        code, together = self.code, LANES * len(self.vectors)
        starts = [start for start, *_ in axes]
        depths, heights, widths = ((first, last) for _, first, last in axes)
        with code.each(0, self.channels, together) as some:
            # The last vectors end with the pixel, and may compute some channels again.
            channel = code.lesser(some, code.less(self.channels, together))
            made: dict[Any, Value] = {}
            for v in self.vectors:
                made["best", v] = code.number(float("-inf"))
                made["where", v] = code.whole_number(0)
            with (
                code.each(*depths, kept=made) as d,
                code.each(*heights, kept=made) as h,
                code.each(*widths, kept=made) as w,
            ):
                at, position = sample, 0
                for axis, step in enumerate((d, h, w)):
                    inside = code.sum(starts[axis], code.times(step, self.dilations[axis]))
                    at = code.sum(code.times(at, self.sizes[axis]), inside)
                    position = code.sum(code.times(position, self.kernels[axis]), step)
                place = code.sum(code.times(at, self.channels), channel)
                for v in self.vectors:
                    self._take(made, v, position, code.sum(place, LANES * v))
            place = code.sum(code.times(pixel, self.channels), channel)
            for v in self.vectors:
                at = code.sum(place, LANES * v)
                code.store(made["best", v], self.y, code.times(at, FLOAT))
                if self.where is not None:
                    code.store_bytes(made["where", v], self.where, at)

    def _take(self, made: dict[Any, Value], v: int, position: Value, place: Value) -> None:
        """Update the maximum: the first of equal values wins, and NaN replaces it."""
        code = self.code
        value = code.floats(self.x, code.times(place, FLOAT))
        above = code.above(value, made["best", v])
        made["where", v] = code.choose(above, code.whole_number(position), made["where", v])
        made["best", v] = code.choose(code.or_no_number(above, value), value, made["best", v])


BLOCK = 1 << 12
"""Floats processed together."""


def relu_of(terms: int) -> Code:
    """Write a function of y and one or two ``terms``; of the size, and the range of blocks.

    The arrays are contiguous, with equal strides.
    """
    code = Code(f"relu_of_{terms}", pointers=1 + terms, numbers=3)
    y, *pointers, size, first, last = code.arguments
    end = code.lesser(code.times(last, BLOCK), size)
    whole = code.times(code.whole(end, LANES), LANES)
    start = code.times(first, BLOCK)
    with code.each(start, whole, LANES) as number:
        at = code.times(number, FLOAT)
        values = [code.floats(pointer, at) for pointer in pointers]
        total = values[0] if terms == 1 else code.add(*values)
        code.store(code.positive(total), y, at)
    with code.each(whole, end, LANES) as number:
        at, lanes = code.times(number, FLOAT), code.first(code.less(end, number))
        values = [code.some_floats(pointer, at, lanes) for pointer in pointers]
        total = values[0] if terms == 1 else code.add(*values)
        code.store_some(code.positive(total), y, at, lanes)
    return code


_TOGETHER = 4
"""Rows multiplied at a time, with a panel's sums in registers."""


def width_of(outputs: int, rows: int) -> int:
    """Return the columns of a panel: up to four vectors, or one of many rows.

    Rows that go together have a sum each for each vector. More sums would exceed the registers of a
    processor without AVX-512, and take twice the time. Many rows read a panel that stays in the
    cache.
    """
    most = 4 * _TOGETHER if is_wide() else _TOGETHER - 1
    return LANES if rows > most else LANES * min(-(-outputs // LANES), 4)


def product(width: int, relu: bool) -> Code:
    """Write a function of products, rows, matrix and bias.

    Integer arguments: the numbers of inputs and outputs, the ranges of rows and of panels. The
    matrix has panels of ``width`` columns, each (inputs, width), the bias one line; both are padded
    to whole panels. Relu preserves NaN.
    """
    code = Code(f"dense_{width}_{relu}", pointers=4, numbers=6)
    y, x, matrix, bias, inputs, outputs, start, stop, begin, end = code.arguments
    vectors = width // LANES

    def multiply(first: Value, count: int, panel: Value) -> None:
        """Write the products of ``count`` rows from ``first``."""
        column = code.times(panel, width)
        # With a single row, one chain of sums would wait for its own latency.
        chains = 2 if count == 1 else 1
        sums = {}
        for v in range(vectors):
            line = code.floats(bias, code.times(code.sum(column, LANES * v), FLOAT))
            for row in range(count):
                sums[row, v, 0] = line
                if chains == 2:
                    sums[row, v, 1] = code.number(0.0)

        def add(number: Value, chain: int) -> None:
            at = code.times(code.sum(code.times(panel, inputs), number), width * FLOAT)
            weights = [code.floats(matrix, code.sum(at, FLOAT * LANES * v)) for v in range(vectors)]
            for row in range(count):
                place = code.sum(code.times(code.sum(first, row), inputs), number)
                factor = code.all_of(x, code.times(place, FLOAT))
                for v, weight in enumerate(weights):
                    key = row, v, chain
                    sums[key] = code.add_product(sums[key], factor, weight)

        pairs = code.times(code.whole(inputs, 2), 2)
        with code.each(0, pairs, 2, sums) as number:
            add(number, 0)
            add(code.sum(number, 1), chains - 1)
        with code.each(pairs, inputs, kept=sums) as number:
            add(number, 0)
        for row in range(count):
            for v in range(vectors):
                total = sums[row, v, 0]
                if chains == 2:
                    total = code.add(total, sums[row, v, 1])
                if relu:
                    total = code.positive(total)
                at = code.sum(column, LANES * v)
                place = code.sum(code.times(code.sum(first, row), outputs), at)
                left = code.first(code.less(outputs, at))
                code.store_some(total, y, code.times(place, FLOAT), left)

    whole = code.times(code.whole(code.less(stop, start), _TOGETHER), _TOGETHER)
    together = code.sum(start, whole)
    with code.each(begin, end) as panel:
        with code.each(start, together, _TOGETHER) as first:
            multiply(first, _TOGETHER, panel)
        with code.each(together, stop) as first:
            multiply(first, 1, panel)
    return code
