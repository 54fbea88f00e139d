"""Simple recurrent layers by oneDNN: many steps of small states with tanh.

Others, skipped steps, recurrent dropout and float64 are NumPy's. So is relu: oneDNN's makes zero of
NaN, and a state that is none would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.direction import RecurrentCase, RecurrentGradients, RecurrentStates
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy.recurrent import elman as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent import run
from singanet.ops.onednn.recurrent.plans import SEVERAL
from singanet.types import Array

_STEPS, _STATE = 20, 256
"""From how many steps, and up to how large a state of the batch, oneDNN is faster.

One call then saves more of Python than its kernels, slower than BLAS by up to a quarter, lose.
Several sequences by products of bfloat16 are always faster.
"""


def _layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    return run.forward(ops, run.sizes_of("tanh", case), case, starts, keep)


def _layer_backward(
    ops: OneDnnBase,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    sizes = run.sizes_of("tanh", case)
    dx, start, of_x, of_h, of_bias = run.gradients(ops, sizes, case, made, dy, ends)
    return RecurrentGradients(dx if needs_dx else None, of_x, of_h, of_bias, of_bias, (start,))


def _is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    n = case.x.shape[1]
    pays = case.direction.count >= _STEPS and n * len(case.weights[1]) <= _STATE
    pays |= ops.narrow and n >= SEVERAL
    return case.mode == "tanh" and pays and run.serves(ops, case)


elman_layer = in_order(Route("onednn", _layer, _is_served), last=by_numpy.elman_layer)

elman_layer_backward = in_order(
    Route("onednn", _layer_backward, run.is_noted), last=by_numpy.elman_layer_backward
)
