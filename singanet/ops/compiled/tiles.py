"""Write functions of Winograd convolutions: tiles of 4×4 outputs, channels last.

A block of tiles is transformed, multiplied and transformed back while it is in the cache. The
matrices are in `singanet.ops.window`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from singanet.ops import window as wg
from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES, TILE_GROUP
from singanet.types import Array

_VECTOR = FLOAT * LANES
WIDE, NARROW = {4: 6, 3: 8, 2: 12, 1: 12}, {1: 6}
"""Rows multiplied at a time, by the vectors of a panel of columns: sums stay in registers.

`WIDE` is for 32 registers of a vector's size, `NARROW` for others. The first panels are the widest;
the remainder follows as one panel.
"""


def convolution(taps: int, rows_of: Mapping[int, int]) -> Code:
    """Write a function of outputs, images, transformed kernels, bias, addend and workspace.

    Bias and addend may be null. Integer arguments: height, width and channels of the images and of
    the outputs, the padding above and left, relu, tile range [first, last), the tiles of a block, a
    multiple of `TILE_GROUP`, then the ranges of a block's tiles to transform, of points to multiply
    and of tiles to transform back. Threads may share each of these three.
    """
    code = Code(f"tiles_{taps}", pointers=6, numbers=18)
    y, x, kernels, bias, other, memory, *numbers = code.arguments
    *sizes, relu, first, last, block = numbers[:12]
    enter_first, entered, *points_of, leave_first, left = numbers[12:]
    tiles = _Tiles(code, taps, block, *sizes)
    points = wg.span(taps) ** 2
    values = memory
    totals = code.beyond(memory, code.times(points * FLOAT, tiles.input_plane))
    with code.each(first, last, block) as start:
        count = code.lesser(block, code.less(last, start))
        tiles.enter_images(x, values, start, (enter_first, code.lesser(entered, count)))
        with code.each(*points_of) as point:
            a = code.beyond(values, code.times(FLOAT, point, tiles.input_plane))
            out = code.beyond(totals, code.times(FLOAT, point, tiles.output_plane))
            panels = _Panels(code, max(rows_of), tiles.f, points, tiles.c)

            def multiplied(panel: Value, vectors: int) -> None:
                b = code.beyond(kernels, panels.at(panel, point, vectors))
                column = code.times(panel, _VECTOR * panels.widest)
                rows = rows_of[vectors]
                line = code.times(FLOAT, tiles.inputs)
                with code.each(0, count, rows) as row:
                    sums = {(r, v): code.number(0.0) for r in range(rows) for v in range(vectors)}
                    factors = Strides(code.beyond(a, code.times(line, row)), line, FLOAT)
                    others = Strides(b, _VECTOR * vectors, FLOAT)
                    multiply(code, sums, factors, others, tiles.c)
                    for (r, v), total in sums.items():
                        place = code.times(FLOAT, code.sum(row, r), tiles.outputs)
                        code.store(total, out, code.sum(place, column, v * _VECTOR))

            panels.each(multiplied)
        part = leave_first, code.lesser(left, count)
        tiles.leave_images(y, bias, other, relu, totals, start, part)
    return code


def weights(taps: int, rows_of: Mapping[int, int]) -> Code:
    """Write a function of the kernels' values, images, gradients of outputs, and workspace.

    Integer arguments: `convolution`'s without relu, then the range of tiles to transform, the range
    of points to multiply, and 0 to start the sums at zero. Threads first share the transforms and
    then the products. The values are (points, outputs, inputs), with outputs padded to a multiple
    of `TILE_GROUP` and inputs to whole vectors.
    """
    code = Code(f"tile_weights_{taps}", pointers=4, numbers=16)
    totals, x, dy, memory, *numbers = code.arguments
    *sizes, first, last, block, enter_first, entered, point_first, multiplied, begun = numbers
    tiles = _Tiles(code, taps, block, *sizes)
    points = wg.span(taps) ** 2
    values, slopes = memory, code.beyond(memory, code.times(points * FLOAT, tiles.input_plane))
    lines = code.times(TILE_GROUP, code.whole(code.sum(tiles.f, TILE_GROUP - 1), TILE_GROUP))
    with code.each(first, last, block) as start:
        count = code.lesser(block, code.less(last, start))
        begin = code.greater(code.less(enter_first, start), 0)
        part = begin, code.lesser(code.less(entered, start), count)
        tiles.enter_images(x, values, start, part)
        tiles.enter_slopes(dy, slopes, start, part)
        with code.each(point_first, multiplied) as point:
            a = code.beyond(slopes, code.times(FLOAT, point, tiles.output_plane))
            b = code.beyond(values, code.times(FLOAT, point, tiles.input_plane))
            out = code.beyond(totals, code.times(FLOAT, point, lines, tiles.inputs))
            panels = _Panels(code, max(rows_of), tiles.c, points, tiles.c)

            def multiplied(panel: Value, vectors: int) -> None:
                column = code.times(panel, _VECTOR * panels.widest)
                rows, line = rows_of[vectors], code.times(FLOAT, tiles.inputs)
                with code.each(0, tiles.f, rows) as row:
                    places = {
                        (r, v): code.sum(code.times(code.sum(row, r), line), column, v * _VECTOR)
                        for r in range(rows)
                        for v in range(vectors)
                    }
                    # The sums of the previous blocks, if there are any.
                    before = code.sum(code.less(start, first), begun)
                    sums = {
                        key: code.if_first(before, code.number(0.0), code.floats(out, place))
                        for key, place in places.items()
                    }
                    transposed = code.beyond(a, code.times(FLOAT, row))
                    factors = Strides(transposed, FLOAT, code.times(FLOAT, tiles.outputs))
                    others = Strides(code.beyond(b, column), line, FLOAT)
                    multiply(code, sums, factors, others, count)
                    for key, total in sums.items():
                        code.store(total, out, places[key])

            panels.each(multiplied)
    return code


class Strides(NamedTuple):
    """The start of a float matrix, and the byte strides of its lines and columns."""

    start: Value
    line: Value
    column: Value


def multiply(
    code: Code, sums: dict[tuple[int, int], Value], a: Strides, b: Strides, count: Value
) -> None:
    """Add to the ``sums``, of a row and a vector, rows of ``a`` times ``count`` lines of ``b``."""
    rows = {row: code.beyond(a.start, code.times(a.line, row)) for row, _ in sums}
    vectors = dict.fromkeys(vector for _, vector in sums)
    with code.each(0, count, kept=sums) as k:
        line = code.times(k, b.line)
        others = {v: code.floats(b.start, code.sum(line, _VECTOR * v)) for v in vectors}
        for row, start in rows.items():
            one = code.all_of(start, code.times(k, a.column))
            for v, other in others.items():
                sums[row, v] = code.add_product(sums[row, v], one, other)


class _Panels:
    """Columns in panels of ``widest`` vectors, and one panel of the remainder."""

    def __init__(self, code: Code, widest: int, columns: Value, points: int, lines: Value) -> None:
        self.widest = widest
        self._code, self._points, self._lines = code, points, lines
        vectors = code.whole(code.sum(columns, LANES - 1), LANES)
        self._whole, self._left = code.whole(vectors, widest), code.rest(vectors, widest)

    def each(self, body: Callable[[Value, int], None]) -> None:
        """Write ``body(panel, vectors)`` for each panel."""
        code = self._code
        with code.each(0, self._whole) as panel:
            body(panel, self.widest)
        for vectors in range(1, self.widest):
            with code.when(code.same(self._left, vectors)):
                body(self._whole, vectors)

    def at(self, panel: Value, point: Value, vectors: int) -> Value:
        """Return the offset of a point's lines in (panels, points, lines, columns of the panel)."""
        code = self._code
        before = code.times(panel, self._points, self._lines, _VECTOR * self.widest)
        return code.sum(before, code.times(point, self._lines, _VECTOR * vectors))


class _Tiles:
    """The tiles of images in a function.

    The values of a block are (points, tiles, channels padded to vectors): one plane for each point.
    """

    def __init__(self, code: Code, taps: int, block: Value, *sizes: Value) -> None:
        self._code, self._taps, self._span = code, taps, wg.span(taps)
        self._h, self._w, self.c, self._oh, self._ow, self.f, self._top, self._left = sizes
        self._room = code.room(self._span**2)
        self._down = code.whole(code.sum(self._oh, wg.TILE - 1), wg.TILE)
        self._across = code.whole(code.sum(self._ow, wg.TILE - 1), wg.TILE)
        self.inputs, self.outputs = (
            code.times(LANES, code.whole(code.sum(number, LANES - 1), LANES))
            for number in (self.c, self.f)
        )
        # One more vector, so that the planes' starts do not share a few sets of the cache.
        self.input_plane, self.output_plane = (
            code.sum(code.times(block, columns), LANES) for columns in (self.inputs, self.outputs)
        )

    def enter_images(
        self, x: Value, values: Value, start: Value, part: tuple[Value, Value]
    ) -> None:
        """Write the transform of a ``part`` of a block of image tiles that starts at ``start``.

        The part is a range of tiles within the block.
        """
        line = wg.inputs_line(self._taps, np.float32)
        shape = self._h, self._w, self.c, self._top, self._left
        self._enter(line, x, values, shape, (self.inputs, self.input_plane), start, part)

    def enter_slopes(
        self, dy: Value, values: Value, start: Value, part: tuple[Value, Value]
    ) -> None:
        """Write the transform of the gradients of outputs, for the same tiles."""
        line = wg.slopes_line(self._taps, np.float32)
        shape = self._oh, self._ow, self.f, 0, 0
        self._enter(line, dy, values, shape, (self.outputs, self.output_plane), start, part)

    def _enter(
        self,
        line: Array,
        x: Value,
        values: Value,
        shape: Sequence[Value],
        planes: tuple[Value, Value],
        start: Value,
        part: tuple[Value, Value],
    ) -> None:
        code, span = self._code, self._span
        (h, w, c, top, left), (columns, plane) = shape, planes
        with code.each(*part) as t:
            image, row, column = self._place(code.sum(start, t))
            row, column = code.less(row, top), code.less(column, left)
            seen = [code.within(code.sum(row, i), h) for i in range(line.shape[1])]
            pixel = code.sum(code.times(code.sum(code.times(image, h), row), w), column)
            with code.each(0, columns, LANES) as channel:
                some = code.first(code.less(c, channel))

                def read(i: int, j: Value) -> Value:
                    there = code.where(code.within(code.sum(column, j), w), some)
                    place = code.sum(pixel, code.times(w, i), j)
                    at = code.times(FLOAT, code.sum(code.times(place, c), channel))
                    return code.some_floats(x, at, code.where(seen[i], there))

                def write(i: Value, j: int, value: Value) -> None:
                    point = code.sum(code.times(i, span), j)
                    place = code.sum(code.times(point, plane), code.times(t, columns), channel)
                    code.store(value, values, code.times(FLOAT, place))

                both_ways(code, self._room, line, read, write)

    def leave_images(
        self,
        y: Value,
        bias: Value,
        other: Value,
        relu: Value,
        sums: Value,
        start: Value,
        part: tuple[Value, Value],
    ) -> None:
        """Write the outputs of a ``part`` of a block's tiles, then addend, bias and relu."""
        code, span = self._code, self._span
        line = wg.outputs_line(self._taps, np.float32)
        has_bias, adds = code.is_given(bias), code.is_given(other)
        # A masked load from an invalid address is slow even without active lanes.
        bias, other = code.pointer(has_bias, bias, y), code.pointer(adds, other, y)
        with code.each(*part) as t:
            image, row, column = self._place(code.sum(start, t))
            pixel = code.sum(
                code.times(code.sum(code.times(image, self._oh), row), self._ow), column
            )
            with code.each(0, self.outputs, LANES) as channel:
                some = code.first(code.less(self.f, channel))
                lanes = code.where(has_bias, some)
                line_of_bias = code.some_floats(bias, code.times(FLOAT, channel), lanes)

                def read(i: int, j: Value) -> Value:
                    place = code.times(code.sum(i * span, j), self.output_plane)
                    place = code.sum(place, code.times(t, self.outputs), channel)
                    return code.floats(sums, code.times(FLOAT, place))

                def write(i: Value, j: int, value: Value) -> None:
                    there = code.where(code.within(code.sum(row, i), self._oh), some)
                    there = code.where(code.within(code.sum(column, j), self._ow), there)
                    place = code.sum(pixel, code.times(i, self._ow), j)
                    at = code.times(FLOAT, code.sum(code.times(place, self.f), channel))
                    lanes = code.where(adds, there)
                    value = code.add(
                        value, code.add(line_of_bias, code.some_floats(other, at, lanes))
                    )
                    code.store_some(code.if_first(relu, value, code.positive(value)), y, at, there)

                both_ways(code, self._room, line, read, write)

    def _place(self, tile: Value) -> tuple[Value, Value, Value]:
        """Return the image of a tile, and the row and column of its first output."""
        code, each = self._code, self._code.times(self._down, self._across)
        image, inside = code.whole(tile, each), code.rest(tile, each)
        row, column = code.whole(inside, self._across), code.rest(inside, self._across)
        return image, code.times(row, wg.TILE), code.times(column, wg.TILE)


def both_ways(
    code: Code,
    room: Value,
    line: Array,
    read: Callable[[int, Value], Value],
    write: Callable[[Value, int, Value], None],
) -> None:
    """Apply ``line`` along both axes of values from ``read(i, j)``, and ``write`` the results."""
    made, given = line.shape
    with code.each(0, given) as j:
        for i, value in enumerate(_along(code, line, [read(i, j) for i in range(given)])):
            code.store(value, room, code.times(_VECTOR, code.sum(i * given, j)))
    with code.each(0, made) as i:
        row = code.times(_VECTOR * given, i)
        values = [code.floats(room, code.sum(row, _VECTOR * j)) for j in range(given)]
        for j, value in enumerate(_along(code, line, values)):
            write(i, j, value)


def _along(code: Code, line: Array, values: list[Value]) -> list[Value]:
    """Multiply vectors by the matrix ``line``; a point and its negative share partial sums."""
    made: dict[int, Value] = {}
    for i, row in enumerate(line):
        if i in made:
            continue
        pair = next(
            (k for k in range(i + 1, len(line)) if np.array_equal(abs(line[k]), abs(row))), None
        )
        if pair is None:
            made[i] = _total(code, row, values)
            continue
        same = line[pair] == row
        shared = _total(code, np.where(same, row, 0), values)
        other = _total(code, np.where(same, 0, row), values)
        made[i], made[pair] = code.add(shared, other), code.subtract(shared, other)
    return [made[i] for i in range(len(line))]


def _total(code: Code, row: Array, values: list[Value]) -> Value:
    total = None
    for factor, value in sorted(zip(row, values, strict=True), key=lambda one: abs(one[0]) != 1):
        if not factor:
            continue
        if total is None:
            total = value if factor == 1 else code.multiply(value, code.number(float(factor)))
        elif factor == 1:
            total = code.add(total, value)
        else:
            total = code.add_product(total, value, code.number(float(factor)))
    return code.number(0.0) if total is None else total


def enter(taps: int, rows_of: Mapping[int, int]) -> Code:
    """Write a function that transforms kernels, with the result first.

    Integer arguments: lines, columns, strides between kernels along lines and columns, a flag to
    flip kernels, and the range of lines. The result is (panels, points, lines, columns of the
    panel).
    """
    code = Code(f"enter_{taps}", pointers=2, numbers=7)
    made, kernels, lines, columns, line_apart, column_apart, transposed, first, last = (
        code.arguments
    )
    span = wg.span(taps)
    matrix = wg.kernels_line(taps, np.float32)
    room = code.room(span * span)
    panels = _Panels(code, max(rows_of), columns, span * span, lines)

    def fill(panel: Value, vectors: int) -> None:
        with code.each(first, last) as line, code.each(0, vectors) as v:
            column = code.sum(code.times(panel, LANES * panels.widest), code.times(v, LANES))
            some = code.first(code.less(columns, column))
            start = code.sum(code.times(line, line_apart), code.times(column, column_apart))

            def read(i: int, j: Value) -> Value:
                tap = code.sum(i * taps, j)
                back = code.less(taps * taps - 1, tap)
                tap = code.either(transposed, back, tap)
                at = code.times(FLOAT, code.sum(start, tap))
                return code.spread_floats(kernels, at, code.times(FLOAT, column_apart), some)

            def write(i: Value, j: int, value: Value) -> None:
                point = code.sum(code.times(i, span), j)
                place = code.sum(
                    panels.at(panel, point, vectors),
                    code.times(line, _VECTOR * vectors),
                    code.times(v, _VECTOR),
                )
                code.store(value, made, place)

            both_ways(code, room, matrix, read, write)

    panels.each(fill)
    return code


def leave(taps: int) -> Code:
    """Write a function from parts of kernels' values to gradients of kernels (f, c, taps, taps).

    Each part is a result of `weights`. Integer arguments: number of parts, f, c, and the range of
    f.
    """
    code = Code(f"leave_{taps}", pointers=2, numbers=5)
    kernels, totals, parts, f, c, first, last = code.arguments
    span = wg.span(taps)
    matrix = np.ascontiguousarray(wg.kernels_line(taps, np.float32).T)
    room = code.room(span * span)
    inputs = code.times(LANES, code.whole(code.sum(c, LANES - 1), LANES))
    rows = code.times(TILE_GROUP, code.whole(code.sum(f, TILE_GROUP - 1), TILE_GROUP))
    with code.each(first, last) as line, code.each(0, inputs, LANES) as channel:
        some = code.first(code.less(c, channel))

        def read(i: int, j: Value) -> Value:
            place = code.sum(code.times(code.sum(i * span, j), rows), line)
            total = {0: code.number(0.0)}
            with code.each(0, parts, kept=total) as part:
                there = code.sum(code.times(part, span * span, rows), place)
                at = code.times(FLOAT, code.sum(code.times(there, inputs), channel))
                total[0] = code.add(total[0], code.floats(totals, at))
            return total[0]

        def write(i: Value, j: int, value: Value) -> None:
            kernel = code.sum(code.times(line, c), channel)
            tap = code.sum(code.times(i, taps), j)
            at = code.sum(code.times(kernel, taps * taps), tap)
            code.spread(value, kernels, code.times(FLOAT, at), FLOAT * taps * taps, some)

        both_ways(code, room, matrix, read, write)
    return code
