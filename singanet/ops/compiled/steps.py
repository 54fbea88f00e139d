"""Write functions of the arithmetic between the products of few rows."""

from __future__ import annotations

from singanet.ops.compiled.code import Code
from singanet.ops.compiled.sizes import FLOAT, LANES

_VECTOR = FLOAT * LANES
_LEAST = 87.0
"""From here on exp(-x) counts as 0."""


def unit_rows() -> Code:
    """Write a function of rows over the roots of their sums of squares.

    Its pointers: results, inverse roots, rows. Its integers: rows, the floats of a row, the bits of
    the number that is added to each sum.
    """
    code = Code("unit_rows", pointers=3, numbers=3)
    y, inverses, x, rows, size, epsilon = code.arguments
    with code.each(0, rows) as row:
        start = code.times(row, size, FLOAT)
        sums = {0: code.number(0.0)}
        with code.each(0, size, LANES, sums) as column:
            lanes = code.first(code.less(size, column))
            some = code.some_floats(x, code.sum(start, code.times(column, FLOAT)), lanes)
            sums[0] = code.add_product(sums[0], some, some)
        total = code.add(code.total(sums[0]), code.held(epsilon))
        inverse = code.divide(code.number(1.0), code.root(total))
        code.store_some(inverse, inverses, code.times(row, FLOAT), code.first(1))
        with code.each(0, size, LANES) as column:
            lanes = code.first(code.less(size, column))
            at = code.sum(start, code.times(column, FLOAT))
            code.store_some(code.multiply(code.some_floats(x, at, lanes), inverse), y, at, lanes)
    return code


def silu() -> Code:
    """Write a function of x / (1 + exp(-x)): results, arguments; how many."""
    code = Code("silu", pointers=2, numbers=1)
    y, x, count = code.arguments
    with code.each(0, count, LANES) as place:
        at, lanes = code.times(place, FLOAT), code.first(code.less(count, place))
        some = code.some_floats(x, at, lanes)
        size = code.size_of(some)
        power = code.exponential(code.subtract(code.number(0.0), size))
        power = code.choose(code.above(size, code.number(_LEAST)), code.number(0.0), power)
        share = code.divide(code.number(1.0), code.add(power, code.number(1.0)))
        # Of negative numbers exp(x) / (1 + exp(x)), without overflow.
        positive = code.above(some, code.number(0.0))
        share = code.choose(positive, share, code.multiply(power, share))
        # Infinity times 0 is no number.
        finite = code.at_least(some, code.number(-3.4028234e38))
        code.store_some(code.multiply(finite, share), y, at, lanes)
    return code


def rotated() -> Code:
    """Write a function that rotates pairs i and i + m of a head's first 2 m floats.

    Its pointers: results and heads (rows, heads, floats), cosines and sines (steps, m). Its
    integers: rows, steps, heads, floats of a head and m; the last two are multiples of `LANES`.
    """
    code = Code("rotated", pointers=4, numbers=5)
    y, x, cosines, sines, rows, steps, heads, size, half = code.arguments
    with code.each(0, rows) as row:
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
