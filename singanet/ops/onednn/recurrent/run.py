"""Runs of oneDNN's recurrent kernels on arrays, whatever the kind of layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.ops.direction import Direction
from singanet.ops.numpy.recurrent.gates import state_buffer
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent.plans import Sizes, backward, infer, train
from singanet.ops.onednn.runtime import Build
from singanet.types import Array

Parameters = tuple[Array, Array, Array]
"""The weights of x and of h, and the bias, as oneDNN has them."""

States = tuple[Array, tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]
"""The states h around the steps, the other states before and after all steps, and the note."""


def sizes_of(kind: str, x: Array, width: int, direction: Direction) -> Sizes:
    """Those of a layer of ``width`` units on x (T, N, in)."""
    steps, n, size = x.shape
    return Sizes(kind, steps, n, size, width, direction.reverse)


def serves(
    ops: OneDnnBase,
    x: Array,
    weights: tuple[Array | None, Array],
    biases: Sequence[Array],
    direction: Direction,
) -> bool:
    """Whether it is a layer for oneDNN: with a product with the input, no step skipped, float32."""
    of_x, of_h = weights
    if of_x is None or not ops.serves(1, x, of_x, of_h, *biases):
        return False
    return direction.is_plain


def is_noted(notes: Sequence[Array]) -> bool:
    """Whether the notes are those of a kernel of oneDNN."""
    return len(notes) > 0 and notes[0].dtype == np.uint8


def states(
    ops: OneDnnBase,
    sizes: Sizes,
    x: Array,
    parameters: Parameters,
    starts: Sequence[Array | None],
    direction: Direction,
    keep: bool,
) -> States | None:
    """All steps, with ``keep`` and a note for `gradients`; None where oneDNN has no kernel."""
    return forward(ops, train if keep else infer, sizes, x, parameters, starts, direction, keep)


def forward(
    ops: OneDnnBase,
    build: Build,
    sizes: Sizes,
    x: Array,
    parameters: Parameters,
    starts: Sequence[Array | None],
    direction: Direction,
    keep: bool,
    passes: int | None = None,
) -> States | None:
    """`states` by the plan of ``build``."""
    shape = (sizes.n, sizes.width)
    h = state_buffer(ops, (sizes.steps + 1, *shape), starts[0], x, direction)
    firsts = tuple(_start(ops, start, h) for start in starts[1:])
    lasts: tuple[Array, ...] = tuple(ops.xp.empty((1, *shape), x.dtype) for _ in firsts)
    given = [ops.ordered(x), h[direction.start], *firsts, *map(ops.ordered, parameters)]
    given += [direction.afters(h), *lasts]
    work = sizes.passes if passes is None else passes
    notes = (ops.room(build, sizes, len(given), given[0], work),) if keep else ()
    if not ops.runs(build, sizes, *given, *notes, passes=work):
        return None
    return h, firsts, lasts, notes


def gradients(
    ops: OneDnnBase,
    sizes: Sizes,
    dy: Array | None,
    ends: Sequence[Array],
    x: Array,
    parameters: Parameters,
    made: States,
    direction: Direction,
) -> list[Array]:
    """Gradients of x, of the first states, of both weights and of the bias."""
    xp, (h, firsts, lasts, notes) = ops.xp, made
    given = [ops.ordered(array) for array in parameters]
    slopes = xp.zeros((sizes.steps, sizes.n, sizes.width), x.dtype) if dy is None else dy
    found: list[Array] = [xp.empty(like.shape, like.dtype) for like in (x, *ends)]
    # Kernels that round what they multiply add to these.
    found += [(xp.zeros if ops.narrow else xp.empty)(like.shape, like.dtype) for like in given]
    before = [ops.ordered(x), h[direction.start], *firsts, *given]
    after = [direction.afters(h), h[direction.end], *lasts, *notes]
    from_above = [ops.ordered(slopes), *map(ops.ordered, ends)]
    ops.runs(backward, sizes, *before, *after, *from_above, *found, passes=sizes.passes)
    return found


def _start(ops: OneDnnBase, state: Array | None, h: Array) -> Array:
    made: Array
    if state is None:
        made = ops.xp.zeros(h.shape[1:], h.dtype)
    else:
        made = ops.xp.array(state, order="C")
    return made
