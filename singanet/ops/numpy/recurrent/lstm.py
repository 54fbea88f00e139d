"""A layer of long short-term memory in one direction.

Gates stand in blocks i, f, g, o; c = f c + i g, h = o tanh(c): Hochreiter and Schmidhuber 1997,
with the forget gate of Gers et al. 2000.
"""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.direction import Direction, RecurrentGradients
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.recurrent.gates import (
    clear_past,
    input_gates,
    state_buffer,
    through_gates,
)
from singanet.types import Array


@kernel(half="lift")
def lstm_layer(
    ops: Ops,
    x: Array,
    weights: tuple[Array | None, Array],
    bias: Array,
    starts: tuple[Array | None, Array | None],
    direction: Direction,
    keep: bool,
) -> tuple[Array, Array, tuple[Array, ...]]:
    """See `Ops`."""
    gates = input_gates(ops, x, weights[0], bias)
    h, c = _states(ops, gates, weights[1], *starts, direction)
    return h, c, (gates, c) if keep else ()


@kernel(half="lift")
def lstm_layer_backward(
    ops: Ops,
    dy: Array | None,
    ends: Sequence[Array],
    x: Array,
    weights: tuple[Array | None, Array],
    h: Array,
    notes: tuple[Array, ...],
    direction: Direction,
    needs_dx: bool,
) -> RecurrentGradients:
    """See `Ops`."""
    gates, c = notes
    dh, dc = (ops.xp.array(end, order="C") for end in ends)
    dgates = _states_backward(ops, dy, dh, dc, gates, c, weights[1], direction)
    before = direction.befores(h)
    return through_gates(ops, dgates, dgates, x, before, weights[0], needs_dx, (dh, dc))


def _states(
    ops: Ops,
    gates: Array,
    weight: Array,
    h0: Array | None,
    c0: Array | None,
    direction: Direction,
) -> tuple[Array, Array]:
    """States h and c around the steps, two arrays (T + 1, N, H).

    ``gates`` (T, N, 4H) holds what the input and the biases add, and on return the gates;
    ``weight`` is (H, 4H). Rows past ``counts[t]`` keep their state at step t.
    """
    xp = ops.xp
    steps, n, width = gates.shape
    size = width // 4
    h = state_buffer(ops, (steps + 1, n, size), h0, gates, direction)
    c = state_buffer(ops, (steps + 1, n, size), c0, gates, direction)
    # σ(x) = tanh(x/2)/2 + 1/2 makes one call of all four gates; it cannot overflow either.
    slope = xp.full(width, 0.5, gates.dtype)
    slope[2 * size : 3 * size] = 1
    shift = 1 - slope
    wide, narrow = xp.empty((n, width), gates.dtype), xp.empty((n, size), gates.dtype)
    for t in direction.steps():
        b = direction.counts[t]
        before, after = direction.around(t)
        z, hb, cb, add = gates[t, :b], h[after, :b], c[after, :b], narrow[:b]
        xp.add(z, xp.matmul(h[before, :b], weight, out=wide[:b]), out=z)
        xp.multiply(z, slope, out=z)
        xp.tanh(z, out=z)
        xp.multiply(z, slope, out=z)
        xp.add(z, shift, out=z)
        xp.multiply(z[:, size : 2 * size], c[before, :b], out=cb)
        xp.multiply(z[:, :size], z[:, 2 * size : 3 * size], out=add)
        xp.add(cb, add, out=cb)
        xp.tanh(cb, out=hb)
        xp.multiply(hb, z[:, 3 * size :], out=hb)
        if b < n:
            h[after, b:], c[after, b:] = h[before, b:], c[before, b:]
    return h, c


def _states_backward(
    ops: Ops,
    dy: Array | None,
    dh: Array,
    dc: Array,
    gates: Array,
    c: Array,
    weight: Array,
    direction: Direction,
) -> Array:
    """Gradient of what went into the gates, (T, N, 4H).

    ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` and ``dc`` (N, H) are those of
    the last states, and on return of the first ones.
    """
    xp = ops.xp
    steps, n, width = gates.shape
    size = width // 4
    dgates, to_c = _slopes(ops, gates, direction.befores(c), direction.afters(c))
    blocks = dgates.reshape(steps, n, 4, size)
    narrow = xp.empty((n, size), gates.dtype)
    # Copied once, the product of each step reads it in longer runs.
    across = xp.ascontiguousarray(weight.T)
    for t in direction.steps_back():
        b = direction.counts[t]
        dhb, dcb, add = dh[:b], dc[:b], narrow[:b]
        if dy is not None:
            xp.add(dhb, dy[t, :b], out=dhb)
        xp.multiply(dhb, to_c[t, :b], out=add)
        xp.add(dcb, add, out=dcb)
        block = blocks[t, :b]
        xp.multiply(block[:, :3], dcb[:, None], out=block[:, :3])
        xp.multiply(block[:, 3], dhb, out=block[:, 3])
        xp.multiply(dcb, gates[t, :b, size : 2 * size], out=dcb)
        xp.matmul(dgates[t, :b], across, out=dhb)
    clear_past(dgates, direction.counts)
    return dgates


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
