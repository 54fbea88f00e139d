"""Learned steps before a sequence."""

from __future__ import annotations

from typing import Any

from singanet.initializer import Gaussian
from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.types import Array, GivenShape, Shapes


class ClassToken(Layer):
    """The rows of ``weight`` (count, E) before the steps of each sequence (N, T, E).

    One row is BERT's and ViT's class token, whose output attention makes from the whole sequence;
    more are registers (Darcet et al. 2024). Without a spec they start normal with standard
    deviation 0.02.
    """

    traits = Traits(any_extent=True)

    def __init__(
        self,
        name: str,
        count: int = 1,
        W_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.count = expect_int(name, "count", count)
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E) → (count + T, E)."""
        steps, size = self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding first")
        self.add_param("weight", (self.count, size), self.W_specs, default=Gaussian(0.0, 0.02))
        return (-1 if steps == -1 else self.count + steps, size)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The longer sequences; no array is kept."""
        y = ctx.ops.empty((len(x), self.count + x.shape[1], x.shape[2]), x)
        ctx.ops.copyto(y[:, : self.count], ctx.params["weight"])
        ctx.ops.copyto(y[:, self.count :], x)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The steps' part of ``dy`` as a view, and the sum over the samples of the rest."""
        dx = dy[:, self.count :]
        if not ctx.needs_param_grads:
            return dx, {}
        return dx, {"weight": ctx.ops.sum(dy[:, : self.count], axis=0)}
