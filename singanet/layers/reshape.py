"""Samples in another shape, or with their axes in another order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class Reshape(Layer):
    """The elements of each sample, in row-major order, in ``shape``; one extent may be -1.

    Where samples have an axis of any extent, that -1 stands for it.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self, name: str, shape: Sequence[int], input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        good = all(is_int(extent) or (is_int(extent, -1) and extent != 0) for extent in extents)
        if not good or extents.count(-1) > 1:
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="positive ints, of which one may be -1 for what remains",
                received=repr(shape),
                advice="leave the batch axis out",
            )
        self.shape = tuple(int(extent) for extent in extents)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → ``shape``, of as many elements."""
        given = expect_one_input(self, in_shapes)
        known = prod(extent for extent in self.shape if extent != -1)
        if -1 in given:
            if (given.count(-1), self.shape.count(-1), -known) != (1, 1, prod(given)):
                raise self.shape_error(
                    "samples with at most one axis of any extent, which -1 stands for"
                    f" in {self.shape} among as many elements as beside it",
                    f"sample shape {given}",
                    "keep that axis, or give it an extent",
                )
            return self.shape
        count = prod(given)
        if count % known or (-1 not in self.shape and count != known):
            raise self.shape_error(
                f"samples whose elements fill the shape {self.shape}",
                f"sample shape {given} of {count} elements",
                "use -1 for one extent",
            )
        return tuple(count // known if extent == -1 else extent for extent in self.shape)

    def forward(self, ctx: Context, x: Array) -> Array:
        """A view where memory allows."""
        ctx.save(x_shape=x.shape)
        shape: Any = self.out_shapes
        return x.reshape(len(x), *shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}


class Flatten(Layer):
    """Folds the axes from ``axis`` on into one; ``axis`` counts the batch axis.

    With 1, the default, each sample becomes one row. With a larger axis the axes before it fold
    into the batch, as in SINGA: axis 2 turns (N, 64, 12) into (N·64, 12).
    """

    traits = Traits(moves_only=True)

    def __init__(
        self, name: str, axis: int = 1, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.axis = expect_int(
            name, "axis", axis, advice="axis 0 is the batch: use axis=1 to flatten each sample"
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """s → (∏ s[axis-1:],); a sample of no axes is a row of one."""
        if isinstance(in_shapes, list) or max(len(in_shapes), 1) < self.axis:
            raise self.shape_error(
                f"one input with at least {self.axis} sample axes",
                str(in_shapes),
                "use axis=1 to flatten each sample",
            )
        return (prod(in_shapes[self.axis - 1 :]),)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The same elements in row-major order of the sample."""
        ctx.save(x_shape=x.shape)
        return x.reshape(prod(x.shape[: self.axis]), prod(x.shape[self.axis :]))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}


class Permute(Layer):
    """Axis k of the output is axis ``axes[k - 1]`` of the input; both count the batch axis.

    As in Keras, ``axes=(2, 1)`` transposes samples of two axes; the batch axis stays in front.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self, name: str, axes: Sequence[int], input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        several = isinstance(axes, (tuple, list)) and all(is_int(axis) for axis in axes)
        if not several or sorted(axes) != list(range(1, len(axes) + 1)):
            raise ArgumentError(
                f"layer {name!r}, argument axes",
                expected="each of the sample's axes 1, 2, ... once",
                received=repr(axes),
                advice="use (2, 1) to transpose; axis 0, the batch, is left out",
            )
        self.axes = tuple(int(axis) for axis in axes)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → its extents in the order of ``axes``."""
        shape = self.expect_rank(
            in_shapes, len(self.axes), f"of {len(self.axes)} axes", "name each axis once in axes"
        )
        return tuple(shape[axis - 1] for axis in self.axes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """A view."""
        return x.transpose(0, *self.axes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` with the axes back in their places, as a view."""
        back = [self.axes.index(axis) + 1 for axis in range(1, len(self.axes) + 1)]
        return dy.transpose(0, *back), {}
