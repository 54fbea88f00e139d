"""Write functions of the arithmetic between products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES
from singanet.types import SweepSteps

_VECTOR = FLOAT * LANES
_LEAST = 87.0
"""From here on exp(-x) counts as 0."""
_MOST = 3.4028234e38
"""The largest number that is not infinite."""


def unit_rows() -> Code:
    """Write a function of rows over the roots of their sums of squares.

    Its pointers: results, inverse roots, rows. Its integers: the floats of a row, the bits of the
    number that is added to each sum, and the range of rows.
    """
    code = Code("unit_rows", pointers=3, numbers=4)
    y, inverses, x, size, epsilon, *rows = code.arguments
    vectors = 0, code.whole(code.sum(size, LANES - 1), LANES)
    with code.each(*rows) as row:
        start = code.times(row, size, FLOAT)
        line, made, sums = code.beyond(x, start), code.beyond(y, start), {0: code.number(0.0)}

        def add(some: _Lanes) -> None:
            given = some.floats(line)
            sums[0] = code.add_product(sums[0], given, given)

        _each_vector(code, vectors, size, add, sums)
        total = code.add(code.total(sums[0]), code.held(epsilon))
        inverse = code.divide(code.number(1.0), code.root(total))
        code.store_some(inverse, inverses, code.times(row, FLOAT), code.first(1))

        def write(some: _Lanes) -> None:
            some.store(code.multiply(some.floats(line), inverse), made)

        _each_vector(code, vectors, size, write)
    return code


def unit_slopes() -> Code:
    """Write a function of the gradients of rows from those of `unit_rows`.

    Its pointers: results, gradients, results of `unit_rows`, inverse roots. Its integers: the
    floats of a row, and the range of rows.
    """
    code = Code("unit_slopes", pointers=4, numbers=3)
    dx, dy, y, inverses, size, *rows = code.arguments
    vectors = 0, code.whole(code.sum(size, LANES - 1), LANES)
    with code.each(*rows) as row:
        start = code.times(row, size, FLOAT)
        made, slopes, line = (code.beyond(each, start) for each in (dx, dy, y))
        sums = {0: code.number(0.0)}

        def add(some: _Lanes) -> None:
            sums[0] = code.add_product(sums[0], some.floats(slopes), some.floats(line))

        _each_vector(code, vectors, size, add, sums)
        inner = code.subtract(code.number(0.0), code.total(sums[0]))
        inverse = code.all_of(inverses, code.times(row, FLOAT))

        def write(some: _Lanes) -> None:
            change = code.add_product(some.floats(slopes), some.floats(line), inner)
            some.store(code.multiply(change, inverse), made)

        _each_vector(code, vectors, size, write)
    return code


def silu() -> Code:
    """Write a function of x / (1 + exp(-x)).

    Its pointers: results, arguments. Its integers: how many, and the range of vectors.
    """
    code = Code("silu", pointers=2, numbers=3)
    y, x, count, *vectors = code.arguments

    def write(some: _Lanes) -> None:
        given = some.floats(x)
        # Infinity times 0 is no number.
        finite = code.at_least(given, code.number(-_MOST))
        some.store(code.multiply(finite, _logistic(code, given)), y)

    _each_vector(code, vectors, count, write)
    return code


def silu_slopes() -> Code:
    """Write a function of gradients times s (1 + x (1 - s)) for s = 1 / (1 + exp(-x)).

    Its pointers: results, gradients, arguments x. Its integers: how many, and the range of vectors.
    """
    code = Code("silu_slopes", pointers=3, numbers=3)
    dx, dy, x, count, *vectors = code.arguments
    one = code.number(1.0)

    def write(some: _Lanes) -> None:
        given = some.floats(x)
        share = _logistic(code, given)
        finite = code.at_least(given, code.number(-_MOST))
        finite = code.choose(code.above(finite, code.number(_MOST)), code.number(_MOST), finite)
        slope = code.add_product(one, finite, code.subtract(one, share))
        some.store(code.multiply(slope, share, some.floats(dy)), dx)

    _each_vector(code, vectors, count, write)
    return code


def softmax_of() -> Code:
    """Write a function of the softmax of rows: `softmax_rows` without logarithms."""
    code = Code("softmax_of", pointers=2, numbers=3)
    _softmax(code, *code.arguments[:2], None, *code.arguments[2:])
    return code


def softmax_rows() -> Code:
    """Write a function of the softmax of rows, and of the logarithms of their sums.

    Its pointers: results, logarithms, rows, which may be the results. Its integers: the floats of a
    row, and the range of rows.
    """
    code = Code("softmax_rows", pointers=3, numbers=3)
    y, logs, x, *numbers = code.arguments
    _softmax(code, y, x, logs, *numbers)
    return code


def _softmax(code: Code, y: Value, x: Value, logs: Value | None, size: Value, *rows: Value) -> None:
    vectors = 0, code.whole(code.sum(size, LANES - 1), LANES)
    lowest = code.number(-float("inf"))
    with code.each(*rows) as row:
        start = code.times(row, size, FLOAT)
        line, made, kept = code.beyond(x, start), code.beyond(y, start), {0: lowest}

        def rise(some: _Lanes) -> None:
            kept[0] = code.at_least(some.floats(line, lowest), kept[0])

        _each_vector(code, vectors, size, rise, kept)
        top = code.largest(kept[0])
        sums = {"sum": code.number(0.0), "lost": code.number(0.0)}

        def add(some: _Lanes) -> None:
            shifted = code.subtract(some.floats(line, lowest), top)
            power = code.if_above(shifted, code.number(-_LEAST), code.exponential(shifted))
            some.store(power, made)
            # What rounding takes from a sum is added with the next term (Kahan 1965).
            term = code.subtract(power, sums["lost"])
            total = code.add(sums["sum"], term)
            sums["lost"] = code.subtract(code.subtract(total, sums["sum"]), term)
            sums["sum"] = total

        _each_vector(code, vectors, size, add, sums)
        total = code.total(sums["sum"])
        inverse = code.divide(code.number(1.0), total)
        if logs is not None:
            log = code.add(code.logarithm(total), top)
            code.store_some(log, logs, code.times(row, FLOAT), code.first(1))

        def divide(some: _Lanes) -> None:
            some.store(code.multiply(some.floats(made), inverse), made)

        _each_vector(code, vectors, size, divide)


class _Lanes(NamedTuple):
    """A vector ``at`` an offset, or some ``lanes`` of it."""

    code: Code
    at: Value
    lanes: Value | None

    def floats(self, pointer: Value, others: Value | None = None) -> Value:
        """Load the floats; other lanes are 0 or from ``others``."""
        if self.lanes is None:
            return self.code.floats(pointer, self.at)
        return self.code.some_floats(pointer, self.at, self.lanes, others)

    def store(self, value: Value, pointer: Value) -> None:
        """Store floats."""
        if self.lanes is None:
            self.code.store(value, pointer, self.at)
        else:
            self.code.store_some(value, pointer, self.at, self.lanes)


def _each_vector(
    code: Code,
    vectors: Sequence[Value],
    count: Value,
    write: Callable[[_Lanes], None],
    kept: dict[Any, Value] | None = None,
) -> None:
    """Write a loop over a range of vectors of ``count`` floats, of which the last may be short.

    Whole vectors without a mask take half the time where masks have no registers.
    """
    (first, last), whole = vectors, code.whole(count, LANES)
    with code.each(first, code.lesser(last, whole), kept=kept) as vector:
        write(_Lanes(code, code.times(vector, _VECTOR), None))
    with code.each(code.greater(first, whole), last, kept=kept) as vector:
        rest = code.less(count, code.times(vector, LANES))
        write(_Lanes(code, code.times(vector, _VECTOR), code.first(rest)))


def _logistic(code: Code, x: Value) -> Value:
    """Return 1 / (1 + exp(-x))."""
    size = code.size_of(x)
    power = code.exponential(code.subtract(code.number(0.0), size))
    power = code.choose(code.above(size, code.number(_LEAST)), code.number(0.0), power)
    share = code.divide(code.number(1.0), code.add(power, code.number(1.0)))
    # Of negative numbers exp(x) / (1 + exp(x)), without overflow.
    return code.choose(code.above(x, code.number(0.0)), share, code.multiply(power, share))


def joint_sweep(arrays: int, numbers: int, steps: SweepSteps) -> Code:
    """Write a function of ``steps`` of arithmetic, one after the other for each element.

    A step is the name of a function of `SWEPT`, the place of its result and those of its operands:
    the first places are arrays, the next ones numbers, others are registers. Each operation is
    rounded as by NumPy. Its pointers: arrays, which are read and written once, and numbers. Its
    integers: the floats of an array, and the range of vectors.
    """
    told = "_".join(f"{name}{'_'.join(map(str, (out, *given)))}" for name, out, given in steps)
    code = Code(f"sweep_{arrays}_{numbers}_{told}", pointers=arrays + numbers, numbers=3)
    pointers, (count, *vectors) = code.arguments[: arrays + numbers], code.arguments[-3:]
    known = {k: code.all_of(pointers[k], 0) for k in range(arrays, arrays + numbers)}
    written = dict.fromkeys(out for _, out, _ in steps if out < arrays)

    def sweep(some: _Lanes) -> None:
        values = dict(known)
        for name, out, given in steps:
            for place in given:
                if place not in values:
                    values[place] = some.floats(pointers[place])
            values[out] = _swept(code, name, [values[place] for place in given])
        for place in written:
            some.store(values[place], pointers[place])

    _each_vector(code, vectors, count, sweep)
    return code


def _swept(code: Code, name: str, given: Sequence[Value]) -> Value:
    """Return NumPy's function ``name`` of vectors."""
    x, other, zero = given[0], given[-1], code.number(0.0)
    if name in ("maximum", "minimum"):
        above = code.above(x, other) if name == "maximum" else code.above(other, x)
        return code.choose(code.or_no_number(above, x), x, other)
    if name == "sign":
        # 0 is positive, and NaN remains.
        rest = code.choose(code.above(zero, x), code.number(-1.0), code.size_of(x))
        return code.choose(code.above(x, zero), code.number(1.0), rest)
    if name == "square":
        return code.multiply(x, x)
    if name in ("sqrt", "absolute"):
        return code.root(x) if name == "sqrt" else code.size_of(x)
    return getattr(code, name)(x, other)


def rotated() -> Code:
    """Write a function that rotates pairs i and i + m of a head's first 2 m floats.

    Its pointers: results and heads (rows, heads, floats), cosines and sines (steps, m). Its
    integers: steps, heads, floats of a head and m, both multiples of `LANES`, and the range of
    rows.
    """
    code = Code("rotated", pointers=4, numbers=6)
    y, x, cosines, sines, steps, heads, size, half, *rows = code.arguments
    with code.each(*rows) as row:
        turn = code.times(code.rest(row, steps), half, FLOAT)
        with code.each(0, heads) as head:
            start = code.times(code.sum(code.times(row, heads), head), size, FLOAT)
            with code.each(0, half, LANES) as pair:
                at = code.times(pair, FLOAT)
                one, other = code.sum(start, at), code.sum(start, at, code.times(half, FLOAT))
                a, b = code.floats(x, one), code.floats(x, other)
                cos, sin = (code.floats(each, code.sum(turn, at)) for each in (cosines, sines))
                code.store(code.subtract(code.multiply(a, cos), code.multiply(b, sin)), y, one)
                code.store(code.add(code.multiply(b, cos), code.multiply(a, sin)), y, other)
            with code.each(code.times(half, 2), size, LANES) as rest:
                at = code.sum(start, code.times(rest, FLOAT))
                code.store(code.floats(x, at), y, at)
    return code


def arithmetic(function: str, other: str) -> Code:
    """Write a function of results, rows and a second operand: a row's, all rows' or a number.

    ``function`` is "add" or "multiply", ``other`` "each", "row" or "number". Its integers: rows,
    the floats of a row, and the bits of the number.
    """
    code = Code(f"{function}_{other}", pointers=3, numbers=3)
    y, x, operand, rows, size, bits = code.arguments
    made = code.add if function == "add" else code.multiply
    with code.each(0, rows) as row:
        start = code.times(row, size, FLOAT)
        with code.each(0, size, LANES) as column:
            lanes = code.first(code.less(size, column))
            place = code.times(column, FLOAT)
            at = code.sum(start, place)
            if other == "number":
                some = code.held(bits)
            else:
                some = code.some_floats(operand, at if other == "each" else place, lanes)
            code.store_some(made(code.some_floats(x, at, lanes), some), y, at, lanes)
    return code
