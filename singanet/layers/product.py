"""The product of rows with a weight, which every layer with such weights makes here.

So a layer need not know that a low-rank pair stands beside its weight.
"""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.low_rank import LowRank, pair_of
from singanet.types import Array

__all__ = ["as_rows", "product", "product_back"]


def as_rows(x: Array) -> Array:
    """(..., D) as (R, D)."""
    return x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


def product(layer: Layer, ctx: Context, x: Array, part: str = "", turned: bool = False) -> Array:
    """(..., in) W + b, by the parameters ``<part>weight`` and, if there is one, ``<part>bias``.

    A ``turned`` weight is (out, in). What a pair of ``layer`` needs for its gradient is kept.
    """
    ops, weight = ctx.ops, f"{part}weight"
    rows = x if x.ndim == 2 else as_rows(x)
    matrix = ctx.params[weight]
    y: Array = ops.affine(rows, matrix.T if turned else matrix, ctx.params.get(f"{part}bias"))
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
    turned: bool = False,
) -> Any:
    """The gradient of x if ``wanted``; those that the context wants of parameters go to ``grads``.

    dW = xᵀ dy, db = the sum of dy, dx = dy Wᵀ; of a pair dB = s (x A)ᵀ dy, dA = s xᵀ (dy Bᵀ), and
    s (dy Bᵀ) Aᵀ is added to dx.
    """
    ops, weight = ctx.ops, f"{part}weight"
    rows, back = (x, dy) if x.ndim == 2 else (as_rows(x), as_rows(dy))
    if ctx.wants(weight):
        grads[weight] = ops.matmul(back.T, rows) if turned else ops.matmul(rows.T, back)
    if f"{part}bias" in ctx.params and ctx.wants(f"{part}bias"):
        grads[f"{part}bias"] = ops.column_sums(back)
    dx: Array | None = None
    if wanted:
        matrix = ctx.params[weight]
        dx = ops.matmul(back, matrix if turned else matrix.T)
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
    """What the pair reads of ``rows``: in training with elements dropped, whose mask is kept."""
    if not ctx.train or pair.dropout == 0.0:
        return rows
    mask = ctx.ops.keep_mask(ctx.rng, rows.shape, 1.0 - pair.dropout)
    ctx.save(**{f"{weight}.mask": mask})
    return _dropped(pair, ctx, rows, mask)


def _dropped(pair: LowRank, ctx: Context, rows: Array, mask: Array) -> Array:
    made: Array = ctx.ops.multiply(rows, mask)
    return ctx.ops.multiply(made, 1.0 / (1.0 - pair.dropout), out=made)
