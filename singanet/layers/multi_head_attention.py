"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs
from singanet.layers.recurrent import check_batches, read_whole_lengths
from singanet.types import Array, Shapes

_PARTS = ("query", "value", "key")


class MultiHeadAttention(Layer):
    """Weighted means of values, the weights from queries and keys (Vaswani et al. 2017).

    Inputs: (N, T, E) alone for self-attention; or queries (N, Tq, E) and values (N, Tk, E'),
    which are the keys too; or queries, values and keys, as in Keras. Then, if wanted, lengths
    (N,): how many keys of each sample are there; a query that sees none gives the output bias.
    Output: (N, Tq, E). ``causal`` shows query t only the keys up to t. ``key_dim`` and
    ``value_dim`` are per head, E / num_heads and ``key_dim`` by default. ``dropout`` is the
    probability of dropping an attention weight.
    Parameters: ``query_weight`` (E, heads·key_dim), ``value_weight`` (E', heads·value_dim),
    ``key_weight`` (E', heads·key_dim), ``output_weight`` (heads·value_dim, E), each with a bias.
    """

    any_extent = True

    def __init__(
        self,
        name: str,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        causal: bool = False,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        input_sample_shape: Shapes | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.num_heads = expect_int(name, "num_heads", num_heads)
        self.key_dim = key_dim if key_dim is None else expect_int(name, "key_dim", key_dim)
        self.value_dim = (
            value_dim if value_dim is None else expect_int(name, "value_dim", value_dim)
        )
        if not is_number(dropout) or not 0.0 <= dropout < 1.0:
            raise ArgumentError(
                f"layer {name!r}, argument dropout",
                expected="the probability of dropping, from 0 to below 1",
                received=repr(dropout),
                advice="use dropout=0.1 to drop a tenth of the attention weights",
            )
        self.dropout = dropout
        self.use_bias = use_bias
        self.causal = causal
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(Tq, E), and what else is given → (Tq, E)."""
        shapes = list(in_shapes) if isinstance(in_shapes, list) else [in_shapes]
        self.has_lengths = len(shapes) > 1 and shapes[-1] in ((), (1,))
        self.given = len(shapes) - self.has_lengths
        sequences = shapes[: self.given]
        times = {shape[0] for shape in sequences[1:] if shape}
        if not 1 <= self.given <= 3 or any(len(s) != 2 for s in sequences) or len(times) > 1:
            raise self.shape_error(
                "one to three inputs of sample shape (time, features), values and keys of one"
                " time, then no lengths or lengths of shape ()",
                str(in_shapes),
                "give queries, values and keys in this order",
            )
        steps, size = shapes[0]
        if self.key_dim is None and size % self.num_heads:
            raise self.shape_error(
                f"features divisible by num_heads={self.num_heads}",
                f"{size} features",
                "pass key_dim, or choose another num_heads",
            )
        key_dim = self.key_dim or size // self.num_heads
        value_dim = self.value_dim or key_dim
        self.dims = {"query": key_dim, "value": value_dim, "key": key_dim}
        for part, (_, features) in zip(_PARTS, (sequences + [sequences[-1]] * 2)[:3], strict=True):
            self._add(part, features, self.num_heads * self.dims[part])
        self._add("output", self.num_heads * value_dim, size)
        return (steps, size)

    def _add(self, part: str, inward: int, outward: int) -> None:
        self.add_param(f"{part}_weight", (inward, outward), self.W_specs, fans=(inward, outward))
        if self.use_bias:
            self.add_param(f"{part}_bias", (outward,), self.b_specs)

    def forward(self, ctx: Context, x: Any) -> Array:
        """(N, Tq, E); keeps the inputs, the heads and the weights."""
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        check_batches(self, parts)
        ops, sources = ctx.ops, (parts[: self.given] + [parts[self.given - 1]] * 2)[:3]
        lengths: Array | None = None
        if self.has_lengths:
            n, keys = sources[2].shape[:2]
            lengths = ops.xp.asarray(read_whole_lengths(self, ops, parts[-1], n, keys))
        q, v, k = (
            self._heads(self._project(ctx, part, source), self.dims[part])
            for part, source in zip(_PARTS, sources, strict=True)
        )
        scale = self.dims["key"] ** -0.5
        weights = ops.attention_weights(q, k, scale, self.causal, lengths)
        mask: Array | None = None
        if ctx.train and self.dropout > 0.0:
            mask = ops.keep_mask(ctx.rng, weights.shape, 1.0 - self.dropout)
        merged = self._merged(ops.matmul(self._dropped(ctx, weights, mask), v))
        ctx.save(sources=sources, q=q, v=v, k=k, weights=weights, mask=mask, merged=merged)
        return self._project(ctx, "output", merged)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Gradients of the inputs, lengths apart, and of every weight and bias."""
        ops, saved = ctx.ops, ctx.saved
        grads: dict[str, Array] = {}
        dmerged = self._project_back(ctx, "output", saved["merged"], dy, grads, wanted=True)
        dheads = self._heads(dmerged, self.dims["value"])
        q, v, k, weights, mask = (saved[key] for key in ("q", "v", "k", "weights", "mask"))
        dv = ops.matmul(self._dropped(ctx, weights, mask).swapaxes(2, 3), dheads)
        dweights = self._dropped(ctx, ops.matmul(dheads, v.swapaxes(2, 3)), mask)
        dq, dk = ops.attention_backward(dweights, weights, q, k, self.dims["key"] ** -0.5)
        dsources: list[Array] = []
        for part, source, d in zip(_PARTS, saved["sources"], (dq, dv, dk), strict=True):
            wanted = ctx.needs_input_grad
            dx = self._project_back(ctx, part, source, self._merged(d), grads, wanted)
            dsources.append(dx)
        if ctx.needs_param_grads:
            grads = {suffix: grads[suffix] for suffix in self.params}
        if not ctx.needs_input_grad:
            return None, grads
        # Where one input serves as several, its gradients are summed.
        while len(dsources) > self.given:
            last = dsources.pop()
            dsources[-1] = ops.add(dsources[-1], last, out=dsources[-1])
        rest = [*dsources[1:], *([None] * self.has_lengths)]
        return [dsources[0], *rest] if rest else dsources[0], grads

    def _project(self, ctx: Context, part: str, x: Array) -> Array:
        """(N, T, in) W + b."""
        weight, bias = ctx.params[f"{part}_weight"], ctx.params.get(f"{part}_bias")
        rows = ctx.ops.affine(x.reshape(-1, x.shape[2]), weight, bias)
        return rows.reshape(*x.shape[:2], weight.shape[1])

    def _project_back(
        self, ctx: Context, part: str, x: Array, dy: Array, grads: dict[str, Array], wanted: bool
    ) -> Any:
        """The gradient of x if ``wanted``; those of weight and bias go into ``grads``."""
        ops, weight = ctx.ops, ctx.params[f"{part}_weight"]
        rows = dy.reshape(-1, weight.shape[1])
        if ctx.needs_param_grads:
            grads[f"{part}_weight"] = ops.matmul(x.reshape(-1, weight.shape[0]).T, rows)
            if self.use_bias:
                grads[f"{part}_bias"] = ops.sum(ops.sum(dy, axis=0), axis=0)
        return ops.matmul(rows, weight.T).reshape(x.shape) if wanted else None

    def _heads(self, x: Array, size: int) -> Array:
        """(N, T, heads·size) as (N, heads, T, size), a view."""
        return x.reshape(*x.shape[:2], self.num_heads, size).transpose(0, 2, 1, 3)

    def _merged(self, heads: Array) -> Array:
        """(N, heads, T, size) as (N, T, heads·size)."""
        n, count, steps, size = heads.shape
        return heads.transpose(0, 2, 1, 3).reshape(n, steps, count * size)

    def _dropped(self, ctx: Context, weights: Array, mask: Array | None) -> Array:
        """The weights under the dropout mask, scaled so that their mean stays."""
        if mask is None:
            return weights
        kept: Array = ctx.ops.multiply(weights, mask)
        ctx.ops.multiply(kept, 1.0 / (1.0 - self.dropout), out=kept)
        return kept
