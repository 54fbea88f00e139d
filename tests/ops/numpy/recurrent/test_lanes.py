"""Recurrent kernels whose samples are in several lanes, against the recurrence written down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.numpy import linear
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes

GATES = {"lstm": 4, "gru": 3, "elman": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def stepped(kind, from_x, from_h, bias, h, c):
    """States h and c (H,) after a step; ``from_x`` and ``from_h`` are products with weights."""
    if kind == "elman":
        return np.tanh(from_x + from_h + bias[0]), c
    parts = np.split(from_x + bias[0], GATES[kind]), np.split(from_h + bias[1], GATES[kind])
    if kind == "gru":
        (rx, zx, nx), (rh, zh, nh) = parts
        r, z = sigmoid(rx + rh), sigmoid(zx + zh)
        return (1 - z) * np.tanh(nx + r * nh) + z * h, c
    i, f, g, o = (a + b for a, b in zip(*parts, strict=True))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def states(kind, x, wx, wh, bias, direction):
    """h after every step, (T, N, H), sample by sample."""
    steps, n, _ = x.shape
    made = np.zeros((steps, n, len(wh)))
    for sample in range(n):
        h = c = np.zeros(len(wh))
        for t in direction.steps():
            if not direction.skips[t, sample, 0]:
                seen = h * direction.drop[sample]
                h, c = stepped(kind, x[t, sample] @ wx, seen @ wh, bias, h, c)
            made[t, sample] = h
    return made


def ours(kind, x, weights, bias, dy, direction):
    """h after every step, and the gradients."""
    end, ops = np.zeros(dy.shape[1:]), numpy_ops
    forward, backward = getattr(ops, f"{kind}_layer"), getattr(ops, f"{kind}_layer_backward")
    case = RecurrentCase(x, weights, tuple(bias) if kind == "gru" else (bias[0],), direction)
    count = 1 + (kind == "lstm")
    made = forward(case, (None,) * count, True)
    return direction.afters(made.states[0]), backward(
        case, made, RecurrentSlopes(dy, (end,) * count, True)
    )


@pytest.mark.parametrize("kind", GATES)
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.sampled_from([1, 2, 3]))
def test_states_and_gradients(kind, steps, n, reverse, cores):
    rng = np.random.default_rng(0)
    size, width = 3, 3 * GATES[kind]
    x, wx, wh = (rng.standard_normal(s) for s in ((steps, n, 2), (2, width), (size, width)))
    bias = rng.standard_normal((2, width))
    if kind != "gru":
        bias[1] = 0
    dy = rng.standard_normal((steps, n, size))
    skips, drop = rng.random((steps, n, 1)) < 0.3, 2.0 * (rng.random((n, size)) < 0.6)
    direction = Direction(steps, reverse, skips, drop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LEAST", 1)
        patch.setattr(linear, "default_threads", lambda: cores)
        h, back = ours(kind, x, (wx, wh), bias, dy, direction)
    np.testing.assert_allclose(h, states(kind, x, wx, wh, bias, direction), atol=1e-12)
    moves = [rng.standard_normal(a.shape) for a in (x, wx, wh)]
    ends = [
        (dy * states(kind, *(a + s * m for a, m in zip((x, wx, wh), moves, strict=True)), bias,
                     direction)).sum()
        for s in (1e-5, -1e-5)
    ]  # fmt: skip
    slope = sum((g * m).sum() for g, m in zip(back[:3], moves, strict=True))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)
