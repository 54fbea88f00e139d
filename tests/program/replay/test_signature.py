"""Steps like the last one take a short cut; steps that are not, do not."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import singanet
from singanet.errors import DataError, ShapeError
from singanet.layers import Activation, Dense, Input
from singanet.metric import Accuracy
from singanet.optimizer import SGD
from singanet.program.replay.shared_arena import facts, facts_of_feed
from tests.program.twins import Twins


def small(metric=None):
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), metric, seed=0)
    net.add(Dense("fc1", 6, input_sample_shape=(5,)))
    net.add(Activation("act", "tanh"))
    net.add(Dense("fc2", 3))
    return net


def pair_of(make=small):
    return Twins(make, lambda: SGD(lr=0.1, momentum=0.9))


def warm(pair, x, y):
    for _ in range(4):
        pair.step(x, y)
    assert pair.recorded.programs.reports()


@pytest.fixture
def batch(rng):
    return rng.standard_normal((4, 5)).astype(np.float32), rng.integers(0, 3, 4)


def test_other_batches_between_alike_ones(batch, rng):
    pair = pair_of()
    x, y = batch
    warm(pair, x, y)
    for other in (
        (x[:2], y[:2]),
        (x.astype(np.float64), y),
        (np.asfortranarray(x), y),
        (np.repeat(x, 2, axis=1)[:, ::2], y),
        (x, y.astype(np.int32)),
        (x, np.eye(3, dtype=np.float32)[y]),
        ((10 * x).astype(np.int64), y),
    ):
        for _ in range(3):
            pair.step(*other)
        pair.step(x + 1, y)
        pair.step(x, y)


def test_weights_and_observers_between_alike_steps(batch):
    pair = pair_of()
    x, y = batch
    warm(pair, x, y)
    for _ in range(3):
        pair.step(x, y, sample_weight=np.arange(4.0))
        pair.step(x, y)
        pair.step(x, y, on_layer=lambda item: None)
        pair.step(x, y)


def test_what_is_measured_is_asked_anew(batch):
    pair = pair_of()
    x, y = batch
    warm(pair, x, y)
    assert pair.step(x, y, measure=lambda out, given: float(out.sum()))[1] is not None
    assert pair.step(x, y)[1] is None
    pair.both(lambda net, _: setattr(net, "metric", Accuracy()))
    assert 0.0 <= pair.step(x, y)[1] <= 1.0


def test_changes_of_the_net_are_seen_at_the_next_step(batch):
    pair = pair_of()
    x, y = batch
    warm(pair, x, y)
    for change in (
        lambda net: setattr(net.layers[1], "mode", "relu"),
        lambda net: setattr(net.layers[0].params["bias"], "trainable", False),
        lambda net: setattr(
            net.layers[0].params["weight"], "value", np.full((5, 6), 0.1, np.float32)
        ),
        lambda net: setattr(net, "loss", singanet.loss.SoftmaxCrossEntropy(0.2)),
        lambda net: setattr(net.loss, "label_smoothing", 0.4),
        lambda net: net.freeze("fc2"),
    ):
        pair.both(lambda net, _, change=change: change(net))
        for _ in range(4):
            pair.step(x, y)


def test_a_step_with_bad_labels_leaves_the_short_cut_usable(batch):
    pair = pair_of()
    x, y = batch
    warm(pair, x, y)
    for net, optimizer in zip(pair.nets, pair.optimizers, strict=True):
        with pytest.raises(DataError, match="label 7 at index 2"):
            net.step(x, np.array([0, 1, 7, 0]), optimizer)
        with pytest.raises(ShapeError):
            net.step(x[:, :4], y, optimizer)
    pair.step(x, y)


def test_a_forward_waiting_for_its_backward_is_let_go(batch):
    net, optimizer = small(), SGD(lr=0.1)
    x, y = batch
    for _ in range(3):
        net.step(x, y, optimizer)
    for _ in range(3):
        net.forward(True, x)
        net.step(x, y, optimizer)
        assert net._pass is None


def test_several_inputs(rng):
    def two_inputs():
        a, b = Input("a", (3,)), Input("b", (2,))
        both = singanet.layers.Concat("both", 1)(a, b)
        return singanet.FeedForwardNet(
            singanet.loss.SoftmaxCrossEntropy(),
            inputs=[a, b],
            outputs=Dense("out", 3)(both),
            seed=0,
        )

    pair = pair_of(two_inputs)
    x = {"a": rng.standard_normal((4, 3)), "b": rng.standard_normal((4, 2))}
    x = {name: part.astype(np.float32) for name, part in x.items()}
    y = rng.integers(0, 3, 4)
    warm(pair, x, y)
    pair.step({"b": x["b"] + 1, "a": x["a"]}, y)
    pair.step({"a": x["a"], "b": x["b"].astype(np.float64)}, y)
    pair.step(x, y)


def test_what_arrays_have_in_common(batch):
    x, y = batch
    assert facts(x + 1) == facts(x) == facts_of_feed({"x": x})
    assert facts({"x": x, "y": y}) == facts({"y": y, "x": x}) == facts_of_feed({"x": x, "y": y})
    for other in (x[:2], x.astype(np.float64), np.asfortranarray(x), x.view(np.matrix), x.tolist()):
        assert facts(other) != facts(x)
    assert facts({"x": x}) != facts({"z": x})
    assert facts_of_feed({"x": [x, x]}) not in (facts([x, x]), facts_of_feed({"x": [x, x[:2]]}))


def test_another_thread_has_programs_of_its_own(batch):
    pair = pair_of()
    warm(pair, *batch)
    thread = threading.Thread(target=warm, args=(pair, *batch))
    thread.start()
    thread.join()
    assert len(pair.recorded.programs.reports()) == 2
    pair.step(*batch)
