"""Sums in a program, for a reducer that is not the library's: one process that plays two."""

from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.optimizer.reducer import Reducer, Reduction, Traffic

RNG = np.random.default_rng(3)
X = RNG.standard_normal((16, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 16)


class Doubled(Reduction):
    """What two processes with the same samples do: the sum is twice the gradient, its factor ½.

    Sums are under way until they are waited for, and until then nobody can read them.
    """

    entries = factor = None
    under_way = False

    def __init__(self, entries, window):
        self.entries, self.window, self.traffic = entries, window, Traffic()
        self.told, self._flying, self.factor = [], [], 1.0

    def value(self, name):
        return self.net.params()[self.net.param_names().index(name)].value

    def open(self, kind):
        self.factor = 0.5
        self.told.append(kind)

    def start(self, names, buffer, scales, rows):
        assert scales == [1.0] * len(names)
        assert not rows
        self._flying.append((names, buffer, buffer.copy()))
        buffer.fill(np.nan)

    def test(self):
        self.told.append("test")

    def finish(self, names, buffer):
        given, own, local = self._flying.pop(0)
        assert given == names
        assert own is buffer
        buffer[...] = 2 * local
        return [True] * len(names)

    def close(self, kind):
        assert not self._flying
        self.told.append("end")


class Twins(Reducer):
    """Two processes in one."""

    _alone = False
    comm = exchanged = None

    def __init__(self, optimizer, entries, window=2):
        super().__init__(optimizer)
        self.reduction = Doubled(entries, window)
        self.batch = SimpleNamespace(weight=None)

    def meet(self, net, around=()):
        self.reduction.net = net

    def begin(self, count):
        self.reduction.told.append(("begin", count))

    def _agree(self, refused):
        return refused

    def join(self):
        raise AssertionError

    def _remade(self, optimizer):
        return type(self)(optimizer, self.reduction.entries, self.reduction.window)


class Kept(Layer):
    """Its gradient by its parameter is what it hands on: others read that after it was given."""

    pure = True

    def setup(self, in_shape):
        self.add_param("shift", (16, *in_shape))
        return in_shape

    def forward(self, ctx, x):
        return ctx.ops.xp.add(x, ctx.params["shift"])

    def backward(self, ctx, dy):
        return dy, {"shift": dy}


def build(more=()):
    return singanet.FeedForwardNet(
        [Dense("a", 30, input_sample_shape=(6,)), *more, Activation("relu"),
         Dense("b", 700), Dense("c", 40), Dense("d", 4)],
        loss=SoftmaxCrossEntropy(), seed=0,
    )  # fmt: skip


def small_together(net):
    """Large parameters by themselves, then the small ones as they lie in the store."""
    params = {p.name: p.value for p in net.params()}
    order = [
        n for layer in ("d", "c", "b", "shift", "wide", "a") for n in params if n.startswith(layer)
    ]
    large = [[n] for n in order if params[n].nbytes > 1 << 16]
    return [*large, [n for n in order if params[n].nbytes <= 1 << 16]]


def stepped(net, optimizer, count=5):
    return [net.step(X, Y, optimizer)[0] for _ in range(count)]


@pytest.mark.parametrize("window", [1, 2, 9])
def test_sums_are_updated_by_with_their_factor(window):
    plain, net = build(), build()
    optimizer = Twins(SGD(lr=0.1, momentum=0.9), small_together(net), window)
    losses = stepped(plain, SGD(lr=0.1, momentum=0.9))
    np.testing.assert_allclose(stepped(net, optimizer), losses, rtol=1e-6)
    for one, other in zip(plain.param_values(), net.param_values(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)
    assert not net.programs.notes
    told = optimizer.reduction.told
    assert told.count("step") == told.count("end") == 5
    assert told.count("test") >= 5
    assert [each for each in told if each[0] == "begin"] == [("begin", 16)] * 5


def test_gradients_are_made_where_they_are_summed_and_small_ones_updated_as_one():
    net = build()
    optimizer = Twins(SGD(lr=0.1), small_together(net))
    stepped(net, optimizer, 2)
    kernels = net.programs.reports()[-1].kernels
    assert not [k for k in kernels if k.name == "copyto"]
    large = len(optimizer.reduction.entries) - 1
    updates = [k for k in kernels if k.phase == "update"]
    # A product and a difference, or both by one kernel, for each large one, and for all small ones.
    assert len({k.layer for k in updates}) == large + 1
    assert large + 1 <= len(updates) <= 2 * (large + 1)


def test_a_gradient_that_is_read_after_it_was_given_is_copied():
    # Large enough to be summed by itself, at once.
    plain, net = (build([Dense("wide", 1100), Kept("shift")]) for _ in range(2))
    optimizer = Twins(SGD(lr=0.1), small_together(net))
    losses = stepped(plain, SGD(lr=0.1))
    np.testing.assert_allclose(stepped(net, optimizer), losses, rtol=1e-6)
    copies = [k for k in net.programs.reports()[-1].kernels if k.name == "copyto"]
    assert len(copies) == 1


def test_an_order_that_lacks_a_parameter_is_not_recorded():
    net = build()
    optimizer = Twins(SGD(lr=0.1), small_together(net)[:-1])
    stepped(net, optimizer, 3)
    assert any("gradients that this step does not give" in why for why in net.programs.refusals)
