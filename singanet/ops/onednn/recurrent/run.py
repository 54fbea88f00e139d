"""Runs of oneDNN's recurrent kernels on arrays, whatever the kind of layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.ops.direction import RecurrentCase, RecurrentStates
from singanet.ops.numpy.recurrent.gates import state_buffer
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent.plans import Sizes, backward, infer, train
from singanet.ops.onednn.runtime import Build
from singanet.types import Array


def sizes_of(kind: str, case: RecurrentCase) -> Sizes:
    """The sizes of one direction, for the primitives."""
    steps, n, size = case.x.shape
    return Sizes(kind, steps, n, size, len(case.weights[1]), case.direction.reverse)


def serves(ops: OneDnnBase, case: RecurrentCase) -> bool:
    """Whether it is a layer for oneDNN: with a product with the input, no step skipped, float32."""
    of_x, of_h = case.weights
    if of_x is None or not ops.serves(1, case.x, of_x, of_h, *case.biases):
        return False
    return case.direction.is_plain


def is_noted(ops: OneDnnBase, case: RecurrentCase, made: RecurrentStates, *_: Any) -> bool:
    """Whether the notes are those of a kernel of oneDNN."""
    return len(made.notes) > 0 and made.notes[0].dtype == np.uint8


def forward(
    ops: OneDnnBase,
    sizes: Sizes,
    case: RecurrentCase,
    starts: Sequence[Array | None],
    keep: bool,
    plan: tuple[Build, int] | None = None,
) -> RecurrentStates | None:
    """All steps, with ``keep`` and notes for `gradients`; None if oneDNN has no kernel.

    ``case`` has weights and bias as oneDNN has them. Of other states than h there is the final one;
    the notes are oneDNN's, then the first ones of these. ``plan`` is another builder, and its work.
    """
    build, work = plan or (train if keep else infer, sizes.passes)
    x, direction, shape = case.x, case.direction, (sizes.n, sizes.width)
    h = state_buffer(ops, (sizes.steps + 1, *shape), starts[0], x, direction)
    firsts = tuple(_start(ops, start, h) for start in starts[1:])
    lasts: tuple[Array, ...] = tuple(ops.xp.empty((1, *shape), x.dtype) for _ in firsts)
    given = [ops.ordered(x), h[direction.start], *firsts, *_parameters(ops, case)]
    given += [direction.afters(h), *lasts]
    notes = (ops.room(build, sizes, len(given), given[0], work),) if keep else ()
    if not ops.runs(build, sizes, *given, *notes, passes=work):
        return None
    return RecurrentStates((h, *lasts), (*notes, *firsts) if keep else ())


def gradients(
    ops: OneDnnBase,
    sizes: Sizes,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
) -> list[Array]:
    """Gradients of x, of the first states, of both weights and of the bias."""
    xp, x, direction = ops.xp, case.x, case.direction
    (h, *lasts), (note, *firsts) = made
    given = _parameters(ops, case)
    slopes = xp.zeros((sizes.steps, sizes.n, sizes.width), x.dtype) if dy is None else dy
    found: list[Array] = [xp.empty(like.shape, like.dtype) for like in (x, *ends)]
    # Kernels that round what they multiply add to these.
    found += [(xp.zeros if ops.narrow else xp.empty)(like.shape, like.dtype) for like in given]
    before = [ops.ordered(x), h[direction.start], *firsts, *given]
    after = [direction.afters(h), h[direction.end], *lasts, note]
    from_above = [ops.ordered(slopes), *map(ops.ordered, ends)]
    ops.runs(backward, sizes, *before, *after, *from_above, *found, passes=sizes.passes)
    return found


def _parameters(ops: OneDnnBase, case: RecurrentCase) -> list[Array]:
    of_x, of_h = case.weights
    assert of_x is not None
    return [ops.ordered(array) for array in (of_x, of_h, *case.biases)]


def _start(ops: OneDnnBase, state: Array | None, h: Array) -> Array:
    made: Array
    if state is None:
        made = ops.xp.zeros(h.shape[1:], h.dtype)
    else:
        made = ops.xp.array(state, order="C")
    return made
