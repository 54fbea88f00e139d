"""Write functions of convolutions of groups of channels, whose images are copied to a near cache.

Pixels of power-of-two channels share a few sets of a cache; copies do not, and have the padding.
"""

from __future__ import annotations

from typing import Any

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.depthwise import Windows
from singanet.ops.compiled.sizes import COPIED, FLOAT, LANES, PIXELS, READ

_VECTOR = FLOAT * LANES


def convolution(vectors: int, pixels: int, biased: bool) -> Code:
    """Write a function of y, x, kernels and, if ``biased``, the bias, see `depthwise.convolution`.

    The group is an argument. So many ``pixels`` are computed together. Integer arguments: those of
    `Windows`; the first element of the kernels, those between their lines and between their
    columns; the pixels of an image of y, its first one, those between lines and between columns;
    the lines of a block, the pixels of a copied line, and the range of blocks of all images.
    """
    return _GroupedConvolution(vectors, pixels, biased).code


class _GroupedConvolution:
    def __init__(self, vectors: int, pixels: int, biased: bool) -> None:
        pointers = 3 + biased
        name = f"groups_{vectors}_{pixels}_{biased}"
        code = self.code = Code(name, pointers, numbers=Windows.NUMBERS + 11)
        self.y, self.x, self.kernels, *self.bias = code.arguments[:pointers]
        numbers, rest = code.arguments[pointers:-11], code.arguments[-11:]
        windows = self.windows = Windows(code, numbers, vectors, 0)
        self.first, self.down, self.across, image, start, line, self.apart = rest[:7]
        lines, self.wide, first, last = rest[7:]
        self.line = code.times(code.sum(windows.channels, LANES), FLOAT)
        self.room = code.room(READ)
        self.pixel = code.times(windows.each, FLOAT)
        height, width = windows.outs
        blocks = code.whole(code.sum(height, code.less(lines, 1)), lines)
        whole = code.either(code.whole(width, pixels), width, code.sum(0))
        with code.each(first, last) as block:
            sample, top = code.whole(block, blocks), code.times(code.rest(block, blocks), lines)
            bottom = code.lesser(code.sum(top, lines), height)
            target = code.sum(start, code.times(sample, image))
            with code.each(0, windows.channels, windows.each) as group:
                self._copy(sample, top, bottom, group)
                with windows.vectors_of(group) as channel, code.each(top, bottom) as row:
                    made = code.sum(target, code.times(row, line))
                    row = code.times(code.less(row, top), windows.strides[0])
                    with code.each(0, whole, pixels) as column:
                        # The last pixels end with the line, and may be computed again.
                        column = code.lesser(column, code.less(width, pixels))
                        self._pixels(made, row, column, channel, pixels)
                    with code.each(whole, width) as column:
                        self._pixels(made, row, column, channel, 1)

    def _copy(self, sample: Value, top: Value, bottom: Value, group: Value) -> None:
        """Copy the lines of a group that a block reads."""
        code, windows = self.code, self.windows
        (height, width), (pad, left) = windows.sizes, windows.pads
        above = code.less(code.times(top, windows.strides[0]), pad)
        reach = code.times(code.greater(code.less(windows.kernels[0], 1), 0), windows.dilations[0])
        lines = code.times(code.less(bottom, code.sum(top, 1)), windows.strides[0])
        begin, end = (
            code.lesser(code.greater(column, 0), self.wide)
            for column in (left, code.sum(left, width))
        )
        with code.each(0, code.sum(lines, reach, 1)) as row:
            at = code.sum(above, row)
            inside = code.within(at, height)
            columns = (code.choose(inside, each, self.wide) for each in (begin, end))
            line = code.times(code.sum(code.times(sample, height), at), width)
            source = windows.place(code.less(line, left), group)
            target = self.room, code.times(row, self.wide)
            windows.copy((self.x, source), target, (*columns, self.wide), windows.each)

    def _pixels(self, made: Value, row: Value, column: Value, channel: Value, count: int) -> None:
        """Write so many pixels of a line of y; ``row`` is the first copied line that they read."""
        code, windows = self.code, self.windows
        start = [code.number(0.0) for _ in windows.vectors]
        if self.bias:
            start = windows.floats(self.bias[0], code.times(channel, FLOAT))
        sums: dict[Any, Value] = {(p, v): start[v] for p in range(count) for v in windows.vectors}
        left = code.times(column, windows.strides[1])
        step = code.times(windows.strides[1], self.pixel)
        with (
            code.each(0, windows.kernels[0], kept=sums) as a,
            code.each(0, windows.kernels[1], kept=sums) as b,
        ):
            line = code.times(code.sum(row, code.times(a, windows.dilations[0])), self.wide)
            pixel = code.sum(line, left, code.times(b, windows.dilations[1]))
            images = code.beyond(self.room, code.times(pixel, self.pixel))
            pixels = [code.beyond(images, code.times(step, p)) for p in range(count)]
            tap = code.sum(self.first, code.times(a, self.down), code.times(b, self.across))
            place = code.sum(code.times(tap, windows.each, self.line), code.times(channel, FLOAT))
            kernels = code.beyond(self.kernels, place)
            with code.each(0, windows.each, kept=sums) as number:
                factors = windows.floats(kernels, code.times(number, self.line))
                for p, each in enumerate(pixels):
                    for v, value in enumerate(windows.values(each, 0, number)):
                        sums[p, v] = code.add_product(sums[p, v], value, factors[v])
        at = windows.place(code.sum(made, code.times(column, self.apart)), channel)
        apart = code.times(windows.across, self.apart)
        for p in range(count):
            values = [sums[p, v] for v in windows.vectors]
            windows.store(values, self.y, code.sum(at, code.times(apart, p)))


def gradient(group: int) -> Code:
    """Write a function of the kernels' gradient (kh·kw·group, channels), x and dy.

    Integer arguments: those of `Windows`, the samples, the lines of dy that are summed together,
    the pixels of their copies, and a range of groups, or of vectors of whole groups. A line's copy
    has room for the pixels that its windows read, divided by the stride.
    """
    return _Gradient(group).code


class _Gradient:
    def __init__(self, group: int) -> None:
        code = self.code = Code(f"groups_gradient_{group}", 3, numbers=Windows.NUMBERS + 5)
        self.totals, self.x, self.dy = code.arguments[:3]
        *numbers, samples, self.lines, self.apart, first, last = code.arguments[3:]
        windows = self.windows = Windows(code, numbers, 1, group)
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
            columns = 0, windows.outs[1], self.apart
            windows.copy((self.dy, source), (self.slopes, target), columns, LANES)
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
            columns = left, right, self.wide
            windows.copy((self.x, source), (self.images, target), columns, self.read)

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
