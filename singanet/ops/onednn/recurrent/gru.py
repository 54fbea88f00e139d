"""Gated recurrent units by oneDNN.

Its "linear before reset" variant is the formula of `Ops`; its gates stand as z, r, n. Single
sequences of many units, skipped steps, recurrent dropout and float64 stay with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.ops.direction import RecurrentCase, RecurrentGradients, RecurrentStates
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy.recurrent import gru as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent import run
from singanet.types import Array

_WIDE = 192
"""Units from which a single sequence is NumPy's: oneDNN rearranges the weights in each call."""


def _layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    return run.forward(ops, run.sizes_of("gru", case), _as_theirs(ops, case), starts, keep)


def _layer_backward(
    ops: OneDnnBase,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    sizes, split = run.sizes_of("gru", case), 2 * len(case.weights[1])
    dx, start, weight_x, weight_h, bias = run.gradients(
        ops, sizes, _as_theirs(ops, case), made, dy, ends
    )
    bias_x = _turned(ops, bias[: split // 2 * 3])
    bias_h = ops.concat([bias_x[:split], bias[split // 2 * 3 :]], axis=0)
    turned = _turned(ops, weight_x), _turned(ops, weight_h)
    return RecurrentGradients(dx if needs_dx else None, *turned, bias_x, bias_h, (start,))


def _is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    several = case.x.shape[1] > 1 or len(case.weights[1]) < _WIDE
    return several and run.serves(ops, case)


def _as_theirs(ops: OneDnnBase, case: RecurrentCase) -> RecurrentCase:
    """With weights and bias as oneDNN has them."""
    weights: Any = tuple(_turned(ops, weight) for weight in case.weights if weight is not None)
    return case._replace(weights=weights, biases=(_joined(ops, *case.biases),))


def _turned(ops: OneDnnBase, blocks: Array) -> Array:
    """r, z, n as z, r, n, and the reverse."""
    width = blocks.shape[-1] // 3
    return ops.concat([blocks[..., k * width : (k + 1) * width] for k in (1, 0, 2)], axis=-1)


def _joined(ops: OneDnnBase, bias_x: Array, bias_h: Array) -> Array:
    """z, r, n of the input, and n of the state."""
    split = 2 * (len(bias_x) // 3)
    both = ops.xp.add(bias_x[:split], bias_h[:split])
    turned = [both[split // 2 :], both[: split // 2]]
    return ops.concat([*turned, bias_x[split:], bias_h[split:]], axis=0)


gru_layer = in_order(Route("onednn", _layer, _is_served), last=by_numpy.gru_layer)

gru_layer_backward = in_order(
    Route("onednn", _layer_backward, run.is_noted), last=by_numpy.gru_layer_backward
)
