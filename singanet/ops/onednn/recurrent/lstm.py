"""Long short-term memory by oneDNN.

Gates stand in the same order as in `Ops`, so that weights need no rearranging by hand. Skipped
steps, recurrent dropout and float64 stay with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.ops.direction import Direction, RecurrentGradients
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy.recurrent import lstm as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent import run
from singanet.ops.onednn.recurrent.plans import Sizes, infer_laid_out, lay_out
from singanet.ops.onednn.runtime import SHARED
from singanet.types import Array

Made = tuple[Array, Array, tuple[Array, ...]]


def _layer(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    bias: Array,
    starts: tuple[Array | None, Array | None],
    direction: Direction,
    keep: bool,
) -> Made | None:
    """See `Ops`; of the cells there is only the final one."""
    sizes = run.sizes_of("lstm", x, len(weights[1]), direction)
    made = run.states(ops, sizes, x, (*weights, bias), starts, direction, keep)
    if made is None:
        return None
    h, firsts, lasts, notes = made
    return h, lasts[0], (*notes, *firsts, *lasts, bias) if keep else ()


def _prepared_layer(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    bias: Array,
    starts: tuple[Array | None, Array | None],
    direction: Direction,
    keep: bool,
) -> Made | None:
    """The same with weights that are laid out by calls which a program makes once."""
    sizes = run.sizes_of("lstm", x, len(weights[1]), direction)
    # Threads as else, and the same for each of the calls.
    work = SHARED if x.size * sizes.passes >= SHARED else 0
    laid_out = [_laid_out(ops, sizes, k, weight, work) for k, weight in enumerate(weights)]
    made = run.forward(
        ops,
        infer_laid_out,
        sizes,
        x,
        (laid_out[0], laid_out[1], bias),
        starts,
        direction,
        keep=False,
        passes=work,
    )
    return None if made is None else (made[0], made[2][0], ())


def _laid_out(ops: OneDnnBase, sizes: Sizes, which: int, weight: Array, work: int) -> Array:
    made = ops.room(lay_out, (*sizes, which), 0, weight, work)
    ops.runs(lay_out, (*sizes, which), made, ops.ordered(weight), passes=work)
    return made


def _layer_backward(
    ops: OneDnnBase,
    dy: Array | None,
    ends: Sequence[Array],
    x: Array,
    weights: Any,
    h: Array,
    notes: tuple[Array, ...],
    direction: Direction,
    needs_dx: bool,
) -> RecurrentGradients:
    note, first, last, bias = notes
    sizes, made = run.sizes_of("lstm", x, h.shape[2], direction), (h, (first,), (last,), (note,))
    dx, dh, dc, of_x, of_h, of_bias = run.gradients(
        ops, sizes, dy, ends, x, (*weights, bias), made, direction
    )
    return RecurrentGradients(dx if needs_dx else None, of_x, of_h, of_bias, of_bias, (dh, dc))


def _is_served(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    bias: Array,
    starts: tuple[Array | None, Array | None],
    direction: Direction,
    keep: bool,
) -> bool:
    return run.serves(ops, x, weights, (bias,), direction)


lstm_layer = in_order(
    Route(
        "prepared",
        _prepared_layer,
        lambda ops, *given: ops.prepared is not None and not given[-1] and _is_served(ops, *given),
    ),
    Route("onednn", _layer, _is_served),
    last=by_numpy.lstm_layer,
)

lstm_layer_backward = in_order(
    Route(
        "onednn",
        _layer_backward,
        lambda ops, dy, ends, x, weights, h, notes, *_: run.is_noted(notes),
    ),
    last=by_numpy.lstm_layer_backward,
)
