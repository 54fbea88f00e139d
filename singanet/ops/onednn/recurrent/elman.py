"""Simple recurrent layers by oneDNN: many steps of small states with tanh.

Others, skipped steps, recurrent dropout and float64 are NumPy's. So is relu: oneDNN's makes zero of
NaN, and a state that is none would be lost.
"""

from __future__ import annotations

from typing import Any

from singanet.ops.direction import Direction, RecurrentGradients
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
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    bias: Array,
    start: Array | None,
    direction: Direction,
    mode: str,
    keep: bool,
) -> tuple[Array, tuple[Array, ...]] | None:
    sizes = run.sizes_of("tanh", x, len(bias), direction)
    made = run.states(ops, sizes, x, (*weights, bias), (start,), direction, keep)
    return None if made is None else (made[0], made[3])


def _layer_backward(
    ops: OneDnnBase,
    dy: Array | None,
    end: Array,
    x: Array,
    weights: Any,
    bias: Array,
    h: Array,
    notes: tuple[Array, ...],
    direction: Direction,
    mode: str,
    needs_dx: bool,
) -> RecurrentGradients:
    sizes, made = run.sizes_of("tanh", x, h.shape[2], direction), (h, (), (), notes)
    dx, start, of_x, of_h, of_bias = run.gradients(
        ops, sizes, dy, (end,), x, (*weights, bias), made, direction
    )
    return RecurrentGradients(dx if needs_dx else None, of_x, of_h, of_bias, of_bias, (start,))


def _is_served(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    bias: Array,
    start: Array | None,
    direction: Direction,
    mode: str,
    keep: bool,
) -> bool:
    n = x.shape[1]
    pays = direction.count >= _STEPS and n * len(bias) <= _STATE
    pays |= ops.narrow and n >= SEVERAL
    return mode == "tanh" and pays and run.serves(ops, x, weights, (bias,), direction)


elman_layer = in_order(Route("onednn", _layer, _is_served), last=by_numpy.elman_layer)

elman_layer_backward = in_order(
    Route(
        "onednn",
        _layer_backward,
        lambda ops, dy, end, x, weights, bias, h, notes, *_: run.is_noted(notes),
    ),
    last=by_numpy.elman_layer_backward,
)
