"""The kernels as rows of a table: arguments, formula and gradients.

A formula is plain NumPy in float64 and calls no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from singanet.ops.interface import ACTIVATIONS
from singanet.ops.window import Attention, Direction, RecurrentCase, RecurrentSlopes, Window

NONE, SAME = ((0, 0), (0, 0)), ((1, 1), (1, 1))
PLAIN = Window((3, 3), (1, 1), SAME)
SLOPE, EPSILON = 0.3, 1e-3


@dataclass(frozen=True)
class Row:
    """A kernel.

    Attributes:
        name: The kernel's name.
        given: Returns the arguments, by a function that draws arrays and a size.
        sizes: The sizes, odd ones and extents of one included.
        formula: Returns the results for the arguments; a kernel may return more.
        back: Returns pairs of an argument and its gradient, by (ops, arguments, results, gradient
            of the first result).
        multilinear: Whether the first result is affine in each argument with a gradient.
        large: Sizes for which compiled backends have kernels of their own.
    """

    name: str
    given: Callable[..., tuple[Any, ...]]
    sizes: Sequence[tuple[Any, ...]]
    formula: Callable[..., Any]
    back: Callable[..., list[tuple[Any, Any]]] | None = None
    multilinear: bool = False
    large: Sequence[tuple[Any, ...]] = ()


def mapped(function, value):
    """Return ``value`` with ``function`` applied to each array in it."""
    if isinstance(value, np.ndarray) or hasattr(value, "get"):
        return function(value)
    if isinstance(value, Direction):
        return replace(
            value, skips=mapped(function, value.skips), drop=mapped(function, value.drop)
        )
    if isinstance(value, Attention):
        return replace(value, added=mapped(function, value.added))
    if isinstance(value, (list, tuple)):
        parts = [mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def flat(value):
    """Return the arrays in ``value``."""
    found = []
    mapped(found.append, value)
    return found


def across(values, ndim):
    """Return values by channel in a shape that broadcasts to (N, C, ...)."""
    return values.reshape(-1, *[1] * (ndim - 2))


# -- Convolutions and windows ---------------------------------------------------------------------


def places(window, size):
    """Yield each offset in the kernel, with the slices of the padded image that it covers."""
    out = window._out_size(*size)
    for at in np.ndindex(window.kernel):
        firsts = [a * d for a, d in zip(at, window.dilation, strict=True)]
        yield (
            at,
            tuple(
                slice(first, first + (count - 1) * stride + 1, stride)
                for first, count, stride in zip(firsts, out, window.stride, strict=True)
            ),
        )


def padded(x, window, value=0.0):
    pads = window.reach(*x.shape[2:])
    return np.pad(x, ((0, 0), (0, 0), *pads), constant_values=value)


def convolved(x, weight, bias, window):
    full, groups = padded(x, window), window.groups
    y = np.zeros((len(x), len(weight), *window._out_size(*x.shape[2:])))
    parts = np.split(full, groups, 1), np.split(weight, groups), np.split(y, groups, 1)
    for xs, ws, ys in zip(*parts, strict=True):
        for at, place in places(window, x.shape[2:]):
            ys += np.einsum("nc...,fc->nf...", xs[(..., *place)], ws[(..., *at)])
    return y if bias is None else y + across(bias, x.ndim)


def convolution(draw, n, size, channels, outputs, window, groups=1, biased=True):
    window = replace(window, groups=groups)
    weight = draw(outputs, channels // groups, *window.kernel)
    return draw(n, channels, *size), weight, draw(outputs) if biased else None, window


def convolution_back(ops, args, y, dy):
    x, weight, bias, window = args
    found = [(x, ops.conv2d_backward_data(dy, weight, x.shape, window))]
    found += [(weight, ops.conv2d_backward_weights(x, dy, weight.shape, window))]
    return found + ([] if bias is None else [(bias, ops.channel_sum(dy))])


def depthwise(x, weight, bias, window):
    c, m = weight.shape[:2]
    return convolved(
        x, weight.reshape(c * m, 1, *weight.shape[2:]), bias, replace(window, groups=c)
    )


def depthwise_back(ops, args, y, dy):
    x, weight, bias, window = args
    return [
        (x, ops.depthwise_conv2d_backward_data(dy, weight, x.shape, window)),
        (weight, ops.depthwise_conv2d_backward_weights(x, dy, weight.shape, window)),
        (bias, ops.channel_sum(dy)),
    ]


def constant(x, weight, bias, window, relu, add):
    y = convolved(x, weight, bias, window)
    y = y if add is None else y + add
    return np.maximum(y, 0) if relu else y


def constant_given(draw, n, size, channels, outputs, window, groups, relu, add, biased=True):
    given = convolution(draw, n, size, channels, outputs, window, groups, biased)
    added = draw(n, outputs, *window._out_size(*size)) if add else None
    return *given, relu, added


GEOMETRIES = [
    PLAIN,
    Window((3, 3), (2, 2), SAME),
    Window((1, 1), (1, 1), NONE),
    Window((1, 1), (2, 3), NONE),
    Window((2, 4), (3, 1), ((0, 1), (1, 2))),
    Window((3, 2), (1, 1), ((2, 2), (1, 1)), (2, 3)),
    Window((3, 3), (2, 2), ((3, 2), (2, 3)), (2, 2)),
    Window((2, 2), (1, 2), ((4, 4), (3, 3))),
    Window((2, 2), (5, 5), ((3, 3), (3, 3))),
    Window((5, 5), (1, 1), ((2, 2), (2, 2))),
]
CHANNELS = [(2, 3, 1), (4, 2, 2), (1, 9, 1), (8, 1, 1), (3, 6, 3), (16, 16, 4), (5, 5, 5)]
CONVOLUTIONS = [
    (3, (7, 6), channels, outputs, window, groups)
    for window, (channels, outputs, groups) in product(GEOMETRIES, CHANNELS)
]
CONVOLUTIONS += [(n, (7, 6), 8, 16, PLAIN) for n in (0, 1)]
CONVOLUTIONS += [(3, (12, 12), 16, 16, PLAIN), (2, (8, 9), 16, 16, GEOMETRIES[-1], 2)]
CONVOLUTIONS += [(2, (3, 5, 4), 3, 4, Window((2, 3, 1), (1, 2, 1), ((1, 0), (1, 1), (0, 0)),
                                              (1, 1, 1)))]  # fmt: skip
ONEDNNS = [(16, 32, 1), (20, 50, 1), (6, 4, 2), (5, 3, 1), (1, 8, 1), (8, 8, 8), (4, 12, 4)]
LARGE_CONVOLUTIONS = [
    (3, (9, 8), channels, outputs, GEOMETRIES[k], groups)
    for k, (channels, outputs, groups) in zip((0, 1, 3, 4, 5) * 3, ONEDNNS * 2, strict=False)
]
LARGE_CONVOLUTIONS += [(2, (28, 28), 64, 64, PLAIN)]
ENDINGS = [(False, False), (True, False), (False, True), (True, True)]
CONSTANTS = [
    (2, (7, 9), 5, 8, PLAIN, 1),
    (1, (11, 8), 3, 16, Window((7, 7), (2, 2), ((3, 3), (3, 3))), 1),
    (3, (4, 4), 16, 32, Window((1, 1), (1, 1), NONE), 1),
    (1, (4, 4), 128, 128, PLAIN, 1),
    (2, (9, 9), 16, 16, Window((3, 3), (2, 2), SAME), 1),
    (1, (9, 9), 8, 8, Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)), 1),
    (2, (6, 6), 8, 12, PLAIN, 4),
    (2, (6, 6), 8, 8, PLAIN, 8),
    (3, (10, 7), 4, 5, Window((3, 3), (1, 1), ((2, 0), (1, 2))), 1),
    (0, (6, 6), 4, 4, PLAIN, 1),
]
CONSTANTS = [(*size, *ending) for size in CONSTANTS for ending in ENDINGS]
CONSTANTS += [(*size[:6], True, False, False) for size in CONSTANTS[::4]]

# -- Pooling --------------------------------------------------------------------------------------

POOLS = [
    Window((3, 3), (2, 2), SAME),
    Window((2, 2), (2, 2), NONE),
    Window((3, 2), (1, 1), ((0, 1), (1, 0))),
    Window((1, 1), (3, 2), NONE),
    Window((2, 3), (3, 4), ((1, 0), (2, 2))),
    Window((3, 3), (2, 3), ((0, 1), (1, 0)), ceil=True),
    Window((3, 2), (1, 3), ((1, 0), (0, 1))),
    Window((2, 3), (1, 2), SAME, (2, 1)),
    # The corner windows of these contain only padding.
    Window((2, 2), (2, 2), ((2, 2), (3, 2))),
    Window((1, 2), (1, 3), ((3, 1), (2, 4))),
]


def stack_of(x, window, value):
    """Return the pixels under each position of the kernel, (K, N, C, H', W')."""
    full = padded(x, window, value)
    return np.stack([full[(..., *place)] for _, place in places(window, x.shape[2:])])


def maxima(x, window, keep):
    seen = stack_of(x, window, -np.inf)
    return (
        (seen.max(axis=0), seen.argmax(axis=0).transpose(0, 2, 3, 1)) if keep else seen.max(axis=0)
    )


def means(x, window, count_pads):
    """Divide sums by the count of positions on the image, or on image and padding."""
    ones = np.ones_like(x)
    if count_pads:
        ones = np.pad(ones, ((0, 0), (0, 0), *window.pads), constant_values=1.0)
        window_of_ones = replace(window, pads=((0, 0),) * len(window.pads))
        count = stack_of(ones, window_of_ones, 0.0).sum(axis=0)
    else:
        count = stack_of(ones, window, 0.0).sum(axis=0)
    return stack_of(x, window, 0.0).sum(axis=0) / np.maximum(count, 1)


def ties(draw, *shape):
    return np.round(draw(*shape))


POOL_SIZES = [((3, 2, 6, 7), window) for window in POOLS]
POOL_SIZES += [((n, 1, 7, 7), POOLS[0]) for n in (0, 1)]
LARGE_POOLS = [((3, 5, 9, 8), POOLS[k]) for k in (0, 1, 5, 6)]
LARGE_POOLS += [((24, 24, 40, 40), POOLS[0])]

# -- Normalisation --------------------------------------------------------------------------------

NORMS = [(7, 3), (1, 3), (5, 3, 4, 2), (4, 1, 1, 1), (3, 2, 1, 5), (2, 4, 3, 3)]
LARGE_NORMS = [(4, 16, 7, 5), (2, 48, 6, 6), (70, 16), (4, 20, 7, 5), (32, 24, 16, 16)]


def normal(x, gamma, beta, mean, var, epsilon, relu=False):
    mean, var, gamma, beta = (across(each, x.ndim) for each in (mean, var, gamma, beta))
    y = gamma * (x - mean) / np.sqrt(var + epsilon) + beta
    return np.maximum(y, 0) if relu else y


def trained(x, gamma, beta, epsilon, relu=False):
    axes = (0, *range(2, x.ndim))
    mean, var = x.mean(axes), x.var(axes)
    y = normal(x, gamma, beta, mean, var, epsilon, relu)
    return y, mean, var, 1 / np.sqrt(var + epsilon)


def fixed_back(ops, args, made, dy):
    x, gamma, beta, mean = args[:4]
    _, inverse, *mask = made
    grads = ops.batch_norm_backward(dy, x, gamma, mean, inverse, True, *mask)
    return list(zip((x, gamma, beta), grads, strict=True))


def trained_back(ops, args, made, dy):
    x, gamma, beta = args[:3]
    _, mean, _, inverse, *mask = made
    grads = ops.batch_norm_backward(dy, x, gamma, mean, inverse, False, *mask)
    return list(zip((x, gamma, beta), grads, strict=True))


def by_rows(x, rows):
    x = x.reshape(rows, -1)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON)


def grouped(x, groups, gamma, beta, epsilon):
    y = by_rows(x, len(x) * groups).reshape(x.shape)
    return y if gamma is None else across(gamma, x.ndim) * y + across(beta, x.ndim)


def rows_back(kernel):
    """Return the gradients of layer or group normalization; the second has a number of groups."""

    def back(ops, args, made, dy):
        x, *groups, gamma, beta, _ = args
        grads = getattr(ops, kernel)(dy, x, *groups, gamma, made[1])
        pairs = list(zip((x, gamma, beta), grads, strict=True))
        assert gamma is not None or grads[1] is grads[2] is None
        return [pair for pair in pairs if pair[1] is not None]

    return back


def squares(x, size):
    """Return Σ x² over ``size`` channels around each."""
    wide = np.pad(x**2, ((0, 0), (size // 2, size // 2), *[(0, 0)] * (x.ndim - 2)))
    return sum(wide[:, k : k + x.shape[1]] for k in range(size))


# -- Recurrent layers -----------------------------------------------------------------------------

GATES = {"lstm": 4, "gru": 3, "gru_before": 3, "elman": 1}
STATES = {"lstm": 2, "gru": 1, "gru_before": 1, "elman": 1}
LSTMS = [(5, 3, 7, 4), (4, 2, 16, 32), (1, 1, 1, 1), (6, 17, 3, 20), (4, 17, 16, 64)]
RECURRENT = {
    "lstm": LSTMS,
    "gru": [*LSTMS, (2, 2, 5, 256)],
    "gru_before": LSTMS,
    "elman": [(20, 3, 7, 4), (30, 2, 16, 32), (20, 1, 1, 1), (24, 17, 3, 15)],
}


def logistic(x):
    return 1 / (1 + np.exp(-x))


def stepped(kind, from_x, from_h, biases, h, c, mode):
    """Return the states h and c (N, H) after a step, by the products with the weights."""
    if kind == "elman":
        total = from_x + from_h + biases[0]
        return (np.tanh(total) if mode == "tanh" else np.maximum(total, 0)), c
    if kind == "gru":
        parts = np.split(from_x + biases[0], 3, 1), np.split(from_h + biases[1], 3, 1)
        (rx, zx, nx), (rh, zh, nh) = parts
        r, z = logistic(rx + rh), logistic(zx + zh)
        return (1 - z) * np.tanh(nx + r * nh) + z * h, c
    i, f, g, o = np.split(from_x + from_h + biases[0], 4, 1)
    c = logistic(f) * c + logistic(i) * np.tanh(g)
    return logistic(o) * np.tanh(c), c


def reset_before(from_x, seen, wh, h):
    """Return the state after a step of a GRU whose reset gate is before the product."""
    size = len(wh)
    r, z = np.split(logistic(from_x[:, : 2 * size] + seen @ wh[:, : 2 * size]), 2, 1)
    n = np.tanh(from_x[:, 2 * size :] + (r * seen) @ wh[:, 2 * size :])
    return (1 - z) * n + z * h


def recurrence(kind):
    """Return a formula of h after every step and of the last states, as one vector."""

    def formula(case, starts, keep):
        x, (wx, wh), biases, way, mode = case
        zeros = np.zeros((x.shape[1], len(wh)))
        h, c = (*(zeros if s is None else s for s in starts), zeros)[:2]
        made = np.zeros((len(x), *zeros.shape))
        for t in way.steps():
            from_x = x[t] @ wx if wx is not None else np.tile(x[t], GATES[kind])
            seen = h if way.drop is None else h * way.drop
            if kind == "gru_before":
                after, cell = reset_before(from_x + biases[0], seen, wh, h), c
            else:
                after, cell = stepped(kind, from_x, seen @ wh, biases, h, c, mode)
            stays = np.zeros((x.shape[1], 1), bool) if way.skips is None else way.skips[t]
            h, c = np.where(stays, h, after), np.where(stays, c, cell)
            made[t] = h
        return np.concatenate([made.ravel(), h.ravel(), (c if kind == "lstm" else h).ravel()])

    return formula


def recurrent_given(kind):
    def given(draw, steps, n, size, width, reverse, started, odd, mode="tanh"):
        gates = GATES[kind]
        across_gates = [draw(gates * width) / 2 for _ in range(1 + (kind == "gru"))]
        wx = None if odd == "no weights" else draw(size, gates * width) / 2
        weights = wx, draw(width, gates * width) / 2 / width**0.5
        skips = draw(steps, n, 1) < -0.5 if odd == "skips" else None
        drop = 2.0 * (draw(n, width) < 0.3) if odd == "drop" else None
        x = draw(steps, n, width if wx is None else size) / 2
        case = RecurrentCase(
            x, weights, tuple(across_gates), Direction(steps, reverse, skips, drop), mode
        )
        starts = tuple(draw(n, width) / 2 if started else None for _ in range(STATES[kind]))
        return case, starts, True

    return given


def recurrent_back(kind):
    def back(ops, args, made, dy):
        case, starts, _ = args
        steps, n, width = case.x.shape[0], case.x.shape[1], len(case.weights[1])
        dh = dy[: steps * n * width].reshape(steps, n, width)
        ends = [part.reshape(n, width) for part in np.split(dy[steps * n * width :], 2)]
        if kind != "lstm":
            ends = [ends[0] + ends[1]]
        before = [end.copy() for end in ends]
        grads = getattr(ops, f"{kind}_layer_backward")(case, made, RecurrentSlopes(dh, ends, True))
        for end, same in zip(ends, before, strict=True):
            np.testing.assert_array_equal(end, same)
        pairs = [(case.x, grads.x), (case.weights[0], grads.weight_x)]
        pairs += [(case.weights[1], grads.weight_h), (case.biases[0], grads.bias_x)]
        pairs += [(case.biases[1], grads.bias_h)] if kind == "gru" else []
        pairs += zip(starts, grads.starts, strict=True)
        return [pair for pair in pairs if pair[0] is not None]

    return back


def recurrent_results(kind, args, made):
    """Return the vector of `recurrence` from the states that a kernel returns."""
    way = args[0].direction
    h = made.states[0]
    cells = made.states[1][way.end] if kind == "lstm" else h[way.end]
    return np.concatenate([way.afters(h).ravel(), h[way.end].ravel(), cells.ravel()])


def recurrent_sizes(kind):
    ways = list(product([False, True], repeat=2))
    return [(*size, *way, "") for size in RECURRENT[kind] for way in ways]


def odd_sizes(kind):
    """Skipped steps, dropped states, no weights for x, and the other activation."""
    odd = product([False, True], [True], ["skips", "drop", "no weights"])
    relu = [(4, 3, 5, 6, False, True, "", "relu")]
    return [(4, 3, 5, 6, *each) for each in odd] + (relu if kind == "elman" else [])


# -- The table ------------------------------------------------------------------------------------


def function_of(mode, x):
    """Return an activation of moderate values; test_extremes has the others."""
    erf = np.vectorize(math.erf)
    soft = np.log1p(np.exp(x))
    return {
        "relu": lambda: np.maximum(x, 0),
        "sigmoid": lambda: logistic(x),
        "tanh": lambda: np.tanh(x),
        "leaky_relu": lambda: np.where(x > 0, x, SLOPE * x),
        "elu": lambda: np.where(x > 0, x, SLOPE * np.expm1(x)),
        "gelu": lambda: x * 0.5 * (1 + erf(x / math.sqrt(2))),
        "silu": lambda: x * logistic(x),
        "softplus": lambda: soft,
        "relu6": lambda: np.clip(x, 0, 6),
        "hard_sigmoid": lambda: np.clip(x + 3, 0, 6) / 6,
        "hard_swish": lambda: x * np.clip(x + 3, 0, 6) / 6,
        "selu": lambda: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "celu": lambda: np.where(x > 0, x, SLOPE * np.expm1(x / SLOPE)),
        "softsign": lambda: x / (1 + abs(x)),
        "mish": lambda: x * np.tanh(soft),
        "gelu_tanh": lambda: (
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
        "softcap": lambda: SLOPE * np.tanh(x / SLOPE),
    }[mode]()


def activation_back(ops, args, y, dy):
    mode, x, slope = args
    return [(x, ops.activation_backward(mode, dy, y if ACTIVATIONS[mode] == "y" else x, slope))]


def combined(mode, arrays, shape, relu):
    y = np.array(np.broadcast_to(arrays[0], shape))
    for array in arrays[1:]:
        y = getattr(np, mode)(y, array)
    return np.maximum(y, 0) if relu else y


def soft(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def smoothed(x, labels, smoothing):
    """The target is ``1 - smoothing`` at the label plus an equal share for all classes."""
    target = (1 - smoothing) * np.eye(x.shape[1])[labels] + smoothing / x.shape[1]
    return -(target * np.log(soft(x))).sum(1), soft(x)


def rotated(x, cos, sin, interleaved):
    y, m = x.copy(), cos.shape[-1]
    one, two = (slice(0, 2 * m, 2), slice(1, 2 * m, 2)) if interleaved else (
        slice(0, m), slice(m, 2 * m))  # fmt: skip
    a, b = x[..., one], x[..., two]
    y[..., one], y[..., two] = a * cos - b * sin, b * cos + a * sin
    return y


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def pads_of(x, pads, value, mode):
    return np.pad(
        x, pads, MODES[mode], **({"constant_values": value} if mode == "constant" else {})
    )


def bilinear(x, factors):
    for axis, factor in ((2, factors[0]), (3, factors[1])):
        size = x.shape[axis]
        at = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        part = (at - low).reshape(-1, *[1] * (3 - axis))
        high = np.minimum(low + 1, size - 1)
        x = np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return x


def weights_of(q, k, case):
    scores = np.einsum("nhid,nhjd->nhij", q, k) * case.scale
    keys, seen = np.arange(k.shape[2]), np.ones(scores.shape, bool)
    if case.causal:
        seen &= keys <= case.first + np.arange(q.shape[2])[:, None]
    if case.lengths is not None:
        seen &= keys < case.lengths[:, None, None, None]
    if case.seen is not None:
        seen &= case.seen > 0
    scores = scores if case.added is None else scores + case.added
    e = np.where(seen, np.exp(scores), 0.0)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


BITS = np.random.default_rng(0).integers(0, 2, (3, 1, 5, 6))
MASKS = {"seen": [None, BITS, BITS[:, :, :1]], "added": [None, np.where(BITS, 0.5, -np.inf)]}
CASES = [
    Attention(0.5, causal, 2 * causal, lengths=lengths, seen=seen, added=added)
    for causal in (False, True)
    for lengths in (None, np.array([6, 0, 2]))
    for seen, added in product(*MASKS.values())
]
PLAIN_CASES = [case for case in CASES if case.seen is case.added is None]
ROWS = [
    Row("add_all", lambda draw, count, *shape: ([draw(*shape) for _ in range(count)],),
        [(2, 3, 4), (3, 1), (5, 2, 1, 7)], lambda arrays: sum(arrays[1:], arrays[0]),
        large=[(2, 1 << 17)]),
    Row("concat", lambda draw, axis, *shapes: ([draw(*s) for s in shapes], axis),
        [(0, (2, 3), (1, 3)), (1, (2, 3), (2, 1), (2, 2))], np.concatenate),
    Row("combine", lambda draw, mode, shape, shapes, relu: (mode, [draw(*s) for s in shapes], shape,
                                                            relu),
        [(mode, (2, 3, 4, 5), shapes, relu)
         for mode in ("add", "multiply", "maximum") for relu in (False, True)
         for shapes in ([(2, 3, 4, 5)] * 2, [(2, 3, 4, 5), (1, 3, 1, 1)],
                        [(1, 3, 1, 1), (2, 3, 4, 5)], [(2, 3, 1, 5), (2, 3, 4, 1)],
                        [(2, 3, 4, 5), (2, 3, 4, 5), (1, 3, 1, 1)])],
        combined,
        large=[("add", (8, 16, 32, 33), [(8, 16, 32, 33)] * 2, r) for r in (False, True)]),
    Row("sum_to", lambda draw, shape, target: (draw(*shape), target),
        [((2, 3, 4), (2, 1, 4)), ((2, 3, 4), (1, 3, 1)), ((2, 3), (2, 3))],
        lambda x, shape: x.sum(tuple(k for k, n in enumerate(shape) if n == 1), keepdims=True)),
    Row("pad", lambda draw, shape, pads, mode: (draw(*shape), pads, -1.5, mode),
        [((2, 3, 4, 5), pads, mode) for mode in MODES
         for pads in (((0, 0), (1, 2), (0, 0), (0, 0)), ((0, 0), (0, 0), (2, 1), (0, 3)))]
        + [((2, 3), ((1, 0), (0, 2)), "constant"), ((1, 1, 1, 4), ((1, 1),) * 4, "constant")],
        pads_of, lambda ops, a, y, dy: [] if a[3] == "constant" else [
            (a[0], ops.pad_backward(dy, a[1], a[3]))], True),
    Row("matmul", lambda draw, a, b: (draw(*a), draw(*b)),
        [((4, 5), (5, 3)), ((1, 1), (1, 1)), ((5, 1), (1, 7)), ((0, 3), (3, 2)), ((3, 0), (0, 2)),
         ((2, 3, 4), (2, 4, 5)), ((2, 6, 8), (8, 3)), ((1, 9), (9, 4))],
        lambda a, b: np.einsum("...ij,...jk->...ik", a, b),
        large=[((64, 300), (300, 80)), ((600, 70), (70, 65)), ((3, 300), (300, 257))]),
    Row("add_matmul", lambda draw, m, k, n: (draw(m, n), draw(m, k), draw(k, n)),
        [(4, 5, 9), (9, 5, 4), (0, 5, 3), (1, 5, 1)], lambda y, a, b: y + np.einsum("ij,jk", a, b),
        large=[(65, 70, 130)]),
    Row("affine",
        lambda draw, m, k, n, biased: (draw(m, k), draw(k, n), draw(n) if biased else None),
        [(m, 5, 3, biased) for m in (0, 1, 4) for biased in (False, True)],
        lambda x, w, b: np.einsum("ni,io->no", x, w) + (0 if b is None else b),
        large=[(64, 512, 33, True), (1, 1024, 512, False)]),
    Row("affine_constant",
        lambda draw, m, k, n, biased, relu: (draw(m, k), draw(k, n), draw(n) if biased else None,
                                             relu),
        [(m, k, n, biased, relu)
         for m, k, n in ((0, 5, 3), (3, 5, 7), (9, 100, 37), (30, 7, 1), (1, 1, 16), (2, 3, 17),
                         (11, 40, 48), (5, 9, 65), (4, 33, 150))
         for biased in (False, True) for relu in (False, True)],
        lambda x, w, b, relu: np.maximum(x @ w + (0 if b is None else b), 0 if relu else -np.inf),
        large=[(m, k, n, biased, True) for biased in (False, True)
               for m, k, n in ((1, 784, 512), (330, 1, 100), (300, 70, 1), (32, 784, 512))]),
    Row("column_sums", lambda draw, n: (draw(n, 7),), [(0,), (1,), (33,)], lambda x: x.sum(0)),
    Row("attention_weights",
        lambda draw, case, tq, tk: (draw(3, 2, tq, 4), draw(3, 2, tk, 4), case),
        [*((case, 5, 6) for case in CASES),
         *zip(PLAIN_CASES, (0, 3, 0), (3, 0, 0), strict=False)],
        weights_of,
        lambda ops, a, y, dy: list(zip(a, ops.attention_backward(dy.copy(), y, *a[:2], 0.5),
                                       strict=False)),
        large=[(PLAIN_CASES[0], 70, 65), (PLAIN_CASES[2], 64, 65)]),
    Row("rotate", lambda draw, d, m, inter: (draw(2, 3, 5, d), draw(5, m), draw(5, m), inter),
        [(8, 4, False), (8, 4, True), (7, 2, False), (2, 1, True)], rotated,
        large=[(32, 16, False), (48, 16, False)]),
    Row("activation", lambda draw, mode, *shape: (mode, 3 * draw(*shape), SLOPE),
        [(mode, *shape) for mode in ACTIVATIONS for shape in ((7, 3, 5), (1, 1), (2, 3, 1, 4))],
        lambda mode, x, slope: function_of(mode, x), activation_back,
        large=[*((mode, 4, 32, 32, 33) for mode in list(ACTIVATIONS)[:8]), ("silu", 3, 100),
               ("silu", 259, 255)]),
    Row("sigmoid", lambda draw, *shape: (3 * draw(*shape),), [(5, 6), (1, 1)], logistic,
        large=[(1 << 18, 1)]),
    Row("scale",
        lambda draw, shape, by, biased: (draw(*shape), draw(by), draw(by) if biased else None),
        [((4, 3), 3, True), *((shape, by, biased) for shape in [(2, 3, 4, 5)] for by in (3, 1)
                              for biased in (False, True))],
        lambda x, g, b: across(g, x.ndim) * x + (0 if b is None else across(b, x.ndim))),
    Row("prelu", lambda draw, shape, by: (draw(*shape), draw(by)),
        [((2, 3, 4, 5), 3), ((2, 3, 4, 5), 1), ((4, 3), 3)],
        lambda x, a: np.where(x > 0, x, across(a, x.ndim) * x),
        lambda ops, a, y, dy: list(zip(a, ops.prelu_backward(dy, *a), strict=True))),
    Row("channel_total", lambda draw, *shape: (draw(*shape),), [(2, 3, 4, 5), (7, 3)],
        lambda x: x.sum((0, *range(2, x.ndim)))),
    Row("softmax", lambda draw, axis, *shape: (5 * draw(*shape), axis),
        [(axis, 3, 4, 5) for axis in (0, 1, 2, -1)] + [(-1, 3, 1), (-1, 1, 10)], soft,
        lambda ops, a, y, dy: [(a[0], ops.softmax_backward(dy, y, a[1]))],
        large=[(-1, 128, 65), (-1, 4, 8, 9, 31), (1, 128, 65)]),
    Row("log_softmax", lambda draw, axis, *shape: (5 * draw(*shape), axis),
        [(axis, 3, 4, 5) for axis in (0, 1, -1)] + [(-1, 3, 1)],
        lambda x, axis: np.log(soft(x, axis)),
        lambda ops, a, y, dy: [(a[0], ops.log_softmax_backward(dy, y, a[1]))]),
    Row("softmax_log_sum", lambda draw, n, c: (5 * draw(n, c),), [(4, 3), (1, 2), (3, 16)],
        lambda x: (soft(x), np.log(np.exp(x).sum(1))), large=[(70, 1003), (4, 20000)]),
    Row("softmax_cross_entropy",
        lambda draw, n, c, smoothing: (draw(n, c), np.arange(n) % c, smoothing),
        [(4, 3, 0.0), (4, 3, 0.25), (1, 2, 0.3)], smoothed,
        lambda ops, a, made, dy: [
            (a[0], dy[:, None] * ops.softmax_cross_entropy_backward(made[1], *a[1:]))]),
    Row("softmax_cross_entropy_soft", lambda draw, n, c: (draw(n, c), soft(draw(n, c))),
        [(4, 3), (1, 2)], lambda x, t: (-(t * np.log(soft(x))).sum(1), soft(x))),
    Row("sigmoid_cross_entropy", lambda draw, *shape: (draw(*shape), logistic(draw(*shape))),
        [(4, 3), (1, 1)],
        lambda x, y: -y * np.log(logistic(x)) - (1 - y) * np.log(logistic(-x))),
    Row("conv2d", convolution, CONVOLUTIONS, convolved, convolution_back, True, LARGE_CONVOLUTIONS),
    Row("conv2d_constant", constant_given, CONSTANTS, constant,
        large=[(2, (28, 28), 64, 64, PLAIN, 1, *ending) for ending in ENDINGS]),
    Row("depthwise_conv2d",
        lambda draw, n, size, c, m, window: (
            draw(n, c, *size), draw(c, m, *window.kernel), draw(c * m), window),
        [(2, (7, 9), c, m, window) for c, m in ((3, 1), (1, 2), (4, 2))
         for window in GEOMETRIES[:8]],
        depthwise, depthwise_back, True,
        [(2, (7, 9), 16, m, Window((3, 3), (2, 1), SAME)) for m in (1, 2)]
        + [(4, (16, 16), 40, 1, PLAIN)]),
    Row("channels_last", lambda draw, *shape: (draw(*shape),), [(2, 3, 4, 5), (1, 1, 3, 1)],
        lambda x: x.transpose(0, 2, 3, 1), large=[(3, 20, 16, 17)]),
    Row("max_pool", lambda draw, shape, window: (draw(*shape), window, True), POOL_SIZES, maxima,
        lambda ops, a, made, dy: [
            (a[0], ops.max_pool_backward(dy, made[1], a[0].shape, a[1]))],
        large=LARGE_POOLS),
    Row("max_pool", lambda draw, shape, window: (ties(draw, *shape), window, True), POOL_SIZES,
        maxima, large=LARGE_POOLS),
    Row("max_pool", lambda draw, shape, window: (draw(*shape), window, False), POOL_SIZES, maxima,
        large=LARGE_POOLS),
    Row("avg_pool", lambda draw, shape, window, pads: (draw(*shape), window, pads),
        [(*size, pads) for size in POOL_SIZES for pads in (False, True)
         if not (pads and size[1].ceil)], means,
        lambda ops, a, y, dy: [(a[0], ops.avg_pool_backward(dy, a[0].shape, *a[1:]))], True,
        [(*size, pads) for size in LARGE_POOLS[:4] for pads in (False, True)
         if not (pads and size[1].ceil)]),
    Row("global_avg_pool", lambda draw, *shape: (draw(*shape),), [(2, 3, 4, 5), (1, 1, 1, 1)],
        lambda x: x.mean((2, 3)),
        lambda ops, a, y, dy: [(a[0], ops.global_avg_pool_backward(dy, a[0].shape))], True),
    Row("global_max_pool", lambda draw, *shape: (draw(*shape), True), [(2, 3, 4, 5), (1, 1, 1, 1)],
        lambda x, keep: x.max((2, 3)),
        lambda ops, a, made, dy: [
            (a[0], ops.global_max_pool_backward(dy, made[1], a[0].shape))]),
    Row("upsample_nearest", lambda draw, shape, factors: (draw(*shape), factors),
        [((2, 3, 4, 5), (2, 3)), ((1, 1, 1, 2), (1, 4))],
        lambda x, f: x.repeat(f[0], 2).repeat(f[1], 3),
        lambda ops, a, y, dy: [(a[0], ops.upsample_nearest_backward(dy, a[1]))], True),
    Row("upsample_bilinear", lambda draw, shape, factors: (draw(*shape), factors),
        [((2, 3, 4, 5), (2, 3)), ((1, 1, 1, 2), (1, 4))], bilinear,
        lambda ops, a, y, dy: [(a[0], ops.upsample_bilinear_backward(dy, a[1]))], True),
    Row("moved", lambda draw, weight: (draw(3), draw(3), weight), [(0.0,), (0.25,), (1.0,)],
        lambda old, new, weight: (1 - weight) * old + weight * new),
    *[Row("batch_norm",
          lambda draw, *shape, relu=relu: (
              draw(*shape), *(draw(shape[1]) for _ in range(3)), draw(shape[1]) ** 2 + 0.5, EPSILON,
              relu),
          NORMS, lambda *a: (normal(*a), 1 / np.sqrt(a[4] + a[5])), fixed_back, large=LARGE_NORMS)
      for relu in (False, True)],
    *[Row("batch_norm_train",
          lambda draw, *shape, relu=relu: (
              draw(*shape) + 3, draw(shape[1]), draw(shape[1]), EPSILON, relu),
          NORMS, trained, trained_back, large=LARGE_NORMS) for relu in (False, True)],
    *[Row("layer_norm",
          lambda draw, r, d, scaled=scaled: (
              draw(r, d) + 2, *([draw(d), draw(d)] if scaled else [None] * 2), EPSILON),
          [(3, 5), (1, 2), (7, 3)],
          lambda x, g, b, e: (1 if g is None else g) * by_rows(x, len(x)) + (0 if b is None else b),
          rows_back("layer_norm_backward"), large=[(64, 33), (3, 512)])
      for scaled in (False, True)],
    *[Row("group_norm",
          lambda draw, groups, *shape, scaled=scaled: (
              draw(*shape), groups, *([draw(shape[1]) for _ in "ab"] if scaled else [None] * 2),
              EPSILON),
          [(groups, 2, 4, 3, 2) for groups in (1, 2, 4)], grouped, rows_back("group_norm_backward"))
      for scaled in (False, True)],
    Row("l2_norm", lambda draw, *shape: (draw(*shape), EPSILON), [(3, 4), (1, 1)],
        lambda x, e: (x / np.sqrt((x**2).sum(-1, keepdims=True) + e),
                      1 / np.sqrt((x**2).sum(-1, keepdims=True) + e)),
        lambda ops, a, made, dy: [(a[0], ops.l2_norm_backward(dy, *made))],
        large=[(4, 300), (16, 8), (260, 261)]),
    Row("lrn", lambda draw, size, beta, *shape: (draw(*shape), size, SLOPE, beta, 2.0),
        [(3, 0.75, 2, 5, 3, 4), (5, 0.5, 2, 7, 1, 2), (1, 1.0, 2, 3, 2, 2), (3, 0.75, 1, 1, 2, 2)],
        lambda x, size, alpha, beta, k: x / (k + alpha * squares(x, size)) ** beta,
        lambda ops, a, y, dy: [(a[0], ops.lrn_backward(dy, *a))],
        large=[(size, 0.75, 3, c, 8, 7) for size in (3, 5) for c in (16, 20)]),
    *[Row(f"{kind}_layer", recurrent_given(kind), recurrent_sizes(kind) + odd_sizes(kind),
          recurrence(kind), recurrent_back(kind), large=recurrent_sizes(kind)) for kind in GATES],
]  # fmt: skip
