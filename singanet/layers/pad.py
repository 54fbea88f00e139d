"""Samples with a border, or without theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.layers.arguments import expect_int, expect_one_input, expect_one_of
from singanet.layers.context import Context
from singanet.layers.geometry import expect_pads
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shape, Shapes

MODES = ("constant", "reflect", "replicate", "circular")


class Pad(Layer):
    """A border around the last axes of each sample.

    It is of ``value``, or with the ``mode`` 'reflect' the elements next to the edge mirrored in it,
    with 'replicate' the edge, with 'circular' those at the other end.

    ``pad`` is an int, for both sides of every axis behind the channels (of the only axis, if
    there is one), or a sequence with an entry for each of the last axes: an int for both sides, or
    (before, after). An image takes 1, (1, 2) for height and width, or ((0, 1), (0, 1)).
    """

    def __init__(
        self,
        name: str,
        pad: int | Sequence[int | tuple[int, int]],
        value: float = 0.0,
        input_sample_shape: GivenShape | None = None,
        *,
        mode: str = "constant",
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.mode = expect_one_of(name, "mode", mode, MODES)
        self.every_axis = not isinstance(pad, (tuple, list))
        self.pads = list(expect_pads(name, pad))
        self.value = value

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape with each padded axis longer by both sides."""
        shape = expect_one_input(self, in_shapes)
        if len(shape) < max(1, len(self.pads)):
            raise self.shape_error(
                f"samples of at least {len(self.pads)} axes",
                f"sample shape {shape}",
                "give pad an entry for each of the last axes",
            )
        pads = self._by_axis(len(shape))
        expect_repeated(self, self.mode, shape, pads)
        return tuple(size + sum(ends) for size, ends in zip(shape, pads, strict=True))

    def _by_axis(self, rank: int) -> list[tuple[int, int]]:
        """(before, after) for each axis of a sample."""
        pads = self.pads * max(1, rank - 1) if self.every_axis else self.pads
        return [(0, 0)] * (rank - len(pads)) + pads

    def forward(self, ctx: Context, x: Array) -> Array:
        """The padded samples; keeps no array."""
        return ctx.ops.pad(x, [(0, 0), *self._by_axis(x.ndim - 1)], self.value, self.mode)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The inside of ``dy``, of a constant border as a view."""
        return ctx.ops.pad_backward(dy, [(0, 0), *self._by_axis(dy.ndim - 1)], self.mode), {}


class EndPadding(Pad):
    """``pad`` rows below and columns to the right of (C, H, W) images, of ``value``.

    Before pooling of kernel 3 and stride 2 without padding it makes the output size round up, as
    Caffe's GoogLeNet needs. Behind a relu the zeros never win a maximum; else pass
    ``value=-inf`` for max pooling.
    """

    def __init__(
        self,
        name: str,
        pad: int = 1,
        value: float = 0.0,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        end = (0, expect_int(name, "pad", pad, least=0))
        super().__init__(name, (end, end), value, input_sample_shape)


def expect_repeated(layer: Layer, mode: str, shape: Shape, pads: Sequence[tuple[int, int]]) -> None:
    """Refuse borders that would repeat more than there is of samples of ``shape``."""
    most = {"reflect": [size - 1 for size in shape], "circular": shape}.get(mode)
    if most is not None and any(max(ends) > n for ends, n in zip(pads, most, strict=True)):
        raise layer.shape_error(
            f"samples that have as much to repeat as the border by {mode!r}, {pads}",
            f"sample shape {shape}",
            "use a smaller border, or 'replicate'",
        )


class Cropping(Layer):
    """The last axes of each sample without ``crop`` elements at either end: `Pad` undone.

    ``crop`` is given as the ``pad`` of `Pad`.
    """

    traits = Traits(moves_only=True)

    def __init__(
        self,
        name: str,
        crop: int | Sequence[int | tuple[int, int]],
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self._pad = Pad(name, crop)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape with each cropped axis shorter by both sides."""
        shape = expect_one_input(self, in_shapes)
        self._pad.setup(shape)
        ends = self._pad._by_axis(len(shape))
        left = tuple(size - sum(pads) for size, pads in zip(shape, ends, strict=True))
        if min(left) < 1:
            raise self.shape_error(
                f"samples from which {ends} elements can be cropped, axis by axis",
                f"sample shape {shape}",
                "crop less",
            )
        return left

    def forward(self, ctx: Context, x: Array) -> Array:
        """The inside, as a view."""
        sizes: Any = self.out_shapes
        inside = [
            slice(before, before + size)
            for (before, _), size in zip(self._pad._by_axis(x.ndim - 1), sizes, strict=True)
        ]
        return x[(slice(None), *inside)]

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` with a border of zeros."""
        return ctx.ops.pad(dy, [(0, 0), *self._pad._by_axis(dy.ndim - 1)], 0.0), {}
