"""Dense layers, and the product of rows with a weight and its low-rank pair.

`product` adds the low-rank pair of a weight, so layers need no code for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import is_int
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, brief
from singanet.layers.context import Context
from singanet.layers.layer import (
    Layer,
    LowRank,
    Name,
    ParamSpecs,
    expect_activation,
    expect_int,
    pair_of,
)
from singanet.layers.words import KernelAndBias
from singanet.ops.interface import Ops
from singanet.ops.window import Attention
from singanet.types import Array, CSRMatrix, GivenShape, Gradient, RowSparse, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack


def expect_features(layer: Layer, in_shapes: Any) -> None:
    """Errors: `ShapeError` unless it is one sample shape with a known last extent."""
    if isinstance(in_shapes, list) or not in_shapes or in_shapes[-1] < 1:
        raise layer.shape_error(
            "one input of sample shape (features,) or (..., features), the last one known",
            str(in_shapes),
            "put Concat, Reshape or Flatten before it",
        )


def as_rows(x: Array) -> Array:
    """Reshape (..., D) to (R, D)."""
    return x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


def product(
    layer: Layer, ctx: Context, x: Array, part: str = "", transposed: bool = False
) -> Array:
    """Compute (..., in) W + b with ``<part>weight`` and, if there is one, ``<part>bias``.

    A ``transposed`` weight is (out, in). The context saves the arrays that a pair needs in
    backward.
    """
    ops, weight = ctx.ops, f"{part}weight"
    rows = x if x.ndim == 2 else as_rows(x)
    matrix = ctx.params[weight]
    y: Array = ops.affine(rows, matrix.T if transposed else matrix, ctx.params.get(f"{part}bias"))
    pair = layer.adapters.get(weight)
    if pair is not None:
        a, b = (ctx.params[suffix] for suffix in pair_of(weight))
        inner = ops.matmul(_read_by(pair, ctx, rows, weight), a)
        ops.multiply(inner, pair.scale, out=inner)
        ctx.save(**{f"{weight}.inner": inner})
        y = ops.add_matmul(y, inner, b)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])


def product_back(
    layer: Layer,
    ctx: Context,
    x: Array,
    dy: Array,
    grads: dict[str, Any],
    wanted: bool,
    part: str = "",
    transposed: bool = False,
) -> Any:
    """Return the gradient of x if ``wanted``, and add the parameter gradients to ``grads``.

    dW = xᵀ dy, db = the sum of dy, dx = dy Wᵀ. A low-rank pair has dB = s (x A)ᵀ dy and dA = s xᵀ
    (dy Bᵀ), and adds s (dy Bᵀ) Aᵀ to dx.
    """
    ops, weight = ctx.ops, f"{part}weight"
    rows, back = (x, dy) if x.ndim == 2 else (as_rows(x), as_rows(dy))
    if ctx.wants(weight):
        grads[weight] = ops.matmul(back.T, rows) if transposed else ops.matmul(rows.T, back)
    if f"{part}bias" in ctx.params and ctx.wants(f"{part}bias"):
        grads[f"{part}bias"] = ops.column_sums(back)
    dx: Array | None = None
    if wanted:
        matrix = ctx.params[weight]
        dx = ops.matmul(back, matrix if transposed else matrix.T)
    pair = layer.adapters.get(weight)
    if pair is not None:
        dx = _pair_back(pair, ctx, rows, back, grads, dx, weight)
    return dx if dx is None or x.ndim == 2 else dx.reshape(x.shape)


def _pair_back(
    pair: LowRank,
    ctx: Context,
    rows: Array,
    dy: Array,
    grads: dict[str, Any],
    dx: Array | None,
    weight: str,
) -> Array | None:
    ops, (name_a, name_b) = ctx.ops, pair_of(weight)
    a, b = ctx.params[name_a], ctx.params[name_b]
    if ctx.wants(name_b):
        grads[name_b] = ops.matmul(ctx.saved[f"{weight}.inner"].T, dy)
    inner = ops.matmul(dy, b.T)
    ops.multiply(inner, pair.scale, out=inner)
    mask = ctx.saved.get(f"{weight}.mask")
    if ctx.wants(name_a):
        read = rows if mask is None else _dropped(pair, ctx, rows, mask)
        grads[name_a] = ops.matmul(read.T, inner)
    if dx is None or mask is None:
        return dx if dx is None else ops.add_matmul(dx, inner, a.T)
    return ops.add(dx, _dropped(pair, ctx, ops.matmul(inner, a.T), mask), out=dx)


def _read_by(pair: LowRank, ctx: Context, rows: Array, weight: str) -> Array:
    """Return the rows that the pair multiplies: in training with dropout, whose mask is saved."""
    if not ctx.train or pair.dropout == 0.0:
        return rows
    mask = ctx.ops.keep_mask(ctx.rng, rows.shape, 1.0 - pair.dropout)
    ctx.save(**{f"{weight}.mask": mask})
    return _dropped(pair, ctx, rows, mask)


def _dropped(pair: LowRank, ctx: Context, rows: Array, mask: Array) -> Array:
    made: Array = ctx.ops.multiply(rows, mask)
    return ctx.ops.multiply(made, 1.0 / (1.0 - pair.dropout), out=made)


class Dense(Layer):
    """A layer that computes y = x W + b over the last axis of each sample.

    ``weight`` has shape (in, out), or (out, in) with ``W_transpose``; ``bias`` has shape (out,).
    For a sparse x only the rows of W with entries in x are read, and without ``W_transpose`` the
    gradient of W is a `RowSparse`.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the number of output features.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        W_transpose: Whether the weight is stored as (out, in).
        input_shape: Sample shape (without the batch axis), to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.Dense(units=10, activation="relu", input_shape=(64,))
        >>> layer.get_output_sample_shape()
        (10,)
        >>> layer.params["weight"].shape
        (64, 10)
    """

    traits = Traits(any_extent=True, masks="keeps", takes_sparse=True, owns_gradients=True)

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        *,
        activation: str | Layer | None = None,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        W_transpose: bool = False,
        input_shape: GivenShape | None = None,
        **words: Unpack[KernelAndBias],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.units = expect_int(name, "units", units, advice="pass the number of output units")
        self.activation = expect_activation(name, activation)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs
        self.W_transpose = W_transpose

    def setup(self, in_shapes: Any) -> Shapes:
        """(..., in) → (..., units)."""
        expect_features(self, in_shapes)
        size = in_shapes[-1]
        shape = (self.units, size) if self.W_transpose else (size, self.units)
        self.add_param("weight", shape, self.W_specs, fans=(size, self.units))
        if self.use_bias:
            self.add_param("bias", (self.units,), self.b_specs)
        return (*in_shapes[:-1], self.units)

    def products(self) -> dict[str, bool]:
        """Return the weight."""
        return {"weight": self.W_transpose}

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, ..., in) → (N, ..., units)."""
        ctx.save(x=x)
        if isinstance(x, CSRMatrix):
            return self._of_sparse(ctx, x)
        return product(self, ctx, x, transposed=self.W_transpose)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Gradient]]:
        """dW = xᵀ dy, db = the sum of dy, dx = dy Wᵀ."""
        x, grads = ctx.saved["x"], dict[str, Gradient]()
        wanted = ctx.needs_input_grad
        if not isinstance(x, CSRMatrix):
            return product_back(self, ctx, x, dy, grads, wanted, transposed=self.W_transpose), grads
        ops, weight = ctx.ops, ctx.params["weight"]
        if ctx.wants("weight"):
            parts = ops.gather_rows(dy, x.entry_rows(ops.xp))
            parts *= x.values[:, None]
            rows = RowSparse(*ops.sum_rows(x.indices, parts))
            grads["weight"] = rows
            if self.W_transpose:
                whole = ops.zeros((x.shape[1], self.units), parts)
                grads["weight"] = ops.add_to_rows(whole, *rows).T
        if self.use_bias and ctx.wants("bias"):
            grads["bias"] = ops.column_sums(dy)
        return (ops.matmul(dy, weight if self.W_transpose else weight.T) if wanted else None), grads

    def _of_sparse(self, ctx: Context, x: CSRMatrix) -> Array:
        """Return the sums of the rows of W at each sample's entries, scaled by the values."""
        ops, weight, bias = ctx.ops, ctx.params["weight"], ctx.params.get("bias")
        weight = weight.T if self.W_transpose else weight
        parts = ops.gather_rows(weight, x.indices)
        parts *= x.values[:, None]
        y = ops.zeros((len(x), self.units), parts)
        y = ops.add_to_rows(y, *ops.sum_rows(x.entry_rows(ops.xp), parts))
        return y if bias is None else y + bias


def heads_of(x: Array, size: int) -> Array:
    """Return (N, T, heads·size) as (N, heads, T, size), a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // size, size).transpose(0, 2, 1, 3)


def merged_heads(heads: Array) -> Array:
    """Return (N, heads, T, size) as (N, T, heads·size)."""
    n, count, steps, size = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(n, steps, count * size)


def are_few(case: Attention, q: Array, k: Array, v: Array) -> bool:
    """Whether to save the weights: if their memory is linear in the steps, and it is faster.

    Streaming computes the weights again in backward, one product in addition to six. It is faster
    if there are many weights, or if a mask by position hides some, whose blocks it skips.
    """
    if case.softcap is not None or case.window is not None or case.segments is not None:
        return False
    n, heads, queries, size = q.shape
    groups, keys, width = k.shape[1], k.shape[2], v.shape[3]
    beside = n * (heads * queries + groups * keys) * (size + width)
    return n * heads * queries * keys <= beside * (1 if case.causal else 2)


def attend_whole(
    ctx: Context, case: Attention, q: Array, k: Array, v: Array
) -> tuple[Array, Array]:
    """Return the means (N, h, Tq, e) and weights (N, h, Tq, Tk); save weights and dropout mask."""
    ops = ctx.ops
    weights = ops.attention_weights(q, k, case)
    there: Array | None = None
    if case.dropout:
        there = ops.keep_mask(ctx.rng, weights.shape, 1.0 - case.dropout)
    kept = _dropped_weights(ops, case, weights, there)
    ctx.save(weights=weights, there=there)
    return ops.matmul(_together(kept, v), v).reshape(*q.shape[:3], v.shape[3]), weights


def attend_whole_back(
    ctx: Context,
    case: Attention,
    dmeans: Array,
    of_weights: Sequence[Array],
    heads: Sequence[Array],
    mask_gradient: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """Return the gradients of queries, keys, values, and of the added mask if it is wanted.

    ``heads`` are queries, keys and values; ``of_weights`` is a further gradient of the weights.
    """
    ops, (q, k, v) = ctx.ops, heads
    weights, there = ctx.saved["weights"], ctx.saved["there"]
    dmeans = _together(dmeans, v)
    dv = ops.matmul(
        _together(_dropped_weights(ops, case, weights, there), v).swapaxes(2, 3), dmeans
    )
    dweights = ops.matmul(dmeans, v.swapaxes(2, 3)).reshape(weights.shape)
    dweights = _dropped_weights(ops, case, dweights, there)
    for more in of_weights:
        dweights = ops.add(dweights, more, out=dweights)
    dadded: Array | None = None
    if mask_gradient and case.added is not None:
        dadded = ops.sum_to(ops.softmax_backward(dweights, weights), case.added.shape)
    return *ops.attention_backward(dweights, weights, q, k, case.scale), dv, dadded


def _dropped_weights(ops: Ops, case: Attention, weights: Array, there: Array | None) -> Array:
    """Drop weights and scale the rest, so that the mean stays the same."""
    if there is None:
        return weights
    kept: Array = ops.multiply(weights, there)
    ops.multiply(kept, 1.0 / (1.0 - case.dropout), out=kept)
    return kept


def _together(rows: Array, served: Array) -> Array:
    """Merge the rows of all query heads that share one head of ``served`` into one matrix."""
    n, groups = served.shape[:2]
    count, queries = rows.shape[1:3]
    return rows.reshape(n, groups, count // groups * queries, rows.shape[3])


class Weight(Layer):
    """A layer that returns its parameter ``weight`` for every sample of the input.

    It reads only the number of samples of the input. It can be the class token of a vision
    transformer, or a table that `Add` adds.

    Args:
        name: Name of the layer, a string.
        shape: Shape of the parameter, without the batch axis.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        input_shape: Sample shape of the input, to create the parameter at once.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.Weight(shape=(1, 64))(x).shape
        (1, 64)
    """

    traits = Traits(input_kinds=("any",), any_extent=True, stops_gradient=True)

    def __init__(
        self,
        name: Name = None,
        shape: Sequence[int] = REQUIRED,
        *,
        W_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        if not isinstance(shape, (tuple, list)) or not all(is_int(size) for size in shape):
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="the extents of the array, without the batch axis",
                received=brief(shape),
                advice="pass for example shape=(1, 64)",
            )
        self.shape = tuple(int(size) for size in shape)
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape → ``shape``."""
        self.add_param("weight", self.shape, self.W_specs)
        return self.shape

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the parameter broadcast over the samples; no array is saved."""
        first = x[0] if isinstance(x, (list, tuple)) else x
        return ctx.ops.xp.broadcast_to(ctx.params["weight"], (len(first), *self.shape))

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """Return the sum of ``dy`` over the samples, and None for the input."""
        return None, {"weight": ctx.ops.sum(dy, axis=0)}
