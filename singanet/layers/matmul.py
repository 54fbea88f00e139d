"""The matrix product of two inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shape, Shapes


class MatMul(Layer):
    """y = a b for samples (..., M, K) and (..., K, P) whose other axes agree.

    ``transpose_a`` and ``transpose_b`` say that the last two axes of that input are swapped.
    """

    traits = Traits(any_extent=True)

    def __init__(
        self,
        name: str,
        transpose_a: bool = False,
        transpose_b: bool = False,
        input_sample_shape: Sequence[GivenShape] | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.transpose_a = transpose_a
        self.transpose_b = transpose_b

    def setup(self, in_shapes: Any) -> Shapes:
        """Two sample shapes → (..., M, P)."""
        if isinstance(in_shapes, list) and len(in_shapes) == 2:
            made = self._shape(*in_shapes)
            if made is not None:
                return made
        raise self._unfit(in_shapes)

    def _shape(self, a: Shape, b: Shape) -> Shape | None:
        """The shape of the product of arrays or samples ``a``, ``b``; None if they do not fit."""
        if min(len(a), len(b)) < 2 or a[:-2] != b[:-2]:
            return None
        rows, inner = a[-2:][::-1] if self.transpose_a else a[-2:]
        inner_b, columns = b[-2:][::-1] if self.transpose_b else b[-2:]
        return (*a[:-2], rows, columns) if inner == inner_b else None

    def _unfit(self, shapes: Any) -> Exception:
        swapped = f"transpose_a={self.transpose_a}, transpose_b={self.transpose_b}"
        return self.shape_error(
            "two inputs of sample shapes (..., M, K) and (..., K, P)",
            f"{shapes} with {swapped}",
            "set transpose_a or transpose_b, or put Reshape or Permute before it",
        )

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The product; both inputs are kept."""
        a, b = x
        if self._shape(a.shape, b.shape) is None:
            raise self._unfit([a.shape[1:], b.shape[1:]])
        ctx.save(a=a, b=b)
        return ctx.ops.matmul(_turned(a, self.transpose_a), _turned(b, self.transpose_b))

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """da = dy bᵀ and db = aᵀ dy, turned back where the input was."""
        a = _turned(ctx.saved["a"], not self.transpose_a)
        b = _turned(ctx.saved["b"], not self.transpose_b)
        da = _turned(ctx.ops.matmul(dy, b), self.transpose_a)
        return [da, _turned(ctx.ops.matmul(a, dy), self.transpose_b)], {}


def _turned(matrix: Array, turn: bool) -> Array:
    """The last two axes swapped, as a view."""
    return matrix.swapaxes(-1, -2) if turn else matrix
