"""Write functions of the steps of an LSTM, whose units are whole vectors.

Its gates i, f, g, o and states h, c are those of `singanet.ops.numpy.recurrent`. The sums of a
product have the order of the inputs, for any number of rows.
"""

from __future__ import annotations

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES

_VECTOR = FLOAT * LANES

GATES = 4
"""Blocks of a row of gates."""

_ROWS = 4
"""Rows that are multiplied together, with their sums in registers."""

_NEAR_ZERO = 0.25
_ODD = (62 / 2835, -17 / 315, 2 / 15, -1 / 3)
"""Bound and coefficients of tanh's series, from the last one on."""


class _Steps:
    """The ``numbers`` of steps: samples, units; the first step, from one to the next, how many.

    Then 0, or 1 in reverse: from a step to the index of the states before it.
    """

    NUMBERS = 6

    def __init__(self, code: Code, numbers: list[Value]) -> None:
        self.code = code
        self.samples, self.units, self.first, self.by, self.count, self._before = numbers
        self.line = code.times(self.units, FLOAT)

    def around(self, t: Value) -> tuple[Value, Value]:
        """Return the first rows of the states before and after a step."""
        code = self.code
        after = code.sum(t, code.less(1, self._before))
        return code.times(code.sum(t, self._before), self.samples), code.times(after, self.samples)

    def gates(self, t: Value, row: Value, vector: Value) -> list[Value]:
        """Return the bytes before a vector of units in each block of a row of gates."""
        code = self.code
        start = code.times(code.sum(code.times(t, self.samples), row), GATES, self.line)
        at = code.sum(start, code.times(vector, _VECTOR))
        return [code.sum(at, code.times(self.line, gate)) for gate in range(GATES)]

    def state(self, row: Value, vector: Value = 0) -> Value:
        """Return the bytes before a vector of units in a row of states."""
        code = self.code
        return code.sum(code.times(row, self.line), code.times(vector, _VECTOR))


def lstm() -> Code:
    """Write a function of gates (T, N, 4H), states h and c (T + 1, N, H), and the state's weight.

    Then x (T, N, I), the weight of x, and the bias. If I is 0 the gates have the share of x and the
    bias. They get their values, one step's after the other's in the same place unless all are kept.
    A weight has a panel for each vector of units and gate: (H / LANES, 4, H or I, LANES).

    Integer arguments: those of `_Steps`, I, 1 to keep all gates or 0, the range of samples, and
    that of vectors of units.
    """
    code = Code("lstm", pointers=7, numbers=_Steps.NUMBERS + 6)
    gates, h, c, weight, x, weight_of_x, bias, *numbers = code.arguments
    steps = _Steps(code, numbers[:-6])
    inputs, kept, first, last, begin, end = numbers[-6:]
    together = code.sum(first, code.times(code.whole(code.less(last, first), _ROWS), _ROWS))
    counts = inputs, steps.units
    no_inputs = code.same(inputs, 0)
    before = code.pointer(no_inputs, gates, bias)

    def multiply(t: Value, rows: list[Value], vector: Value, some: range) -> None:
        """Write the sums of ``some`` gates of ``rows``."""
        old = steps.around(t)[0]
        at_x = [code.sum(code.times(t, steps.samples), row) for row in rows]
        factors = (
            {r: code.beyond(x, code.times(at, inputs, FLOAT)) for r, at in enumerate(at_x)},
            {r: code.beyond(h, steps.state(code.sum(old, row))) for r, row in enumerate(rows)},
        )
        places, sums = {}, {}
        for r, row in enumerate(rows):
            blocks = steps.gates(code.times(t, kept), row, vector)
            for gate in some:
                places[r, gate] = blocks[gate]
                line = code.sum(code.times(vector, _VECTOR), code.times(steps.line, gate))
                sums[r, gate] = code.floats(before, code.either(no_inputs, blocks[gate], line))
        for count, lines, panels in zip(counts, factors, (weight_of_x, weight), strict=True):
            panel = code.times(count, _VECTOR)
            start = code.beyond(panels, code.times(vector, GATES, panel))
            others = {gate: code.beyond(start, code.times(panel, gate)) for gate in some}
            _add_products(code, count, lines, others, sums)
        for key, place in places.items():
            code.store(sums[key], gates, place)

    with code.each(0, steps.count) as number:
        t = code.sum(steps.first, code.times(number, steps.by))
        old, new = steps.around(t)
        with code.each(begin, end) as vector:
            for gate in range(GATES):
                with code.each(first, together, _ROWS) as row:
                    rows = [code.sum(row, r) for r in range(_ROWS)]
                    multiply(t, rows, vector, range(gate, gate + 1))
            with code.each(together, last) as row:
                multiply(t, [row], vector, range(GATES))
            with code.each(first, last) as row:
                blocks = steps.gates(code.times(t, kept), row, vector)
                i, f, g, o = (code.floats(gates, place) for place in blocks)
                i, f, g, o = _sigmoid(code, i), _sigmoid(code, f), tanh(code, g), _sigmoid(code, o)
                for value, place in zip((i, f, g, o), blocks, strict=True):
                    code.store(value, gates, place)
                of_c = code.floats(c, steps.state(code.sum(old, row), vector))
                cell = code.add(code.multiply(f, of_c), code.multiply(i, g))
                place = steps.state(code.sum(new, row), vector)
                code.store(cell, c, place)
                code.store(code.multiply(o, tanh(code, cell)), h, place)
    return code


def lstm_back(sloped: bool) -> Code:
    """Write a function of the gradients of gates' arguments, dh, dc, gates, c, weight and dy.

    The weight is (H, 4H); dh and dc are (N, H), of the last states, and get those of the first. dy
    (T, N, H) is there if ``sloped``. The last pointer is to room for the transposed weight in
    panels. Integer arguments: those of `_Steps`, the range of samples, and of vectors of units,
    for the weight's panels, for gates and then for dh.
    """
    code = Code(f"lstm_back_{sloped}", pointers=7 + sloped, numbers=_Steps.NUMBERS + 8)
    made, dh, dc, gates, c, weight = code.arguments[:6]
    room, *numbers = code.arguments[6 + sloped :]
    steps = _Steps(code, numbers[:-8])
    first, last, laid, filled, begin, end, column, stop = numbers[-8:]
    one, width = code.number(1.0), code.times(steps.units, GATES)
    together = code.sum(first, code.times(code.whole(code.less(last, first), _ROWS), _ROWS))
    panel = code.times(width, _VECTOR)

    def slopes(t: Value, row: Value, vector: Value) -> None:
        """Write the gradients of a vector of units in a row of gates."""
        old, new = steps.around(t)
        place = steps.state(row, vector)
        places = steps.gates(t, row, vector)
        i, f, g, o = (code.floats(gates, at) for at in places)
        of_h = code.floats(dh, place)
        if sloped:
            at = steps.state(code.sum(code.times(t, steps.samples), row), vector)
            of_h = code.add(of_h, code.floats(code.arguments[6], at))
        cell = tanh(code, code.floats(c, steps.state(code.sum(new, row), vector)))
        before = code.floats(c, steps.state(code.sum(old, row), vector))
        through = code.multiply(of_h, o, code.subtract(one, code.multiply(cell, cell)))
        of_c = code.add(code.floats(dc, place), through)
        found = (
            code.multiply(of_c, g, _slope(code, i)),
            code.multiply(of_c, before, _slope(code, f)),
            code.multiply(of_c, i, code.subtract(one, code.multiply(g, g))),
            code.multiply(of_h, cell, _slope(code, o)),
        )
        for value, at in zip(found, places, strict=True):
            code.store(value, made, at)
        code.store(code.multiply(of_c, f), dc, place)

    def multiply(t: Value, row: Value, vector: Value, rows: int, panels: int) -> None:
        """Write the products of some rows of gradients with panels of the weight."""
        lines = {r: code.beyond(made, steps.gates(t, code.sum(row, r), 0)[0]) for r in range(rows)}
        start = code.beyond(room, code.times(vector, panel))
        others = {v: code.beyond(start, code.times(panel, v)) for v in range(panels)}
        for (r, v), total in _products(code, width, lines, others).items():
            code.store(total, dh, steps.state(code.sum(row, r), code.sum(vector, v)))

    with code.each(laid, filled) as vector, code.each(0, width, LANES) as k:
        at = code.times(code.sum(code.times(vector, LANES, width), k), FLOAT)
        line = code.times(width, FLOAT)
        lines = [code.floats(weight, code.sum(at, code.times(line, j))) for j in range(LANES)]
        place = code.sum(code.times(vector, panel), code.times(k, _VECTOR))
        for j, some in enumerate(code.turned(lines)):
            code.store(some, room, code.sum(place, _VECTOR * j))
    with code.each(0, steps.count) as number:
        t = code.sum(steps.first, code.times(number, steps.by))
        with code.each(first, last) as row, code.each(begin, end) as vector:
            slopes(t, row, vector)
        with code.each(column, stop) as vector, code.each(first, together, _ROWS) as row:
            multiply(t, row, vector, _ROWS, 1)
        some = code.sum(column, code.times(code.whole(code.less(stop, column), _ROWS), _ROWS))
        with code.each(together, last) as row:
            with code.each(column, some, _ROWS) as vector:
                multiply(t, row, vector, 1, _ROWS)
            with code.each(some, stop) as vector:
                multiply(t, row, vector, 1, 1)
    return code


def _products(
    code: Code, count: Value, rows: dict[int, Value], panels: dict[int, Value]
) -> dict[tuple[int, int], Value]:
    """Return the products of rows of ``count`` floats with panels of a vector of columns."""
    sums = {(row, panel): code.number(0.0) for row in rows for panel in panels}
    _add_products(code, count, rows, panels, sums)
    return sums


def _add_products(
    code: Code,
    count: Value,
    rows: dict[int, Value],
    panels: dict[int, Value],
    sums: dict[tuple[int, int], Value],
) -> None:
    """Add the products of rows of ``count`` floats with panels to ``sums``."""
    with code.each(0, count, kept=sums) as k:
        at, line = code.times(k, FLOAT), code.times(k, _VECTOR)
        factors = {key: code.all_of(row, at) for key, row in rows.items()}
        others = {key: code.floats(panel, line) for key, panel in panels.items()}
        for row, panel in sums:
            sums[row, panel] = code.add_product(sums[row, panel], factors[row], others[panel])


def _slope(code: Code, sigmoid: Value) -> Value:
    return code.multiply(sigmoid, code.subtract(code.number(1.0), sigmoid))


def _sigmoid(code: Code, x: Value) -> Value:
    # Of larger numbers the reciprocal is no normal float.
    opposite = code.at_most(code.subtract(code.number(0.0), x), code.number(87.0))
    return code.divide(code.number(1.0), code.add(code.exponential(opposite), code.number(1.0)))


def tanh(code: Code, x: Value) -> Value:
    """Return the hyperbolic tangents of a vector, by its series near 0."""
    size, one, zero = code.size_of(x), code.number(1.0), code.number(0.0)
    power = code.exponential(code.multiply(size, code.number(-2.0)))
    far = code.divide(code.subtract(one, power), code.add(power, one))
    far = code.choose(code.above(x, zero), far, code.subtract(zero, far))
    square, series = code.multiply(x, x), code.number(_ODD[0])
    for factor in _ODD[1:]:
        series = code.add_product(code.number(factor), series, square)
    near = code.add_product(x, x, code.multiply(series, square))
    return code.choose(code.above(size, code.number(_NEAR_ZERO)), far, near)
