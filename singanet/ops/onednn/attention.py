"""Softmax of attention by oneDNN, in place."""

from __future__ import annotations

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import attention as by_numpy
from singanet.ops.onednn import scores
from singanet.ops.onednn.base import OneDnnBase
from singanet.types import Array


def _weights(
    ops: OneDnnBase,
    q: Array,
    k: Array,
    scale: float,
    causal: bool,
    lengths: Array | None = None,
    seen: Array | None = None,
    added: Array | None = None,
    first: int = 0,
) -> Array | None:
    xp = ops.xp
    weights, hidden = by_numpy.seen_scores(ops, q, k, scale, causal, lengths, seen, added, first)
    # A row with NaN is left with some, which goes to all that is made of it.
    if not scores.in_place(ops, weights):
        return None
    if added is not None:
        absent = added == -np.inf
        hidden = absent if hidden is None else xp.logical_or(hidden, absent)
    # A softmax of nothing is NaN; what is causal alone always sees the first key.
    sees_one = first >= 0 and lengths is None and seen is None and added is None
    if hidden is not None and not sees_one:
        xp.copyto(weights, 0, where=hidden.all(axis=-1, keepdims=True))
    return weights


def _is_served(
    ops: OneDnnBase, q: Array, k: Array, scale: float, causal: bool, *masks: object, **named: object
) -> bool:
    return ops.serves(1, q, k) and scores.pays(ops, q.size // q.shape[-1] * k.shape[2])


attention_weights = in_order(Route("onednn", _weights, _is_served), last=by_numpy.attention_weights)
