"""Images brought into channels-last memory by oneDNN's reorder, which uses all threads."""

from __future__ import annotations

import numpy as np

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 1 << 13


class OneDnnImages(OneDnnBase):
    """Every image kernel takes its images through this, NumPy's too."""

    def channels_last(self, x: Array) -> Array:
        """See `NumpyOps`."""
        # With one channel, or one pixel, both orders are the same memory.
        if x.size >= _LEAST and x.flags.c_contiguous and x.ndim == 4 and 1 < x.shape[1] < x.size:
            n, c, h, w = x.shape
            if self.serves(_LEAST, x):
                y: Array = self.xp.empty((n, h, w, c), np.float32)
                if self.runs(_reorder, (n, c, h, w), x, y):
                    return y
        return super().channels_last(x)


def _reorder(build: Builder, n: int, c: int, h: int, w: int) -> None:
    shape: Shape = (n, h, w, c)
    source, target = build.rows((n, c, h, w)), build.images(shape)
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))
