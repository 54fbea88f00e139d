"""Gates from what goes into a recurrent layer, and gradients back from them."""

from __future__ import annotations

from singanet.ops.direction import Direction, RecurrentCase, RecurrentGradients
from singanet.ops.interface import Ops
from singanet.types import Array, Shape


def input_gates(ops: Ops, case: RecurrentCase, bias: Array) -> Array:
    """(T, N, G·H) that x and the ``bias`` add to the gates, a new array."""
    x, (weight, _) = case.x, case.weights
    steps, n, size = x.shape
    if weight is None:
        made = ops.add(x[:, :, None], bias.reshape(-1, size))
    else:
        made = ops.affine(x.reshape(steps * n, size), weight, bias)
    gates: Array = made.reshape(steps, n, len(bias))
    return gates


def state_buffer(
    ops: Ops, shape: Shape, start: Array | None, like: Array, direction: Direction
) -> Array:
    """States (T + 1, N, H) of which the one before all steps is ``start``, or zero."""
    states: Array = ops.xp.empty(shape, like.dtype)
    states[direction.start] = 0 if start is None else start
    return states


def clear(ops: Ops, skips: Array | None, *arrays: Array) -> None:
    """Zero, in place, what arrays (T, N, ...) hold of steps that are not there."""
    if skips is not None:
        for array in arrays:
            ops.xp.copyto(array, 0, where=skips)


def stay(ops: Ops, direction: Direction, t: int, *states: Array) -> None:
    """Of samples without step ``t`` the states after it are those before it."""
    if direction.skips is not None:
        before, after = direction.around(t)
        for state in states:
            ops.xp.copyto(state[after], state[before], where=direction.skips[t])


def fed(ops: Ops, state: Array, direction: Direction, room: Array) -> Array:
    """What the product of a step sees of ``state``; ``room`` is for it."""
    if direction.drop is None:
        return state
    seen: Array = ops.xp.multiply(state, direction.drop, out=room)
    return seen


def through_state(
    ops: Ops, d: Array, across: Array, direction: Direction, t: int, dh: Array, room: Array | None
) -> None:
    """Take ``dh`` through step ``t``, whose gates have gradients ``d``, in place.

    It passes by a step that is not there; ``room`` is for what does, None if all are there or
    the kernel sees to it.
    """
    xp = ops.xp
    if room is not None:
        assert direction.skips is not None
        xp.multiply(dh, direction.skips[t], out=room)
    xp.matmul(d, across, out=dh)
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
    """For the gradients ``of_gates`` (T, N, G·H): of what x and the states ``h`` give them.

    Both may be one array; the gradients of the biases then are one too.
    """
    (of_x, of_h), x, direction, weight_x = of_gates, case.x, case.direction, case.weights[0]
    rows_x, rows_h = (d.reshape(-1, d.shape[2]) for d in (of_x, of_h))
    before, size = direction.befores(h), h.shape[2]
    if direction.drop is not None:
        before = ops.multiply(before, direction.drop)
    weight_h = ops.matmul(before.reshape(-1, size).T, rows_h)
    made = None if weight_x is None else ops.matmul(x.reshape(-1, x.shape[2]).T, rows_x)
    # Summed over time and then over samples: two short sums lose less than one long one.
    bias_x = of_x.sum(axis=0).sum(axis=0)
    bias_h = bias_x if of_h is of_x else of_h.sum(axis=0).sum(axis=0)
    dx: Array | None = None
    if needs_dx and weight_x is None:
        dx = of_x.reshape(*x.shape[:2], of_x.shape[2] // size, size).sum(axis=2)
    elif needs_dx and weight_x is not None:
        dx = ops.matmul(rows_x, weight_x.T).reshape(x.shape)
    return RecurrentGradients(dx, made, weight_h, bias_x, bias_h, starts)
