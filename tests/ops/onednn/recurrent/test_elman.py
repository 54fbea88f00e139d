"""oneDNN's simple recurrent layers against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes

SIZES = [(20, 3, 7, 4), (30, 2, 16, 32), (20, 1, 1, 1), (24, 17, 3, 15)]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def close(got, wanted):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def flat(gradients):
    """The arrays of all gradients, the first states' too."""
    return [*gradients[:-1], *gradients.starts]


def parameters(size, width):
    weights = draw(size, width, seed=1), draw(width, width, seed=2) / width**0.5
    return weights, draw(width, seed=3)


def widened(values):
    if isinstance(values, tuple):
        return tuple(map(widened, values))
    return None if values is None else values.astype(np.float64)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_equals_numpy(ops, only_onednn, sizes, reverse, started):
    only_onednn("elman_layer", "elman_layer_backward")
    steps, n, size, width = sizes
    x, (weights, bias) = draw(steps, n, size), parameters(size, width)
    start, direction = draw(n, width, seed=5) if started else None, Direction(steps, reverse)
    dy, end = draw(steps, n, width, seed=6), draw(n, width, seed=7)
    case = RecurrentCase(x, weights, (bias,), direction)
    exact = RecurrentCase(*widened(case[:3]), direction)
    made64 = numpy_ops.elman_layer(exact, [widened(start)], True)
    for keep in (False, True):
        made = ops.elman_layer(case, [start], keep)
        close(made.states[0], made64.states[0])
        assert bool(made.notes) is keep
    for given, wants_dx in ((dy, True), (None, False)):
        before, wide = end.copy(), widened(end)
        kept = made._replace(notes=[note.copy() for note in made.notes])
        got = ops.elman_layer_backward(case, kept, RecurrentSlopes(given, [end], wants_dx))
        wanted = numpy_ops.elman_layer_backward(
            exact, made64, RecurrentSlopes(widened(given), [wide], True)
        )
        assert (got.x is None) is not wants_dx
        for a, b in zip(flat(got), flat(wanted), strict=True):
            if b is not wanted.x or wants_dx:
                close(a, b)
        np.testing.assert_array_equal(end, before)


@pytest.mark.parametrize(
    ("steps", "n", "width", "dtype"),
    [(19, 1, 8, "f4"), (20, 2, 129, "f4"), (20, 33, 8, "f4"), (20, 1, 8, "f8")],
)
def test_few_steps_large_states_and_doubles_are_numpys(ops, plans, steps, n, width, dtype):
    x, (weights, bias) = draw(steps, n, 2).astype(dtype), parameters(2, width)
    weights = tuple(w.astype(dtype) for w in weights)
    case = RecurrentCase(x, weights, (bias.astype(dtype),), Direction(steps))
    made = ops.elman_layer(case, [None], True)
    (h,), notes = made
    exact = RecurrentCase(*widened(case[:3]), Direction(steps))
    close(h, numpy_ops.elman_layer(exact, [None], False).states[0])
    end = np.zeros((n, width), dtype)
    got = ops.elman_layer_backward(case, made, RecurrentSlopes(h[1:], [end], True))
    assert got.weight_h.shape == (width, width)
    assert all(array.dtype == dtype for array in flat(got))
    # The products around NumPy's steps may be oneDNN's.
    assert notes == ()


@pytest.mark.parametrize(
    ("mode", "odd"), [("tanh", {"skips": np.arange(60).reshape(20, 3, 1) > 57}), ("relu", {}),
                      ("tanh", {"drop": np.ones((3, 4), np.float32)})],
)  # fmt: skip
def test_skipped_steps_dropped_states_and_relu_are_numpys(ops, plans, mode, odd):
    weights, bias = parameters(2, 4)
    case = RecurrentCase(draw(20, 3, 2), weights, (bias,), Direction(20, **odd), mode)
    ops.elman_layer(case, [None], True)
    assert plans()[0] == 0


@pytest.mark.parametrize("mode", ["tanh", "relu"])
def test_what_is_no_number_shows(ops, mode):
    x, (weights, bias) = draw(20, 2, 5), parameters(5, 4)
    x[10, 0, 2] = np.nan
    case = RecurrentCase(x, weights, (bias,), Direction(20), mode)
    (h,), _ = ops.elman_layer(case, [None], False)
    assert np.isnan(h[11:, 0]).all()
    assert np.isfinite(h[:, 1]).all()
    assert np.isfinite(h[:11]).all()
