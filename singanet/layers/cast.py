"""Numbers of one type as those of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class Cast(Layer):
    """x as ``dtype``: a type of whole numbers, "bool", or "float", which is the net's float type.

    Floats are cut off towards zero. A float that is cast to the net's own goes through with its
    gradient; all else has none.
    """

    traits = Traits(input_kinds=("any",), any_extent=True, masks="keeps")

    def __init__(
        self, name: str, dtype: str = "float", input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        try:
            kind = np.dtype(dtype)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "iubf" or (kind.kind == "f" and dtype != "float"):
            raise ArgumentError(
                f"layer {name!r}, argument dtype",
                expected="'float', 'bool' or a type of whole numbers",
                received=repr(dtype),
                advice="the net's float type is set by net.as_type",
            )
        self.dtype = "float" if kind.kind == "f" else kind.name
        whole = self.dtype != "float"
        self.traits = replace(self.traits, gives_integers=whole, stops_gradient=whole)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The numbers as the other type; nothing is kept but whether they were floats."""
        ctx.save(floats=x.dtype.kind == "f")
        return x.astype(ctx.dtype if self.dtype == "float" else self.dtype, copy=False)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """``dy`` for floats."""
        return dy if ctx.saved["floats"] and not self.traits.stops_gradient else None, {}
