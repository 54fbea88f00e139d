"""Write functions of convolutions that treat each channel, or small groups of them, separately.

Groups have as many inputs as outputs. A function is written for groups of 1, 2, 4 or 8 channels:
a vector of outputs then reads the same channels of the images. The group 0 of `Windows` stands for
any multiple of `PIXELS` from one vector on, an argument of functions, see
`singanet.ops.compiled.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES, PIXELS

_VECTOR = FLOAT * LANES


class Windows:
    """The places of windows in channels-last images, and the ``numbers`` that they follow from.

    The numbers: channels, at least ``vectors`` vectors; channels of a group; for lines and then
    columns size, output size, kernel size, stride, padding before and dilation.
    """

    NUMBERS = 14

    def __init__(self, code: Code, numbers: list[Value], vectors: int, group: int = 1) -> None:
        self.code, self.vectors, self.together = code, range(vectors), LANES * vectors
        self.channels, self.each, self.group = *numbers[:2], group
        axes = zip(numbers[2::2], numbers[3::2], strict=True)
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

    def values(self, pointer: Value, at: Value, number: Value) -> list[Value]:
        """Load, for each lane of the outputs, the channel of a ``number`` in its group.

        ``at`` are the bytes before the first channel that the outputs read.
        """
        if not self.group:
            one = self.code.all_of(pointer, self.code.sum(at, self.code.times(number, FLOAT)))
            return [one for _ in self.vectors]
        loaded = self.floats(pointer, at)
        if self.group == 1:
            return loaded
        return [self.code.repeated(value, self.group, number) for value in loaded]

    @contextmanager
    def some_channels(self) -> Iterator[Value]:
        """Write a loop over vectors: yield their first channel; the last end with the pixel."""
        code = self.code
        with code.each(0, self.channels, self.together) as number:
            yield code.lesser(number, code.less(self.channels, self.together))

    @contextmanager
    def vectors_of(self, start: Value) -> Iterator[Value]:
        """Write a loop over the vectors of a group, by its first channel."""
        code = self.code
        with code.each(0, self.each, self.together) as number:
            yield code.sum(start, code.lesser(number, code.less(self.each, self.together)))

    @contextmanager
    def part(self, number: Value) -> Iterator[tuple[Value, Value]]:
        """Write a loop over the vectors of a group, or of whole groups: their first channels."""
        if self.group:
            start = self.code.times(number, LANES)
            yield start, start
            return
        start = self.code.times(number, self.each)
        with self.vectors_of(start) as channel:
            yield channel, start

    def copy(
        self,
        line: tuple[Value, Value],
        target: tuple[Value, Value],
        columns: tuple[Value, Value, Value],
        floats: Value,
    ) -> None:
        """Copy pixels between the first two ``columns``; the others up to the third become 0.

        ``line`` and ``target`` are a pointer and the bytes before the first pixel, and another
        with a number of pixels of so many ``floats``.
        """
        code, (pointer, source), (room, first), (begin, end, stop) = (
            self.code, line, target, columns,
        )  # fmt: skip

        def each_vector(column: Value, body: Callable[[Value, Value], None]) -> None:
            start = code.times(code.sum(first, column), floats, FLOAT)
            with code.each(0, floats, LANES) as number:
                at = code.times(code.lesser(number, code.less(floats, LANES)), FLOAT)
                body(code.sum(start, at), at)

        for some in ((0, begin), (end, stop)):
            with code.each(*some) as column:
                each_vector(column, lambda place, _: code.store(code.number(0.0), room, place))
        with code.each(begin, end) as column:
            pixel = code.beyond(pointer, code.sum(source, code.times(column, self.across)))
            each_vector(column, lambda place, at: code.store(code.floats(pixel, at), room, place))


def convolution(vectors: int, taps: int, plain: bool, biased: bool, group: int = 1) -> Code:
    """Write a function of y, x, kernels (kh·kw·group, channels) and, if ``biased``, the bias.

    The lines of the kernels have `LANES` more floats. The kernels have ``taps`` columns, or any
    number of them for 0; ``plain`` ones have stride and dilation 1 along a line. Integer arguments:
    those of `Windows`; the first element of the kernels, those between their lines and between
    their columns; the pixels of an image of y, its first one, those between lines and between
    columns; the range of lines.
    """
    return _DepthwiseConvolution(vectors, taps, plain, biased, group).code


class _DepthwiseConvolution:
    def __init__(self, vectors: int, taps: int, plain: bool, biased: bool, group: int) -> None:
        self.plain, pointers = plain, 3 + biased
        name = f"depthwise_{vectors}_{taps}_{plain}_{biased}_{group}"
        code = self.code = Code(name, pointers, numbers=Windows.NUMBERS + 9)
        self.y, self.x, self.kernels, *self.bias = code.arguments[:pointers]
        numbers, rest = code.arguments[pointers:-9], code.arguments[-9:]
        self.taps, self.first, self.down, self.across = taps, *rest[:3]
        *self.made, first, last = rest[3:]
        windows = self.windows = Windows(code, numbers, vectors, group)
        # One more vector, so that the lines' starts do not share a few sets of the cache.
        self.line = code.times(code.sum(windows.channels, LANES), FLOAT)
        # One pixel has several sums, which do not wait for each other.
        self.chains = min(group, PIXELS)
        inner, end = windows.inner()
        # Without as many inner pixels as are computed together, all are computed one by one.
        fits = code.whole(code.less(end, inner), PIXELS)
        begin = code.either(fits, inner, windows.outs[1])
        stop = code.either(fits, end, windows.outs[1])
        with code.each(first, last) as line:
            # Divisions take as long as many products, and are the same for all channels.
            found = windows.line(line)
            image, start, row, _ = self.made
            sample, height = code.whole(line, windows.outs[0]), code.rest(line, windows.outs[0])
            target = code.sum(start, code.times(sample, image), code.times(height, row))
            with windows.some_channels() as channel:
                with code.each(begin, stop, PIXELS) as column:
                    # The last pixels end with the inner ones, and may be computed again.
                    last_ones = code.less(stop, PIXELS)
                    self._pixels(found, target, code.lesser(column, last_ones), channel, PIXELS)
                for edge in ((0, begin), (stop, windows.outs[1])):
                    with code.each(*edge) as column:
                        self._pixels(found, target, column, channel, 1)

    def _pixels(
        self,
        line: tuple[Value, tuple[Value, Value], Value],
        target: Value,
        column: Value,
        channel: Value,
        count: int,
    ) -> None:
        """Write one pixel of a line of y, or as many as are computed together."""
        code, windows = self.code, self.windows
        sample, heights, top = line
        left = code.less(code.times(column, windows.strides[1]), windows.pads[1])
        sums = self._begun(channel, count)
        with code.each(*heights, kept=sums) as a:
            row = windows.place(code.sum(windows.row(sample, top, a), left), channel)
            tap = code.times(code.sum(self.first, code.times(a, self.down)), windows.each)
            weights = code.sum(code.times(tap, self.line), code.times(channel, FLOAT))
            if count == 1:
                self._add_one(sums, row, weights, windows.starts(1, column)[1:])
            elif windows.group == 1 and self.taps:
                self._add(sums, row, weights)
            else:
                self._add_groups(sums, row, weights)
        at = windows.place(code.sum(target, code.times(column, self.made[3])), channel)
        apart = code.times(windows.across, self.made[3])
        for p in range(count):
            made = [sums[p, v] for v in windows.vectors]
            for chain in range(1, self.chains if count == 1 else 1):
                made = [code.add(made[v], sums[chain, v]) for v in windows.vectors]
            windows.store(made, self.y, code.sum(at, code.times(apart, p)))

    def _begun(self, channel: Value, count: int) -> dict[Any, Value]:
        """Return sums by pixel and vector, or of one pixel by chain and vector."""
        code, windows = self.code, self.windows
        start = [code.number(0.0) for _ in windows.vectors]
        if self.bias:
            start = windows.floats(self.bias[0], code.times(channel, FLOAT))
        begun = {(p, v): start[v] for p in range(count) for v in windows.vectors}
        if count == 1:
            chains = range(1, self.chains)
            begun |= {(k, v): code.number(0.0) for k in chains for v in windows.vectors}
        return begun

    def _add(self, sums: dict[Any, Value], row: Value, weights: Value) -> None:
        """Add a kernel row's products to the sums of pixels with windows inside the image."""
        code, windows = self.code, self.windows
        loaded: dict[Any, list[Value]] = {}
        for b in range(self.taps):
            factors = windows.floats(self._column(weights, b), 0)
            for p in range(PIXELS):
                key = p + b if self.plain else (p, b)
                if key not in loaded:
                    offsets = code.times(windows.step, p), code.times(windows.spread, b)
                    loaded[key] = windows.floats(self.x, code.sum(row, *offsets))
                for v, value in enumerate(loaded[key]):
                    sums[p, v] = code.add_product(sums[p, v], value, factors[v])

    def _add_groups(self, sums: dict[Any, Value], row: Value, weights: Value) -> None:
        """Do the same for any number of columns, and for groups of several channels."""
        code, windows = self.code, self.windows
        with code.each(0, windows.kernels[1], kept=sums) as b:
            column = self._column(weights, b)
            offsets = [code.times(windows.step, p) for p in range(PIXELS)]
            start = code.sum(row, code.times(windows.spread, b))
            pixels = [code.beyond(self.x, code.sum(start, offset)) for offset in offsets]

            def add(number: int) -> None:
                factors = windows.floats(column, code.times(number, self.line))
                for p, pixel in enumerate(pixels):
                    for v, value in enumerate(windows.values(pixel, 0, number)):
                        sums[p, v] = code.add_product(sums[p, v], value, factors[v])

            for number in range(windows.group):
                add(number)

    def _column(self, weights: Value, b: Value) -> Value:
        """Return the pointer to a column of a kernel's row."""
        lines = self.code.times(b, self.across, self.windows.each)
        offset = self.code.sum(weights, self.code.times(lines, self.line))
        return self.code.beyond(self.kernels, offset)

    def _add_one(
        self, sums: dict[Any, Value], row: Value, weights: Value, inside: tuple[Value, Value]
    ) -> None:
        """Add a kernel row's products to the sums of a pixel, from positions inside the image."""
        code, windows = self.code, self.windows

        with code.each(*inside, kept=sums) as b:
            pixel = code.beyond(self.x, code.sum(row, code.times(b, windows.spread)))
            column = self._column(weights, b)

            def add(number: int, chain: int) -> None:
                values = windows.values(pixel, 0, number)
                factors = windows.floats(column, code.times(number, self.line))
                for v in windows.vectors:
                    sums[chain, v] = code.add_product(sums[chain, v], values[v], factors[v])

            for number in range(windows.group):
                add(number, number % self.chains)


def gradient(vectors: int, taps: int) -> Code:
    """Write a function of the sums of parts (parts, kh·kw, channels), x and dy.

    The kernels have ``taps`` columns. Integer arguments: those of `Windows`; the lines of dy, the
    lines of a part, and the range of parts.
    """
    code = Code(f"depthwise_gradient_{vectors}_{taps}", 3, numbers=Windows.NUMBERS + 4)
    totals, x, dy = code.arguments[:3]
    *numbers, lines, each, first, last = code.arguments[3:]
    windows = Windows(code, numbers, vectors)
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
        # The last vectors may compute some channels again, from the start.
        with windows.some_channels() as channel:
            with code.each(0, positions) as position:
                zeros = [code.number(0.0)] * vectors
                windows.store(zeros, totals, windows.place(code.sum(part, position), channel))
            with code.each(start, code.lesser(code.sum(start, each), lines)) as line:
                add(line, channel, part)
    return code
