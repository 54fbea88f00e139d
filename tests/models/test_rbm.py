"""The restricted Boltzmann machine."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.models import RBM, build
from singanet.optimizer import SGD


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def machine(rng):
    rbm = build("rbm", (2, 3), seed=4, hidden=5)
    assert isinstance(rbm, RBM)
    for value in rbm.param_values():
        value[:] = 0.5 * rng.standard_normal(value.shape)
    return rbm


def test_parameters_have_names_and_shapes(machine):
    assert machine.param_names() == ["rbm/weight", "rbm/visible", "rbm/hidden"]
    assert [value.shape for value in machine.param_values()] == [(6, 5), (6,), (5,)]
    assert "41 parameters" in machine.summary()


def test_reconstruction_goes_up_and_down_by_probabilities(machine, rng):
    x = rng.random((4, 2, 3), np.float32)
    w, b, c = machine.param_values()
    hidden = sigmoid(x.reshape(4, 6) @ w + c)
    again = sigmoid(hidden @ w.T + b).reshape(x.shape)
    np.testing.assert_allclose(machine.encode(x), hidden, rtol=1e-5)
    np.testing.assert_allclose(machine.reconstruct(x), again, rtol=1e-5)
    error, metric = machine.evaluate(x, x)
    assert error == pytest.approx(0.5 * ((x - again) ** 2).mean(), rel=1e-5)
    assert metric is None


def test_a_step_moves_by_singas_formulas(machine, rng):
    x = rng.random((4, 2, 3), np.float32)
    v = x.reshape(4, 6).astype(np.float64)
    w, b, c = (value.astype(np.float64) for value in machine.param_values())
    h = sigmoid(v @ w + c)
    # The same draw as the machine's: one uniform number for each hidden unit of each sample.
    drawn = np.random.default_rng(4).random((4, 5), dtype=np.float32) < h.astype(np.float32)
    v2 = sigmoid(drawn @ w.T + b)
    h2 = sigmoid(v2 @ w + c)
    expected = [(v2.T @ h2 - v.T @ h) / 4, (v2 - v).mean(axis=0), (h2 - h).mean(axis=0)]
    seen = []
    error, _ = machine.step(x, None, SGD(lr=0.5), lambda item: seen.append(item.names))
    assert error == pytest.approx(0.5 * ((v - v2) ** 2).mean(), rel=1e-5)
    assert seen == [machine.param_names()]
    for value, before, grad in zip(machine.param_values(), (w, b, c), expected, strict=True):
        np.testing.assert_allclose(value, before - 0.5 * grad, rtol=1e-4, atol=1e-6)


def test_it_learns_patterns(rng):
    patterns = np.array([[1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1]], np.float32)
    x = patterns[rng.integers(0, 2, 64)]
    rbm = RBM((6,), hidden=8, seed=0)
    optimizer = SGD(lr=0.5)
    start = rbm.evaluate(x, None)[0]
    for _ in range(200):
        rbm.step(x, None, optimizer)
    assert rbm.evaluate(x, None)[0] < 0.05 * start


def test_the_same_seed_learns_the_same(rng):
    x = rng.random((16, 6), np.float32)

    def trained(seed):
        rbm = RBM((6,), hidden=4, seed=seed)
        for _ in range(3):
            rbm.step(x, None, SGD(lr=0.1))
        return rbm.param_values()[0]

    np.testing.assert_array_equal(trained(1), trained(1))
    assert (trained(1) != trained(2)).any()


def test_an_empty_batch_changes_nothing(machine):
    before = [value.copy() for value in machine.param_values()]
    assert machine.step(np.zeros((0, 2, 3), np.float32), None, SGD(lr=0.1)) == (0.0, None)
    for value, old in zip(machine.param_values(), before, strict=True):
        np.testing.assert_array_equal(value, old)


@pytest.mark.parametrize("shape", [(4, 3, 2), (2, 3), (4, 6)])
def test_samples_of_another_shape_are_refused(machine, shape):
    with pytest.raises(ShapeError, match=r"RBM, input: expected an array of shape \(batch, 2, 3\)"):
        machine.reconstruct(np.zeros(shape, np.float32))


@pytest.mark.parametrize("hidden", [0, -1, 2.5])
def test_a_number_of_units_that_is_none_is_refused(hidden):
    with pytest.raises(ArgumentError, match="RBM, argument hidden"):
        RBM((6,), hidden=hidden)


def test_gradients_are_refused_by_name(machine):
    with pytest.raises(ArgumentError, match=r"RBM.gradients: .*contrastive divergence"):
        machine.gradients("rbm", "rbm/weight", {})
