"""Long short-term memory by oneDNN.

Gates stand in the same order as in `Ops`, so that weights need no rearranging by hand. Skipped
steps, recurrent dropout and float64 stay with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.ops.direction import RecurrentCase, RecurrentGradients, RecurrentStates
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy.recurrent import lstm as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent import run
from singanet.ops.onednn.recurrent.plans import Sizes, infer_laid_out, lay_out
from singanet.ops.onednn.runtime import SHARED
from singanet.types import Array


def _layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    """See `Ops`; of the cells there is only the final one."""
    return run.forward(ops, run.sizes_of("lstm", case), case, starts, keep)


def _prepared_layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    """The same with weights that are laid out by calls which a program makes once."""
    sizes = run.sizes_of("lstm", case)
    # Threads as else, and the same for each of the calls.
    work = SHARED if case.x.size * sizes.passes >= SHARED else 0
    laid_out: Any = tuple(
        _laid_out(ops, sizes, k, weight, work)
        for k, weight in enumerate(case.weights)
        if weight is not None
    )
    prepared = case._replace(weights=laid_out)
    return run.forward(ops, sizes, prepared, starts, False, (infer_laid_out, work))


def _laid_out(ops: OneDnnBase, sizes: Sizes, which: int, weight: Array, work: int) -> Array:
    made = ops.room(lay_out, (*sizes, which), 0, weight, work)
    ops.runs(lay_out, (*sizes, which), made, ops.ordered(weight), passes=work)
    return made


def _layer_backward(
    ops: OneDnnBase,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    sizes = run.sizes_of("lstm", case)
    dx, dh, dc, of_x, of_h, of_bias = run.gradients(ops, sizes, case, made, dy, ends)
    return RecurrentGradients(dx if needs_dx else None, of_x, of_h, of_bias, of_bias, (dh, dc))


def _is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    return run.serves(ops, case)


lstm_layer = in_order(
    Route(
        "prepared",
        _prepared_layer,
        lambda ops, case, starts, keep: (
            ops.prepared is not None and not keep and run.serves(ops, case)
        ),
    ),
    Route("onednn", _layer, _is_served),
    last=by_numpy.lstm_layer,
)

lstm_layer_backward = in_order(
    Route("onednn", _layer_backward, run.is_noted), last=by_numpy.lstm_layer_backward
)
