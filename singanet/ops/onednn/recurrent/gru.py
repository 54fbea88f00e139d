"""Gated recurrent units by oneDNN.

Its "linear before reset" variant is the formula of `Ops`; its gates stand as z, r, n. Single
sequences of many units, skipped steps, recurrent dropout and float64 stay with NumPy.
"""

from __future__ import annotations

from typing import Any

from singanet.ops.direction import Direction, RecurrentGradients
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy.recurrent import gru as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent import run
from singanet.types import Array

_WIDE = 192
"""Units from which a single sequence is NumPy's: oneDNN rearranges the weights in each call."""


def _layer(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    biases: tuple[Array, Array],
    start: Array | None,
    direction: Direction,
    keep: bool,
) -> tuple[Array, tuple[Array, ...]] | None:
    sizes = run.sizes_of("gru", x, len(weights[1]), direction)
    made = run.states(ops, sizes, x, _given(ops, weights, biases), (start,), direction, keep)
    return None if made is None else (made[0], made[3])


def _layer_backward(
    ops: OneDnnBase,
    dy: Array | None,
    end: Array,
    x: Array,
    weights: Any,
    biases: tuple[Array, Array],
    h: Array,
    notes: tuple[Array, ...],
    direction: Direction,
    needs_dx: bool,
) -> RecurrentGradients:
    sizes, width = run.sizes_of("gru", x, h.shape[2], direction), h.shape[2]
    dx, start, weight_x, weight_h, bias = run.gradients(
        ops, sizes, dy, (end,), x, _given(ops, weights, biases), (h, (), (), notes), direction
    )
    bias_x = _turned(ops, bias[: 3 * width])
    bias_h = ops.concat([bias_x[: 2 * width], bias[3 * width :]], axis=0)
    made = _turned(ops, weight_x), _turned(ops, weight_h)
    return RecurrentGradients(dx if needs_dx else None, *made, bias_x, bias_h, (start,))


def _is_served(
    ops: OneDnnBase,
    x: Array,
    weights: Any,
    biases: tuple[Array, Array],
    start: Array | None,
    direction: Direction,
    keep: bool,
) -> bool:
    several = x.shape[1] > 1 or len(weights[1]) < _WIDE
    return several and run.serves(ops, x, weights, biases, direction)


def _given(ops: OneDnnBase, weights: Any, biases: tuple[Array, Array]) -> run.Parameters:
    """As oneDNN has them."""
    of_x, of_h = weights
    return _turned(ops, of_x), _turned(ops, of_h), _joined(ops, *biases)


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
    Route(
        "onednn",
        _layer_backward,
        lambda ops, dy, end, x, weights, biases, h, notes, *_: run.is_noted(notes),
    ),
    last=by_numpy.gru_layer_backward,
)
