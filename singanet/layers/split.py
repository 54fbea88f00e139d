"""One input handed to several consumers."""

from __future__ import annotations

from typing import Any

from singanet.context import Context
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Split(Layer):
    """``num_output`` outputs that are all the input itself.

    Any layer's output may feed several layers without it; nets from SINGA have it.
    """

    def __init__(
        self, name: str, num_output: int, input_sample_shape: Shape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not isinstance(num_output, int) or num_output < 1:
            raise ArgumentError(
                f"layer {name!r}, argument num_output",
                expected="a positive int",
                received=repr(num_output),
                advice="pass the number of consumers",
            )
        self.num_output = num_output

    def setup(self, in_shapes: Any) -> Shapes:
        """s → num_output times s."""
        if isinstance(in_shapes, list):
            raise self.shape_error("one input", f"{len(in_shapes)} inputs", "use Merge or Concat")
        return [in_shapes] * self.num_output

    def forward(self, ctx: Context, x: Array) -> list[Array]:
        """The input for every output, without a copy."""
        return [x] * self.num_output

    def backward(self, ctx: Context, dy: list[Array]) -> tuple[Array, dict[str, Array]]:
        """The sum of the gradients."""
        return (dy[0] if len(dy) == 1 else ctx.ops.add_all(dy)), {}
