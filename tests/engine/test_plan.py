"""What a plan works out once: walks back, and uses of shared parameters."""

import copy

import numpy as np

from singanet import FeedForwardNet
from singanet.layers import Dense, Input
from singanet.loss import SquaredError


def test_a_walk_is_worked_out_once_for_what_is_trained(rng):
    net = FeedForwardNet(SquaredError(), seed=0)
    for name in ("a", "b"):
        net.add(Dense(name, 3, **({"input_sample_shape": (3,)} if name == "a" else {})))
    x = rng.standard_normal((2, 3)).astype("float32")
    net.train(x, x)
    plan = net._execution_plan()
    slots = plan.by_name["b"].out_slots
    first = plan.backward(slots, ())
    assert plan.backward(slots, ()) is first
    net.layers[0].trainable = False
    second = plan.backward(slots, ())
    assert first.visited == [True, True]
    assert second.visited == [False, True]
    net.layers[0].trainable = True
    assert plan.backward(slots, ()) is first
    assert plan.backward(slots, ("a",)) is not first


def test_a_copy_of_a_net_sums_the_uses_of_its_own_parameters(rng):
    shared = Dense("shared", 3)
    a = Input("a", (3,))
    net = FeedForwardNet(SquaredError(), inputs=a, outputs=shared(shared(a)), seed=0)
    x = rng.standard_normal((2, 3)).astype("float32")
    before, _ = net.train(x, x)
    twin = copy.deepcopy(net)
    for one, other in zip(before, twin.train(x, x)[0], strict=True):
        np.testing.assert_array_equal(one, other)
