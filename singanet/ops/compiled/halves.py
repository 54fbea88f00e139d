"""Arrays of float16 as float32 and back, by the processor's own instructions."""

from __future__ import annotations

from singanet.ops.compiled.code import Code
from singanet.ops.compiled.sizes import FLOAT, LANES


def cast(narrows: bool) -> Code:
    """A function that writes the floats at a pointer as float16 at another, or the reverse.

    Its pointers: the source and the target. Its number: how many, a multiple of `LANES`.
    """
    code = Code(f"halves_{narrows}", pointers=2, numbers=1)
    source, target, count = code.arguments
    with code.each(0, count, LANES) as number:
        narrow, wide = code.times(number, FLOAT // 2), code.times(number, FLOAT)
        if narrows:
            code.store_halves(code.floats(source, wide), target, narrow)
        else:
            code.store(code.halves(source, narrow, converts=True), target, wide)
    return code
