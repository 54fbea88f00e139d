"""What a pass needs between forward and backward is its own, whoever carries it out."""

import copy

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Flatten, Layer
from singanet.loss import SquaredError


class Twice(Layer):
    """A user's own, which keeps what it is given and what it gives."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        y = x * x
        ctx.save(parts=(x, {"y": y}))
        return y

    def backward(self, ctx, dy):
        x, held = ctx.saved["parts"]
        return 2 * x * dy + 0 * held["y"], {}


def carry(net, how):
    net.programs.enabled = how == "recorded"
    if how == "recomputed":
        net["fc"].recompute = True


def gradients(net, x, spoil=False):
    out = net.forward(True, x)
    dy = out - 1
    for array in (x, out) if spoil else ():
        array[...] = 9
    found = {}
    for names, _, grads in net.backward(dy):
        found |= zip(names, (grad.copy() for grad in grads), strict=True)
    return found


@pytest.mark.parametrize("how", ["by layers", "recorded", "recomputed"])
@pytest.mark.parametrize("last",
    [[Activation("act", mode="sigmoid"), Flatten("flat")], [Twice("twice")]])  # fmt: skip
def test_arrays_that_the_caller_writes_into_before_backward(how, last):
    first = Dense("fc", 3, input_sample_shape=(2,))
    net = singanet.FeedForwardNet([first, *last], seed=0)
    carry(net, how)
    for _ in range(4):  # recorded after the first ones
        x = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
        right = gradients(net, x.copy())
        found = gradients(net, x, spoil=True)
        assert found.keys() == right.keys() == {"fc/weight", "fc/bias"}
        for name in right:
            np.testing.assert_array_equal(found[name], right[name], err_msg=name)


def test_a_sparse_feed_that_is_filled_anew():
    sparse = pytest.importorskip("scipy.sparse")
    x = singanet.Input("words", (4,), sparse=True)
    net = singanet.FeedForwardNet(inputs=x, outputs=Dense("fc", 2)(x), seed=0)
    rows = sparse.csr_array(np.array([[0, 1, 0, 2], [3, 0, 0, 0]], np.float32))
    net.forward(True, rows)
    rows.data[:] = 9
    ((_, _, (weight, _)),) = net.backward(np.ones((2, 2), np.float32))
    found, sums = weight
    dense = np.zeros((4, 2), np.float32)
    dense[found] = sums
    np.testing.assert_array_equal(dense[:, 0], [3, 1, 0, 2])


@pytest.mark.parametrize("how", ["by layers", "recorded"])
def test_gradients_that_come_one_by_one_are_of_the_feed_as_it_was(how):
    parts = [Dense("fc", 3, input_sample_shape=(2,)), Activation("act", "tanh"), Dense("top", 2)]
    net = singanet.FeedForwardNet(parts, seed=0)
    carry(net, how)
    x, names = np.arange(8, dtype=np.float32).reshape(4, 2) / 8, ["fc/weight", "top/weight"]
    right = net.gradients("top", names, x)
    for _ in range(4):
        feed, found = x.copy(), {}
        for item in net.iter_gradients("top", names, feed):
            found |= zip(item.names, item.grads, strict=True)
            feed[...] = 9
        for name in names:
            np.testing.assert_array_equal(found[name], right[name], err_msg=name)


def test_a_walk_is_worked_out_once_for_what_is_trained(rng):
    layers = [Dense("a", 3, input_sample_shape=(3,)), Dense("b", 3)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    x = rng.standard_normal((2, 3)).astype("float32")
    net.train(x, x)
    plan = net._execution_plan()
    slots = plan.by_name["b"].out_slots
    first = plan.backward(slots, ())
    assert plan.backward(slots, ()) is first
    net.layers[0].trainable = False
    second = plan.backward(slots, ())
    assert (first.visited, second.visited) == ([True, True], [False, True])
    net.layers[0].trainable = True
    assert plan.backward(slots, ()) is first
    assert plan.backward(slots, ("a",)) is not first


def test_a_copy_of_a_net_sums_the_uses_of_its_own_parameters(rng):
    shared, a = Dense("shared", 3), singanet.Input("a", (3,))
    net = singanet.FeedForwardNet(SquaredError(), inputs=a, outputs=shared(shared(a)), seed=0)
    x = rng.standard_normal((2, 3)).astype("float32")
    before, _ = net.train(x, x)
    for one, other in zip(before, copy.deepcopy(net).train(x, x)[0], strict=True):
        np.testing.assert_array_equal(one, other)
