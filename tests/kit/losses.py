"""Everything that holds for any loss, as a case of few lines."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from singanet.base.arguments import kEval, kTrain
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.loss import Loss
from singanet.testing.device_like import device_like
from singanet.testing.layer_case import on_host, run_checks

RNG = np.random.default_rng(3)


def rows(x):
    """The number of positions of a loss of rows of classes."""
    return int(np.prod(x.shape[:-1]))


def elements(x):
    """The number of positions of a loss of each element."""
    return int(x.size)


def slope(loss, x, y, **more):
    """Central differences of the mean of the losses, element by element."""
    h, dx = 1e-6, np.zeros_like(x)
    for index in np.ndindex(x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * h
            dx[index] += sign * loss.forward(kEval, moved, y, **more).mean() / (2 * h)
    return dx


class LossCase:
    """The loss ``make(**arguments)`` on outputs ``x`` and targets ``y``.

    ``formula(x, y)`` are the losses of all positions by an independent formula, of which there are
    ``positions(x)``. `test_loss` runs every method ``check_...`` and reports those that fail.
    """

    def __init__(self, make, x, y, positions, formula, **arguments):
        self.x, self.y, self.positions, self.formula = x, y, positions, formula
        self._make, self.arguments = make, arguments

    def make(self, **more):
        """A new loss."""
        return self._make(**self.arguments, **more)

    def trained(self, x=None, y=None, loss=None, **more):
        """Losses and gradients of a training forward."""
        loss = self.make() if loss is None else loss
        x, y = self.x if x is None else x, self.y if y is None else y
        values = loss.forward(kTrain, x, y, **more)
        return values, loss.backward()

    def test_loss(self):
        """Run all checks."""
        run_checks(self, np)

    def check_values_equal_the_formula(self, _):
        each = np.asarray(self.formula(self.x, self.y))
        assert each.size == self.positions(self.x)
        wanted = each.reshape(len(self.x), -1).mean(axis=1)
        np.testing.assert_allclose(self.make().forward(False, self.x, self.y), wanted, rtol=1e-9)

    def check_backward_is_the_slope_of_the_mean(self, _):
        wanted = slope(self.make(), self.x, self.y)
        np.testing.assert_allclose(self.trained()[1], wanted, atol=1e-8)

    def check_sample_weights_multiply(self, _):
        weight = np.linspace(0, 2, len(self.x))
        values, dx = self.trained(sample_weight=weight)
        np.testing.assert_allclose(values, weight * self.make().forward(kEval, self.x, self.y))
        wanted = slope(self.make(), self.x, self.y, sample_weight=weight)
        np.testing.assert_allclose(dx, wanted, atol=1e-8)
        assert not dx[0].any()

    def check_weights_of_positions(self, _):
        """As the same positions in samples of their own, each with its weight."""
        x, y, loss = self.x, self.y, self.make()
        per_sample = self.positions(x) // len(x)
        if per_sample == 1:
            return
        ranks = (k for k in range(2, x.ndim + 1) if np.prod(x.shape[1:k]) >= per_sample)
        shape = x.shape[: next(ranks)]
        weight = np.random.default_rng(7).uniform(0, 2, shape)
        values, dx = self.trained(sample_weight=weight)
        np.testing.assert_allclose(dx, slope(loss, x, y, sample_weight=weight), atol=1e-8)
        even = loss.forward(False, x, y, sample_weight=np.full(shape, 2.0))
        np.testing.assert_allclose(even, 2 * loss.forward(False, x, y))
        assert not np.allclose(values, even)
        words = r"one weight a sample, shape \(\d,\), or one a position"
        with pytest.raises(ShapeError, match=words):
            loss.forward(True, x, y, sample_weight=np.ones((*shape, 2)))

    def check_a_sum_is_the_gradient_over_all_positions(self, _):
        values, dx = self.trained()
        same, total = self.trained(loss=self.make(reduction="sum"))
        np.testing.assert_array_equal(values, same)
        np.testing.assert_allclose(total, dx * self.positions(self.x))

    def check_masked_steps_do_not_count(self, _):
        x, y, loss, alone = self.x, self.y, self.make(), self.make()
        if x.shape[:2] != (4, 3):
            return
        there = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
        weight = np.array([1.0, 2.0, 3.0, 0.5])
        for own, each in (({}, {}), ([weight], [np.repeat(weight, 3)[there.ravel() > 0]])):
            values = loss.forward(True, x, y, *own, mask=there)
            wanted = alone.forward(True, x[there > 0], y[there > 0], *each)
            assert values.mean() == pytest.approx(wanted.mean())
            dx = loss.backward()
            np.testing.assert_allclose(dx[there > 0], alone.backward())
            assert not dx[there == 0].any()
        assert not loss.forward(True, x, y, mask=0 * there).any()
        words = r"mask: expected one number a step, shape \(4, 3\)"
        with pytest.raises(ShapeError, match=words):
            loss.forward(True, x, y, mask=there[:, :2])

    def check_one_value_a_sample_and_evaluate_is_their_mean(self, _):
        x, y, loss = self.x, self.y, self.make()
        values = loss.forward(False, x, y)
        assert values.shape == (len(x),)
        assert type(loss.evaluate(False, x, y)) is float
        np.testing.assert_allclose(loss.evaluate(kEval, x, y), np.mean(values))
        alone = [loss.evaluate(False, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        np.testing.assert_allclose(alone, values)

    def check_float32_stays(self, _):
        narrow = self.x.astype(np.float32)
        for more in ({}, {"sample_weight": np.ones(len(narrow))}):
            values, dx = self.trained(narrow, **more)
            assert values.dtype == dx.dtype == np.float32
            exact, slopes = self.trained(**more)
            np.testing.assert_allclose(values, exact, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(dx, slopes, rtol=1e-4, atol=1e-5)

    def check_strict_arrays_give_the_same(self, _):
        found = self.trained(device_like.asarray(self.x), device_like.asarray(self.y))
        for got, want in zip(found, self.trained(), strict=True):
            assert not isinstance(got, np.ndarray)
            np.testing.assert_allclose(on_host(got), want, rtol=1e-12, atol=1e-15)

    def check_memory_layout_does_not_matter(self, _):
        x, y = np.repeat(self.x, 2, axis=-1)[..., ::2], np.repeat(self.y, 2, axis=0)[::2]
        for got, want in zip(self.trained(x, y), self.trained(), strict=True):
            np.testing.assert_array_equal(got, want)

    def check_inputs_are_left_alone(self, _):
        x, y = self.x.copy(), self.y.copy()
        self.trained(sample_weight=np.full(len(x), 3.0))
        np.testing.assert_array_equal(self.x, x)
        np.testing.assert_array_equal(self.y, y)

    def check_an_empty_batch(self, _):
        x, y = self.x[:0], self.y[:0]
        values, dx = self.trained(x, y)
        assert (values.shape, dx.shape) == ((0,), x.shape)
        assert self.make().evaluate(False, x, y) == 0.0

    def check_order_of_calls(self, _):
        x, y, loss = self.x, self.y, self.make()
        with pytest.raises(CallOrderError, match="expected a training forward"):
            loss.backward()
        loss.forward(kEval, x, y)
        with pytest.raises(CallOrderError):
            loss.backward()
        loss.forward(kTrain, x, y)
        loss.forward(kTrain, x[1:], y[1:])  # replaces the first
        loss.forward(kEval, x, y)
        assert loss.backward().shape == x[1:].shape
        with pytest.raises(CallOrderError):
            loss.backward()

    def check_copies_and_descriptions(self, _):
        """A copy has had no forward, and equals the loss."""
        loss = self.make()
        wanted = loss.forward(True, self.x, self.y)
        made = pickle.loads(pickle.dumps(loss))
        with pytest.raises(CallOrderError):
            made.backward()
        for again in (made, Loss.from_config(loss.to_config())):
            assert type(again) is type(loss)
            assert again.to_config() == loss.to_config()
            np.testing.assert_array_equal(again.forward(False, self.x, self.y), wanted)

    def check_refusals(self, _):
        """The loss is as before a call that it refuses."""
        x, y, loss = self.x, self.y, self.make()
        _, wanted = self.trained()
        for error, words, given in (
            (ArgumentError, "kTrain", (2, x, y)),
            (ShapeError, type(loss).__name__, (True, x, y[:-1])),
            (DataError, "floats", (True, x.astype(int), y)),
            (DataError, "batch axis", (True, np.array(1.0), y)),
            (ShapeError, "one weight a sample", (True, x, y, np.ones(len(x) + 1))),
            (ShapeError, "one weight a sample", (True, x, y, np.ones(()))),
            (DataError, "numbers", (True, x, y, np.array(["a"] * len(x)))),
        ):
            with pytest.raises(error, match=words):
                loss.forward(*given)
        with pytest.raises(ArgumentError, match="'mean', 'sum'"):
            self.make(reduction="max")
        np.testing.assert_array_equal(self.trained(loss=loss)[1], wanted)


class BatchCase(LossCase):
    """A `LossCase` of a loss whose samples are each other's negatives."""

    def check_sample_weights_multiply(self, _):
        """Its own loss, not the gradient of the sample."""
        weight = np.linspace(0, 2, len(self.x))
        values, dx = self.trained(sample_weight=weight)
        np.testing.assert_allclose(values, weight * self.make().forward(kEval, self.x, self.y))
        wanted = slope(self.make(), self.x, self.y, sample_weight=weight)
        np.testing.assert_allclose(dx, wanted, atol=1e-8)
        assert dx[0].any()

    def check_one_value_a_sample_and_evaluate_is_their_mean(self, _):
        values = self.make().forward(False, self.x, self.y)
        assert values.shape == (len(self.x),)
        assert self.make().evaluate(kEval, self.x, self.y) == pytest.approx(np.mean(values))


class JointCase(BatchCase):
    """A `BatchCase` of a loss whose gradient by a sample is of its own loss alone."""

    check_sample_weights_multiply = LossCase.check_sample_weights_multiply


def beside_torch(loss, x, y, function, rtol=1e-12, atol=1e-14):
    """Compare value and gradient with those of ``function(torch, tensor of x)``."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    leaf = torch.tensor(x, requires_grad=True)
    wanted = function(torch, leaf)
    wanted.backward()
    assert loss.evaluate(True, x, y) == pytest.approx(wanted.item(), rel=rtol)
    np.testing.assert_allclose(loss.backward(), leaf.grad.numpy(), rtol=rtol, atol=atol)
