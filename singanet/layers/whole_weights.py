"""Attention whose weights are made as a whole: somebody wants to see them, or they are few."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers.context import Context
from singanet.ops.attention import Attention
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["are_few", "attend_whole", "attend_whole_back"]


def are_few(case: Attention, q: Array, k: Array, v: Array) -> bool:
    """Whether the weights are best kept: in memory that is linear in the steps, and in less time.

    Streamed weights are made again for backward, one product of six more, which pays where they
    are many, or where positions hide a part of them, whose blocks are passed over.
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
    """Means (N, h, Tq, e) and weights (N, h, Tq, Tk); the weights and what is dropped are kept."""
    ops = ctx.ops
    weights = ops.attention_weights(
        q, k, case.scale, case.causal, case.lengths, case.seen, case.added, case.first
    )
    there: Array | None = None
    if case.dropout:
        there = ops.keep_mask(ctx.rng, weights.shape, 1.0 - case.dropout)
    kept = _dropped(ops, case, weights, there)
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
    """Gradients of queries, keys, values, and of what is added if it is wanted.

    ``heads`` are queries, keys and values, ``of_weights`` a further gradient of the weights.
    """
    ops, (q, k, v) = ctx.ops, heads
    weights, there = ctx.saved["weights"], ctx.saved["there"]
    dmeans = _together(dmeans, v)
    dv = ops.matmul(_together(_dropped(ops, case, weights, there), v).swapaxes(2, 3), dmeans)
    dweights = ops.matmul(dmeans, v.swapaxes(2, 3)).reshape(weights.shape)
    dweights = _dropped(ops, case, dweights, there)
    for more in of_weights:
        dweights = ops.add(dweights, more, out=dweights)
    dadded: Array | None = None
    if mask_gradient and case.added is not None:
        dadded = ops.sum_to(ops.softmax_backward(dweights, weights), case.added.shape)
    return *ops.attention_backward(dweights, weights, q, k, case.scale), dv, dadded


def _dropped(ops: Ops, case: Attention, weights: Array, there: Array | None) -> Array:
    """The weights that stay, scaled so that their mean does too."""
    if there is None:
        return weights
    kept: Array = ops.multiply(weights, there)
    ops.multiply(kept, 1.0 / (1.0 - case.dropout), out=kept)
    return kept


def _together(rows: Array, served: Array) -> Array:
    """(N, heads, Tq, ·) with the rows of heads that one head of ``served`` serves in one matrix."""
    n, groups = served.shape[:2]
    count, queries = rows.shape[1:3]
    return rows.reshape(n, groups, count // groups * queries, rows.shape[3])
