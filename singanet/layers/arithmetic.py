"""Powers, bounds and parts of one input: with `joins` and `Scale` what symbols compute with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes

Range: TypeAlias = tuple[int | None, int | None, int | None]


class Power(Layer):
    """y = x^``exponent``; for an exponent that is no whole number x must not be negative."""

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self, name: str, exponent: float, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not is_number(exponent):
            raise ArgumentError(
                f"layer {name!r}, argument exponent",
                expected="a finite number",
                received=repr(exponent),
                advice="use 2 for squares, 0.5 for roots",
            )
        self.exponent = float(exponent)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The power of ``x``, which is kept."""
        ctx.save(x=x)
        return ctx.ops.power(x, self.exponent)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` p x^(p − 1)."""
        if self.exponent == 0.0:
            return ctx.ops.multiply(dy, 0.0), {}
        return _power_back(ctx.ops, dy, ctx.saved["x"], self.exponent), {}


@in_float32
def _power_back(ops: Ops, dy: Array, x: Array, exponent: float) -> Array:
    dx = ops.power(x, exponent - 1.0)
    ops.multiply(dx, exponent, out=dx)
    return ops.multiply(dx, dy, out=dx)


class Clip(Layer):
    """y = x brought into [``low``, ``high``]; None leaves a side open.

    The gradient goes where x lies within, ends included.
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        low: float | None = None,
        high: float | None = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        ends = [end for end in (low, high) if end is not None]
        if not ends or not all(map(is_number, ends)) or ends != sorted(ends):
            raise ArgumentError(
                f"layer {name!r}",
                expected="low, high or both, low no larger than high",
                received=f"low={low!r}, high={high!r}",
                advice="write Clip('bounded', 0.0, 1.0)",
            )
        self.low, self.high = low, high

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The bounded ``x``, which is kept."""
        ctx.save(x=x)
        y = x if self.low is None else ctx.ops.maximum(x, self.low)
        return y if self.high is None else ctx.ops.minimum(y, self.high)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` where x lay within."""
        x, dx = ctx.saved["x"], dy
        if self.low is not None:
            dx = ctx.ops.multiply(dx, x >= self.low)
        return (dx if self.high is None else ctx.ops.multiply(dx, x <= self.high)), {}


_OF_ANY = (0, -1, (None, None, None), (None, None, 1), (None, None, -1))
"""The parts that an axis of at least one element has, however many they are."""


class Index(Layer):
    """A part of each sample: of each of its first axes an element, or a range (start, stop, step).

    An int takes the element and the axis away. As a symbol's ``a[:, 0, 1:]``, whose first colon is
    the batch, draws it: Index("part", [0, (1, None, None)]). Of an axis of any extent that is the
    first element, the last, or all, forwards or backwards.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self, name: str, index: Sequence[int | Range], input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        several = isinstance(index, (tuple, list))
        if not several or not all(map(_is_place, index)) or not index:
            raise ArgumentError(
                f"layer {name!r}, argument index",
                expected="ints, or (start, stop, step) of ints and Nones, for the sample's axes",
                received=repr(index)[:80],
                advice="leave the batch axis out; on symbols write a[:, 0]",
            )
        self.index = [tuple(k) if isinstance(k, (tuple, list)) else int(k) for k in index]

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape → that of the part."""
        shape = expect_one_input(self, in_shapes)
        outside = any(
            k not in _OF_ANY if size == -1 else isinstance(k, int) and not -size <= k < size
            for k, size in zip(self.index, shape, strict=False)
        )
        out: list[int] = []
        for k, size in enumerate(shape):
            place = self.index[k] if k < len(self.index) else (None, None, None)
            if size == -1 and isinstance(place, tuple):
                out.append(-1)
            elif isinstance(place, tuple):
                out.append(len(range(*slice(*place).indices(size))))
        if len(self.index) > len(shape) or outside or 0 in out:
            raise self.shape_error(
                f"samples that have the part {self.index}",
                f"sample shape {shape}",
                "count from 0 along each axis, without the batch",
            )
        return tuple(out)

    def _places(self) -> tuple[Any, ...]:
        parts = (slice(*k) if isinstance(k, tuple) else k for k in self.index)
        return (slice(None), *parts)

    def forward(self, ctx: Context, x: Array) -> Array:
        """A view."""
        ctx.save(shape=x.shape)
        return x[self._places()]

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` in its place, zero elsewhere."""
        dx = ctx.ops.zeros(ctx.saved["shape"], dy)
        ctx.ops.copyto(dx[self._places()], dy)
        return dx, {}


def _is_place(place: Any) -> bool:
    if isinstance(place, (tuple, list)):
        whole = all(k is None or (isinstance(k, int) and not isinstance(k, bool)) for k in place)
        return len(place) == 3 and whole and place[2] != 0
    return isinstance(place, int) and not isinstance(place, bool)
