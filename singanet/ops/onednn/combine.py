"""Sums of two arrays by oneDNN, which share its threads."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.onednn.base import in_order, is_dense
from singanet.ops.onednn.binding import Algorithm, Arg
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.eltwise import OneDnnActivations
from singanet.types import Array, Shape

_LEAST = 1 << 16
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py."""


class OneDnnCombining(OneDnnActivations):
    """Two arrays of one shape in one memory order; others are NumPy's."""

    def combine(
        self, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
    ) -> Array:
        """See `NumpyOps`; the relu is done by the same kernel."""
        if mode == "add" and len(arrays) == 2 and self.serves(_LEAST, *arrays):
            a = arrays[0]
            b = arrays[1]
            if a.shape == b.shape and is_dense(a):
                b = b if b.strides == a.strides else self._like(b, a)
                y: Array = self.xp.empty_like(a)
                if self.runs(_sum, (a.size, relu), y, a, b):
                    for given in (a, b) if relu else ():
                        self.show_nan(in_order(y), in_order(given))
                    return y
        return super().combine(mode, arrays, shape, relu)


def _sum(build: Builder, size: int, relu: bool) -> None:
    line = build.rows((size,))
    attributes = build.post_ops(relu=True) if relu else None
    desc = build.primitive_desc(
        "binary", int(Algorithm.BINARY_ADD), line, line, line, attributes=attributes
    )
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.SRC_1), [line] * 3))
