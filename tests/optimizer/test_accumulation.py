"""Micro-batches: a buffer a parameter, or folded into momentum and moments."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import optimizer as opt
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.optimizer import SGD, AccumulatingAdam, AccumulatingSGD, Accumulator, Adam
from singanet.types import RowSparse

rng = np.random.default_rng(0)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.1)])
def test_the_optimizer_sees_the_mean_or_the_sum(make, mean):
    w, expected = np.ones((3, 2)), np.ones((3, 2))
    gathered, plain = Accumulator(make(), 3, mean=mean), make()
    for _ in range(2):
        grads = [rng.normal(size=(3, 2)) for _ in range(3)]
        for i, g in enumerate(grads):
            before = w.copy()
            kept = g.copy()
            gathered.update(["w"], [w], [g], scale=0.5)
            np.testing.assert_array_equal(g, kept)
            if i < 2:
                np.testing.assert_array_equal(w, before)
        plain.update(["w"], [expected], [sum(grads) * (0.5 / 3 if mean else 0.5)])
        np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_parameters_are_counted_apart():
    a, b = np.zeros(2), np.zeros(2)
    gathered = Accumulator(SGD(lr=1.0), 2)
    gathered.update(["a"], [a], [np.ones(2)])
    gathered.update(["a", "b"], [a, b], [np.ones(2), np.ones(2)])
    np.testing.assert_array_equal(a, -1)
    np.testing.assert_array_equal(b, 0)
    gathered.update(["a", "b"], [a, b], [None, 3 * np.ones(2)])
    np.testing.assert_array_equal(b, -2)


def test_rows_stay_rows():
    def rows(indices, value):
        return RowSparse(np.array(indices), np.full((len(indices), 2), value))

    w = np.ones((5, 2))
    inner = SGD(lr=1.0, momentum=0.5, weight_decay=0.1)
    gathered = Accumulator(inner, 2)
    for _ in range(2):
        before = w.copy()
        gathered.update(["w"], [w], [rows([0, 3], 2.0)])
        np.testing.assert_array_equal(w, before)
        gathered.update(["w"], [w], [rows([3, 4], 4.0)])
    first = 1 - (np.array([1.0, 3.0, 2.0]) + 0.1)
    second = first - (0.5 * (1 - first) + np.array([1.0, 3.0, 2.0]) + 0.1 * first)
    np.testing.assert_allclose(w[[0, 3, 4], 0], second)
    np.testing.assert_array_equal(w[1:3], 1)


def test_a_dense_gradient_among_rows_makes_the_mean_dense():
    for dense_first in (True, False):
        w = np.zeros((3, 1))
        gathered = Accumulator(SGD(lr=1.0), 2)
        grads = [np.ones((3, 1)), RowSparse(np.array([1]), np.array([[4.0]]))]
        for g in grads if dense_first else grads[::-1]:
            gathered.update(["w"], [w], [g])
        np.testing.assert_array_equal(w[:, 0], [-0.5, -2.5, -0.5])


class Told(SGD):
    """It keeps what it was given last."""

    def update(self, names, values, grads, scale=1.0):
        self.told = grads[0], scale


@settings(deadline=None)
@given(
    kinds=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=3),
    mean=st.booleans(), resumed=st.integers(0, 2), seed=st.integers(0, 99)
)  # fmt: skip
def test_rows_and_arrays_in_any_order_are_summed_and_foretold(kinds, mean, resumed, seed):
    draw, w = np.random.default_rng(seed), np.zeros((13, 16))
    made = Accumulator(Told(lr=1.0), 3, mean=mean)
    for turns in kinds:
        expected, weights, came = np.zeros_like(w), 0.0, set()
        for k, sparse in enumerate(turns):
            indices = np.sort(draw.choice(len(w), 3, replace=False))
            rows, count = draw.standard_normal((3, w.shape[1])), float(draw.integers(1, 4))
            grad = RowSparse(indices, rows)
            grad = grad if sparse else _whole(grad, w)
            made.begin(count)
            expected[indices] += rows * made.weight
            weights += float(made.weight)
            came |= {*indices.tolist()}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opt.accumulating, "_AT_A_TIME", 64)
                if k == 2:
                    foretold = made.preview(["w"], [w], [grad])[0]
                    parts = [g for _, _, (g,) in made._previewed_in_parts([(["w"], [w], [grad])])]
                made.update(["w"], [w], [grad])
            if k == resumed:
                again = Accumulator(Told(lr=1.0), 3, mean=mean)
                again.load_state_dict(made.state_dict())
                again.optimizer.told = getattr(made.optimizer, "told", None)
                made = again
        handed, scale = made.optimizer.told
        expected /= weights if mean else 1.0
        assert isinstance(handed, tuple) is all(turns)
        if all(turns):
            assert set(handed.indices.tolist()) == came
            assert np.array_equal(parts[0].rows, foretold.rows)
            foretold, handed = (_whole(each, w) for each in (foretold, handed))
        else:
            assert np.array_equal(np.concatenate(parts), foretold)
        np.testing.assert_allclose(handed * scale, expected, atol=1e-12)
        np.testing.assert_allclose(foretold, expected, atol=1e-12)


def _whole(grad, w):
    found = np.zeros_like(w)
    found[grad.indices] = grad.rows
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_resume_in_the_middle(sparse):
    def gradient(step):
        g = np.random.default_rng(step).normal(size=(4, 2))
        return RowSparse(np.array([step % 3, 3]), g[:2]) if sparse else g

    whole, halved = np.ones((4, 2)), np.ones((4, 2))
    one, first, second = (Accumulator(Adam(lr=0.1), 3) for _ in range(3))
    for step in range(8):
        one.update(["w"], [whole], [gradient(step)])
        if step < 4:
            first.update(["w"], [halved], [gradient(step)])
    second.load_state_dict(first.state_dict())
    for step in range(4, 8):
        second.update(["w"], [halved], [gradient(step)])
    np.testing.assert_array_equal(whole, halved)
    state = first.state_dict()
    del state["w/gathered_count"]
    with pytest.raises(DataError, match="'w'.*gathered_count"):
        second.load_state_dict(state)


def test_a_refused_update_loses_nothing_and_gathers_nothing():
    w, rate = np.zeros(2), [math.nan]
    gathered = Accumulator(SGD(lr=lambda step: rate[0]), 2)
    gathered.update(["w"], [w], [np.ones(2)])
    with pytest.raises(ArgumentError, match="finite"):
        gathered.update(["w"], [w], [np.ones(2)])
    rate[0] = 1.0
    gathered.update(["w"], [w], [4 * np.ones(2)])
    np.testing.assert_array_equal(w, -2)
    with pytest.raises(ShapeError):
        gathered.update(["v", "w"], [np.zeros(2), w], [np.ones(2), np.ones(3)])
    gathered.update(["v"], [w], [np.ones(2)])
    np.testing.assert_array_equal(w, -2)
    with pytest.raises(ArgumentError, match="1 names"):
        gathered.update(["v"], [w, w], [w, w])


def test_clipping_goes_inside_or_outside():
    grads = [np.array([3.0]), np.array([-1.0])]
    each, mean = np.zeros(1), np.zeros(1)
    outside = opt.ClipByLayerNorm(Accumulator(SGD(lr=1.0), 2), 1.0)
    inside = Accumulator(opt.ClipByLayerNorm(SGD(lr=1.0), 0.5), 2)
    for g in grads:
        outside.update(["w"], [each], [g])
        inside.update(["w"], [mean], [g])
    np.testing.assert_allclose(each, 0)
    np.testing.assert_allclose(mean, -0.5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_folded_sgd_is_sgd_on_the_mean(decoupled):
    given = {"lr": lambda t: 0.1 / (t + 1), "weight_decay": 0.1, "decoupled": decoupled}
    folded = AccumulatingSGD(3, momentum=0.9, **given)
    expect_alike(folded, Accumulator(SGD(momentum=0.9, **given), 3), 9)
    assert set(folded.state_dict()) == {"w/step", "w/momentum"}


def expect_alike(one, other, steps):
    a, b = np.ones((3, 2)), np.ones((3, 2))
    for _ in range(steps):
        g = rng.normal(size=(3, 2))
        one.update(["w"], [a], [g])
        other.update(["w"], [b], [g])
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(("kind", "plain"),
    [(AccumulatingSGD, SGD(lr=0.1, momentum=0.9)), (AccumulatingAdam, Adam(lr=0.1))])  # fmt: skip
def test_every_micro_batch_alone_is_the_plain_rule(kind, plain):
    expect_alike(kind(1, lr=0.1), plain, 4)


def test_folded_adam_follows_its_formula():
    folded = AccumulatingAdam(3, lambda t: 0.1 / (t + 1), 0.8, 0.9, 0.01)
    w = rng.normal(size=4)
    expected, m, v = w.copy(), np.zeros(4), np.zeros(4)
    for t in range(3):
        grads = [rng.normal(size=4) for _ in range(3)]
        for i, g in enumerate(grads):
            before = w.copy()
            folded.update(["w"], [w], [g])
            if i < 2:
                np.testing.assert_array_equal(w, before)
        m = 0.8 * m + 0.2 * sum(grads) / 3
        v = 0.9 * v + 0.1 * sum((g / 3) ** 2 for g in grads)
        alpha = 0.1 / (t + 1) * np.sqrt(1 - 0.9 ** (t + 1)) / (1 - 0.8 ** (t + 1))
        expected = expected - alpha * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [AccumulatingSGD, AccumulatingAdam])
def test_folding_resumes_in_the_middle_and_refuses_rows(kind):
    one, first, second = (kind(3, lr=0.1) for _ in range(3))
    a, b = np.ones(3), np.ones(3)
    for step in range(7):
        g = np.random.default_rng(step).normal(size=3)
        one.update(["w"], [a], [g])
        if step == 4:
            second.load_state_dict(first.state_dict())
        (first if step < 4 else second).update(["w"], [b], [g])
    np.testing.assert_array_equal(a, b)
    table = np.ones((3, 2))
    with pytest.raises(ArgumentError, match="dense gradient"):
        one.update(["t"], [table], [RowSparse(np.array([0]), np.ones((1, 2)))])
    np.testing.assert_array_equal(table, 1)


@pytest.mark.parametrize("every", [0, -1, 2.0, True])
def test_bad_counts(every):
    for make in (partial(Accumulator, SGD(lr=0.1)), AccumulatingSGD, AccumulatingAdam):
        with pytest.raises(ArgumentError, match=r", every: expected an int of at least 1"):
            make(every)
    with pytest.raises(ArgumentError, match="its state stores the sum"):
        AccumulatingSGD(2, lr=0.1, momentum=0.0)
