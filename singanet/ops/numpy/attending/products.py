"""The products of attention's blocks, as a backend may have its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from singanet.ops.interface import Ops
from singanet.ops.numpy.attending.blocks import WorkingMemory
from singanet.types import Array


class BlockProducts:
    """Products of stacks (a, b, ·, ·), in one thread beside ``others`` of ours."""

    rounds: ClassVar[bool] = False
    """Whether factors are rounded, so that what must not be is added apart."""

    def __init__(self, ops: Ops, memory: WorkingMemory, others: bool) -> None:
        self.ops, self.memory, self.others = ops, memory, others

    @classmethod
    def sizes(cls, sizes: Mapping[str, int]) -> dict[str, int]:
        """The parts of working memory, with what factors need beside."""
        return dict(sizes)

    def factor(self, name: str, array: Array) -> Array:
        """``array``, which lies in the part ``name`` of working memory, as it is multiplied."""
        return array

    def __call__(self, x: Array, y: Array, out: Array) -> None:
        """Put the product of two factors into ``out``."""
        # A single block, and one beside other threads, is NumPy's, in one thread.
        if self.others or x.shape[:2] == (1, 1):
            self.ops.xp.matmul(x, y, out=out)
        else:
            self.ops.matmul(x, y, out=out)
