"""Small parameters are updated together: fewer kernels, the same bits."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam
from singanet.optimizer.reducer import Reducer, Reduction, Traffic
from tests.program.program_case import Net, below, of, sgd
from tests.program.twins import Twins


def small(*more, mult=0.5):
    """Small layers, of which two parameters have a rate of their own unless ``mult`` is 1."""
    layers = [
        Dense("one", 16, input_sample_shape=(20,)), Activation("relu"),
        Dense("two", 12, W_specs={"lr_mult": mult}), Activation("tanh", "tanh"),
        Dense("three", 5, b_specs={"lr_mult": mult}), *more,
    ]  # fmt: skip
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)


def even():
    return small(mult=1.0)


BATCHES = Net(small, of(20), below(5)).batches(6, 6)


def updates(net):
    found = [[k for k in r.kernels if k.phase == "update"] for r in net.programs.reports()]
    return [(k.name, k.layer) for k in max(found, key=len)]


SWEEP = ["multiply", "multiply", "add", "subtract"]


def joint(net):
    return [name for name, layer in updates(net) if not layer]


def test_one_sweep_for_neighbours_that_have_the_same_numbers():
    twins = Twins(small, sgd)
    twins.train(BATCHES)
    # From the last layer to the first: three/weight alone, two at half the rate, the other three.
    assert joint(twins.recorded) == 2 * SWEEP
    assert [layer for _, layer in updates(twins.recorded) if layer] == 4 * ["three"]


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1), sgd, lambda: Adam(lr=0.01)])
def test_a_net_of_small_layers_is_updated_by_one_sweep(make):
    twins = Twins(even, make)
    twins.train(BATCHES)
    found = updates(twins.recorded)
    assert found
    assert all(layer == "" for _, layer in found)
    assert [name for name, _ in found].count("subtract") == 1


def test_a_read_only_parameter_is_changed_by_no_sweep():
    net, optimizer = even(), sgd()
    for batch in BATCHES[:4]:
        net.step(*batch, optimizer)
    held = net.params()[2:4]
    for param in held:
        param.value.flags.writeable = False
    before = [param.value.copy() for param in held]
    for batch in BATCHES[:3]:
        with pytest.raises(ValueError, match="read-only"):
            net.step(*batch, optimizer)
    np.testing.assert_equal([param.value for param in held], before)


def assign(net):
    net.params()[2].value = net.params()[2].value.copy()


def regroup(net):
    assign(net)
    net._regroup()


DONE = {
    # What is done to the net, and how many sweeps it has then.
    "freeze": (lambda net: setattr(net["two"], "trainable", False), 2),
    "assign": (assign, 2),
    "regroup": (regroup, 1),
    "add": (lambda net: net.add(Dense("four", 5)), 2),
}


@pytest.mark.parametrize("name", DONE)
def test_what_is_done_to_the_net_between_steps(name):
    act, sweeps = DONE[name]
    twins = Twins(even, sgd)
    twins.train(BATCHES[:1] * 4)
    held = twins.recorded.params()[0].value
    twins.both(lambda net, _: act(net))
    twins.train(BATCHES[:1] * 5)
    assert joint(twins.recorded) == sweeps * SWEEP
    assert (twins.recorded.params()[0].value is held) == (name != "regroup")


def test_large_parameters_are_updated_alone_and_few_wait():
    def wide():
        squares = [Dense(f"square{k}", 63) for k in range(12)]
        return small(*squares, Dense("wide", 400), Dense("last", 5))

    twins = Twins(wide, sgd)
    twins.train(BATCHES[:4])
    # By NumPy two products, of which oneDNN makes one kernel with the rest.
    alone = [layer for name, layer in updates(twins.recorded) if name != "add" and layer]
    assert set(alone) == {"wide"}
    report = twins.recorded.programs.reports()[-1]
    together = [k for k in report.kernels if k.phase == "update" and not k.layer]
    written = {buffer for kernel in together for buffer in kernel.writes}
    assert max(report.buffers[b].nbytes for b in written) <= 1 << 17
    # Each sweep writes the momentum and one more: there are more than two sweeps.
    assert len(written) > 4


def test_other_batches_share_the_state_and_stay_recorded():
    def train():
        twins.train([(x[:size], y[:size]) for x, y in BATCHES[:3] for size in (6, 6, 3)])
        return [array for s in twins.optimizers[0]._states.values() for array in s.arrays]

    twins = Twins(small, lambda: Adam(lr=0.01))
    before, now = train(), train()
    assert all(one is other for one, other in zip(before, now, strict=True))
    assert len(twins.recorded.programs.reports()) == 2


def test_an_update_of_one_parameter_alone_parts_it_from_the_others():
    twins = Twins(small, lambda: Adam(lr=0.01))
    twins.train(BATCHES[:1] * 4)
    ones = np.ones(16, np.float32)
    twins.both(lambda net, rule: rule.update(["one/bias"], [net.params()[1].value], [ones]))
    twins.train(BATCHES[:1] * 6)
    # At its own count of steps it has numbers of its own.
    assert ("multiply", "one") in updates(twins.recorded)


def test_state_that_was_saved_loaded_or_copied_goes_on():
    twins = Twins(small, sgd)
    twins.train(BATCHES[:4])
    saved = twins.optimizers[0].state_dict()
    twins.train(BATCHES[:2])
    twins.both(lambda _, rule: rule.load_state_dict(saved))
    twins.train(BATCHES[:4])
    twins.optimizers = tuple(map(copy.deepcopy, twins.optimizers))
    twins.train(BATCHES[:4])


class Twice(Layer):
    """x a + x b, whose two parameters have one gradient in common."""

    pure = True

    def setup(self, in_shapes):
        self.add_param("a", in_shapes)
        self.add_param("b", in_shapes)
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * (ctx.params["a"] + ctx.params["b"])

    def backward(self, ctx, dy):
        grad = ctx.ops.sum(dy * ctx.saved["x"], axis=0)
        return dy * (ctx.params["a"] + ctx.params["b"]), {"a": grad, "b": grad}


@pytest.mark.parametrize("make", [sgd, lambda: SGD(lr=0.1, weight_decay=0.1)])
def test_a_gradient_of_two_parameters(make):
    twins = Twins(lambda: small(Twice("twice")), make)
    twins.train(BATCHES)
    assert twins.recorded.programs.reports()


@pytest.mark.parametrize("kind", ["F", "gaps"])
def test_parameters_that_are_not_dense_are_updated_alone(kind):
    def laid():
        net = small()
        param = net.params()[0]
        value = param.value
        param.value = np.asfortranarray(value) if kind == "F" else np.repeat(value, 2, 1)[:, ::2]
        return net

    twins = Twins(laid, sgd)
    twins.train(BATCHES)
    assert ("multiply", "one") in updates(twins.recorded)


# -- Sums in a program, for a reducer that is not the library's: one process that plays two ---


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


class TwoInOne(Reducer):
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
    return FeedForwardNet(
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
    optimizer = TwoInOne(SGD(lr=0.1, momentum=0.9), small_together(net), window)
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
    optimizer = TwoInOne(SGD(lr=0.1), small_together(net))
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
    optimizer = TwoInOne(SGD(lr=0.1), small_together(net))
    losses = stepped(plain, SGD(lr=0.1))
    np.testing.assert_allclose(stepped(net, optimizer), losses, rtol=1e-6)
    copies = [k for k in net.programs.reports()[-1].kernels if k.name == "copyto"]
    assert len(copies) == 1


def test_an_order_that_lacks_a_parameter_is_not_recorded():
    net = build()
    optimizer = TwoInOne(SGD(lr=0.1), small_together(net)[:-1])
    stepped(net, optimizer, 3)
    assert any("gradients that this step does not give" in why for why in net.programs.refusals)
