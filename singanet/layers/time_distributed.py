"""A layer applied to every step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singanet.base.collectives import SharedBatch
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shape, Shapes


class TimeDistributed(Layer):
    """``layer`` on each step of samples (T, ...), as if the steps were further samples.

    The parameters are the layer's own, under its names: wrapping a layer that a net has as well
    shares them. Any layer of one input and one output will do; batch statistics are taken over
    samples and steps together.
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self, name: str, layer: Layer, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not isinstance(layer, Layer):
            raise ArgumentError(
                f"layer {name!r}, argument layer",
                expected="a Layer",
                received=type(layer).__name__,
                advice="wrap an instance, such as Dense('fc', 10)",
            )
        self.layer = layer
        self._built_it = False
        inner = layer.traits
        self.traits = replace(
            self.traits,
            input_kinds=inner.input_kinds,
            gives_integers=inner.gives_integers,
            moves_only=inner.moves_only,
            stops_gradient=inner.stops_gradient,
            owns_gradients=inner.owns_gradients,
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (T, *s) → (T, *(what the layer makes of s))."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (steps, ...)", f"sample shape {shape}", "leave the wrapper out"
            )
        self._built_it = self.layer.out_shapes is None
        out = self.layer.build(shape[1:])
        if isinstance(out, list):
            self.unbuild()
            raise self.shape_error(
                "a layer of one output", f"{self.layer!r}", "wrap the layers behind it one by one"
            )
        self.params.update(self.layer.params)
        return (shape[0], *out)

    def unbuild(self) -> None:
        """Forget the shapes, and those of the wrapped layer unless it had them before."""
        super().unbuild()
        if self._built_it:
            self.layer.unbuild()

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, T, ...) → (N, T, ...); what is kept is up to the layer."""
        y: Any = self.layer.forward(ctx, x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
        return _unfold(y, x.shape[:2])

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, Any]:
        """The layer's gradients over all samples and steps."""
        folded = dy.reshape(dy.shape[0] * dy.shape[1], *dy.shape[2:])
        dx, grads = self.layer.backward(ctx, folded)
        return None if dx is None else _unfold(dx, dy.shape[:2]), grads

    @property
    def synchronized(self) -> bool:
        """As the layer's."""
        return self.layer.synchronized

    def share(self, batch: SharedBatch) -> None:
        """As the layer's."""
        self.layer.share(batch)
        if self.shared is not self.layer.shared:
            self.shared = self.layer.shared

    def merged_state(self, states: Mapping[str, Array], shares: Array) -> dict[str, Array]:
        """As the layer's."""
        return self.layer.merged_state(states, shares)


def _unfold(folded: Array, leading: Shape) -> Array:
    return folded.reshape(*leading, *folded.shape[1:])
