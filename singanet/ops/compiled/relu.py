"""The relu of an array or of the sum of two, which keeps NaN."""

from __future__ import annotations

from singanet.ops.compiled.code import Code
from singanet.ops.compiled.sizes import FLOAT, LANES

BLOCK = 1 << 12
"""Floats that go together."""


def relu_of(terms: int) -> Code:
    """A function of y and one or two ``terms``; of the size, and the blocks from first to last.

    The arrays lie without gaps, each element where it is in the others.
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
