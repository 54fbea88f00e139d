"""From gradients of gates to those of what the gates were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from singanet.types import Array


class RecurrentGradients(NamedTuple):
    """Of x (None where nobody wants it), of both weights, and of the biases added with each."""

    x: Array | None
    weight_x: Array
    weight_h: Array
    bias_x: Array
    bias_h: Array


class _Products(Protocol):
    xp: Any
    matmul: Callable[..., Array]


def through_gates(
    ops: _Products,
    of_x: Array,
    of_h: Array,
    x: Array,
    before: Array,
    weight_x: Array,
    needs_dx: bool,
) -> RecurrentGradients:
    """For gradients (T, N, G·H) of what x (T, N, in) and the states ``before`` give the gates.

    ``of_x`` and ``of_h`` may be one array; the gradients of the biases then are one too.
    """
    rows_x, rows_h = (d.reshape(-1, d.shape[2]) for d in (of_x, of_h))
    weight_h = ops.matmul(before.reshape(-1, before.shape[2]).T, rows_h)
    made = ops.matmul(x.reshape(-1, x.shape[2]).T, rows_x)
    # Summed over time and then over samples: two short sums lose less than one long one.
    bias_x = of_x.sum(axis=0).sum(axis=0)
    bias_h = bias_x if of_h is of_x else of_h.sum(axis=0).sum(axis=0)
    dx = ops.matmul(rows_x, weight_x.T).reshape(x.shape) if needs_dx else None
    return RecurrentGradients(dx, made, weight_h, bias_x, bias_h)
