"""The heads of attention: rows projected, cut into heads and put together again."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.types import Array

__all__ = ["heads_of", "merged_heads", "project", "project_back"]


def project(ctx: Context, part: str, x: Array) -> Array:
    """(N, T, in) W + b, by the weight and the bias of ``part``."""
    weight, bias = ctx.params[f"{part}_weight"], ctx.params.get(f"{part}_bias")
    rows = ctx.ops.affine(x.reshape(-1, x.shape[2]), weight, bias)
    return rows.reshape(*x.shape[:2], weight.shape[1])


def project_back(
    ctx: Context, part: str, x: Array, dy: Array, grads: dict[str, Array], wanted: bool
) -> Any:
    """The gradient of x if ``wanted``; those of weight and bias go into ``grads``."""
    ops, weight = ctx.ops, ctx.params[f"{part}_weight"]
    rows = dy.reshape(-1, weight.shape[1])
    if ctx.needs_param_grads:
        grads[f"{part}_weight"] = ops.matmul(x.reshape(-1, weight.shape[0]).T, rows)
        if f"{part}_bias" in ctx.params:
            grads[f"{part}_bias"] = ops.sum(ops.sum(dy, axis=0), axis=0)
    return ops.matmul(rows, weight.T).reshape(x.shape) if wanted else None


def heads_of(x: Array, size: int) -> Array:
    """(N, T, heads·size) as (N, heads, T, size), a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // size, size).transpose(0, 2, 1, 3)


def merged_heads(heads: Array) -> Array:
    """(N, heads, T, size) as (N, T, heads·size)."""
    n, count, steps, size = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(n, steps, count * size)
