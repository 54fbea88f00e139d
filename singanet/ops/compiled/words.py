"""Few rows times words of bfloat16."""

from __future__ import annotations

from singanet.ops.compiled.code import Code
from singanet.ops.compiled.sizes import LANES
from singanet.ops.held import PANEL

_VECTORS = range(PANEL // LANES)
_VECTOR = 4 * LANES
"""Bytes of a vector."""
_PAIR = 4 * PANEL
"""Bytes of two inputs of a panel."""
_AT_A_TIME = 4
"""Pairs of inputs, of which there is a multiple of 16."""


def product(rows: int) -> Code:
    """A function of words, rows and products; of pairs, panels, the first panel, one past the last.

    The words are those of a `Bfloat16Matrix`. Rows have two floats a pair of inputs,
    products 64 a panel.
    """
    code = Code(f"words_{rows}", pointers=3, numbers=4)
    words, x, y, pairs, panels, first, last = code.arguments
    places = [(row, vector) for row in range(rows) for vector in _VECTORS]
    with code.each(first, last) as panel:
        # Even inputs and odd ones: of two chains of sums one goes on while the other waits.
        sums = {(place, odd): code.number(0.0) for place in places for odd in (0, 1)}
        with code.each(0, pairs, _AT_A_TIME, sums) as some:
            for ahead in range(_AT_A_TIME):
                pair = code.sum(some, ahead)
                at = code.times(code.sum(code.times(panel, pairs), pair), _PAIR)
                code.fetch(words, at, _PAIR)
                both = [code.ints(words, code.sum(at, _VECTOR * vector)) for vector in _VECTORS]
                for row, vector in places:
                    number = code.times(code.sum(code.times(row, pairs), pair), 8)
                    for odd, half in enumerate((code.lower, code.upper)):
                        one = code.all_of(x, code.sum(number, 4 * odd))
                        key = (row, vector), odd
                        sums[key] = code.add_product(sums[key], one, half(both[vector]))
        for row, vector in places:
            at = code.times(code.sum(code.times(row, panels), panel), _PAIR)
            total = code.add(sums[(row, vector), 0], sums[(row, vector), 1])
            code.store(total, y, code.sum(at, _VECTOR * vector))
    return code
