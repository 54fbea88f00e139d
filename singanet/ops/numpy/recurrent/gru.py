"""A layer of gated recurrent units in one direction.

Gates stand in blocks r, z, n; n = tanh(x_n + r (h W_n + b_n)), h = (1 - z) n + z h: Cho et al.
2014, with the reset gate behind the matrix as in cuDNN ("linear before reset").
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
    ops: Ops,
    case: RecurrentCase,
    made: RecurrentStates,
    dy: Array | None,
    ends: Sequence[Array],
    needs_dx: bool,
) -> RecurrentGradients:
    dh = ops.xp.array(ends[0], order="C")
    of_gates = _states_backward(ops, case, made, dy, dh)
    return through_gates(ops, case, made.states[0], of_gates, (dh,), needs_dx)


def _states(
    ops: Ops, case: RecurrentCase, gates: Array, bias_n: Array, h0: Array | None
) -> tuple[Array, Array]:
    """States h around the steps, (T + 1, N, H), and h W_n + b_n of every step, (T, N, H).

    ``gates`` (T, N, 3H) holds what the input and all biases but ``bias_n`` (H,) add, and on
    return the gates.
    """
    xp, direction, weight = ops.xp, case.direction, case.weights[1]
    steps, n, width = gates.shape
    size = width // 3
    h = state_buffer(ops, (steps + 1, n, size), h0, gates, direction)
    linear: Array = xp.empty((steps, n, size), gates.dtype)
    for lane in ops.lanes(n, gates.size * size):
        states = h[:, lane], linear[:, lane]
        _steps(ops, gates[:, lane], *states, weight, bias_n, direction.of(lane))
    return h, linear


def _steps(
    ops: Ops,
    gates: Array,
    h: Array,
    linear: Array,
    weight: Array,
    bias_n: Array,
    direction: Direction,
) -> None:
    """The states of some samples, and their ``linear``, step by step."""
    xp, (_, n, width) = ops.xp, gates.shape
    size = width // 3
    wide, narrow = xp.empty((n, width), gates.dtype), xp.empty((n, size), gates.dtype)
    for t in direction.steps():
        before, after = direction.around(t)
        hb, old = h[after], h[before]
        rz, new = gates[t, :, : 2 * size], gates[t, :, 2 * size :]
        xp.matmul(fed(ops, old, direction, narrow), weight, out=wide)
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


def _states_backward(
    ops: Ops, case: RecurrentCase, made: RecurrentStates, dy: Array | None, dh: Array
) -> tuple[Array, Array]:
    """Gradients of the input's and of the state's share of the gates, two (T, N, 3H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` (N, H) is that of the last
    state, and on return of the first one.
    """
    direction, weight, (gates, linear) = case.direction, case.weights[1], made.notes
    xp, size = ops.xp, gates.shape[2] // 3
    of_x = _slopes(ops, gates, linear, direction.befores(made.states[0]))
    of_h: Array = xp.array(of_x)
    xp.multiply(of_h[:, :, 2 * size :], gates[:, :, :size], out=of_h[:, :, 2 * size :])
    update = gates[:, :, size : 2 * size]
    if direction.skips is not None:
        clear(ops, direction.skips, of_x, of_h)
        update = xp.where(direction.skips, 1, update)
    # Copied once, the product of each step reads it in longer runs.
    across = xp.ascontiguousarray(weight.T)
    for lane in ops.lanes(len(dh), gates.size * size):
        given = None if dy is None else dy[:, lane]
        slopes = of_x[:, lane], of_h[:, lane], update[:, lane]
        _steps_back(ops, given, dh[lane], slopes, across, direction.of(lane))
    return of_x, of_h


def _steps_back(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    slopes: tuple[Array, Array, Array],
    across: Array,
    direction: Direction,
) -> None:
    """The gradients of some samples, step by step: slopes of the gates become their gradients."""
    xp, (of_x, of_h, update), (n, size) = ops.xp, slopes, dh.shape
    blocks = [d.reshape(len(d), n, 3, size) for d in (of_x, of_h)]
    narrow = xp.empty((n, size), dh.dtype)
    for t in direction.steps_back():
        if dy is not None:
            xp.add(dh, dy[t], out=dh)
        for block in blocks:
            xp.multiply(block[t], dh[:, None], out=block[t])
        xp.multiply(dh, update[t], out=narrow)
        through_state(ops, of_h[t], across, direction, t, dh, None)
        xp.add(dh, narrow, out=dh)


def _slopes(ops: Ops, gates: Array, linear: Array, before: Array) -> Array:
    """What dh is multiplied by to give the gradients of the gates' inputs."""
    xp = ops.xp
    size = gates.shape[2] // 3
    r, z, n = (gates[:, :, k * size : (k + 1) * size] for k in range(3))
    slopes: Array = xp.empty(gates.shape, gates.dtype)
    dr, dz, dn = (slopes[:, :, k * size : (k + 1) * size] for k in range(3))
    xp.multiply(n, n, out=dn)
    xp.subtract(1, dn, out=dn)
    xp.subtract(1, z, out=dz)
    xp.multiply(dn, dz, out=dn)
    # dz still holds 1 - z.
    xp.multiply(dz, z, out=dz)
    xp.subtract(before, n, out=dr)
    xp.multiply(dz, dr, out=dz)
    xp.subtract(1, r, out=dr)
    xp.multiply(dr, r, out=dr)
    xp.multiply(dr, linear, out=dr)
    xp.multiply(dr, dn, out=dr)
    return slopes
