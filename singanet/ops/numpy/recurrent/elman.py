"""A simple recurrent layer in one direction: h = f(x W_x + h W_h + b) with f tanh or relu.

Elman 1990.
"""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.direction import (
    Direction,
    RecurrentCase,
    RecurrentGradients,
    RecurrentStates,
)
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.recurrent.gates import (
    clear,
    fed,
    input_gates,
    state_buffer,
    stay,
    through_gates,
    through_state,
)
from singanet.types import Array


@kernel(half="lift")
def elman_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    """See `Ops`; there is nothing to note."""
    gates = input_gates(ops, case, case.biases[0])
    return RecurrentStates((_states(ops, case, gates, starts[0]),))


@kernel(half="lift")
def elman_layer_backward(
    ops: Ops,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    (h,), dh = made.states, ops.xp.array(ends[0], order="C")
    dgates = _states_backward(ops, case, h, dy, dh)
    return through_gates(ops, case, h, (dgates, dgates), (dh,), needs_dx)


def _states(ops: Ops, case: RecurrentCase, gates: Array, h0: Array | None) -> Array:
    """States h around the steps, (T + 1, N, H).

    ``gates`` (T, N, H) holds what the input and the biases add, and is overwritten.
    """
    direction, weight, (steps, n, size) = case.direction, case.weights[1], gates.shape
    h = state_buffer(ops, (steps + 1, n, size), h0, gates, direction)
    for lane in ops.lanes(n, gates.size * size):
        _steps(ops, gates[:, lane], h[:, lane], weight, direction.of(lane), case.mode)
    return h


def _steps(
    ops: Ops, gates: Array, h: Array, weight: Array, direction: Direction, mode: str
) -> None:
    """The states of some samples, step by step."""
    xp = ops.xp
    room = xp.empty(gates.shape[1:], gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        hb = h[after]
        xp.matmul(fed(ops, h[before], direction, room), weight, out=hb)
        xp.add(hb, gates[t], out=hb)
        if mode == "relu":
            xp.maximum(hb, 0, out=hb)
        else:
            xp.tanh(hb, out=hb)
        stay(ops, direction, t, h)


def _states_backward(ops: Ops, case: RecurrentCase, h: Array, dy: Array | None, dh: Array) -> Array:
    """Gradient of what went into f, (T, N, H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` (N, H) is that of the last
    state, and on return of the first one.
    """
    xp, direction, weight = ops.xp, case.direction, case.weights[1]
    after = direction.afters(h)
    dgates: Array = xp.empty(after.shape, h.dtype)
    if case.mode == "relu":
        xp.sign(after, out=dgates)
    else:
        xp.multiply(after, after, out=dgates)
        xp.subtract(1, dgates, out=dgates)
    clear(ops, direction.skips, dgates)
    # Copied once, the product of each step reads it in longer runs.
    across = xp.ascontiguousarray(weight.T)
    for lane in ops.lanes(len(dh), dgates.size * len(weight)):
        given = None if dy is None else dy[:, lane]
        _steps_back(ops, given, dh[lane], dgates[:, lane], across, direction.of(lane))
    return dgates


def _steps_back(
    ops: Ops, dy: Array | None, dh: Array, dgates: Array, across: Array, direction: Direction
) -> None:
    """The gradients of some samples, step by step: slopes of f become what goes into it."""
    xp = ops.xp
    room = None if direction.skips is None else xp.empty(dh.shape, dh.dtype)
    for t in direction.steps_back():
        d = dgates[t]
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        xp.multiply(d, dh, out=d)
        through_state(ops, d, across, direction, t, dh, room)
