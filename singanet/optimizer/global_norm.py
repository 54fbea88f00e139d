"""Clipping by the norm of all gradients of a net, exactly, in two passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.checks import Grad
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.norm import sum_of_squares
from singanet.types import Array, RowSparse


def squares_of(grads: Sequence[Grad]) -> Any:
    """Σ g² over several gradients; None counts nothing."""
    total: Any = 0.0
    for grad in grads:
        if grad is not None:
            total = total + sum_of_squares(RowSparse(*grad) if isinstance(grad, tuple) else grad)
    return total


def norm_of(items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]]) -> Any:
    """`global_norm` as an array without axes."""
    total: Any = 0.0
    for item in items:
        total = total + squares_of(item[2])
        # The generator goes on to the next layer only after this one's gradients are let go.
        del item
    return root(total)


def root(squares: Any) -> Any:
    """√squares of a sum of squares; 0 where nothing was summed."""
    return math.sqrt(squares) if isinstance(squares, float) else ops_for(squares).xp.sqrt(squares)


def global_norm(items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]]) -> float:
    """The L2 norm of all gradients of a backward pass, each layer's dropped once it is read."""
    return float(norm_of(items))


def clip_by_global_norm(
    optimizer: Any,
    max_norm: float,
    passes: Callable[[], Iterable[Any]],
    scale: float = 1.0,
    rehearsal: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Update so that the norm of all gradients together is ≤ ``max_norm``; returns the norm.

    ``passes()`` runs forward and loss and returns ``net.backward(dy)``; it is called twice, once
    for the norm and once for the update, so that never more than one layer's gradients exist.
    It must give the same gradients both times: pass ``rehearsal=net.rehearsal``, and random layers
    draw the same numbers and running statistics move once. Costs a second forward and backward;
    clipping the list of all gradients costs their memory instead.
    """
    limit = at(checked("clip_by_global_norm", "max_norm", max_norm), 0)
    with rehearsal():
        norm = abs(scale) * global_norm(passes())
    if not math.isfinite(norm):
        raise ArgumentError(
            "clip_by_global_norm",
            expected="gradients with a finite norm",
            received=f"a norm of {norm}",
            advice="skip this batch, or lower the learning rate",
        )
    if norm > limit:
        scale *= limit / norm
    for item in passes():
        optimizer.update(*item, scale)
        del item
    return norm
