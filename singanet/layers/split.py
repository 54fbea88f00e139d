"""One input handed to several consumers."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class Split(Layer):
    """``num_output`` outputs that are all the input itself.

    Any layer's output may feed several layers without it; nets from SINGA have it.
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self, name: str, num_output: int, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.num_output = expect_int(
            name, "num_output", num_output, advice="pass the number of consumers", most=10_000
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """s → num_output times s."""
        return [expect_one_input(self, in_shapes)] * self.num_output

    def forward(self, ctx: Context, x: Array) -> list[Array]:
        """The input for every output, without a copy."""
        return [x] * self.num_output

    def backward(self, ctx: Context, dy: list[Array]) -> tuple[Array, dict[str, Array]]:
        """The sum of the gradients."""
        return (dy[0] if len(dy) == 1 else ctx.ops.add_all(dy)), {}
