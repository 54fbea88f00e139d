"""SINGA's lists of steps, turned into padded batches with lengths and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from singanet.errors import ShapeError
from singanet.ops import ops_for
from singanet.types import Array

__all__ = ["padded_to_steps", "steps_to_padded"]


def steps_to_padded(steps: Sequence[Array]) -> tuple[Array, Array]:
    """``steps`` [x1..xT] of shape (batch_t, F) as (N, T, F), zero-padded, and lengths (N,).

    N is the first batch size; the sizes never grow, so sample n is row n of every step that has
    it. Errors: no step, a growing batch, or steps of different features.
    """
    if not steps or steps[0].ndim != 2:
        raise _bad_steps("at least one step of shape (batch, features)", steps)
    sizes = [len(step) for step in steps]
    if any(step.ndim != 2 or step.shape[1] != steps[0].shape[1] for step in steps):
        raise _bad_steps("steps of equally many features", steps)
    if any(size > before for before, size in pairwise(sizes)):
        raise _bad_steps("batch sizes that never grow from step to step", steps)
    ops = ops_for(steps[0])
    padded = ops.zeros((sizes[0], len(steps), steps[0].shape[1]), steps[0])
    for t, step in enumerate(steps):
        ops.copyto(padded[: sizes[t], t], step)
    xp = ops.xp
    lengths: Array = (xp.asarray(sizes)[None, :] > xp.arange(sizes[0])[:, None]).sum(axis=1)
    return padded, lengths


def padded_to_steps(y: Array, sizes: Sequence[int]) -> list[Array]:
    """(N, T, F) as [y1..yT], views of the first ``sizes[t]`` rows of each step."""
    if len(sizes) != y.shape[1] or any(not 0 <= size <= len(y) for size in sizes):
        raise ShapeError(
            "padded_to_steps",
            expected=f"{y.shape[1]} batch sizes of at most {len(y)}",
            received=f"{list(sizes)[:12]}",
            advice="pass the batch sizes of the list that was padded",
        )
    return [y[:size, t] for t, size in enumerate(sizes)]


def _bad_steps(expected: str, steps: Sequence[Array]) -> ShapeError:
    return ShapeError(
        "steps_to_padded",
        expected=expected,
        received=f"shapes {[tuple(step.shape) for step in steps[:12]]}",
        advice="sort the samples so that their lengths fall",
    )
