"""Embeddings of ids and positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count, is_int, is_number
from singanet.base.described import Configurable
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, DataError, brief, did_you_mean, one_of
from singanet.initializer import Gaussian, Initializer
from singanet.layers.context import Context
from singanet.layers.dropout import Masking
from singanet.layers.kv_cache import Counts, most
from singanet.layers.layer import Layer, Name, ParamSpecs, expect_int, expect_one_input
from singanet.layers.words import EmbeddingsWords
from singanet.params.grads import dense_gradient
from singanet.types import Array, GivenShape, Gradient, RowSparse, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ClassToken(Layer):
    """A layer that inserts the rows of ``weight`` (count, E) before the steps of each sequence.

    One row is the class token of BERT and ViT, whose output attention computes from the whole
    sequence; further rows are registers (Darcet et al. 2024). Without a spec they start normal with
    standard deviation 0.02.

    Args:
        name: Name of the layer, a string.
        count: Positive int, the number of rows.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        input_shape: Sample shape (T, E), to create the parameter at once.

    Examples:
        >>> x = singanet.Input("x", (16, 64))
        >>> singanet.layers.ClassToken(count=1)(x).shape
        (17, 64)
    """

    traits = Traits(any_extent=True, gives_steps=True)

    def __init__(
        self,
        name: Name = None,
        count: int = 1,
        *,
        W_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.count = expect_int(name, "count", count)
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E) → (count + T, E)."""
        steps, size = self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding first")
        self.add_param("weight", (self.count, size), self.W_specs, default=Gaussian(0.0, 0.02))
        return (-1 if steps == -1 else self.count + steps, size)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the longer sequences; no array is saved."""
        y = ctx.ops.empty((len(x), self.count + x.shape[1], x.shape[2]), x)
        ctx.ops.copyto(y[:, : self.count], ctx.params["weight"])
        ctx.ops.copyto(y[:, self.count :], x)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` of the steps as a view, and the sum of the rest over the samples."""
        dx = dy[:, self.count :]
        if not ctx._needs_param_grads:
            return dx, {}
        return dx, {"weight": ctx.ops.sum(dy[:, : self.count], axis=0)}


class PositionEmbedding(Layer):
    """A layer that computes y_t = x_t + weight_(t + first) for sequences (N, T, E).

    ``weight`` is (first + max_length, E). Without a spec it starts normal with standard deviation
    0.02 (Radford et al. 2018).

    Args:
        name: Name of the layer, a string.
        max_length: Int, the length of the longest sequence; None for T, if T is known.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        first: Int, the row of the first step; the rows before it are unused (2 in BART).
        input_shape: Sample shape (T, E), to create the parameter at once.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.PositionEmbedding()(x).shape
        (10, 64)
    """

    traits = Traits(any_extent=True, masks="keeps", gives_steps=True)

    def __init__(
        self,
        name: Name = None,
        max_length: int | None = None,
        *,
        W_specs: ParamSpecs = None,
        first: int = 0,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        if max_length is not None:
            max_length = expect_int(name, "max_length", max_length)
        self.max_length = max_length
        self.W_specs = W_specs
        self.first = expect_int(name, "first", first, least=0)

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
        rows = self.first + longest
        self.add_param("weight", (rows, shape[1]), self.W_specs, default=Gaussian(0.0, 0.02))
        return shape

    def _expect_steps(self, steps: int, longest: int) -> None:
        if steps > longest:
            raise self.shape_error(
                f"at most max_length={longest} steps",
                f"{steps}",
                "cut the sequences, or make the layer with a larger max_length",
            )

    def forward(self, ctx: Context, x: Array) -> Array:
        """Add the positions to the sequences."""
        weight, steps = ctx.params["weight"], x.shape[1]
        if ctx.past is None:
            self._expect_steps(steps, len(weight) - self.first)
            return ctx.ops.add(x, weight[self.first : self.first + steps])
        places = ctx.by_starts(self._places, steps, len(weight) - self.first)
        return ctx.ops.add(x, ctx.ops.gather_rows(weight, places))

    def _places(self, starts: Counts, steps: int, longest: int) -> Array:
        """Return the rows (T,) of the steps, (N, T) if the sequences differ."""
        self._expect_steps(most(starts) + steps, longest)
        return np.asarray(starts)[..., None] + np.arange(self.first, self.first + steps)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy``, and its sum over the samples for the positions of this batch."""
        if not ctx._needs_param_grads:
            return dy, {}
        dweight = ctx.ops.zeros(ctx.params["weight"].shape, dy)
        ctx.ops.sum(dy, axis=0, out=dweight[self.first : self.first + dy.shape[1]])
        return dy, {"weight": dweight}


class SinusoidalPosition(Layer):
    """A layer that computes y_t = x_t + p_t for sequences (N, T, E), without parameters.

    p_t,2i = sin(t / 10000^(2i/E)), and p_t,2i+1 is the cosine of the same angle (Vaswani et al.
    2017).

    Args:
        name: Name of the layer, a string.
        input_shape: Sample shape, to set the layer up at once.
        halves: Whether all sines precede the cosines (Marian), instead of alternating with them.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.SinusoidalPosition()(x).shape
        (10, 64)
    """

    traits = Traits(any_extent=True, masks="keeps", gives_steps=True)

    def __init__(
        self,
        name: Name = None,
        input_shape: GivenShape | None = None,
        *,
        halves: bool = False,
    ) -> None:
        super().__init__(name, input_shape)
        self.halves = bool(halves)

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E), unchanged."""
        return self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding before it")

    def forward(self, ctx: Context, x: Array) -> Array:
        """Add the positions to the sequences."""
        return ctx.ops.add(x, ctx.by_starts(_waves_of, x.dtype, *x.shape[1:], self.halves))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradient itself."""
        return dy, {}


class Positions(Layer):
    """A layer that returns the positions (N, T) of indices (N, T), not counting ``padding_index``.

    As in RoBERTa, the first index has the position padding_index + 1, and padding the position
    ``padding_index``. An `Embedding` turns positions into vectors.

    Args:
        name: Name of the layer, a string.
        padding_index: Int, the index of padding.
        input_shape: Sample shape (T,), to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (4,), dtype="int64")
        >>> y = singanet.layers.Positions(padding_index=1)(x)
        >>> singanet.FeedForwardNet(inputs=[x], outputs=[y]).predict(np.array([[7, 8, 9, 1]]))
        array([[2, 3, 4, 1]])
    """

    traits = Traits(
        input_kinds=("integers",),
        gives_integers=True,
        any_extent=True,
        masks="keeps",
        stops_gradient=True,
    )

    def __init__(
        self,
        name: Name = None,
        padding_index: int = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.padding_index = expect_int(name, "padding_index", padding_index, least=0)

    def setup(self, in_shapes: Any) -> Shapes:
        """(T,), unchanged."""
        return self.expect_rank(in_shapes, 1, "(time,)", "give it the indices that are embedded")

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return int64; for sequences in parts, the number of earlier indices is saved."""
        there = x != self.padding_index
        counted: Array = there.astype(np.int64).cumsum(axis=1)
        if ctx.past is not None:
            before = ctx.past.get("counted")
            counted = counted if before is None else counted + before[0]
            ctx.past.put("counted", [counted[:, -1:]])
        return counted * there + self.padding_index

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """Return None: there is no gradient."""
        return None, {}


def wave_order(size: int, halves: bool) -> Array:
    """Return the number of each of ``size`` waves in the order in which they alternate."""
    order = np.arange(size)
    return np.concatenate([order[::2], order[1::2]]) if halves else order


def _waves_of(starts: Counts, dtype: np.dtype[Any], *sizes: int) -> Array:
    """Return `_waves` (T, E), or (N, T, E) if the sequences differ."""
    if isinstance(starts, int):
        return _waves(starts, *sizes).astype(dtype, copy=False)
    return np.stack([_waves(first, *sizes) for first in starts.tolist()]).astype(dtype)


@lru_cache(maxsize=8)
def _waves(first: int, steps: int, size: int, halves: bool) -> Array:
    """Return the positions (T, E) starting at ``first``, in float64."""
    order = wave_order(size, halves)
    angle = np.arange(first, first + steps)[:, None] / 10000.0 ** (2.0 * (order // 2) / size)
    table: Array = np.where(order % 2, np.cos(angle), np.sin(angle))
    table.setflags(write=False)
    return table


POLICIES = ("lru", "lfu", "lfuopt")


class Cache(Configurable):
    """The cache of a worker for the rows of a served `Embedding`.

    With bounds of 0 training gives the same bits as without a cache. After Hetu's HET cache (Miao
    et al., VLDB 2022).

    Args:
        policy: The row that a new one replaces: "lru", the least recently used; "lfu", the least
            often used; "lfuopt" is "lfu", but never replaces a row that ten batches used.
        capacity: A fraction of the rows, up to 1.0 for all, or an int, their number.
        pull_bound: Int; a row is read again after more than this number of updates of the table.
        push_bound: Int; the sum of a row's gradients is pushed after more than this number of them.

    Examples:
        >>> cache = singanet.layers.Cache(policy="lru", capacity=0.1)
        >>> singanet.layers.Embedding(input_dim=1000, output_dim=64, cache=cache).cache.policy
        'lru'
    """

    def __init__(
        self,
        policy: str = "lfu",
        capacity: float = 0.1,
        pull_bound: int = 100,
        push_bound: int = 100,
    ) -> None:
        if not isinstance(policy, str) or policy.lower() not in POLICIES:
            raise ArgumentError(
                "Cache, policy",
                expected=one_of(POLICIES),
                received=brief(policy),
                advice=did_you_mean(str(policy), POLICIES, "'lfu' suits most data"),
            )
        fits = is_int(capacity) or (is_number(capacity) and 0 < capacity <= 1)
        if not fits:
            raise ArgumentError(
                "Cache, capacity",
                expected="a fraction of the rows, above 0 and up to 1.0, or an int of rows",
                received=brief(capacity),
                advice="0.1 caches a tenth of the rows",
            )
        self.policy = policy.lower()
        self.capacity = capacity
        self.pull_bound = checked_count("Cache", "pull_bound", pull_bound, 0)
        self.push_bound = checked_count("Cache", "push_bound", push_bound, 0)

    def lines(self, rows: int) -> int:
        """Return the number of rows in the cache, for a table of ``rows`` rows."""
        wanted = self.capacity if is_int(self.capacity) else self.capacity * rows
        return max(1, min(rows, int(wanted)))


@dataclass(frozen=True)
class ZeroRow(Initializer):
    """An initializer that calls another one and sets one row to zero."""

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
        """Return a check of the contents of ``x`` at the time of the call."""
        if not (x.flags.c_contiguous and x.size):
            return partial(self, x)
        seen = x.view(f"u{x.dtype.itemsize}").reshape(-1)
        place, largest, size = seen.argmax, seen.max, self._layer.input_dim

        def look() -> None:
            if seen[place()] >= size:
                self(x)

        def look_once() -> None:
            # On a device the transfer takes longer than the search.
            if int(largest()) >= size:
                self(x)

        return look if type(x) is np.ndarray else look_once


class Embedding(Layer):
    """A layer that returns the rows weight[x] for integer samples x of any shape.

    ``weight`` has shape (input_dim, output_dim). A `Dense` with ``W_transpose=True`` and
    ``W_specs=embedding.params["weight"]`` shares the table; it gives gradients to all rows.

    If the rows are served, as by `parallel.Hybrid`, the layer requests the rows of a batch at each
    look-up, and their gradients are always row-sparse.

    Args:
        name: Name of the layer, a string.
        input_dim: Positive int; indices go from 0 to ``input_dim`` - 1.
        output_dim: Positive int, the size of a row.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        cache: A `Cache` of served rows, or None.
        padding_index: Int, a row that starts as zeros and has no gradient from this layer, as
            PyTorch's ``padding_idx``; or None.
        mask_index: Int, the index of masked steps, in lists and on symbols (see `Traits`); or None
            (Keras: ``mask_zero``).
        sparse: Whether the gradient is `RowSparse`: a step then costs in proportion to the rows in
            the batch, and optimizers do not change the others. If False it has all rows, as in
            PyTorch: momentum and weight decay change every row at every step.
        input_shape: Sample shape, to create the parameter at once.
        words: Keras' ``embeddings_initializer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.Embedding(input_dim=1000, output_dim=64, input_shape=(20,))
        >>> layer.get_output_sample_shape()
        (20, 64)
        >>> layer.params["weight"].shape
        (1000, 64)
    """

    traits = Traits(
        input_kinds=("integers",), any_extent=True, masks="keeps", looks_up=True, gives_steps=True
    )

    def __init__(
        self,
        name: Name = None,
        input_dim: int = REQUIRED,
        output_dim: int = REQUIRED,
        *,
        W_specs: ParamSpecs = None,
        cache: Cache | None = None,
        padding_index: int | None = None,
        mask_index: int | None = None,
        sparse: bool = True,
        input_shape: GivenShape | None = None,
        **words: Unpack[EmbeddingsWords],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self._mask_layer: Masking | None = None
        if mask_index is not None:
            expect_int(name, "mask_index", mask_index, least=0)
            self._mask_layer = Masking(f"{name}_mask", mask_index)
        if cache is not None and not isinstance(cache, Cache):
            raise ArgumentError(
                f"layer {name!r}, argument cache",
                expected="a Cache, or None",
                received=brief(cache),
                advice="write cache=Cache(capacity=0.1)",
            )
        self.cache = cache
        self.input_dim = expect_int(name, "input_dim", input_dim)
        self.output_dim = expect_int(name, "output_dim", output_dim)
        self.W_specs = W_specs
        if padding_index is not None:
            most = self.input_dim - 1
            padding_index = expect_int(
                name, "padding_index", padding_index, 0, "pass the index of padding", most
            )
        self.padding_index = padding_index
        self.sparse = bool(sparse)

    def _take_name(self, name: str) -> None:
        """Rename the layer, and its mask layer after it."""
        super()._take_name(name)
        if self._mask_layer is not None:
            self._mask_layer._take_name(f"{name}_mask")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → (*s, output_dim)."""
        shape = expect_one_input(self, in_shapes)
        size = (self.input_dim, self.output_dim)
        param = self.add_param("weight", size, self.W_specs, fans=size)
        if self.padding_index is not None and param is not self.W_specs:
            param.initializer = ZeroRow(param.initializer, self.padding_index)
        return (*shape, self.output_dim)

    def matrices(self) -> dict[str, bool]:
        """Return the table."""
        return {"weight": True}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, *s) → (N, *s, output_dim); only the indices are saved.

        Errors: indices that are not integers or out of range. On a GPU the check waits for the
        device.
        """
        self._expect_integers(x)
        ctx.ops.check(_ExpectRows(self), x)
        ctx.save(x=x)
        rows = self.params["weight"].served
        if rows is None:
            return ctx.ops.gather_rows(ctx.params["weight"], x)
        look_up = rows.look_up if ctx.train else rows.see
        return ctx.ops.look_up(look_up, x, (*x.shape, self.output_dim), rows.dtype)

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Gradient]]:
        """Return the summed gradient of each row in the batch, and None for the indices."""
        x = ctx.saved["x"]
        rows = dy.reshape(prod(x.shape), self.output_dim)
        if self.padding_index is not None:
            rows = ctx.ops.multiply(rows, x.reshape(-1, 1) != self.padding_index)
        served = self.params["weight"].served
        # The look-up has already computed the runs of equal indices.
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
        # As an unsigned number, a negative index is a huge one.
        seen = x.view(f"u{x.dtype.itemsize}").reshape(-1)
        if not x.size or int(seen[seen.argmax()]) < self.input_dim:
            return
        flat = x.reshape(-1)
        first = int(((flat < 0) | (flat >= self.input_dim)).argmax())
        position: list[int] = []
        rest = first
        for extent in reversed(x.shape):
            rest, here = divmod(rest, extent)
            position.insert(0, here)
        raise DataError(
            f"layer {self.name!r}",
            expected=f"indices from 0 to {self.input_dim - 1} (input_dim={self.input_dim})",
            received=f"the index {int(flat[first])} at position {tuple(position)}",
            advice="the first number of the position is the sample; map rare words to one index",
        )
