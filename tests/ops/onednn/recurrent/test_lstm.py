"""oneDNN's LSTM against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops, threads
from singanet.ops.interface import Prepared
from singanet.ops.onednn import set_threads
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def close(got, wanted):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def flat(gradients):
    """The arrays of all gradients, the first states' too."""
    return [*gradients[:-1], *gradients.starts]


@pytest.mark.parametrize("sizes", [(5, 3, 7, 4), (4, 2, 16, 32), (1, 1, 1, 1), (6, 17, 3, 20)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_equals_numpy(ops, only_onednn, sizes, reverse, started):
    only_onednn("lstm_layer", "lstm_layer_backward")
    steps, n, size, width = sizes
    x, weights = (
        draw(steps, n, size),
        (draw(size, 4 * width, seed=1), draw(width, 4 * width, seed=2)),
    )
    bias, direction = draw(4 * width, seed=3), Direction(steps, reverse)
    starts = (draw(n, width, seed=4), draw(n, width, seed=5)) if started else (None, None)
    dy, ends = draw(steps, n, width, seed=6), [draw(n, width, seed=7 + k) for k in (0, 1)]
    wide = [a.astype(np.float64) for a in (x, *weights, bias, dy, *ends)]
    wide_starts = tuple(s if s is None else s.astype(np.float64) for s in starts)
    case = RecurrentCase(x, weights, (bias,), direction)
    exact = RecurrentCase(wide[0], (wide[1], wide[2]), (wide[3],), direction)
    made64 = numpy_ops.lstm_layer(exact, wide_starts, True)
    last = 0 if reverse else -1
    for keep in (False, True):
        made = ops.lstm_layer(case, starts, keep)
        close(made.states[0], made64.states[0])
        close(made.states[1][last], made64.states[1][last])
        assert bool(made.notes) is keep
    for given, wants_dx in ((dy, True), (None, False)):
        got = ops.lstm_layer_backward(case, made, RecurrentSlopes(given, ends, wants_dx))
        wide_dy = None if given is None else wide[4]
        wanted = numpy_ops.lstm_layer_backward(
            exact, made64, RecurrentSlopes(wide_dy, wide[5:], True)
        )
        assert (got.x is None) is not wants_dx
        for a, b in zip(flat(got), flat(wanted), strict=True):
            if b is not wanted.x or wants_dx:
                close(a, b)


def test_skipped_steps_dropped_states_and_doubles_are_numpys(ops, plans):
    x, weights, bias = draw(4, 3, 5), (draw(5, 24), draw(6, 24)), draw(24)
    skips = np.arange(4)[:, None, None] >= np.array([4, 3, 2])[:, None]
    way = Direction(4, False, skips)
    case, none = RecurrentCase(x, weights, (bias,), way), (None, None)
    made = ops.lstm_layer(case, none, True)
    wide = [a.astype(np.float64) for a in (x, *weights, bias)]
    exact, h = RecurrentCase(wide[0], (wide[1], wide[2]), (wide[3],), way), made.states[0]
    close(h, numpy_ops.lstm_layer(exact, none, True).states[0])
    ends = [np.zeros((3, 6), np.float32) for _ in range(2)]
    dx = ops.lstm_layer_backward(case, made, RecurrentSlopes(h[1:], ends, True)).x
    assert not dx[3, 1:].any()
    ops.lstm_layer(case._replace(direction=Direction(4, drop=ends[0])), none, True)
    made = ops.lstm_layer(exact._replace(direction=Direction(4)), none, False)
    assert made.states[0].dtype == np.float64
    assert plans()[0] == 0


def test_views_in_any_order(ops):
    x, weights, bias = draw(3, 4, 5), (draw(24, 5).T, draw(24, 6).T), draw(24)
    transposed = np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    case, none = RecurrentCase(transposed, weights, (bias,), Direction(3)), (None, None)
    made = ops.lstm_layer(case, none, True)
    plain = case._replace(x=x, weights=tuple(np.ascontiguousarray(w) for w in weights))
    same = ops.lstm_layer(plain, none, True)
    np.testing.assert_array_equal(made.states[0], same.states[0])
    dy = np.repeat(draw(3, 4, 6), 2, axis=2)[:, :, ::2]
    ends = [np.zeros((4, 6), np.float32) for _ in range(2)]
    got = ops.lstm_layer_backward(case, made, RecurrentSlopes(dy, ends, True))
    shapes = [(3, 4, 5), (5, 24), (6, 24), (24,), (24,), (4, 6), (4, 6)]
    assert [a.shape for a in flat(got)] == shapes


def test_steps_of_a_million_multiply_adds_are_shared(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(threads.cores())
    for width, team in ((256, 1), (512, threads.cores())):
        weights = draw(8, 4 * width), draw(width, 4 * width)
        case = RecurrentCase(draw(3, 1, 8), weights, (draw(4 * width),), Direction(3))
        ops.lstm_layer(case, (None, None), True)
        assert ops.runtime().team.size == team


@pytest.mark.parametrize("reverse", [False, True])
def test_prepared_weights_give_the_same_bits(ops, reverse):
    steps, n, size, width = 5, 3, 7, 20
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights, bias = (draw(size, 4 * width), draw(width, 4 * width)), draw(4 * width)
    case = RecurrentCase(draw(steps, n, size), weights, (bias,), Direction(steps, reverse))
    given = case, (None, None), False
    wanted = ops.lstm_layer(*given)
    ops.prepared = Prepared()
    got = ops.lstm_layer(*given)
    for one, two in zip(got.states, wanted.states, strict=True):
        np.testing.assert_array_equal(one, two)
