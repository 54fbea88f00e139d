"""One input cut into several outputs."""

from __future__ import annotations

import itertools
from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class Slice(Layer):
    """The input cut at each of ``slice_point`` along ``axis``: n points give n + 1 outputs.

    ``axis`` counts the batch axis; it is at least 1.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: str,
        axis: int,
        slice_point: list[int],
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        given = [slice_point] if is_int(slice_point) else slice_point
        points: list[Any] = list(given) if isinstance(given, (list, tuple)) else []
        rising = all(is_int(p) for p in points) and sorted(set(points)) == points
        if not points or not rising or not is_int(axis):
            raise ArgumentError(
                f"layer {name!r}",
                expected="an axis of at least 1 and rising positive slice points",
                received=f"axis={axis}, slice_point={slice_point}",
                advice="slice_point=[2] cuts after the first two",
            )
        self.axis = axis
        self.slice_point = points

    def setup(self, in_shapes: Any) -> Shapes:
        """s → a list of sample shapes."""
        k = self.axis - 1
        fits = not isinstance(in_shapes, list) and k < len(in_shapes)
        if not fits or in_shapes[k] <= self.slice_point[-1]:
            raise self.shape_error(
                f"one input longer than {self.slice_point[-1]} along axis {self.axis},"
                " counted with the batch axis",
                str(in_shapes),
                "choose slice points inside the input",
            )
        bounds = [0, *self.slice_point, in_shapes[k]]
        return [
            (*in_shapes[:k], end - first, *in_shapes[k + 1 :])
            for first, end in itertools.pairwise(bounds)
        ]

    def forward(self, ctx: Context, x: Array) -> list[Array]:
        """Views of the input."""
        bounds = [0, *self.slice_point, x.shape[self.axis]]
        before = (slice(None),) * self.axis
        return [x[(*before, slice(first, end))] for first, end in itertools.pairwise(bounds)]

    def backward(self, ctx: Context, dy: list[Array]) -> tuple[Array, dict[str, Array]]:
        """The gradients laid end to end again."""
        return ctx.ops.concat(dy, self.axis), {}
