"""Where the largest or smallest elements are."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class TopIndices(Layer):
    """The indices of the ``k`` largest elements along ``axis``, which counts the batch axis.

    They begin with the largest, or with ``largest=False`` the smallest; of equal ones the first
    comes first. `Gather` with the same axis takes the elements at them, with their gradients:
    both are ``torch.topk``.
    """

    traits = Traits(gives_integers=True, stops_gradient=True)

    def __init__(
        self,
        name: str,
        k: int = 1,
        axis: int = -1,
        largest: bool = True,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.k = expect_int(name, "k", k)
        if not is_int(axis, -99) or axis == 0:
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="an axis of the sample, counted from 1 or -1",
                received=repr(axis),
                advice="axis 0 is the batch",
            )
        self.axis, self.largest = axis, bool(largest)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → s with k elements along the axis."""
        shape = expect_one_input(self, in_shapes)
        at = self._at(len(shape) + 1) - 1
        if not 0 <= at < len(shape) or shape[at] < self.k:
            raise self.shape_error(
                f"samples with at least k={self.k} elements along axis {self.axis}",
                f"sample shape {shape}",
                "the axis counts the batch: 1 is the first of the sample",
            )
        return (*shape[:at], self.k, *shape[at + 1 :])

    def _at(self, rank: int) -> int:
        return self.axis if self.axis > 0 else rank + self.axis

    def forward(self, ctx: Context, x: Array) -> Array:
        """int64; nothing is kept."""
        at = self._at(x.ndim)
        if self.k == 1:
            first = x.argmax(at) if self.largest else x.argmin(at)
            return first.reshape(*x.shape[:at], 1, *x.shape[at + 1 :])
        xp = ctx.ops.xp
        found: Array = xp.argsort(xp.negative(x) if self.largest else x, axis=at, kind="stable")
        return found[(*(slice(None),) * at, slice(self.k))]

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """None."""
        return None, {}
