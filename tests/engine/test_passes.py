"""What a pass needs between forward and backward is its own, whoever carries it out."""

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Flatten, Layer


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


def recorded(net):
    pass


def by_layers(net):
    net.programs.enabled = False


def recomputed(net):
    net.programs.enabled = False
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


@pytest.mark.parametrize("carried", [by_layers, recorded, recomputed])
@pytest.mark.parametrize(
    "last", [[Activation("act", mode="sigmoid"), Flatten("flat")], [Twice("twice")]]
)
def test_arrays_that_the_caller_writes_into_before_backward(carried, last):
    first = Dense("fc", 3, input_sample_shape=(2,))
    net = singanet.FeedForwardNet([first, *last], seed=0)
    carried(net)
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


@pytest.mark.parametrize("carried", [by_layers, recorded])
def test_gradients_that_come_one_by_one_are_of_the_feed_as_it_was(carried):
    parts = [
        Dense("fc", 3, input_sample_shape=(2,)),
        Activation("act", mode="tanh"),
        Dense("top", 2),
    ]
    net = singanet.FeedForwardNet(parts, seed=0)
    carried(net)
    x = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
    names = ["fc/weight", "top/weight"]
    right = net.gradients("top", names, x)
    for _ in range(4):
        feed, found = x.copy(), {}
        for item in net.iter_gradients("top", names, feed):
            found |= zip(item.names, item.grads, strict=True)
            feed[...] = 9
        for name in names:
            np.testing.assert_array_equal(found[name], right[name], err_msg=name)
