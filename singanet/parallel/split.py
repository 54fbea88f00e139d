"""Dense and Embedding layers with the weight in slices on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, RankError, brief
from singanet.initializer import Initializer
from singanet.layers.context import Context
from singanet.layers.dense import Dense
from singanet.layers.embedding import Embedding
from singanet.layers.layer import Layer, Name, ParamSpecs
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.initialize import init
from singanet.params.param import Param
from singanet.types import Array, GivenShape, Gradient, RowSparse, Shape, Shapes

Split: TypeAlias = Literal["columns", "rows"]

_TOLERANCE = 1e-3
"""Relative tolerance of the sums of equal samples on different ranks."""


class SplitDense(Dense):
    """`Dense` with a slice of the matrix W on each rank.

    All ranks get the same samples. The slices are contiguous, the first ones larger by at most one,
    with the initial values of one `Dense`. Steps are not recorded. Norms of gradients cover one
    slice, so clip only by value.

    Errors: `ArgumentError` if there are fewer columns or rows than ranks; `RankError` if ranks get
    different samples.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the number of output features.
        split: "columns": a rank computes its part of the outputs, and the parts are gathered;
            backward sums the input gradients. "rows": a rank takes its part of the inputs, and the
            products are summed; backward gathers the input gradients.
        comm: Communicator of the ranks, by default `parallel.init()`.
        use_bias: Whether to add a bias; with "rows" each rank has all of it.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        W_transpose: Whether the weight is stored as (out, in).
        input_shape: Sample shape (without the batch axis), to create the parameters at once.
    """

    traits = replace(Dense.traits, takes_sparse=False)

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        split: Split = "columns",
        comm: Communicator | None = None,
        *,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        W_transpose: bool = False,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(
            name,
            units,
            use_bias=use_bias,
            W_specs=W_specs,
            b_specs=b_specs,
            W_transpose=W_transpose,
            input_shape=input_shape,
        )
        self.split, self.shared = _checked_split(name, split), _Slices(comm)

    def setup(self, in_shapes: Any) -> Shapes:
        """(in,) → (units,)."""
        made = super().setup(in_shapes)
        columns = self.split == "columns"
        self.shared.cut(self, "weight", 0 if columns == self.W_transpose else 1)
        if columns and self.use_bias:
            self.shared.cut(self, "bias", 0)
        return made

    def products(self) -> dict[str, bool]:
        """Return no products: a rank has only a slice of the weight."""
        return {}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, in) → (N, units), on all ranks."""
        self.shared.expect_same(ctx, self.name, x)
        if self.split == "columns":
            return self.shared.gathered(ctx, super().forward(ctx, x), self.name)
        own = self.shared.mine(ctx, x)
        ctx.save(x=own)
        weight = ctx.params["weight"]
        part = ctx.ops.matmul(own, weight.T if self.W_transpose else weight)
        y = self.shared.summed(ctx, part, self.name)
        return ctx.ops.add(y, ctx.params["bias"]) if self.use_bias else y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Gradient]]:
        """Return dx, on all ranks, and the gradients of this rank's slice."""
        columns = self.split == "columns"
        dx, grads = super().backward(ctx, self.shared.mine(ctx, dy) if columns else dy)
        if dx is not None:
            join = self.shared.summed if columns else self.shared.gathered
            dx = join(ctx, dx, f"the gradient of {self.name}")
        return dx, grads


class SplitEmbedding(Embedding):
    """`Embedding` with a slice of the table on each rank.

    All ranks get the same samples. Otherwise it works like `SplitDense`.

    Args:
        name: Name of the layer, a string.
        input_dim: Positive int; indices go from 0 to ``input_dim`` - 1.
        output_dim: Positive int, the size of a row.
        split: "rows": a rank looks up the indices of its rows, and the results are summed.
            "columns": a rank looks up a part of every row, and the parts are gathered.
        comm: Communicator of the ranks, by default `parallel.init()`.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        input_shape: Sample shape, to create the parameter at once.
    """

    def __init__(
        self,
        name: Name = None,
        input_dim: int = REQUIRED,
        output_dim: int = REQUIRED,
        split: Split = "rows",
        comm: Communicator | None = None,
        W_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_dim, output_dim, W_specs=W_specs, input_shape=input_shape)
        self.split, self.shared = _checked_split(name, split), _Slices(comm)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → (*s, output_dim)."""
        made = super().setup(in_shapes)
        self.shared.cut(self, "weight", 0 if self.split == "rows" else 1)
        return made

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, *s) → (N, *s, output_dim), on all ranks."""
        self._expect_integers(x)
        ctx.ops.check(self._expect_rows, x)
        self.shared.expect_same(ctx, self.name, x)
        if self.split == "columns":
            ctx.save(x=x)
            return self.shared.gathered(
                ctx, ctx.ops.gather_rows(ctx.params["weight"], x), self.name
            )
        start, stop = self.shared.part
        here = (x >= start) & (x < stop)
        ctx.save(x=x, here=here)
        y = ctx.ops.gather_rows(ctx.params["weight"], (x - start) * here)
        return self.shared.summed(ctx, y * here[..., None].astype(y.dtype), self.name)

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Gradient]]:
        """Return the gradients of the rows, or parts of rows, of this rank."""
        x = ctx.saved["x"]
        if self.split == "columns":
            own = self.shared.mine(ctx, dy)
            return None, {
                "weight": RowSparse(*ctx.ops.sum_rows(x.reshape(-1), own.reshape(x.size, -1)))
            }
        here = ctx.saved["here"]
        indices = x[here] - self.shared.part[0]
        return None, {"weight": RowSparse(*ctx.ops.sum_rows(indices, dy[here]))}


class _Slices:
    """The slice of an axis of one rank, and the collective operations on slices."""

    def __init__(self, comm: Communicator | None) -> None:
        self.comm = init() if comm is None else comm
        self.ends: list[int] = []

    @property
    def part(self) -> tuple[int, int]:
        """The start and the end of this rank's slice."""
        return self.ends[self.comm.rank], self.ends[self.comm.rank + 1]

    def cut(self, layer: Layer, suffix: str, axis: int) -> None:
        """Replace the parameter by this rank's slice along ``axis``, with the same first values."""
        whole, size = layer.params[suffix], self.comm.size
        extent = whole.shape[axis]
        if extent < size:
            raise ArgumentError(
                f"layer {layer.name!r}, split",
                expected=f"at most {extent} ranks, the extent of axis {axis}",
                received=f"{size} ranks",
                advice="split the other axis, or start fewer processes",
            )
        self.ends = [k * (extent // size) + min(k, extent % size) for k in range(size + 1)]
        start, stop = self.part
        shape = (*whole.shape[:axis], stop - start, *whole.shape[axis + 1 :])
        slices = _Sliced(whole.initializer, whole.shape, axis, start, stop)
        layer.params[suffix] = Param(whole.spec, shape, slices, whole.fans, whole.trainable)

    def mine(self, ctx: Context, array: Array) -> Array:
        """Return this rank's part of the last axis."""
        start, stop = self.part
        return ctx.ops.xp.ascontiguousarray(array[..., start:stop])

    def summed(self, ctx: Context, array: Array, what: str) -> Array:
        """Return the sum of ``array`` over all ranks."""
        own = np.array(ctx.ops.host(array), order="C")
        return ctx.ops.xp.asarray(self.comm.all_reduce(own, what=what))

    def gathered(self, ctx: Context, array: Array, what: str) -> Array:
        """Return the parts of the last axis of all ranks, concatenated."""
        own = np.ascontiguousarray(np.moveaxis(ctx.ops.host(array), -1, 0))
        parts = self.comm.all_gather(own, what)
        whole = np.moveaxis(np.concatenate(parts), 0, -1)
        return ctx.ops.xp.asarray(np.ascontiguousarray(whole))

    def expect_same(self, ctx: Context, name: str, x: Array) -> None:
        """Errors: `RankError` on all ranks if ``x`` differs between them."""
        host = ctx.ops.host(x)
        total = np.array([[float(host.sum()), float(np.abs(host).sum()), host.size]])
        every = np.concatenate(self.comm.all_gather(total, f"the input of {name}"))
        bound = _TOLERANCE * np.maximum(every[0, 1:2], np.finfo(np.float32).tiny)
        # The loss reports values that are not finite.
        if (np.abs(every - every[0]) > bound).any():
            raise RankError(
                f"layer {name!r}, rank {self.comm.rank} of {self.comm.size}",
                expected="the same samples and the same preceding layers on all ranks",
                received="inputs whose sums differ",
                advice="feed all ranks the same batches in the same order; clip by value, as "
                "norms cover one slice",
            )


class _Sliced(Initializer):
    """A slice of the values of ``whole`` for ``shape``: ranks start with one process's values."""

    def __init__(
        self, whole: Initializer, shape: Sequence[int], axis: int, start: int, stop: int
    ) -> None:
        self.whole, self.shape = whole, tuple(shape)
        self.place = (*(slice(None),) * axis, slice(start, stop))

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Return the slice; the whole array exists for a moment."""
        return np.ascontiguousarray(self.whole(rng, self.shape, fans)[self.place])


def _checked_split(name: str, split: Any) -> Split:
    if split not in ("columns", "rows"):
        raise ArgumentError(
            f"layer {name!r}, split",
            expected="'columns' or 'rows'",
            received=brief(split),
            advice="columns are outputs, rows inputs or words",
        )
    found: Split = split
    return found
