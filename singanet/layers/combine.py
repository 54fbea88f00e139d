"""What the layers share that combine several inputs element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Combine(Layer):
    """At least two inputs of one shape, or with extents of 1 that spread over the others'.

    A gate of shape (C, 1, 1) so multiplies every position of a (C, H, W) image.
    """

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        several = isinstance(in_shapes, list) and len(in_shapes) > 1
        if not several or len({len(shape) for shape in in_shapes}) > 1:
            raise self._unequal(in_shapes)
        extents = [set(axis) - {1} for axis in zip(*in_shapes, strict=True)]
        if any(len(sizes) > 1 for sizes in extents):
            raise self._unequal(in_shapes)
        return tuple(sizes.pop() if sizes else 1 for sizes in extents)

    def _unequal(self, in_shapes: Any) -> Exception:
        return self.shape_error(
            "at least two inputs whose sample shapes agree, or are 1 where they differ",
            str(in_shapes),
            "pass src=[layer, layer] whose output shapes agree; Reshape adds axes of extent 1",
        )

    def combined(self, ctx: Context, mode: str, x: Sequence[Array]) -> Array:
        """The inputs combined by ``mode``; an error where their batches differ."""
        sizes = [len(part) for part in x]
        if len(set(sizes)) > 1:
            raise self.shape_error("inputs of one batch size", f"{sizes}", "feed equal batches")
        shape: Any = self.out_shapes
        return ctx.ops.combine(mode, x, (sizes[0], *shape), ctx.relu)

    @staticmethod
    def spread_back(ctx: Context, dy: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        """The gradient of each input, summed over the positions it was spread to."""
        return [ctx.ops.sum_to(part, shape) for part, shape in zip(dy, shapes, strict=True)]
