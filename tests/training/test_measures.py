"""The loss of batches together is that of one batch of them all, whatever it is a mean over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, TimeDistributed
from singanet.loss import Loss, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Perplexity
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback
from singanet.training.fit import fit
from singanet.training.options import FitOptions

rng = np.random.default_rng(5)
X = rng.normal(size=(8, 6, 3)).astype(np.float32)
LABELS = rng.integers(0, 4, (8, 6))
LABELS[[0, 2, 3, 6], 2:] = -1
"""Four long sequences and four short ones, unevenly over batches of three or four."""


def of_sequences() -> Any:
    layers = [TimeDistributed("out", Dense("dense", 4), input_sample_shape=(6, 3))]
    net = singanet.FeedForwardNet(layers, seed=0)
    net.loss, net.metric = SoftmaxCrossEntropy(ignore_index=-1), Perplexity(ignore_index=-1)
    return net


def by_hand(net: Any) -> float:
    """Mean of −log softmax at the label, over the positions that have one."""
    scores = net.forward(False, X).astype(np.float64)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    there = LABELS >= 0
    return float(
        -np.take_along_axis(log_p, np.where(there, LABELS, 0)[..., None], -1)[there].mean()
    )


@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_padded_sequences_weigh_what_they_count(size: int) -> None:
    net = of_sequences()
    expected = by_hand(net)
    loss, perplexity = net.evaluate(X, LABELS, batch_size=size)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert perplexity == pytest.approx(np.exp(expected), rel=1e-5)


@pytest.mark.parametrize("recorded", [False, True])
def test_history_and_validation_too(recorded: bool) -> None:
    net = of_sequences()
    net.programs.enabled = recorded
    expected = by_hand(net)
    net.compile(SGD(lr=0.0))
    history = net.fit(X, LABELS, batch_size=3, epochs=3, validation_split=0.0, verbose=False,
                      validation_data=(X, LABELS))  # fmt: skip
    assert history["loss"] == pytest.approx([expected] * 3, rel=1e-5)
    assert history["val_loss"] == pytest.approx([expected] * 3, rel=1e-5)


def of_two_outputs() -> Any:
    net = singanet.FeedForwardNet(seed=0)
    net.add(Activation("in", input_sample_shape=(6, 3)))
    net.add(TimeDistributed("kind", Dense("dense", 4)), "in")
    net.add(TimeDistributed("size", Dense("real", 2)), "in")
    net.loss = MultiLoss(
        {"kind": SoftmaxCrossEntropy(ignore_index=-1), "size": SquaredError()}, {"kind": 0.5}
    )
    return net


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("recorded", [False, True])
def test_each_output_of_several_by_itself(recorded: bool, ignored: bool) -> None:
    net = of_two_outputs()
    net.programs.enabled = recorded
    if not ignored:
        net.loss = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()}, {"kind": 0.5})
    y = {"kind": LABELS if ignored else abs(LABELS), "size": rng.normal(size=(8, 6, 2))}
    out = net.forward(False, X)
    expected = 0.5 * net.loss.losses["kind"].evaluate(False, out["kind"], y["kind"])
    expected += net.loss.losses["size"].evaluate(False, out["size"], y["size"].astype(np.float32))
    net.compile(SGD(lr=0.0))
    history = net.fit(X, y, batch_size=3, epochs=3, validation_data=(X, y), verbose=False)
    assert history["loss"] == pytest.approx([expected] * 3, rel=1e-5)
    assert history["val_loss"] == pytest.approx([expected] * 3, rel=1e-5)
    assert net.evaluate(X, y, batch_size=5)[0] == pytest.approx(expected, rel=1e-5)
    assert {name: part.shape for name, part in net.loss.parts.items()} == {
        "kind": (3,), "size": (3,)
    }  # fmt: skip


class Weighted(Loss):
    """Squared error whose targets hold a weight beside each value; a mean by weight."""

    def count(self, x: Any, y: Any) -> float:
        return float(y[:, 1].sum())

    def forward(self, flag: Any, x: Any, y: Any, sample_weight: Any = None) -> Any:
        self.difference, self.weight = x[:, 0] - y[:, 0], y[:, 1] / y[:, 1].sum()
        return self.difference**2 * self.weight * len(x)

    def backward(self) -> Any:
        return (2 * self.difference * self.weight)[:, None]

    def compute(self, ops: Any, x: Any, y: Any) -> Any:
        raise AssertionError

    def gradient(self, ops: Any, saved: Any) -> Any:
        raise AssertionError


class Uncounted:
    """No subclass of `Loss`: half the squared distance of a sample."""

    def forward(self, flag: Any, x: Any, y: Any, *weight: Any) -> Any:
        self.difference = x - y[:, :1]
        return 0.5 * (self.difference**2).sum(1)

    def evaluate(self, flag: Any, x: Any, y: Any, *weight: Any) -> float:
        return float(self.forward(flag, x, y).mean())

    def backward(self) -> Any:
        return self.difference / len(self.difference)

    def link(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("make", [Weighted, Uncounted])
def test_a_users_own_loss_says_what_it_counted_or_counts_samples(make: Callable[[], Any]) -> None:
    net = singanet.FeedForwardNet([Dense("d", 1, input_sample_shape=(3,))], seed=0)
    net.compile(SGD(lr=0.0), loss=make())
    x = X[:, 0]
    y = np.stack([x.sum(1), [1, 9, 2, 1, 5, 1, 7, 3]], axis=1).astype(np.float32)
    error = net.forward(False, x)[:, 0] - y[:, 0]
    expected = (error**2 * y[:, 1]).sum() / y[:, 1].sum()
    if make is Uncounted:
        expected = (0.5 * error**2).mean()
    history = net.fit(x, y, batch_size=3, epochs=3, validation_data=(x, y), verbose=False)
    assert history["loss"] == pytest.approx([expected] * 3, rel=1e-5)
    assert history["val_loss"] == pytest.approx([expected] * 3, rel=1e-5)


def test_a_subclass_that_adds_a_term_keeps_it() -> None:
    class Penalised(MultiLoss):
        def forward(self, *args: Any) -> Any:
            return super().forward(*args) + 1.0

    net = of_two_outputs()
    net.loss = Penalised(net.loss.losses, net.loss.weights)
    y = {"kind": abs(LABELS), "size": rng.normal(size=(8, 6, 2)).astype(np.float32)}
    expected = net.loss.evaluate(False, net.forward(False, X), y)
    assert net.evaluate(X, y, batch_size=4)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_parts_of_a_batch_weigh_by_what_each_counts(micro_batch: int) -> None:
    net = of_sequences()
    expected = by_hand(net)
    net.compile(SGD(lr=0.0))
    history = fit(net, FitOptions(X, LABELS, 5, verbose=False).in_parts(micro_batch))
    assert history["loss"] == pytest.approx([expected], rel=1e-5)


def test_a_fit_stopped_within_an_epoch_goes_on_with_what_it_counted() -> None:
    class Stop(Callback):
        def on_batch_end(self, batch: int, logs: Any) -> None:
            self.state = self.session.state()
            self.session.stop("here")

    net = of_sequences()
    expected = by_hand(net)
    net.compile(SGD(lr=0.0))
    stop = Stop()
    net.fit(X, LABELS, batch_size=3, callbacks=[stop], verbose=False)
    history = net.fit(X, LABELS, batch_size=3, resume=stop.state, verbose=False)
    assert history["loss"] == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("records", [False, True])
def test_losses_of_several_outputs_are_those_of_the_whole_batch_where_it_comes_in_parts(records):
    """The losses by output were once those of the last part alone."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 6), np.float32)
    y = {"a": rng.integers(0, 3, 40), "b": rng.standard_normal((40, 2), np.float32)}

    def trained(micro_batch):
        net = singanet.FeedForwardNet(
            loss=MultiLoss({"a": SoftmaxCrossEntropy(), "b": SquaredError()}, {"b": 0.5}), seed=0
        )
        first = net.add(Dense("first", 8, input_sample_shape=(6,)))
        net.add(Dense("a", 3), src=first)
        net.add(Dense("b", 2), src=first)
        net.programs.enabled = records
        net.compile(SGD(lr=0.1))
        return fit(net, FitOptions(x, y, 16, 3, verbose=False).in_parts(micro_batch))

    whole = trained(None)
    for size in (5, 8):
        for name, values in trained(size).items():
            np.testing.assert_allclose(values, whole[name], rtol=1e-6, err_msg=name)
