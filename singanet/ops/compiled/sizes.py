"""Define sizes that compiled functions share with their callers; LLVM is not needed here."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

LANES = 16
"""Numbers of a vector: 512 bits of floats, which a compiler may split among smaller registers."""
FLOAT = 4
"""Bytes of a float."""
TILE_GROUP = 24
"""Tiles that are multiplied together: a multiple of all row counts of products."""
GROUP = 64
"""Floats processed together; a row's length is a multiple."""
BLOCK = 32
"""Rows with partial sums of their own, so that sums stay short and in a near cache."""
FORWARD, BACKWARD = 3, 5
"""Vectors repeated along a row by a kernel, for the channel at each place."""
TOGETHER = 4, 2, 1
"""Vectors of a line of a matrix that a turn of a loop over few rows may read."""
ROWS = 16
"""Rows up to which a product's time goes into reading a narrow matrix."""
SUMS = 4
"""Pixels of a line, or channels of a group, whose sums are in registers."""
COPIED, READ = 256, 2048
"""Pixels of outputs that are copied together, and vectors of the images that they read."""
OUTPUTS = 4
"""Outputs of a transposed matrix that are summed together."""
_LEAST_PART = 1 << 16
"""Least floats of a part: some 20 microseconds."""


class Rows(NamedTuple):
    """The layout of pixels: ``rows`` of ``width`` floats, and a shorter ``tail``.

    Each place of a row has one channel. The rows are divided into ``parts`` by sizes alone, so that
    results do not depend on threads.
    """

    channels: int
    width: int
    rows: int
    tail: int
    parts: int

    def scratch(self, repeated: int) -> int:
        """Return the bytes for two sums of each part, and ``repeated`` vectors along a row.

        Whole vectors read the last sums, and end within the repeated ones.
        """
        return 4 * self.width * (2 * self.parts + repeated)


def rows_of(pixels: int, channels: int) -> Rows:
    """Return the rows of ``pixels`` pixels."""
    width = lcm(channels, GROUP)
    rows, tail = divmod(pixels * channels, width)
    parts = rows // max(BLOCK, _LEAST_PART // width)
    return Rows(channels, width, rows, tail, max(parts, 1))
