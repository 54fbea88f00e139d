"""Inputs laid end to end along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shape, Shapes


class Concat(Layer):
    """The inputs one after the other along ``axis``, which counts the batch axis.

    Axis 0 stacks batches; axis 1 is the first axis of the sample, the channels of an image. Behind
    it, where steps are joined with steps, a mask of theirs goes on.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self, name: str, axis: int, input_sample_shapes: Sequence[GivenShape] | None = None
    ) -> None:
        super().__init__(name, input_sample_shapes)
        self.axis = expect_int(
            name, "axis", axis, least=0, advice="axis=1 joins along the first axis of the samples"
        )
        if self.axis == 0:
            self.traits = replace(self.traits, samples="stacked")
        elif self.axis > 1:
            self.traits = replace(self.traits, masks="keeps")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes that agree but for ``axis`` → one."""
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        k = self.axis - 1
        self._expect_fit(shapes)
        if self.axis == 0:
            return shapes[0]
        joined = [shape[k] for shape in shapes]
        return (*shapes[0][:k], -1 if -1 in joined else sum(joined), *shapes[0][k + 1 :])

    def _expect_fit(self, shapes: Sequence[Shape]) -> None:
        rank = len(shapes[0]) if shapes else -1
        rests = {(*shape[: max(self.axis - 1, 0)], *shape[self.axis :]) for shape in shapes}
        if self.axis > rank or any(len(s) != rank for s in shapes) or len(rests) > 1:
            raise self.shape_error(
                f"inputs that have the axis {self.axis}, counted with the batch axis,"
                " and agree on all others",
                str(shapes),
                "axis=1 joins along the first axis of the samples",
            )

    def forward(self, ctx: Context, x: Sequence[Array] | Array) -> Array:
        """One array; the extents of the inputs are kept."""
        parts: list[Any] = list(x) if isinstance(x, (list, tuple)) else [x]
        self._expect_fit([part.shape[1:] for part in parts])
        ctx.save(extents=[part.shape[self.axis] for part in parts])
        return ctx.ops.concat(parts, self.axis)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """The part of ``dy`` that belongs to each input, as views."""
        ends = list(accumulate(ctx.saved["extents"]))
        before = (slice(None),) * self.axis
        parts = [
            dy[(*before, slice(first, end))] for first, end in zip([0, *ends], ends, strict=False)
        ]
        return (parts if len(parts) > 1 else parts[0]), {}
