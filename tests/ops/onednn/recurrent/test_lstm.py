"""oneDNN's LSTM against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops, threads
from singanet.ops.direction import Direction
from singanet.ops.interface import Prepared
from singanet.ops.onednn import set_threads


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
    h64, c64, notes64 = numpy_ops.lstm_layer(
        wide[0], (wide[1], wide[2]), wide[3], wide_starts, direction, True
    )
    last = 0 if reverse else -1
    for keep in (False, True):
        h, c, notes = ops.lstm_layer(x, weights, bias, starts, direction, keep)
        close(h, h64)
        close(c[last], c64[last])
        assert bool(notes) is keep
    for given, wants_dx in ((dy, True), (None, False)):
        got = ops.lstm_layer_backward(given, ends, x, weights, h, notes, direction, wants_dx)
        wanted = numpy_ops.lstm_layer_backward(
            None if given is None else wide[4], wide[5:], wide[0], (wide[1], wide[2]), h64, notes64,
            direction, True,
        )  # fmt: skip
        assert (got.x is None) is not wants_dx
        for a, b in zip(flat(got), flat(wanted), strict=True):
            if b is not wanted.x or wants_dx:
                close(a, b)


def test_skipped_steps_dropped_states_and_doubles_are_numpys(ops, plans):
    x, weights, bias = draw(4, 3, 5), (draw(5, 24), draw(6, 24)), draw(24)
    skips = np.arange(4)[:, None, None] >= np.array([4, 3, 2])[:, None]
    way = Direction(4, False, skips)
    h, _, notes = ops.lstm_layer(x, weights, bias, (None, None), way, True)
    exact = [a.astype(np.float64) for a in (x, *weights, bias)]
    given = (exact[0], (exact[1], exact[2]), exact[3], (None, None))
    close(h, numpy_ops.lstm_layer(*given, way, True)[0])
    ends = [np.zeros((3, 6), np.float32) for _ in range(2)]
    dx = ops.lstm_layer_backward(h[1:], ends, x, weights, h, notes, way, True)[0]
    assert not dx[3, 1:].any()
    ops.lstm_layer(x, weights, bias, (None, None), Direction(4, drop=ends[0]), True)
    assert ops.lstm_layer(*given, Direction(4), False)[0].dtype == np.float64
    assert plans()[0] == 0


def test_views_in_any_order(ops):
    x, weights, bias = draw(3, 4, 5), (draw(24, 5).T, draw(24, 6).T), draw(24)
    turned = np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    h, _, notes = ops.lstm_layer(turned, weights, bias, (None, None), Direction(3), True)
    plain = tuple(np.ascontiguousarray(w) for w in weights)
    same, _, _ = ops.lstm_layer(x, plain, bias, (None, None), Direction(3), True)
    np.testing.assert_array_equal(h, same)
    dy = np.repeat(draw(3, 4, 6), 2, axis=2)[:, :, ::2]
    ends = [np.zeros((4, 6), np.float32) for _ in range(2)]
    got = ops.lstm_layer_backward(dy, ends, turned, weights, h, notes, Direction(3), True)
    shapes = [(3, 4, 5), (5, 24), (6, 24), (24,), (24,), (4, 6), (4, 6)]
    assert [a.shape for a in flat(got)] == shapes


def test_steps_of_a_quarter_of_a_million_multiply_adds_are_shared(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(threads.cores())
    for width, team in ((128, 1), (256, threads.cores())):
        weights = draw(8, 4 * width), draw(width, 4 * width)
        ops.lstm_layer(draw(3, 1, 8), weights, draw(4 * width), (None, None), Direction(3), True)
        assert ops.runtime().team.size == team


@pytest.mark.parametrize("reverse", [False, True])
def test_prepared_weights_give_the_same_bits(ops, reverse):
    steps, n, size, width = 5, 3, 7, 20
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights, bias = (draw(size, 4 * width), draw(width, 4 * width)), draw(4 * width)
    given = (
        draw(steps, n, size),
        weights,
        bias,
        (None, None),
        Direction(steps, reverse),
        False,
    )
    wanted = ops.lstm_layer(*given)
    ops.prepared = Prepared()
    got = ops.lstm_layer(*given)
    for one, two in zip(got[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(one, two)
