"""Write functions of convolutions that treat each channel, or small groups of them, separately.

Groups have as many inputs as outputs. A function is written for groups of 1, 2, 4 or 8 channels:
a vector of outputs then reads the same channels of the images. The group 0 stands for any multiple
of `PIXELS` from one vector on, an argument of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import COPIED, FLOAT, LANES, PIXELS, READ

_VECTOR = FLOAT * LANES


class _Windows:
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

    def each_of_group(
        self, body: Callable[..., None], kept: dict[Any, Value], chains: int = 1
    ) -> None:
        """Write ``body`` for the number of each channel in a group, and its chain of ``chains``."""
        if self.group:
            for number in range(self.group):
                body(number, *[number % chains][: chains - 1])
            return
        with self.code.each(0, self.each, chains, kept) as number:
            for chain in range(chains):
                body(self.code.sum(number, chain), *[chain][: chains - 1])

    @contextmanager
    def some_channels(self) -> Iterator[tuple[Value, Value]]:
        """Write a loop over vectors: yield their first channel, and the first that they read.

        The last vectors end with the pixel, or with the group if it is an argument.
        """
        code = self.code
        if self.group:
            with code.each(0, self.channels, self.together) as number:
                channel = code.lesser(number, code.less(self.channels, self.together))
                yield channel, channel
            return
        with code.each(0, self.channels, self.each) as start, self.vectors_of(start) as channel:
            yield channel, start

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


def convolution(vectors: int, taps: int, plain: bool, biased: bool, group: int = 1) -> Code:
    """Write a function of y, x, kernels (kh·kw·group, channels) and, if ``biased``, the bias.

    The lines of the kernels have `LANES` more floats. The kernels have ``taps`` columns, or any
    number of them for 0; ``plain`` ones have stride and dilation 1 along a line. Integer arguments:
    those of `_Windows`; the first element of the kernels, those between their lines and between
    their columns; the pixels of an image of y, its first one, those between lines and between
    columns; the range of lines.
    """
    return _Convolution(vectors, taps, plain, biased, group).code


class _Convolution:
    def __init__(self, vectors: int, taps: int, plain: bool, biased: bool, group: int) -> None:
        self.plain, pointers = plain, 3 + biased
        name = f"depthwise_{vectors}_{taps}_{plain}_{biased}_{group}"
        code = self.code = Code(name, pointers, numbers=_Windows.NUMBERS + 9)
        self.y, self.x, self.kernels, *self.bias = code.arguments[:pointers]
        numbers, rest = code.arguments[pointers:-9], code.arguments[-9:]
        self.taps, self.first, self.down, self.across = taps, *rest[:3]
        *self.made, first, last = rest[3:]
        windows = self.windows = _Windows(code, numbers, vectors, group)
        # One more vector, so that the lines' starts do not share a few sets of the cache.
        self.line = code.times(code.sum(windows.channels, LANES), FLOAT)
        # One pixel has several sums, which do not wait for each other.
        self.chains = min(group or PIXELS, PIXELS)
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
            with windows.some_channels() as channels:
                with code.each(begin, stop, PIXELS) as column:
                    # The last pixels end with the inner ones, and may be computed again.
                    last_ones = code.less(stop, PIXELS)
                    self._pixels(found, target, code.lesser(column, last_ones), channels, PIXELS)
                for edge in ((0, begin), (stop, windows.outs[1])):
                    with code.each(*edge) as column:
                        self._pixels(found, target, column, channels, 1)

    def _pixels(
        self,
        line: tuple[Value, tuple[Value, Value], Value],
        target: Value,
        column: Value,
        channels: tuple[Value, Value],
        count: int,
    ) -> None:
        """Write one pixel of a line of y, or as many as are computed together."""
        code, windows, (channel, read) = self.code, self.windows, channels
        sample, heights, top = line
        left = code.less(code.times(column, windows.strides[1]), windows.pads[1])
        sums = self._begun(channel, count)
        with code.each(*heights, kept=sums) as a:
            row = windows.place(code.sum(windows.row(sample, top, a), left), read)
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

            def add(number: Value) -> None:
                factors = windows.floats(column, code.times(number, self.line))
                for p, pixel in enumerate(pixels):
                    for v, value in enumerate(windows.values(pixel, 0, number)):
                        sums[p, v] = code.add_product(sums[p, v], value, factors[v])

            windows.each_of_group(add, sums)

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

            def add(number: Value, chain: int = 0) -> None:
                values = windows.values(pixel, 0, number)
                factors = windows.floats(column, code.times(number, self.line))
                for v in windows.vectors:
                    sums[chain, v] = code.add_product(sums[chain, v], values[v], factors[v])

            windows.each_of_group(add, sums, self.chains)


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
        # The last vectors may compute some channels again, from the start.
        with windows.some_channels() as (channel, _):
            with code.each(0, positions) as position:
                zeros = [code.number(0.0)] * vectors
                windows.store(zeros, totals, windows.place(code.sum(part, position), channel))
            with code.each(start, code.lesser(code.sum(start, each), lines)) as line:
                add(line, channel, part)
    return code


def gradient_of_groups(group: int) -> Code:
    """Write a function of the kernels' gradient (kh·kw·group, channels), x and dy.

    Integer arguments: those of `_Windows`, the samples, the lines of dy that are summed together,
    the pixels of their copies, and a range of groups, or of vectors of whole groups. A line's copy
    has room for the pixels that its windows read, divided by the stride.
    """
    return _GroupsGradient(group).code


class _GroupsGradient:
    def __init__(self, group: int) -> None:
        code = self.code = Code(f"groups_gradient_{group}", 3, numbers=_Windows.NUMBERS + 5)
        self.totals, self.x, self.dy = code.arguments[:3]
        *numbers, samples, self.lines, self.apart, first, last = code.arguments[3:]
        windows = self.windows = _Windows(code, numbers, 1, group)
        self.slopes, self.images = code.room(COPIED), code.room(READ)
        # Floats of a pixel, and pixels of a line, of the images' copy.
        self.read = LANES if group else windows.each
        self.wide = code.times(self.apart, windows.strides[1])
        # Lines of the images at a stride lie beside each other: so many.
        reach = code.times(code.less(windows.kernels[0], 1), windows.dilations[0])
        self.high = code.sum(self.lines, code.whole(reach, windows.strides[0]))
        with code.each(first, last) as number, windows.part(number) as channels:
            with code.each(0, code.times(*windows.kernels, windows.each)) as line:
                place = windows.place(line, channels[0])
                code.store(code.number(0.0), self.totals, place)
            with code.each(0, samples) as sample, code.each(0, windows.outs[0], self.lines) as top:
                bottom = code.lesser(code.sum(top, self.lines), windows.outs[0])
                self._copy_lines(sample, top, bottom, channels)
                with code.each(0, windows.kernels[0]) as a:
                    self._add(top, bottom, a, channels[0])

    def _copy_lines(
        self, sample: Value, top: Value, bottom: Value, channels: tuple[Value, Value]
    ) -> None:
        """Copy lines of a sample of dy, and those of x that they depend on."""
        code, windows, (channel, read) = self.code, self.windows, channels
        (height, width), (down, _) = windows.sizes, windows.strides
        with code.each(top, bottom) as row:
            line = code.sum(code.times(sample, windows.outs[0]), row)
            source = windows.place(code.times(line, windows.outs[1]), channel)
            target = code.times(code.less(row, top), self.apart)
            self._copy(self.dy, source, self.slopes, target, (0, windows.outs[1], self.apart))
        left = code.lesser(windows.pads[1], self.wide)
        right = code.lesser(code.sum(left, width), self.wide)
        above = code.less(code.times(top, down), windows.pads[0])
        reach = code.times(code.less(windows.kernels[0], 1), windows.dilations[0])
        below = code.less(code.times(code.less(bottom, 1), down), windows.pads[0])
        rows = code.greater(above, 0), code.lesser(code.sum(below, reach, 1), height)
        with code.each(*rows) as row:
            line = code.sum(code.times(sample, height), row)
            source = windows.place(code.less(code.times(line, width), left), read)
            target = code.times(self._place(code.less(row, above)), self.wide)
            self._copy(self.x, source, self.images, target, (left, right, self.wide), self.read)

    def _place(self, row: Value) -> Value:
        """Return the line of the copy of a row of the images."""
        code, stride = self.code, self.windows.strides[0]
        return code.sum(code.times(code.rest(row, stride), self.high), code.whole(row, stride))

    def _add(self, top: Value, bottom: Value, a: Value, channel: Value) -> None:
        """Add the products of some lines and of a kernel's row."""
        code, windows = self.code, self.windows
        begin, stop = windows.columns(a, axis=0)
        begin, stop = code.greater(begin, top), code.lesser(stop, bottom)
        start = code.times(code.less(begin, top), self.apart)
        lines = code.less(stop, code.sum(top, 1))
        end = code.sum(code.times(lines, self.apart), windows.outs[1])
        line = code.times(self._place(code.times(a, windows.dilations[0])), self.wide)
        with code.each(0, windows.kernels[1]) as b:
            tap = code.sum(code.times(a, windows.kernels[1]), b)
            pixel = code.sum(line, code.times(b, windows.dilations[1]))
            self._tap(channel, tap, pixel, (start, end))

    def _copy(
        self,
        pointer: Value,
        source: Value,
        room: Value,
        target: Value,
        columns: tuple[Value, Value, Value],
        floats: Value = LANES,
    ) -> None:
        """Copy a line's pixels between the first two ``columns``; the others become 0."""
        code, windows, (begin, end, stop) = self.code, self.windows, columns

        def each_vector(column: Value, body: Callable[[Value, Value], None]) -> None:
            start = code.times(code.sum(target, column), floats, FLOAT)
            with code.each(0, floats, LANES) as number:
                at = code.times(code.lesser(number, code.less(floats, LANES)), FLOAT)
                body(code.sum(start, at), at)

        for some in ((0, begin), (end, stop)):
            with code.each(*some) as column:
                each_vector(column, lambda place, _: code.store(code.number(0.0), room, place))
        with code.each(begin, end) as column:
            pixel = code.beyond(pointer, code.sum(source, code.times(column, windows.across)))
            each_vector(column, lambda place, at: code.store(code.floats(pixel, at), room, place))

    def _tap(self, channel: Value, tap: Value, first: Value, pixels: tuple[Value, Value]) -> None:
        """Add the products of an element of the kernel; it reads from the pixel ``first`` on."""
        code, windows = self.code, self.windows
        pixel = code.times(self.read, FLOAT)
        images = code.beyond(self.images, code.times(first, pixel))
        step = code.times(windows.strides[1], pixel)

        def some_of_group(some: list[Value]) -> None:
            sums = {number: code.number(0.0) for number in range(len(some))}
            with code.each(*pixels, kept=sums) as p:
                given = code.floats(self.slopes, code.times(p, _VECTOR))
                at = code.times(p, step)
                for k, number in enumerate(some):
                    (value,) = windows.values(images, at, number)
                    sums[k] = code.add_product(sums[k], value, given)
            for k, number in enumerate(some):
                place = windows.place(code.sum(code.times(tap, windows.each), number), channel)
                total = code.add(code.floats(self.totals, place), sums[k])
                code.store(total, self.totals, place)

        for start in range(0, windows.group, PIXELS):
            some_of_group([*range(start, min(start + PIXELS, windows.group))])
        if not windows.group:
            with code.each(0, windows.each, PIXELS) as start:
                some_of_group([code.sum(start, k) for k in range(PIXELS)])
