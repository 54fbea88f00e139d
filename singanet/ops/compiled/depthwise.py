"""Write functions of convolutions that treat each channel by itself."""

from __future__ import annotations

from typing import Any

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES

_TOGETHER = 4
"""Pixels of a line whose sums are in registers."""

_VECTOR = FLOAT * LANES


class _Windows:
    """The places of windows in channels-last images, and the ``numbers`` that they follow from.

    The numbers: channels, at least ``vectors`` vectors; for lines and then columns size, output
    size, kernel size, stride, padding before and dilation.
    """

    NUMBERS = 13

    def __init__(self, code: Code, numbers: list[Value], vectors: int) -> None:
        self.code, self.vectors, self.together = code, range(vectors), LANES * vectors
        self.channels = numbers[0]
        axes = zip(numbers[1::2], numbers[2::2], strict=True)
        self.sizes, self.outs, self.kernels, self.strides, self.pads, self.dilations = axes
        # Of a pixel; of windows beside each other; of a kernel's columns beside each other.
        self.across = code.times(self.channels, FLOAT)
        self.step = code.times(self.strides[1], self.across)
        self.spread = code.times(self.dilations[1], self.across)

    def starts(self, axis: int, at: Value) -> tuple[Value, Value, Value]:
        """Return a window's start, and the range of its positions inside the image."""
        code, spread = self.code, self.dilations[axis]
        start = code.less(code.times(at, self.strides[axis]), self.pads[axis])
        first, last = (
            code.whole(code.sum(code.greater(pixels, 0), code.less(spread, 1)), spread)
            for pixels in (code.less(0, start), code.less(self.sizes[axis], start))
        )
        return start, first, code.lesser(last, self.kernels[axis])

    def columns(self, position: Value, axis: int = 1) -> tuple[Value, Value]:
        """Return the range of outputs of which ``position`` of the kernel is inside the image."""
        code, stride = self.code, self.strides[axis]
        before = code.less(self.pads[axis], code.times(position, self.dilations[axis]))
        first, last = (
            code.whole(code.sum(code.greater(pixels, 0), code.less(stride, 1)), stride)
            for pixels in (before, code.sum(before, self.sizes[axis]))
        )
        return code.lesser(first, self.outs[axis]), code.lesser(last, self.outs[axis])

    def inner(self) -> tuple[Value, Value]:
        """Return the range of columns whose windows are inside the image, possibly empty."""
        code = self.code
        first, _ = self.columns(0)
        _, last = self.columns(code.less(self.kernels[1], 1))
        return first, code.greater(first, last)

    def line(self, line: Value) -> tuple[Value, tuple[Value, Value], Value]:
        """Return the first pixel of a line's sample, its positions in the kernel, and its start."""
        code = self.code
        sample, height = code.whole(line, self.outs[0]), code.rest(line, self.outs[0])
        start, first, last = self.starts(0, height)
        return code.times(sample, *self.sizes), (first, last), start

    def row(self, sample: Value, start: Value, position: Value) -> Value:
        """Return the first pixel of the row of an image at a ``position`` of the kernel."""
        code = self.code
        at = code.sum(start, code.times(position, self.dilations[0]))
        return code.sum(sample, code.times(at, self.sizes[1]))

    def place(self, pixel: Value, channel: Value) -> Value:
        """Return the bytes before a ``channel`` of a pixel."""
        return self.code.sum(self.code.times(pixel, self.across), self.code.times(channel, FLOAT))

    def floats(self, pointer: Value, at: Value) -> list[Value]:
        """Load the vectors of a pixel, at so many bytes."""
        return [self.code.floats(pointer, self.code.sum(at, _VECTOR * v)) for v in self.vectors]

    def store(self, values: list[Value], pointer: Value, at: Value) -> None:
        """Store the vectors of a pixel, at so many bytes."""
        for v, value in enumerate(values):
            self.code.store(value, pointer, self.code.sum(at, _VECTOR * v))

    def some_channels(self) -> Any:
        """Write a loop over the channels; the last vectors end with the pixel."""
        return self.code.each(0, self.channels, self.together)

    def channel(self, number: Value) -> Value:
        """Return the first channel of the vectors at a ``number`` of the loop."""
        return self.code.lesser(number, self.code.less(self.channels, self.together))


def convolution(vectors: int, taps: int, plain: bool, biased: bool) -> Code:
    """Write a function of y, x, kernels (kh·kw, channels) and, if ``biased``, the bias.

    The kernels have ``taps`` columns; ``plain`` ones have stride and dilation 1 along a line.
    Integer arguments: those of `_Windows`; the range of lines of y.
    """
    return _Convolution(vectors, taps, plain, biased).code


class _Convolution:
    def __init__(self, vectors: int, taps: int, plain: bool, biased: bool) -> None:
        self.taps, self.plain, pointers = taps, plain, 3 + biased
        name = f"depthwise_{vectors}_{taps}_{plain}_{biased}"
        code = self.code = Code(name, pointers, numbers=_Windows.NUMBERS + 2)
        self.y, self.x, self.kernels, *self.bias = code.arguments[:pointers]
        *numbers, first, last = code.arguments[pointers:]
        windows = self.windows = _Windows(code, numbers, vectors)
        inner, end = windows.inner()
        # Without as many inner pixels as are computed together, all are computed one by one.
        fits = code.whole(code.less(end, inner), _TOGETHER)
        begin = code.either(fits, inner, windows.outs[1])
        stop = code.either(fits, end, windows.outs[1])
        with code.each(first, last) as line, windows.some_channels() as number:
            channel = windows.channel(number)
            with code.each(begin, stop, _TOGETHER) as column:
                # The last pixels end with the inner ones, and may be computed again.
                last_ones = code.less(stop, _TOGETHER)
                self._pixels(line, code.lesser(column, last_ones), channel, _TOGETHER)
            for edge in ((0, begin), (stop, windows.outs[1])):
                with code.each(*edge) as column:
                    self._pixels(line, column, channel, 1)

    def _pixels(self, line: Value, column: Value, channel: Value, count: int) -> None:
        """Write one pixel of y, or as many as are computed together."""
        code, windows = self.code, self.windows
        sample, heights, top = windows.line(line)
        left, *inside = windows.starts(1, column)
        sums = self._begun(channel, count)
        with code.each(*heights, kept=sums) as a:
            row = windows.place(code.sum(windows.row(sample, top, a), left), channel)
            weights = windows.place(code.times(a, self.taps), channel)
            if count == 1:
                self._add_one(sums, row, weights, inside)
            else:
                self._add(sums, row, weights)
        at = windows.place(code.sum(code.times(line, windows.outs[1]), column), channel)
        for p in range(count):
            made = [sums[p, v] for v in windows.vectors]
            windows.store(made, self.y, code.sum(at, code.times(windows.across, p)))

    def _begun(self, channel: Value, count: int) -> dict[Any, Value]:
        code, windows = self.code, self.windows
        start = [code.number(0.0) for _ in windows.vectors]
        if self.bias:
            start = windows.floats(self.bias[0], code.times(channel, FLOAT))
        return {(p, v): start[v] for p in range(count) for v in windows.vectors}

    def _add(self, sums: dict[Any, Value], row: Value, weights: Value) -> None:
        """Add a kernel row's products to the sums of pixels with windows inside the image."""
        code, windows = self.code, self.windows
        loaded: dict[Any, list[Value]] = {}
        for b in range(self.taps):
            place = code.sum(weights, code.times(windows.across, b))
            factors = windows.floats(self.kernels, place)
            for p in range(_TOGETHER):
                key = p + b if self.plain else (p, b)
                if key not in loaded:
                    offsets = code.times(windows.step, p), code.times(windows.spread, b)
                    loaded[key] = windows.floats(self.x, code.sum(row, *offsets))
                for v, value in enumerate(loaded[key]):
                    sums[p, v] = code.add_product(sums[p, v], value, factors[v])

    def _add_one(
        self, sums: dict[Any, Value], row: Value, weights: Value, inside: list[Value]
    ) -> None:
        """Add a kernel row's products to the sum of a pixel, from positions inside the image."""
        code, windows = self.code, self.windows
        with code.each(inside[0], inside[1], kept=sums) as b:
            values = windows.floats(self.x, code.sum(row, code.times(b, windows.spread)))
            place = code.sum(weights, code.times(b, windows.across))
            factors = windows.floats(self.kernels, place)
            for v in windows.vectors:
                sums[0, v] = code.add_product(sums[0, v], values[v], factors[v])


def gradient(vectors: int, taps: int) -> Code:
    """Write a function of the sums of parts (parts, kh·kw, channels), x and dy.

    The kernels have ``taps`` columns. Integer arguments: those of `_Windows`; the lines of dy, the
    lines of a part, and the range of parts.
    """
    code = Code(f"depthwise_gradient_{vectors}_{taps}", 3, numbers=_Windows.NUMBERS + 4)
    totals, x, dy = code.arguments[:3]
    *numbers, lines, each, first, last = code.arguments[3:]
    windows = _Windows(code, numbers, vectors)
    inner, end = windows.inner()
    positions = code.times(*windows.kernels)

    def add(line: Value, channel: Value, part: Value) -> None:
        """Add the products of a line to the sums of its part."""
        sample, heights, top = windows.line(line)
        slopes = windows.place(code.times(line, windows.outs[1]), channel)
        with code.each(*heights) as a:
            row = windows.place(code.less(windows.row(sample, top, a), windows.pads[1]), channel)
            sums = {(b, v): code.number(0.0) for b in range(taps) for v in windows.vectors}

            def products(column: Value, some: range) -> None:
                given = windows.floats(dy, code.sum(slopes, code.times(column, windows.across)))
                at = code.sum(row, code.times(column, windows.step))
                for b in some:
                    place = code.sum(at, code.times(windows.spread, b))
                    for v, value in enumerate(windows.floats(x, place)):
                        sums[b, v] = code.add_product(sums[b, v], value, given[v])

            with code.each(inner, end, kept=sums) as column:
                products(column, range(taps))
            for b in range(taps):
                begin, stop = windows.columns(b)
                for edge in ((begin, code.lesser(inner, stop)), (code.greater(end, begin), stop)):
                    with code.each(*edge, kept=sums) as column:
                        products(column, range(b, b + 1))
            for b in range(taps):
                place = windows.place(code.sum(part, code.times(a, taps), b), channel)
                before = windows.floats(totals, place)
                after = [code.add(before[v], sums[b, v]) for v in windows.vectors]
                windows.store(after, totals, place)

    with code.each(first, last) as number:
        part, start = code.times(number, positions), code.times(number, each)
        with windows.some_channels() as some:
            # The last vectors may compute some channels again, from the start.
            channel = windows.channel(some)
            with code.each(0, positions) as position:
                zeros = [code.number(0.0)] * vectors
                windows.store(zeros, totals, windows.place(code.sum(part, position), channel))
            with code.each(start, code.lesser(code.sum(start, each), lines)) as line:
                add(line, channel, part)
    return code
