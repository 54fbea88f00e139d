"""Rows of a table, looked up by index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError
from singanet.initializer import Initializer
from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.cache import Cache
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.layers.masking import Masking
from singanet.params.gradients import dense_gradient
from singanet.types import Array, GivenShape, Gradient, RowSparse, Shape, Shapes


@dataclass(frozen=True)
class ZeroRow(Initializer):
    """As another initializer, but zero in one row."""

    other: Initializer
    row: int

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Fill; see `Initializer`."""
        values = self.other(rng, shape, fans)
        values[self.row] = 0.0
        return values


class _ExpectRows:
    """The check that indices are rows of a layer's table."""

    def __init__(self, layer: Embedding) -> None:
        self._layer = layer

    def __call__(self, x: Array) -> None:
        self._layer._expect_rows(x)

    def at(self, x: Array) -> Callable[[], None]:
        """The check of whatever stands in ``x`` when it is called."""
        if not (x.flags.c_contiguous and x.size):
            return partial(self, x)
        seen = x.view(f"u{x.dtype.itemsize}").reshape(-1)
        place, largest, size = seen.argmax, seen.max, self._layer.vocabulary_size

        def look() -> None:
            if seen[place()] >= size:
                self(x)

        def look_once() -> None:
            # What a device has to tell takes longer than to find it.
            if int(largest()) >= size:
                self(x)

        return look if type(x) is np.ndarray else look_once


class Embedding(Layer):
    """y = weight[x] for integer samples x of any shape, from 0 to ``vocabulary_size`` - 1.

    ``weight`` has shape (vocabulary_size, num_output); its gradient is `RowSparse`, so that a
    step costs by the rows it used, and an optimizer leaves the others as they are. Without
    ``sparse`` it is an array of all rows, as PyTorch's: momentum moves every row at every step, and
    weight decay shrinks it. A `Dense` with ``W_transpose=True`` and
    ``W_specs=embedding.params["weight"]`` shares the table; it gives all rows gradients anyway.

    The row ``padding_index`` starts as zeros and has no gradient from here, as PyTorch's
    ``padding_idx``.

    Where its rows are served, as by `parallel.Hybrid`, those of a batch come when they are looked
    up; with a ``cache`` some of them stay. Their gradients are row-sparse always.

    Steps of the index ``mask_index`` are masked, in lists and on symbols: see `Traits`.
    """

    traits = Traits(input_kinds=("integers",), any_extent=True, masks="keeps", looks_up=True)

    def __init__(
        self,
        name: str,
        vocabulary_size: int,
        num_output: int,
        W_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        cache: Cache | None = None,
        *,
        padding_index: int | None = None,
        mask_index: int | None = None,
        sparse: bool = True,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.mask_layer: Masking | None = None
        if mask_index is not None:
            expect_int(name, "mask_index", mask_index, least=0)
            self.mask_layer = Masking(f"{name}_mask", mask_index)
        if cache is not None and not isinstance(cache, Cache):
            raise ArgumentError(
                f"layer {name!r}, argument cache",
                expected="a Cache, or None",
                received=repr(cache),
                advice="write cache=Cache(capacity=0.1)",
            )
        self.cache = cache
        self.vocabulary_size = expect_int(name, "vocabulary_size", vocabulary_size)
        self.num_output = expect_int(name, "num_output", num_output)
        self.W_specs = W_specs
        if padding_index is not None:
            most = self.vocabulary_size - 1
            padding_index = expect_int(
                name, "padding_index", padding_index, 0, "pass the index of padding", most
            )
        self.padding_index = padding_index
        self.sparse = bool(sparse)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → (*s, num_output)."""
        shape = expect_one_input(self, in_shapes)
        size = (self.vocabulary_size, self.num_output)
        param = self.add_param("weight", size, self.W_specs, fans=size)
        if self.padding_index is not None and param is not self.W_specs:
            param.initializer = ZeroRow(param.initializer, self.padding_index)
        return (*shape, self.num_output)

    def matrices(self) -> dict[str, bool]:
        """The table."""
        return {"weight": True}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, *s) → (N, *s, num_output); only the indices are kept.

        Errors: indices that are no integers or out of range. On a GPU the check waits for it.
        """
        self._expect_integers(x)
        ctx.ops.check(_ExpectRows(self), x)
        ctx.save(x=x)
        rows = self.params["weight"].served
        if rows is None:
            return ctx.ops.gather_rows(ctx.params["weight"], x)
        look_up = rows.look_up if ctx.train else rows.see
        return ctx.ops.look_up(look_up, x, (*x.shape, self.num_output), rows.dtype)

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Gradient]]:
        """The gradients of the rows that were used, added up for each; none for the indices."""
        x = ctx.saved["x"]
        rows = dy.reshape(prod(x.shape), self.num_output)
        if self.padding_index is not None:
            rows = ctx.ops.multiply(rows, x.reshape(-1, 1) != self.padding_index)
        served = self.params["weight"].served
        # What was looked up is known by its rows already.
        runs = None if served is None else served.runs
        grad = RowSparse(*ctx.ops.sum_rows(x.reshape(-1), rows, runs))
        if self.sparse or served is not None:
            return None, {"weight": grad}
        return None, {"weight": dense_gradient(ctx.ops, grad, self.params["weight"].shape)}

    def _expect_integers(self, x: Array) -> None:
        if x.dtype.kind not in "iu":
            raise DataError(
                f"layer {self.name!r}",
                expected="integer indices",
                received=f"an array of type {x.dtype}",
                advice="feed integers, through an input that no other kind of layer reads",
            )

    def _expect_rows(self, x: Array) -> None:
        # Seen as unsigned, a negative index is a huge one.
        seen = x.view(f"u{x.dtype.itemsize}").reshape(-1)
        if not x.size or int(seen[seen.argmax()]) < self.vocabulary_size:
            return
        flat = x.reshape(-1)
        first = int(((flat < 0) | (flat >= self.vocabulary_size)).argmax())
        position: list[int] = []
        rest = first
        for extent in reversed(x.shape):
            rest, here = divmod(rest, extent)
            position.insert(0, here)
        raise DataError(
            f"layer {self.name!r}",
            expected=f"indices from 0 to {self.vocabulary_size - 1}"
            f" (vocabulary_size={self.vocabulary_size})",
            received=f"the index {int(flat[first])} at position {tuple(position)}",
            advice="the first number of the position is the sample; map rare words to one index",
        )
