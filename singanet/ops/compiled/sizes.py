"""Sizes that callers of compiled functions share with what writes these; no LLVM is needed here.

Each place of a row has one channel.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

LANES = 16
"""Numbers of a vector: 512 bits of floats, of which a compiler makes several registers of less."""
FLOAT = 4
"""Bytes of a float."""
TILE_GROUP = 24
"""Tiles that are multiplied together: all numbers of rows of a product go into it."""
GROUP = 64
"""Floats that are gone over together, of which a row has a multiple."""
BLOCK = 32
"""Rows that are summed up by themselves, so that sums stay short and lie in a near cache."""
FORWARD, BACKWARD = 3, 5
"""Vectors that a kernel has repeated along a row, to have at each place what its channel has."""
_LEAST_PART = 1 << 16
"""Floats that are not shared: some 20 microseconds."""


class Rows(NamedTuple):
    """How pixels lie: ``rows`` of ``width`` floats, and a ``tail`` of less.

    The rows are cut into ``parts``, by sizes alone, so that no bit depends on who computes them.
    """

    channels: int
    width: int
    rows: int
    tail: int
    parts: int

    def scratch(self, repeated: int) -> int:
        """Bytes for two sums of each part, and for so many vectors repeated along a row.

        The last sums are read by whole vectors, which end within what follows.
        """
        return 4 * self.width * (2 * self.parts + repeated)


def rows_of(pixels: int, channels: int) -> Rows:
    """The rows of so many pixels."""
    width = lcm(channels, GROUP)
    rows, tail = divmod(pixels * channels, width)
    parts = rows // max(BLOCK, _LEAST_PART // width)
    return Rows(channels, width, rows, tail, max(parts, 1))
