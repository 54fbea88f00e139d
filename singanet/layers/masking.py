"""Where the mask of a sequence of features begins."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class Masking(Layer):
    """(N, T) booleans of sequences (N, T, ...): whether a step has features other than ``value``.

    On symbols and in lists the sequence goes on as it is, and the mask with it, to the layers that
    read one; it is the symbol's ``mask``. For indices `Embedding` has ``mask_index``.
    """

    traits = Traits(gives_integers=True, any_extent=True, begins_mask=True, stops_gradient=True)

    def __init__(
        self, name: str, value: float = 0.0, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not is_number(value):
            raise ArgumentError(
                f"layer {name!r}, argument value",
                expected="the number that fills steps that are not there",
                received=repr(value),
                advice="pad with 0",
            )
        self.value = float(value)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (T, ...) → (T,)."""
        if isinstance(in_shapes, list) or not in_shapes:
            raise self.shape_error(
                "one input of sample shape (time, ...)", str(in_shapes), "mask each by itself"
            )
        return in_shapes[:1]

    def forward(self, ctx: Context, x: Array) -> Array:
        """Booleans; nothing is kept."""
        there = x != self.value
        return there.any(axis=tuple(range(2, x.ndim))) if x.ndim > 2 else there

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """None."""
        return None, {}
