"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.layers.product import product, product_back
from singanet.types import Array, CSRMatrix, GivenShape, Gradient, RowSparse, Shapes


class Dense(Layer):
    """y = x W + b over the last axis of each sample, which may have others before it.

    ``weight`` has shape (in, out), or (out, in) with ``W_transpose``; ``bias`` has shape (out,). Of
    a sparse x only the rows of W that it names are read, and the gradient of W is `RowSparse`,
    without ``W_transpose``.
    """

    traits = Traits(any_extent=True, masks="keeps", takes_sparse=True, owns_gradients=True)

    def __init__(
        self,
        name: str,
        num_output: int,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        W_transpose: bool = False,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.num_output = expect_int(
            name, "num_output", num_output, advice="pass the number of output units"
        )
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs
        self.W_transpose = W_transpose

    def setup(self, in_shapes: Any) -> Shapes:
        """(..., in) → (..., num_output)."""
        if isinstance(in_shapes, list) or not in_shapes or in_shapes[-1] < 1:
            raise self.shape_error(
                "one input of sample shape (features,) or (..., features), the last one known",
                str(in_shapes),
                "put Concat, Reshape or Flatten before it",
            )
        size = in_shapes[-1]
        shape = (self.num_output, size) if self.W_transpose else (size, self.num_output)
        self.add_param("weight", shape, self.W_specs, fans=(size, self.num_output))
        if self.use_bias:
            self.add_param("bias", (self.num_output,), self.b_specs)
        return (*in_shapes[:-1], self.num_output)

    def products(self) -> dict[str, bool]:
        """The weight."""
        return {"weight": self.W_transpose}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, ..., in) → (N, ..., num_output)."""
        ctx.save(x=x)
        if isinstance(x, CSRMatrix):
            return self._of_sparse(ctx, x)
        return product(self, ctx, x, turned=self.W_transpose)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Gradient]]:
        """dW = xᵀ dy, db = the sum of dy, dx = dy Wᵀ."""
        x, grads = ctx.saved["x"], dict[str, Gradient]()
        wanted = ctx.needs_input_grad
        if not isinstance(x, CSRMatrix):
            return product_back(self, ctx, x, dy, grads, wanted, turned=self.W_transpose), grads
        ops, weight = ctx.ops, ctx.params["weight"]
        if ctx.wants("weight"):
            parts = ops.gather_rows(dy, x.entry_rows(ops.xp))
            parts *= x.values[:, None]
            rows = RowSparse(*ops.sum_rows(x.indices, parts))
            grads["weight"] = rows
            if self.W_transpose:
                whole = ops.zeros((x.shape[1], self.num_output), parts)
                grads["weight"] = ops.add_to_rows(whole, *rows).T
        if self.use_bias and ctx.wants("bias"):
            grads["bias"] = ops.column_sums(dy)
        return (ops.matmul(dy, weight if self.W_transpose else weight.T) if wanted else None), grads

    def _of_sparse(self, ctx: Context, x: CSRMatrix) -> Array:
        """The sums of the rows of W that each sample names, times its values there."""
        ops, weight, bias = ctx.ops, ctx.params["weight"], ctx.params.get("bias")
        weight = weight.T if self.W_transpose else weight
        parts = ops.gather_rows(weight, x.indices)
        parts *= x.values[:, None]
        y = ops.zeros((len(x), self.num_output), parts)
        y = ops.add_to_rows(y, *ops.sum_rows(x.entry_rows(ops.xp), parts))
        return y if bias is None else y + bias
