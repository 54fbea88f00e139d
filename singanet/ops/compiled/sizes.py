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
PIXELS = 4
"""Pixels of a line, or channels of a group, whose sums are in registers."""
COPIED, READ = 256, 2048
"""Pixels of outputs that are copied together, and vectors of the images that they read."""
OUTPUTS = 4
"""Outputs of a transposed matrix that are summed together."""
SWEPT = frozenset((
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "sqrt", "absolute", "square",
    "sign",
))  # fmt: skip
"""NumPy's functions of float32 that a compiled sweep has."""
_LEAST_PART = 1 << 16
"""Least floats of a part: some 20 microseconds."""


SUMS = 6
"""Rows of a product of attention whose sums stay in registers."""
SCORE_QUERIES, SCORE_KEYS = 48, 192
"""Queries and keys of a block of scores: multiples of `SUMS`, and the keys of a panel."""


class Scores(NamedTuple):
    """The extents of attention of a sample and a head of keys.

    Keys and values lie in panels; ``size`` and ``width`` are their features.
    """

    keys: int
    size: int
    width: int

    @staticmethod
    def panel(wide: bool) -> int:
        """Return the keys of a panel; ``wide`` is for 32 registers of a vector's size."""
        return LANES * (4 if wide else 1)

    def forward(self, wide: bool) -> int:
        """Return the bytes of panels of keys and values."""
        return FLOAT * (self._turned(wide) * self.size + self.keys * self.width)

    def backward(self, wide: bool) -> int:
        """Return the bytes of panels of keys, values and keys again."""
        turned = self._turned(wide) * (self.size + self.width)
        return FLOAT * (turned + self.keys * self.size)

    @property
    def sums(self) -> int:
        """Return the bytes of the sums of the gradients of keys and values."""
        rows = (self.keys + 2 * SCORE_KEYS - 1) // SCORE_KEYS * SCORE_KEYS
        return FLOAT * rows * (self.size + self.width)

    def _turned(self, wide: bool) -> int:
        panel = self.panel(wide)
        return -(-self.keys // panel) * panel


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
