"""Recurrent layers by products of bfloat16 against float64 and against float32."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import RNN
from singanet.loss import SquaredError
from singanet.ops import cpu_ops, numpy_ops
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.products import narrowed
from singanet.ops.onednn.recurrent import SEVERAL
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes
from singanet.optimizer import SGD
from tests.program.twins import Twins

STEPS, SIZE, WIDTH = 7, 24, 40


@pytest.fixture
def narrow(ops):
    if not ops.library().bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    return narrowed(ops, "test")


def draw(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 8


def arrays_of(kind, n):
    """x, both weights, the bias, dy, and a first state and the gradient of a last one each."""
    gates, states = {"lstm": (4, 2), "gru": (3, 1), "tanh": (1, 1)}[kind]
    shapes = [(STEPS, n, SIZE), (SIZE, gates * WIDTH), (WIDTH, gates * WIDTH), (gates * WIDTH,)]
    shapes += [(STEPS, n, WIDTH), *[(n, WIDTH)] * 2 * states]
    return [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def both_ways(ops, kind, arrays, direction):
    """The states h, and all gradients."""
    x, of_x, of_h, bias, dy, *states = arrays
    starts, ends = states[: len(states) // 2], states[len(states) // 2 :]
    name = "elman" if kind == "tanh" else kind
    forward, backward = getattr(ops, f"{name}_layer"), getattr(ops, f"{name}_layer_backward")
    case = RecurrentCase(x, (of_x, of_h), (bias,) * (1 + (kind == "gru")), direction)
    made = forward(case, starts, True)
    grads = backward(case, made, RecurrentSlopes(dy, ends, True))
    return [made.states[0], *grads[:-1], *grads.starts]


@pytest.mark.parametrize("kind", ["lstm", "tanh"])
@pytest.mark.parametrize("reverse", [False, True])
def test_factors_and_states_are_rounded_and_sums_are_not(narrow, kind, reverse):
    arrays, direction = arrays_of(kind, SEVERAL), Direction(STEPS, reverse)
    got = both_ways(narrow, kind, arrays, direction)
    wanted = both_ways(numpy_ops, kind, [a.astype(np.float64) for a in arrays], direction)
    for made, exact in zip(got, wanted, strict=True):
        assert made.dtype == np.float32
        assert 0 < np.abs(made - exact).max() < 0.02 * np.abs(exact).max()
    states = got[0][1:-1]
    assert not np.any(states.view(np.uint32) & 0xFFFF)
    assert np.any(got[2].view(np.uint32) & 0xFFFF)


@pytest.mark.parametrize(("kind", "n"), [("lstm", SEVERAL - 1), ("gru", SEVERAL)])
def test_where_rounding_does_not_pay_training_is_as_in_float32(ops, narrow, kind, n):
    arrays, direction = arrays_of(kind, n), Direction(STEPS, False)
    for a, b in zip(*(both_ways(o, kind, arrays, direction) for o in (ops, narrow)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", ["lstm", "tanh"])
def test_a_program_gives_the_same_bits(mode):
    ops = cpu_ops()
    if not isinstance(ops, OneDnnOps) or not ops.library().bfloat16:
        pytest.skip("no products of bfloat16 here")

    def make():
        layer = RNN("r", WIDTH, mode, bidirectional=True, input_sample_shape=(21, SIZE))
        net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=2)
        net.as_type("float32_fast")
        return net

    twins, rng = Twins(make, lambda: SGD(lr=0.1, momentum=0.9)), np.random.default_rng(0)
    for _ in range(4):
        x = rng.standard_normal((SEVERAL, 21, SIZE)).astype(np.float32)
        twins.step(x, rng.standard_normal((SEVERAL, 21, 2 * WIDTH)).astype(np.float32))
        twins.forward(False, x)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("kind", ["lstm", "tanh"])
def test_what_is_no_number_shows(narrow, kind):
    arrays = arrays_of(kind, SEVERAL)
    arrays[0][2, 3, 5] = np.nan
    h, dx, *_ = both_ways(narrow, kind, arrays, Direction(STEPS, False))
    assert np.isnan(h[3:, 3]).all()
    assert np.isfinite(h[:3]).all()
    assert np.isfinite(np.delete(h, 3, axis=1)).all()
    assert np.isnan(dx[2, 3]).any()
