"""Random numbers: by several threads and on a device the same as NumPy's by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet.layers import Dense, Dropout
from singanet.ops import draws, ops_for, transfers
from singanet.ops.workers import side_by_side

BITS = [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.MT19937]


@pytest.fixture(autouse=True, scope="module")
def from_the_first():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_EACH", 1)
        yield


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 40), st.integers(0, 3), st.integers(1, 5), st.sampled_from(BITS))
def test_the_same_numbers_and_the_same_after_them(size, before, threads, kind):
    one, several = (np.random.Generator(kind(3)) for _ in range(2))
    for rng in (one, several):
        rng.random(before, dtype=np.float32)
    out = np.full(size, -1, np.float32)
    draws.fill(several, out, threads, side_by_side)
    np.testing.assert_array_equal(out, one.random(size, dtype=np.float32))
    # Single, half of a draw, and double ones.
    for kind in (np.float32, np.float64, np.float32):
        assert several.random(dtype=kind) == one.random(dtype=kind)


@pytest.mark.parametrize("size", [(0,), (1,), (3, 5), (4096,), (317, 99)])
@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("words", [False, True])
def test_a_device_draws_the_same(gpu, size, kind, words):
    ops = gpu.ops
    one, there = (np.random.Generator(kind(3)) for _ in range(2))
    for before in (0, 3):
        for rng in (one, there):
            rng.random(before, dtype=np.float32)
        if words:
            drawn = transfers.words(there, size, ops.xp)
            wanted = one.integers(0, 1 << 16, size, np.uint16)
        else:
            drawn, wanted = ops.uniform(there, size), one.random(size, dtype=np.float32)
        np.testing.assert_array_equal(drawn.get(), wanted)
        assert str(there.bit_generator.state) == str(one.bit_generator.state)
        for single in (np.float32, np.float64, np.float32):
            assert there.random(dtype=single) == one.random(dtype=single)


@given(st.integers(0, 2**32), st.integers(1, 10_000))
def test_jumps_and_draws_of_a_device_are_numpys(seed, steps):
    bits = np.random.PCG64(seed)
    state = bits.state["state"]
    times, plus = transfers._jump(steps, state["inc"])
    reached = (times * state["state"] + plus) % 2**128
    bits.advance(steps - 1)
    drawn = bits.random_raw()
    assert bits.state["state"]["state"] == reached
    assert transfers._drawn(reached) == drawn


def test_bernoulli_is_true_with_the_probability_of_each_element(xp):
    p = xp.asarray([[0.0, 0.25], [0.5, 1.0]], "float32")
    ops, rng = ops_for(p), np.random.default_rng(0)
    drawn = np.stack([ops.host(ops.bernoulli(rng, p)) for _ in range(2000)])
    assert drawn.dtype == bool
    # Five standard deviations of a mean of 2000.
    np.testing.assert_allclose(drawn.mean(axis=0), [[0, 0.25], [0.5, 1]], atol=5 * 0.0112)
    assert drawn[:, 0, 0].sum() == 0
    assert drawn[:, 1, 1].all()
    many = xp.full((40,), 0.5, "float32")
    again = [ops.host(ops.bernoulli(np.random.default_rng(1), many)) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_keep_mask_keeps_the_share_asked_for():
    ops, rng = ops_for(np.empty(0)), np.random.default_rng(0)
    assert ops.keep_mask(rng, (3, 4), 1.0).all()
    mask = ops.keep_mask(rng, (100, 100), 0.3)
    assert mask.dtype == bool
    # Five standard deviations of a mean of 10,000.
    assert abs(mask.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 10_000)
    again = [ops.keep_mask(np.random.default_rng(4), (5, 6), 0.5) for _ in range(2)]
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize(("size", "parts"), [(99, 1), (100, 2), (149, 2), (150, 3), (900, 4)])
def test_each_thread_has_enough_to_draw(size, parts, monkeypatch):
    monkeypatch.setattr(draws, "_EACH", 50)
    seen = []

    def backwards(given):
        for part in reversed(given):
            seen.append(len(part))
            for work in part:
                work()

    out = np.empty(size, np.float32)
    draws.fill(np.random.default_rng(5), out, 4, backwards)
    np.testing.assert_array_equal(out, np.random.default_rng(5).random(size, dtype=np.float32))
    assert seen == [1] * (parts if parts > 1 else 0)


class Fair:
    """A user's own generator, which has nothing of NumPy's."""

    def __init__(self):
        self.asked = 0

    def random(self, shape=None, dtype=None, out=None):
        self.asked += 1
        out[...] = 0.25
        return out


def test_a_users_own_generator_is_asked():
    rng = Fair()
    assert (ops_for(np.empty(0)).uniform(rng, (3, 4)) == np.float32(0.25)).all()
    assert rng.asked == 1


def test_a_part_that_fails_leaves_the_generator_where_it_was():
    def fail(parts):
        raise MemoryError("no thread")

    rng = np.random.default_rng(5)
    with pytest.raises(MemoryError, match="no thread"):
        draws.fill(rng, np.empty(50, np.float32), 2, fail)
    assert rng.random() == np.random.default_rng(5).random()


def test_steps_do_not_depend_on_the_threads_that_draw(monkeypatch):
    def trained():
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=3)
        net.add(Dropout("drop", 0.5, input_sample_shape=(30,)))
        net.add(Dense("out", 4))
        x, y = np.ones((8, 30), np.float32), np.arange(8) % 4
        sgd = singanet.optimizer.SGD(0.1)
        return [net.step(x, y, sgd)[0] for _ in range(6)]

    several = trained()
    monkeypatch.setattr(draws, "_EACH", 1 << 30)
    assert several == trained()
