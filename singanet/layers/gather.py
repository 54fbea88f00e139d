"""Elements picked along an axis: the same in all samples, or by an input of indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError, DataError
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShapes, Shapes


class Gather(Layer):
    """The elements of x at ``indices`` along ``axis``, which counts the batch axis.

    They are the same for all samples, as in ``a[:, [0, 2]]`` of a symbol. Without them a second
    input of whole numbers has each sample's own, as `numpy.take_along_axis` and ``torch.gather``
    take them: it has as many axes as x, and both spread over each other's extents of 1. Negative
    ones count from the end. Where an element is taken twice its gradients are added.
    """

    traits = Traits(input_kinds=("any", "integers"), moves_only=True)

    def __init__(
        self,
        name: str,
        axis: int = 1,
        indices: Sequence[int] | None = None,
        input_sample_shape: GivenShapes | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        listed = [] if indices is None else [*indices]
        whole = all(is_int(k, -(2**62)) for k in listed) and (indices is None or listed)
        if not whole or not is_int(axis, -99) or axis == 0:
            raise ArgumentError(
                f"layer {name!r}",
                expected="an axis of the sample, counted from 1 or -1, and whole numbers",
                received=f"axis={axis!r}, indices={indices!r}",
                advice="axis 0 is the batch; without indices a second input has them",
            )
        self.axis = axis
        self.indices = None if indices is None else listed

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s, and that of the indices → s with as many elements along the axis."""
        of_samples = self.indices is None
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        rank = len(shapes[0])
        at = self._at(rank + 1) - 1
        constant = [len(self.indices or ()) if k == at else 1 for k in range(rank)]
        taken = shapes[-1] if of_samples else tuple(constant)
        pairs = [{1, *p} for k, p in enumerate(zip(shapes[0], taken, strict=False)) if k != at]
        if (
            len(shapes) != 1 + of_samples
            or not 0 <= at < rank == len(taken)
            or any(len(extents) > 2 for extents in pairs)
        ):
            raise self.shape_error(
                f"an input with an axis {self.axis}"
                + ", and indices of as many axes, which agree or are 1" * of_samples,
                f"{in_shapes}",
                "give the argument indices, or a second input; Reshape adds axes of extent 1",
            )
        if not of_samples:
            self._expect_within(shapes[0][at], np.array(self.indices))
        return tuple(taken[k] if k == at else max(shapes[0][k], taken[k]) for k in range(rank))

    def _at(self, rank: int) -> int:
        return self.axis if self.axis > 0 else rank + self.axis

    def _places(self, ctx: Context, x: Array, *indices: Array) -> tuple[Any, ...]:
        """The index by which y is a part of x."""
        at, xp = self._at(x.ndim), ctx.ops.xp
        if not indices:
            return (*(slice(None) for _ in range(at)), xp.asarray(self.indices))
        if indices[0].dtype.kind not in "iu":
            raise DataError(
                f"layer {self.name!r}, input 1",
                expected="whole numbers, the indices",
                received=f"an array of type {indices[0].dtype}",
                advice="feed integers, or draw Cast('indices', 'int64')",
            )
        ctx.ops.check(partial(self._expect_within, x.shape[at]), indices[0])
        ones = [(1,) * k + (-1,) + (1,) * (x.ndim - 1 - k) for k in range(x.ndim)]
        every = [xp.arange(size).reshape(ones[k]) for k, size in enumerate(x.shape)]
        return (*every[:at], indices[0], *every[at + 1 :])

    def _expect_within(self, size: int, indices: Array) -> None:
        if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:
            raise DataError(
                f"layer {self.name!r}",
                expected=f"indices from 0 to {size - 1}, or negative to count from the end",
                received=f"from {int(indices.min())} to {int(indices.max())}",
                advice="the axis counts the batch: 1 is the first of the sample",
            )

    def forward(self, ctx: Context, x: Any) -> Array:
        """The elements; their places are kept."""
        x, *indices = x if isinstance(x, list) else [x]
        places = self._places(ctx, x, *indices)
        ctx.save(places=places, shape=x.shape, given=len(indices))
        # What NumPy makes of slices beside indices lies in memory in another order.
        return x[places] if indices else x.take(places[-1], axis=len(places) - 1)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """``dy`` added up at the places; none for the indices."""
        dx = ctx.ops.zeros(ctx.saved["shape"], dy)
        ctx.ops.xp.add.at(dx, ctx.saved["places"], dy)
        return [dx, None] if ctx.saved["given"] else dx, {}
