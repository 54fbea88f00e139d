"""A layer of long short-term memory in one direction.

Gates stand in blocks i, f, g, o; c = f c + i g, h = o tanh(c): Hochreiter and Schmidhuber 1997,
with the forget gate of Gers et al. 2000.
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
def lstm_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    gates = input_gates(ops, case, case.biases[0])
    states = _states(ops, case, gates, starts)
    return RecurrentStates(states, (gates,) if keep else ())


@kernel(half="lift")
def lstm_layer_backward(
    ops: Ops,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    dh, dc = (ops.xp.array(end, order="C") for end in ends)
    dgates = _states_backward(ops, case, made, dy, (dh, dc))
    return through_gates(ops, case, made.states[0], (dgates, dgates), (dh, dc), needs_dx)


def _states(
    ops: Ops, case: RecurrentCase, gates: Array, starts: Sequence[Array | None]
) -> tuple[Array, Array]:
    """States h and c around the steps, two arrays (T + 1, N, H).

    ``gates`` (T, N, 4H) holds what the input and the biases add, and on return the gates.
    """
    xp, direction, weight = ops.xp, case.direction, case.weights[1]
    steps, n, width = gates.shape
    size = width // 4
    h, c = (state_buffer(ops, (steps + 1, n, size), s, gates, direction) for s in starts)
    # σ(x) = tanh(x/2)/2 + 1/2 makes one call of all four gates; it cannot overflow either.
    slope = xp.full(width, 0.5, gates.dtype)
    slope[2 * size : 3 * size] = 1
    shift = 1 - slope
    for lane in ops.lanes(n, gates.size * size):
        states = h[:, lane], c[:, lane]
        _steps(ops, gates[:, lane], *states, weight, (slope, shift), direction.of(lane))
    return h, c


def _steps(
    ops: Ops,
    gates: Array,
    h: Array,
    c: Array,
    weight: Array,
    squeeze: tuple[Array, Array],
    direction: Direction,
) -> None:
    """The states of some samples, step by step; gates are ``squeeze``d tanhs of these."""
    xp, (_, n, width), (slope, shift) = ops.xp, gates.shape, squeeze
    size = width // 4
    wide, narrow = xp.empty((n, width), gates.dtype), xp.empty((n, size), gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        z, hb, cb = gates[t], h[after], c[after]
        seen = fed(ops, h[before], direction, narrow)
        xp.add(z, xp.matmul(seen, weight, out=wide), out=z)
        xp.multiply(z, slope, out=z)
        xp.tanh(z, out=z)
        xp.multiply(z, slope, out=z)
        xp.add(z, shift, out=z)
        xp.multiply(z[:, size : 2 * size], c[before], out=cb)
        xp.multiply(z[:, :size], z[:, 2 * size : 3 * size], out=narrow)
        xp.add(cb, narrow, out=cb)
        xp.tanh(cb, out=hb)
        xp.multiply(hb, z[:, 3 * size :], out=hb)
        stay(ops, direction, t, h, c)


def _states_backward(
    ops: Ops,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: tuple[Array, Array],
) -> Array:
    """Gradient of what went into the gates, (T, N, 4H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``ends`` (N, H) are those of the last
    states, and on return of the first ones.
    """
    (_, c), (gates,), (dh, dc) = made.states, made.notes, ends
    direction, weight = case.direction, case.weights[1]
    size = gates.shape[2] // 4
    dgates, to_c = _slopes(ops, gates, direction.befores(c), direction.afters(c))
    forget = gates[:, :, size : 2 * size]
    if direction.skips is not None:
        clear(ops, direction.skips, dgates, to_c)
        forget = ops.xp.where(direction.skips, 1, forget)
    # Copied once, the product of each step reads it in longer runs.
    across = ops.xp.ascontiguousarray(weight.T)
    for lane in ops.lanes(len(dh), gates.size * size):
        given = None if dy is None else dy[:, lane]
        slopes = dgates[:, lane], to_c[:, lane], forget[:, lane]
        _steps_back(ops, given, dh[lane], dc[lane], slopes, across, direction.of(lane))
    return dgates


def _steps_back(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    dc: Array,
    slopes: tuple[Array, Array, Array],
    across: Array,
    direction: Direction,
) -> None:
    """The gradients of some samples, step by step: slopes of the gates become their gradients."""
    xp, (dgates, to_c, forget), (n, size) = ops.xp, slopes, dh.shape
    blocks = dgates.reshape(len(dgates), n, 4, size)
    narrow = xp.empty((n, size), dh.dtype)
    room = None if direction.skips is None else xp.empty((n, size), dh.dtype)
    for t in direction.steps_back():
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        xp.multiply(dh, to_c[t], out=narrow)
        xp.add(dc, narrow, out=dc)
        block = blocks[t]
        xp.multiply(block[:, :3], dc[:, None], out=block[:, :3])
        xp.multiply(block[:, 3], dh, out=block[:, 3])
        xp.multiply(dc, forget[t], out=dc)
        through_state(ops, dgates[t], across, direction, t, dh, room)


def _slopes(ops: Ops, gates: Array, before: Array, after: Array) -> tuple[Array, Array]:
    """What multiplies dc (gates i, f, g) and dh (gate o), and what takes dh to dc."""
    xp = ops.xp
    size = gates.shape[2] // 4
    i, _, g, o = (gates[:, :, k * size : (k + 1) * size] for k in range(4))
    slopes: Array = xp.multiply(gates, gates)
    xp.subtract(gates, slopes, out=slopes)
    di, df, dg, do = (slopes[:, :, k * size : (k + 1) * size] for k in range(4))
    xp.multiply(di, g, out=di)
    xp.multiply(df, before, out=df)
    xp.multiply(g, g, out=dg)
    xp.subtract(1, dg, out=dg)
    xp.multiply(dg, i, out=dg)
    t = xp.tanh(after)
    xp.multiply(do, t, out=do)
    xp.multiply(t, t, out=t)
    xp.subtract(1, t, out=t)
    xp.multiply(t, o, out=t)
    return slopes, t
