"""Samples with a border, or without theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Pad(Layer):
    """A border of ``value`` around the last axes of each sample.

    ``pad`` is an int, for both sides of every axis behind the channels (of the only axis, if
    there is one), or a sequence with an entry for each of the last axes: an int for both sides, or
    (before, after). An image takes 1, (1, 2) for height and width, or ((0, 1), (0, 1)).
    """

    def __init__(
        self,
        name: str,
        pad: int | Sequence[int | tuple[int, int]],
        value: float = 0.0,
        input_sample_shape: Shape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        entries = list(pad) if isinstance(pad, (tuple, list)) else [pad]
        pairs = [entry if isinstance(entry, (tuple, list)) else (entry, entry) for entry in entries]
        if not pairs or any(len(p) != 2 or not all(is_int(k, 0) for k in p) for p in pairs):
            raise ArgumentError(
                f"layer {name!r}, argument pad",
                expected="an int, or ints or pairs of ints of at least 0, one for each axis",
                received=repr(pad),
                advice="pass for example pad=1, or pad=((0, 1), (0, 1)) for height and width",
            )
        self.every_axis = not isinstance(pad, (tuple, list))
        self.pads = [(int(before), int(after)) for before, after in pairs]
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
        return tuple(
            size + sum(pads) for size, pads in zip(shape, self._by_axis(len(shape)), strict=True)
        )

    def _by_axis(self, rank: int) -> list[tuple[int, int]]:
        """(before, after) for each axis of a sample."""
        pads = self.pads * max(1, rank - 1) if self.every_axis else self.pads
        return [(0, 0)] * (rank - len(pads)) + pads

    def forward(self, ctx: Context, x: Array) -> Array:
        """The padded samples; keeps no array."""
        ctx.save(sizes=x.shape[1:])
        return ctx.ops.pad(x, [(0, 0), *self._by_axis(x.ndim - 1)], self.value)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The inside of ``dy``, as a view."""
        sizes = ctx.saved["sizes"]
        inside = [
            slice(before, before + size)
            for (before, _), size in zip(self._by_axis(len(sizes)), sizes, strict=True)
        ]
        return dy[(slice(None), *inside)], {}


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
        input_sample_shape: Shape | None = None,
    ) -> None:
        end = (0, expect_int(name, "pad", pad, least=0))
        super().__init__(name, (end, end), value, input_sample_shape)


class Cropping(Layer):
    """The last axes of each sample without ``crop`` elements at either end: `Pad` undone.

    ``crop`` is given as the ``pad`` of `Pad`.
    """

    moves_only = True

    def __init__(
        self,
        name: str,
        crop: int | Sequence[int | tuple[int, int]],
        input_sample_shape: Shape | None = None,
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
