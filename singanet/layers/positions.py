"""Positions added to sequences: learned ones, and sines; positions of what is no padding."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from singanet.initializer import Gaussian
from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.layers.past import most
from singanet.types import Array, GivenShape, Shapes


class PositionEmbedding(Layer):
    """y_t = x_t + weight_t for sequences (N, T, E); ``weight`` is (max_length, E).

    ``max_length`` is T where that is known. Without a spec the weight starts normal with standard
    deviation 0.02 (Radford et al. 2018).
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        max_length: int | None = None,
        W_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        if max_length is not None:
            max_length = expect_int(name, "max_length", max_length)
        self.max_length = max_length
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E), unchanged."""
        shape = self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding before it")
        longest = shape[0] if self.max_length is None else self.max_length
        if longest == -1:
            raise self.shape_error(
                "max_length, since the sequences may have any length",
                "max_length=None",
                "pass the length of the longest sequence to come",
            )
        self._expect_steps(shape[0], longest)
        self.add_param("weight", (longest, shape[1]), self.W_specs, default=Gaussian(0.0, 0.02))
        return shape

    def _expect_steps(self, steps: int, longest: int) -> None:
        if steps > longest:
            raise self.shape_error(
                f"at most max_length={longest} steps",
                f"{steps}",
                "cut the sequences, or make the layer with a larger max_length",
            )

    def forward(self, ctx: Context, x: Array) -> Array:
        """The sequences with their positions added."""
        weight, starts, steps = ctx.params["weight"], ctx.starts, x.shape[1]
        self._expect_steps(most(starts) + steps, len(weight))
        if isinstance(starts, int):
            return ctx.ops.add(x, weight[starts : starts + steps])
        places = ctx.ops.xp.asarray(starts[:, None] + np.arange(steps))
        return ctx.ops.add(x, ctx.ops.gather_rows(weight, places))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy``, and its sum over the samples for the positions that were there."""
        if not ctx.needs_param_grads:
            return dy, {}
        dweight = ctx.ops.zeros(ctx.params["weight"].shape, dy)
        ctx.ops.sum(dy, axis=0, out=dweight[: dy.shape[1]])
        return dy, {"weight": dweight}


class SinusoidalPosition(Layer):
    """y_t = x_t + p_t for sequences (N, T, E) of any length, without parameters.

    p_t,2i = sin(t / 10000^(2i/E)) and p_t,2i+1 the cosine of the same (Vaswani et al. 2017).
    """

    traits = Traits(any_extent=True, masks="keeps")

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E), unchanged."""
        return self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding before it")

    def forward(self, ctx: Context, x: Array) -> Array:
        """The sequences with their positions added."""
        starts, sizes = ctx.starts, x.shape[1:]
        if isinstance(starts, int):
            waves = _waves(starts, *sizes)
        else:
            waves = np.stack([_waves(first, *sizes) for first in starts.tolist()])
        table = ctx.ops.xp.asarray(waves, x.dtype)
        return ctx.ops.add(x, table)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The gradient itself."""
        return dy, {}


class Positions(Layer):
    """The positions (N, T) of indices (N, T) among those that are not ``padding_index``.

    The first has padding_index + 1, and padding itself the position ``padding_index``, as RoBERTa
    counts; an `Embedding` makes vectors of them.
    """

    traits = Traits(
        input_kinds=("integers",),
        gives_integers=True,
        any_extent=True,
        masks="keeps",
        stops_gradient=True,
    )

    def __init__(
        self, name: str, padding_index: int, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.padding_index = expect_int(name, "padding_index", padding_index, least=0)

    def setup(self, in_shapes: Any) -> Shapes:
        """(T,), unchanged."""
        return self.expect_rank(in_shapes, 1, "(time,)", "give it the indices that are embedded")

    def forward(self, ctx: Context, x: Array) -> Array:
        """int64; nothing is kept but, in parts of sequences, how many came before."""
        there = x != self.padding_index
        counted: Array = there.astype(np.int64).cumsum(axis=1)
        if ctx.past is not None:
            before = ctx.past.get("counted")
            counted = counted if before is None else counted + before[0]
            ctx.past.put("counted", [counted[:, -1:]])
        return counted * there + self.padding_index

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """None."""
        return None, {}


@lru_cache(maxsize=8)
def _waves(first: int, steps: int, size: int) -> Array:
    """The positions (T, E) from ``first`` on, in float64."""
    pair = np.arange(size) // 2
    angle = np.arange(first, first + steps)[:, None] / 10000.0 ** (2.0 * pair / size)
    table: Array = np.where(np.arange(size) % 2, np.cos(angle), np.sin(angle))
    table.setflags(write=False)
    return table
