"""Compute recurrent layers by NumPy.

Source of simple layers: Elman 1990.

A GRU has gate blocks r, z, n; n = tanh(x_n + r (h W_n + b_n)), h = (1 - z) n + z h. Source: Cho et
al. 2014, with the reset gate after the matrix as in cuDNN ("linear before reset").

An LSTM has gate blocks i, f, g, o; c = f c + i g, h = o tanh(c). Source: Hochreiter and Schmidhuber
1997, with the forget gate of Gers et al. 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.window import (
    Direction,
    RecurrentCase,
    RecurrentGradients,
    RecurrentSlopes,
    RecurrentStates,
)
from singanet.types import Array, Shape

Multiply = Callable[[Array, Array], Array]
"""``multiply(a, out)``: the product with one matrix, see `Ops.multiplier`."""

__all__: list[str] = []


def input_gates(ops: Ops, case: RecurrentCase, bias: Array) -> Array:
    """Return the share of x and the ``bias`` in the gates (T, N, G·H), a new array."""
    x, (weight, _) = case.x, case.weights
    steps, n, size = x.shape
    if weight is None:
        made = ops.add(x[:, :, None], bias.reshape(-1, size))
    else:
        affine = ops.affine if ops.prepared is None else ops.affine_constant
        made = affine(x.reshape(steps * n, size), weight, bias)
    gates: Array = made.reshape(steps, n, len(bias))
    return gates


def state_buffer(
    ops: Ops, shape: Shape, start: Array | None, like: Array, direction: Direction
) -> Array:
    """Allocate states (T + 1, N, H) with initial state ``start``, or zero."""
    states: Array = ops.xp.empty(shape, like.dtype)
    states[direction.start] = 0 if start is None else start
    return states


def clear(ops: Ops, skips: Array | None, *arrays: Array) -> None:
    """Set arrays (T, N, ...) to zero at skipped steps, in place."""
    if skips is not None:
        for array in arrays:
            ops.xp.copyto(array, 0, where=skips)


def stay(ops: Ops, direction: Direction, t: int, *states: Array) -> None:
    """Copy the states before step ``t`` to the states after it, for samples that skip it."""
    if direction.skips is not None:
        before, after = direction.around(t)
        for state in states:
            ops.xp.copyto(state[after], state[before], where=direction.skips[t])


def fed(ops: Ops, state: Array, direction: Direction, room: Array) -> Array:
    """Return ``state`` with recurrent dropout and rounding applied; ``room`` is its buffer."""
    seen = state
    if direction.drop is not None:
        seen = ops.xp.multiply(seen, direction.drop, out=room)
    return _rounded(ops, seen) if direction.rounds else seen


def _rounded(ops: Ops, state: Array) -> Array:
    """Return ``state`` (N, H) in 256 steps from the least to the largest number of a row, or 0."""
    xp = ops.xp
    low = xp.minimum(state.min(axis=1, keepdims=True), 0)
    step = (xp.maximum(state.max(axis=1, keepdims=True), 0) - low) / 255
    step = xp.where(step == 0, xp.ones_like(step), step)
    zero = xp.clip(xp.rint(-low / step), 0, 255)
    made: Array = (xp.clip(xp.rint(state / step) + zero, 0, 255) - zero) * step
    return made


def through_state(
    ops: Ops, d: Array, back: Multiply, direction: Direction, t: int, dh: Array, room: Array | None
) -> None:
    """Backpropagate ``dh`` through step ``t``, whose gates have gradients ``d``, in place.

    ``back`` multiplies by the transposed weight.

    Gradients bypass a skipped step; ``room`` is a buffer for them, or None if there are no such
    steps or the kernel handles them.
    """
    xp = ops.xp
    if room is not None:
        assert direction.skips is not None
        xp.multiply(dh, direction.skips[t], out=room)
    back(d, dh)
    if direction.drop is not None:
        xp.multiply(dh, direction.drop, out=dh)
    if room is not None:
        xp.add(dh, room, out=dh)


def through_gates(
    ops: Ops,
    case: RecurrentCase,
    h: Array,
    of_gates: tuple[Array, Array],
    starts: tuple[Array, ...],
    needs_dx: bool,
) -> RecurrentGradients:
    """Return all gradients from the gradients ``of_gates`` (T, N, G·H) of input and state.

    Both may be one array; the gradients of the biases then are one too.
    """
    (of_x, of_h), x, direction, weight_x = of_gates, case.x, case.direction, case.weights[0]
    rows_x, rows_h = (d.reshape(-1, d.shape[2]) for d in (of_x, of_h))
    before, size = direction.befores(h), h.shape[2]
    if direction.drop is not None:
        before = ops.multiply(before, direction.drop)
    if direction.rounds:
        before = _rounded(ops, before.reshape(-1, size))
    weight_h = ops.matmul(before.reshape(-1, size).T, rows_h)
    made = None if weight_x is None else ops.matmul(x.reshape(-1, x.shape[2]).T, rows_x)
    # Summed over time and then over samples: two short sums lose less than one long sum.
    bias_x = of_x.sum(axis=0).sum(axis=0)
    bias_h = bias_x if of_h is of_x else of_h.sum(axis=0).sum(axis=0)
    dx: Array | None = None
    if needs_dx and weight_x is None:
        dx = of_x.reshape(*x.shape[:2], of_x.shape[2] // size, size).sum(axis=2)
    elif needs_dx and weight_x is not None:
        dx = ops.matmul(rows_x, weight_x.T).reshape(x.shape)
    return RecurrentGradients(dx, made, weight_h, bias_x, bias_h, starts)


@kernel(half="lift")
def elman_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    """Compute `Ops.elman_layer`; backward needs no notes."""
    gates = input_gates(ops, case, case.biases[0])
    return RecurrentStates((_elman_states(ops, case, gates, starts[0]),))


@kernel(half="lift")
def elman_layer_backward(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    (h,), dh = made.states, ops.xp.array(slopes.ends[0], order="C")
    dgates = _elman_states_back(ops, case, h, slopes.dy, dh)
    return through_gates(ops, case, h, (dgates, dgates), (dh,), slopes.needs_dx)


def _elman_states(ops: Ops, case: RecurrentCase, gates: Array, h0: Array | None) -> Array:
    """Return the states h, (T + 1, N, H).

    ``gates`` (T, N, H) has the share of the input and the biases, and is overwritten.
    """
    direction, weight, (steps, n, size) = case.direction, case.weights[1], gates.shape
    h = state_buffer(ops, (steps + 1, n, size), h0, gates, direction)
    multiply = ops.multiplier(weight, n)
    for lane in ops.lanes(n, gates.size * size):
        _elman_steps(ops, gates[:, lane], h[:, lane], multiply, direction.of(lane), case.mode)
    return h


def _elman_steps(
    ops: Ops, gates: Array, h: Array, multiply: Multiply, direction: Direction, mode: str
) -> None:
    """Compute the states of some samples, step by step."""
    xp = ops.xp
    room = xp.empty(gates.shape[1:], gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        hb = h[after]
        multiply(fed(ops, h[before], direction, room), hb)
        xp.add(hb, gates[t], out=hb)
        if mode == "relu":
            xp.maximum(hb, 0, out=hb)
        else:
            xp.tanh(hb, out=hb)
        stay(ops, direction, t, h)


def _elman_states_back(
    ops: Ops, case: RecurrentCase, h: Array, dy: Array | None, dh: Array
) -> Array:
    """Return the gradient of the activation's argument, (T, N, H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` (N, H) is the gradient of the last
    state, and on return of the initial state.
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
    back = ops.multiplier(weight.T, len(dh))
    for lane in ops.lanes(len(dh), dgates.size * len(weight)):
        given = None if dy is None else dy[:, lane]
        _elman_steps_back(ops, given, dh[lane], dgates[:, lane], back, direction.of(lane))
    return dgates


def _elman_steps_back(
    ops: Ops, dy: Array | None, dh: Array, dgates: Array, back: Multiply, direction: Direction
) -> None:
    """Backpropagate some samples, step by step; ``dgates`` changes from slopes to gradients."""
    xp = ops.xp
    room = None if direction.skips is None else xp.empty(dh.shape, dh.dtype)
    for t in direction.steps_back():
        d = dgates[t]
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        xp.multiply(d, dh, out=d)
        through_state(ops, d, back, direction, t, dh, room)


@kernel(half="lift")
def gru_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    split, (of_x, of_h) = 2 * len(case.weights[1]), case.biases
    bias = ops.xp.concatenate([ops.xp.add(of_x[:split], of_h[:split]), of_x[split:]])
    gates = input_gates(ops, case, bias)
    h, linear = _states(ops, case, gates, of_h[split:], starts[0])
    return RecurrentStates((h,), (gates, linear) if keep else ())


@kernel(half="lift")
def gru_layer_backward(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    dh = ops.xp.array(slopes.ends[0], order="C")
    of_gates = _gru_states_back(ops, case, made, slopes.dy, dh)
    return through_gates(ops, case, made.states[0], of_gates, (dh,), slopes.needs_dx)


def _states(
    ops: Ops, case: RecurrentCase, gates: Array, bias_n: Array, h0: Array | None
) -> tuple[Array, Array]:
    """Return the states h, (T + 1, N, H), and h W_n + b_n of every step, (T, N, H).

    ``gates`` (T, N, 3H) has the share of the input and all biases but ``bias_n`` (H,), and on
    return the gates.
    """
    xp, direction, weight = ops.xp, case.direction, case.weights[1]
    steps, n, width = gates.shape
    size = width // 3
    h = state_buffer(ops, (steps + 1, n, size), h0, gates, direction)
    linear: Array = xp.empty((steps, n, size), gates.dtype)
    multiply = ops.multiplier(weight, n)
    for lane in ops.lanes(n, gates.size * size):
        states = h[:, lane], linear[:, lane]
        _steps(ops, gates[:, lane], *states, multiply, bias_n, direction.of(lane))
    return h, linear


def _steps(
    ops: Ops,
    gates: Array,
    h: Array,
    linear: Array,
    multiply: Multiply,
    bias_n: Array,
    direction: Direction,
) -> None:
    """Compute the states of some samples, and their ``linear``, step by step."""
    xp, (_, n, width) = ops.xp, gates.shape
    size = width // 3
    wide, narrow = xp.empty((n, width), gates.dtype), xp.empty((n, size), gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        hb, old = h[after], h[before]
        rz, new = gates[t, :, : 2 * size], gates[t, :, 2 * size :]
        multiply(fed(ops, old, direction, narrow), wide)
        xp.add(rz, wide[:, : 2 * size], out=rz)
        # σ(x) = tanh(x/2)/2 + 1/2, which cannot overflow.
        xp.multiply(rz, 0.5, out=rz)
        xp.tanh(rz, out=rz)
        xp.multiply(rz, 0.5, out=rz)
        xp.add(rz, 0.5, out=rz)
        xp.add(wide[:, 2 * size :], bias_n, out=linear[t])
        xp.multiply(rz[:, :size], linear[t], out=narrow)
        xp.add(new, narrow, out=new)
        xp.tanh(new, out=new)
        xp.subtract(old, new, out=hb)
        xp.multiply(hb, rz[:, size:], out=hb)
        xp.add(hb, new, out=hb)
        stay(ops, direction, t, h)


def _gru_states_back(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, dy: Array | None, dh: Array
) -> tuple[Array, Array]:
    """Return the gradients of the input's and of the state's share of the gates, two (T, N, 3H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` (N, H) is the gradient of the last
    state, and on return of the initial state.
    """
    direction, weight, (gates, linear) = case.direction, case.weights[1], made.notes
    xp, size = ops.xp, gates.shape[2] // 3
    of_x = _gru_slopes(ops, gates, linear, direction.befores(made.states[0]))
    of_h: Array = xp.array(of_x)
    xp.multiply(of_h[:, :, 2 * size :], gates[:, :, :size], out=of_h[:, :, 2 * size :])
    update = gates[:, :, size : 2 * size]
    if direction.skips is not None:
        clear(ops, direction.skips, of_x, of_h)
        update = xp.where(direction.skips, 1, update)
    back = ops.multiplier(weight.T, len(dh))
    for lane in ops.lanes(len(dh), gates.size * size):
        given = None if dy is None else dy[:, lane]
        slopes = of_x[:, lane], of_h[:, lane], update[:, lane]
        _steps_back(ops, given, dh[lane], slopes, back, direction.of(lane))
    return of_x, of_h


def _steps_back(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    slopes: tuple[Array, Array, Array],
    back: Multiply,
    direction: Direction,
) -> None:
    """Backpropagate some samples, step by step; ``slopes`` of the gates become gradients."""
    xp, (of_x, of_h, update), (n, size) = ops.xp, slopes, dh.shape
    blocks = [d.reshape(len(d), n, 3, size) for d in (of_x, of_h)]
    narrow = xp.empty((n, size), dh.dtype)
    for t in direction.steps_back():
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        for block in blocks:
            xp.multiply(block[t], dh[:, None], out=block[t])
        xp.multiply(dh, update[t], out=narrow)
        through_state(ops, of_h[t], back, direction, t, dh, None)
        xp.add(dh, narrow, out=dh)


def _gru_slopes(ops: Ops, gates: Array, linear: Array, before: Array) -> Array:
    """Return the factors of dh in the gradients of the gates' arguments."""
    xp = ops.xp
    size = gates.shape[2] // 3
    r, z, n = (gates[:, :, k * size : (k + 1) * size] for k in range(3))
    slopes: Array = xp.empty(gates.shape, gates.dtype)
    dr, dz, dn = (slopes[:, :, k * size : (k + 1) * size] for k in range(3))
    xp.multiply(n, n, out=dn)
    xp.subtract(1, dn, out=dn)
    xp.subtract(1, z, out=dz)
    xp.multiply(dn, dz, out=dn)
    # dz still is 1 - z.
    xp.multiply(dz, z, out=dz)
    xp.subtract(before, n, out=dr)
    xp.multiply(dz, dr, out=dz)
    xp.subtract(1, r, out=dr)
    xp.multiply(dr, r, out=dr)
    xp.multiply(dr, linear, out=dr)
    xp.multiply(dr, dn, out=dr)
    return slopes


@kernel(half="lift")
def lstm_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    gates = input_gates(ops, case, case.biases[0])
    states = _lstm_states(ops, case, gates, starts)
    return RecurrentStates(states, (gates,) if keep else ())


@kernel(half="lift")
def lstm_layer_backward(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    dh, dc = (ops.xp.array(end, order="C") for end in slopes.ends)
    dgates = _lstm_states_back(ops, case, made, slopes.dy, (dh, dc))
    return through_gates(ops, case, made.states[0], (dgates, dgates), (dh, dc), slopes.needs_dx)


def _lstm_states(
    ops: Ops, case: RecurrentCase, gates: Array, starts: Sequence[Array | None]
) -> tuple[Array, Array]:
    """Return the states h and c, two arrays (T + 1, N, H).

    ``gates`` (T, N, 4H) has the share of the input and the biases, and on return the gates.
    """
    xp, direction, weight = ops.xp, case.direction, case.weights[1]
    steps, n, width = gates.shape
    size = width // 4
    h, c = (state_buffer(ops, (steps + 1, n, size), s, gates, direction) for s in starts)
    # σ(x) = tanh(x/2)/2 + 1/2 needs one call for all four gates, and cannot overflow.
    slope = xp.full(width, 0.5, gates.dtype)
    slope[2 * size : 3 * size] = 1
    shift = 1 - slope
    multiply = ops.multiplier(weight, n)
    for lane in ops.lanes(n, gates.size * size):
        states = h[:, lane], c[:, lane]
        _lstm_steps(ops, gates[:, lane], *states, multiply, (slope, shift), direction.of(lane))
    return h, c


def _lstm_steps(
    ops: Ops,
    gates: Array,
    h: Array,
    c: Array,
    multiply: Multiply,
    squeeze: tuple[Array, Array],
    direction: Direction,
) -> None:
    """Compute the states of some samples, step by step; ``squeeze`` turns tanhs into gates."""
    xp, (_, n, width), (slope, shift) = ops.xp, gates.shape, squeeze
    size = width // 4
    wide, narrow = xp.empty((n, width), gates.dtype), xp.empty((n, size), gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        z, hb, cb = gates[t], h[after], c[after]
        seen = fed(ops, h[before], direction, narrow)
        xp.add(z, multiply(seen, wide), out=z)
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


def _lstm_states_back(
    ops: Ops,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: tuple[Array, Array],
) -> Array:
    """Return the gradient of the gates' arguments, (T, N, 4H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``ends`` (N, H) are the gradients of the
    last states, and on return of the initial states.
    """
    (_, c), (gates,), (dh, dc) = made.states, made.notes, ends
    direction, weight = case.direction, case.weights[1]
    size = gates.shape[2] // 4
    dgates, to_c = _slopes(ops, gates, direction.befores(c), direction.afters(c))
    forget = gates[:, :, size : 2 * size]
    if direction.skips is not None:
        clear(ops, direction.skips, dgates, to_c)
        forget = ops.xp.where(direction.skips, 1, forget)
    back = ops.multiplier(weight.T, len(dh))
    for lane in ops.lanes(len(dh), gates.size * size):
        given = None if dy is None else dy[:, lane]
        slopes = dgates[:, lane], to_c[:, lane], forget[:, lane]
        _lstm_steps_back(ops, given, dh[lane], dc[lane], slopes, back, direction.of(lane))
    return dgates


def _lstm_steps_back(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    dc: Array,
    slopes: tuple[Array, Array, Array],
    back: Multiply,
    direction: Direction,
) -> None:
    """Backpropagate some samples, step by step; ``slopes`` of the gates become gradients."""
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
        through_state(ops, dgates[t], back, direction, t, dh, room)


def _slopes(ops: Ops, gates: Array, before: Array, after: Array) -> tuple[Array, Array]:
    """Return the factors of dc (gates i, f, g) and dh (gate o), and the factor from dh to dc."""
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


@kernel(half="native")
def host(ops: Ops, array: Array) -> Array:
    return array.get() if hasattr(array, "get") else np.asarray(array)


@kernel(half="native")
def time_major(ops: Ops, x: Array, skips: Array | None = None) -> Array:
    rows = x.transpose(1, 0, 2)
    if skips is None:
        return ops.xp.ascontiguousarray(rows)
    copy: Array = ops.xp.array(rows, order="C")
    clear(ops, skips, copy)
    return copy


@kernel(half="native")
def batch_major(ops: Ops, y: Array) -> Array:
    return y.transpose(1, 0, 2)


@kernel(half="native")
def side_by_side(ops: Ops, parts: Sequence[Array], skips: Array | None) -> Array:
    if len(parts) == 1 and skips is None:
        return parts[0]
    joined: Array = ops.xp.concatenate(parts, axis=2)
    clear(ops, skips, joined)
    return joined


@kernel(half="lift")
def gru_before_layer(
    ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates:
    """Compute `Ops.gru_before_layer`; backward reads the gates."""
    gates = input_gates(ops, case, case.biases[0])
    (steps, n, width), direction, weight = gates.shape, case.direction, case.weights[1]
    size = width // 3
    h = state_buffer(ops, (steps + 1, n, size), starts[0], gates, direction)
    both = tuple(map(ops.xp.ascontiguousarray, (weight[:, : 2 * size], weight[:, 2 * size :])))
    for lane in ops.lanes(n, gates.size * size):
        _reset_steps(ops, gates[:, lane], h[:, lane], both, direction.of(lane))
    return RecurrentStates((h,), (gates,) if keep else ())


def _reset_steps(
    ops: Ops, gates: Array, h: Array, weights: tuple[Array, ...], direction: Direction
) -> None:
    """Compute the states of some samples, step by step; ``gates`` get their functions."""
    xp, (_, n, width) = ops.xp, gates.shape
    size = width // 3
    wide, narrow, room = (xp.empty((n, k * size), gates.dtype) for k in (2, 1, 1))
    for t in direction.steps():
        before, after = direction.around(t)
        hb, old = h[after], h[before]
        rz, new = gates[t, :, : 2 * size], gates[t, :, 2 * size :]
        seen = fed(ops, old, direction, room)
        xp.matmul(seen, weights[0], out=wide)
        xp.add(rz, wide, out=rz)
        # σ(x) = tanh(x/2)/2 + 1/2, which cannot overflow.
        xp.multiply(rz, 0.5, out=rz)
        xp.tanh(rz, out=rz)
        xp.multiply(rz, 0.5, out=rz)
        xp.add(rz, 0.5, out=rz)
        xp.multiply(rz[:, :size], seen, out=narrow)
        xp.matmul(narrow, weights[1], out=hb)
        xp.add(new, hb, out=new)
        xp.tanh(new, out=new)
        xp.subtract(old, new, out=hb)
        xp.multiply(hb, rz[:, size:], out=hb)
        xp.add(hb, new, out=hb)
        stay(ops, direction, t, h)


@kernel(half="lift")
def gru_before_layer_backward(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    xp, direction, weight, (h,), (gates,) = ops.xp, case.direction, case.weights[1], *made
    size, dh = h.shape[2], xp.array(slopes.ends[0], order="C")
    d: Array = xp.empty(gates.shape, gates.dtype)
    across = tuple(
        xp.ascontiguousarray(part.T) for part in (weight[:, : 2 * size], weight[:, 2 * size :])
    )
    for lane in ops.lanes(len(dh), gates.size * size):
        given = None if slopes.dy is None else slopes.dy[:, lane]
        parts = gates[:, lane], h[:, lane], d[:, lane]
        _reset_steps_back(ops, given, dh[lane], parts, across, direction.of(lane))
    found = through_gates(ops, case, h, (d, d), (dh,), slopes.needs_dx)
    # The last block of the weights multiplies the state behind the reset gate.
    reset = xp.multiply(gates[:, :, :size], direction.befores(h))
    if direction.drop is not None:
        xp.multiply(reset, direction.drop, out=reset)
    last = ops.matmul(reset.reshape(-1, size).T, d[:, :, 2 * size :].reshape(-1, size))
    return found._replace(weight_h=xp.concatenate([found.weight_h[:, : 2 * size], last], axis=1))


def _reset_steps_back(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    parts: tuple[Array, Array, Array],
    across: tuple[Array, ...],
    direction: Direction,
) -> None:
    """Backpropagate some samples, step by step; the last of ``parts`` are the gates' gradients."""
    xp, (gates, h, d), (n, size) = ops.xp, parts, dh.shape
    room, of_reset, back = (xp.empty((n, size), dh.dtype) for _ in range(3))
    for t in direction.steps_back():
        old = h[direction.around(t)[0]]
        r, z, new = (gates[t, :, k * size : (k + 1) * size] for k in range(3))
        dr, dz, dn = (d[t, :, k * size : (k + 1) * size] for k in range(3))
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        # dn = dh (1 - z)(1 - n²), dz = dh (h - n) z (1 - z)
        xp.subtract(1, z, out=back)
        xp.multiply(back, dh, out=back)
        xp.multiply(new, new, out=dn)
        xp.subtract(1, dn, out=dn)
        xp.multiply(dn, back, out=dn)
        xp.subtract(old, new, out=dz)
        xp.multiply(dz, z, out=dz)
        xp.multiply(dz, back, out=dz)
        # dr = (dn Wᵀ) h r (1 - r)
        xp.matmul(dn, across[1], out=of_reset)
        xp.multiply(of_reset, r, out=of_reset)
        xp.subtract(1, r, out=dr)
        xp.multiply(dr, of_reset, out=dr)
        xp.multiply(dr, fed(ops, old, direction, room), out=dr)
        if direction.skips is not None:
            xp.copyto(d[t], 0, where=direction.skips[t])
            xp.copyto(of_reset, 0, where=direction.skips[t])
        xp.matmul(d[t, :, : 2 * size], across[0], out=back)
        xp.add(back, of_reset, out=back)
        if direction.drop is not None:
            xp.multiply(back, direction.drop, out=back)
        keep = z if direction.skips is None else xp.where(direction.skips[t], 1, z)
        xp.multiply(dh, keep, out=dh)
        xp.add(dh, back, out=dh)
