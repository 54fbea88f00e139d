"""Assignments are counted, those that a program may have taken for granted."""

import copy

import numpy as np
import pytest

from singanet.base.described import changes
from singanet.layers import Activation, Dense
from singanet.loss import Huber


def counted(action):
    before = changes.now
    action()
    return changes.now != before


@pytest.fixture
def layer():
    made = Dense("fc", 3, input_sample_shape=(2,))
    made.build((2,))
    return made


def test_public_attributes_count(layer):
    loss = Huber()
    assert counted(lambda: setattr(layer, "use_bias", False))
    assert counted(lambda: setattr(loss, "reduction", "sum"))
    assert counted(lambda: delattr(loss, "reduction"))
    assert counted(lambda: setattr(layer, "__class__", type("Mine", (Dense,), {})))
    assert not counted(lambda: setattr(loss, "_kept", None))


def test_parameters_count(layer):
    param = layer.params["weight"]
    assert counted(lambda: setattr(param, "value", np.zeros((2, 3), np.float32)))
    assert counted(lambda: setattr(param, "trainable", False))
    assert counted(lambda: setattr(layer, "trainable", True))
    assert counted(param.mark_as_state)


def test_passes_do_not_count(layer):
    from singanet import FeedForwardNet

    net = FeedForwardNet([layer, Activation("tanh", "tanh")], loss=Huber(), seed=0)
    x = np.ones((4, 2), np.float32)
    net.forward(True, x)
    assert not counted(lambda: net.forward(True, x))
    assert not counted(lambda: list(net.backward(np.ones((4, 3), np.float32))))
    assert not counted(lambda: net.loss.evaluate(True, x, x))


def test_each_change_is_another_number():
    seen = set()
    for _ in range(5):
        changes.add()
        seen.add(changes.now)
    assert len(seen) == 5


def test_copies_are_whole(layer):
    assert copy.deepcopy(layer).num_output == 3
