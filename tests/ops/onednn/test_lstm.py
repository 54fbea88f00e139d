"""oneDNN's LSTM against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import NumpyOps, numpy_ops, threads
from singanet.ops.onednn import set_threads


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def close(got, wanted):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def after(states, reverse):
    return states[:-1] if reverse else states[1:]


@pytest.fixture
def only_onednn(monkeypatch):
    original = NumpyOps.lstm

    def refuse(self, gates, *rest):
        assert gates.dtype != np.float32, "NumPy's steps were taken"
        return original(self, gates, *rest)

    monkeypatch.setattr(NumpyOps, "lstm", refuse)


@pytest.mark.parametrize("sizes", [(5, 3, 7, 4), (4, 2, 16, 32), (1, 1, 1, 1), (6, 17, 3, 20)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_equals_numpy(ops, only_onednn, sizes, reverse, started):
    steps, n, size, width = sizes
    x, weights = (
        draw(steps, n, size),
        (draw(size, 4 * width, seed=1), draw(width, 4 * width, seed=2)),
    )
    bias, counts = draw(4 * width, seed=3), [n] * steps
    starts = (draw(n, width, seed=4), draw(n, width, seed=5)) if started else (None, None)
    dy, ends = draw(steps, n, width, seed=6), [draw(n, width, seed=7 + k) for k in (0, 1)]
    wide = [a.astype(np.float64) for a in (x, *weights, bias, dy, *ends)]
    wide_starts = tuple(s if s is None else s.astype(np.float64) for s in starts)
    h64, c64, notes64 = numpy_ops.lstm_layer(
        wide[0], (wide[1], wide[2]), wide[3], wide_starts, counts, reverse, True
    )
    last = 0 if reverse else -1
    for keep in (False, True):
        h, c, notes = ops.lstm_layer(x, weights, bias, starts, counts, reverse, keep)
        close(h, h64)
        close(c[last], c64[last])
        assert bool(notes) is keep
    for given, wants_dx in ((dy, True), (None, False)):
        mine, exact = [e.copy() for e in ends], [e.copy() for e in wide[5:]]
        got = ops.lstm_layer_backward(given, mine, x, weights, h, notes, counts, reverse, wants_dx)
        wanted = numpy_ops.lstm_layer_backward(
            None if given is None else wide[4], exact, wide[0], (wide[1], wide[2]), h64, notes64,
            counts, reverse, True,
        )  # fmt: skip
        assert (got[0] is None) is not wants_dx
        for a, b in zip(got[0 if wants_dx else 1 :], wanted[0 if wants_dx else 1 :], strict=True):
            close(a, b)
        for a, b in zip(mine, exact, strict=True):
            close(a, b)


def test_ragged_batches_and_doubles_are_numpys(ops, plans):
    x, weights, bias = draw(4, 3, 5), (draw(5, 24), draw(6, 24)), draw(24)
    counts = [3, 3, 2, 1]
    h, _, notes = ops.lstm_layer(x, weights, bias, (None, None), counts, False, True)
    exact = [a.astype(np.float64) for a in (x, *weights, bias)]
    given = (exact[0], (exact[1], exact[2]), exact[3], (None, None))
    close(h, numpy_ops.lstm_layer(*given, counts, False, True)[0])
    ends = [np.zeros((3, 6), np.float32) for _ in range(2)]
    dx = ops.lstm_layer_backward(h[1:], ends, x, weights, h, notes, counts, False, True)[0]
    assert not dx[3, 1:].any()
    assert ops.lstm_layer(*given, [3] * 4, False, False)[0].dtype == np.float64
    assert plans()[0] == 0


def test_views_in_any_order(ops):
    x, weights, bias = draw(3, 4, 5), (draw(24, 5).T, draw(24, 6).T), draw(24)
    turned = np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    h, _, notes = ops.lstm_layer(turned, weights, bias, (None, None), [4] * 3, False, True)
    plain = tuple(np.ascontiguousarray(w) for w in weights)
    same, _, _ = ops.lstm_layer(x, plain, bias, (None, None), [4] * 3, False, True)
    np.testing.assert_array_equal(h, same)
    dy = np.repeat(draw(3, 4, 6), 2, axis=2)[:, :, ::2]
    ends = [np.zeros((4, 6), np.float32) for _ in range(2)]
    got = ops.lstm_layer_backward(dy, ends, turned, weights, h, notes, [4] * 3, False, True)
    assert [a.shape for a in got] == [(3, 4, 5), (5, 24), (6, 24), (24,)]


def test_steps_of_a_quarter_of_a_million_multiply_adds_are_shared(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(threads.cores())
    for width, team in ((128, 1), (256, threads.cores())):
        weights = draw(8, 4 * width), draw(width, 4 * width)
        ops.lstm_layer(draw(3, 1, 8), weights, draw(4 * width), (None, None), [1] * 3, False, True)
        assert ops.runtime().team.size == team


@pytest.mark.parametrize("reverse", [False, True])
def test_prepared_weights_give_the_same_bits(ops, reverse):
    steps, n, size, width = 5, 3, 7, 20
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights, bias = (draw(size, 4 * width), draw(width, 4 * width)), draw(4 * width)
    given = draw(steps, n, size), weights, bias, (None, None), [n] * steps, reverse, False
    wanted = ops.lstm_layer(*given)
    ops.prepared = True
    got = ops.lstm_layer(*given)
    for one, two in zip(got[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(one, two)
