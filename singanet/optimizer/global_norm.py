"""The norm of all gradients of a net."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from singanet.ops import ops_for
from singanet.optimizer.checks import Grad
from singanet.optimizer.norm import sum_of_squares
from singanet.types import Array, RowSparse


def squares_of(grads: Sequence[Grad]) -> Any:
    """Σ g² over several gradients; None counts nothing."""
    total: Any = 0.0
    for grad in grads:
        if grad is not None:
            total = total + sum_of_squares(RowSparse(*grad) if isinstance(grad, tuple) else grad)
    return total


def norm_of(
    items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]],
    joined: Callable[[Any], Any] = lambda total: total,
) -> Any:
    """`global_norm` as an array without axes; of parts ``joined`` sums the squares of all."""
    total: Any = 0.0
    for item in items:
        total = total + squares_of(item[2])
        # The generator goes on to the next layer only after this one's gradients are let go.
        del item
    return root(joined(total))


def root(squares: Any) -> Any:
    """√squares of a sum of squares; 0 where nothing was summed."""
    return math.sqrt(squares) if isinstance(squares, float) else ops_for(squares).xp.sqrt(squares)


def global_norm(items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]]) -> float:
    """The L2 norm of all gradients of a backward pass, each layer's dropped once it is read."""
    return float(norm_of(items))
