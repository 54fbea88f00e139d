"""oneDNN's GRU against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes

SIZES = [(5, 3, 7, 4), (4, 2, 16, 32), (1, 1, 1, 1), (6, 17, 3, 20), (2, 2, 5, 256)]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def close(got, wanted):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def flat(gradients):
    """The arrays of all gradients, the first states' too."""
    return [*gradients[:-1], *gradients.starts]


def parameters(size, width):
    weights = draw(size, 3 * width, seed=1), draw(width, 3 * width, seed=2) / width**0.5
    return weights, (draw(3 * width, seed=3), draw(3 * width, seed=4))


def widened(values):
    if isinstance(values, tuple):
        return tuple(map(widened, values))
    return None if values is None else values.astype(np.float64)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_equals_numpy(ops, only_onednn, sizes, reverse, started):
    only_onednn("gru_layer", "gru_layer_backward")
    steps, n, size, width = sizes
    x, (weights, biases) = draw(steps, n, size), parameters(size, width)
    start, direction = draw(n, width, seed=5) if started else None, Direction(steps, reverse)
    dy, end = draw(steps, n, width, seed=6), draw(n, width, seed=7)
    case = RecurrentCase(x, weights, biases, direction)
    exact = RecurrentCase(*widened(case[:3]), direction)
    made64 = numpy_ops.gru_layer(exact, [widened(start)], True)
    for keep in (False, True):
        made = ops.gru_layer(case, [start], keep)
        close(made.states[0], made64.states[0])
        assert bool(made.notes) is keep
    for given, wants_dx in ((dy, True), (None, False)):
        before, wide = end.copy(), widened(end)
        kept = made._replace(notes=[note.copy() for note in made.notes])
        got = ops.gru_layer_backward(case, kept, RecurrentSlopes(given, [end], wants_dx))
        wanted = numpy_ops.gru_layer_backward(
            exact, made64, RecurrentSlopes(widened(given), [wide], True)
        )
        assert (got.x is None) is not wants_dx
        for a, b in zip(flat(got), flat(wanted), strict=True):
            if b is not wanted.x or wants_dx:
                close(a, b)
        np.testing.assert_array_equal(end, before)


def test_single_sequences_of_many_units_are_numpys(ops, plans):
    weights, biases = parameters(4, 192)
    case = RecurrentCase(draw(3, 1, 4), weights, biases, Direction(3))
    made = ops.gru_layer(case, [None], True)
    exact = RecurrentCase(*widened(case[:3]), Direction(3))
    close(made.states[0], numpy_ops.gru_layer(exact, [None], False).states[0])
    assert plans()[0] == 0
    end = np.zeros((1, 192), np.float32)
    got = ops.gru_layer_backward(case, made, RecurrentSlopes(draw(3, 1, 192), [end], True))
    shapes = [(3, 1, 4), (4, 576), (192, 576), (576,), (576,), (1, 192)]
    assert [a.shape for a in flat(got)] == shapes


def test_skipped_steps_dropped_states_and_doubles_are_numpys(ops, plans):
    x, (weights, biases) = draw(4, 3, 5), parameters(5, 6)
    way = Direction(4, False, np.arange(4)[:, None, None] >= np.array([4, 3, 2])[:, None])
    case = RecurrentCase(x, weights, biases, way)
    made = ops.gru_layer(case, [None], True)
    (h,), exact = made.states, RecurrentCase(*widened(case[:3]), way)
    close(h, numpy_ops.gru_layer(exact, [None], True).states[0])
    end = np.zeros((3, 6), np.float32)
    dx = ops.gru_layer_backward(case, made, RecurrentSlopes(h[1:], [end], True)).x
    assert not dx[3, 1:].any()
    ops.gru_layer(case._replace(direction=Direction(4, drop=end)), [None], True)
    (wide,), _ = ops.gru_layer(exact._replace(direction=Direction(4)), [None], False)
    assert wide.dtype == np.float64
    assert plans()[0] == 0


def test_views_in_any_order(ops):
    x, (weights, biases) = draw(3, 4, 5), parameters(5, 6)
    transposed = np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    across = tuple(np.ascontiguousarray(w.T).T for w in weights)
    case = RecurrentCase(transposed, across, biases, Direction(3))
    plain = RecurrentCase(x, weights, biases, Direction(3))
    made = ops.gru_layer(case, [None], True)
    (h,), (note,) = made
    (same,), _ = ops.gru_layer(plain, [None], True)
    np.testing.assert_array_equal(h, same)
    dy = np.repeat(draw(3, 4, 6), 2, axis=2)[:, :, ::2]
    end = np.zeros((4, 6), np.float32)
    kept = made._replace(notes=(note.copy(),))
    first = ops.gru_layer_backward(case, kept, RecurrentSlopes(dy, [end], True))
    second = ops.gru_layer_backward(
        plain, made, RecurrentSlopes(np.ascontiguousarray(dy), [end], True)
    )
    for a, b in zip(flat(first), flat(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_no_number_shows(ops):
    x, (weights, biases) = draw(3, 2, 5), parameters(5, 4)
    x[1, 0, 2] = np.nan
    (h,), _ = ops.gru_layer(RecurrentCase(x, weights, biases, Direction(3)), [None], False)
    assert np.isnan(h[2:, 0]).all()
    assert np.isfinite(h[:, 1]).all()
    assert np.isfinite(h[:2]).all()
