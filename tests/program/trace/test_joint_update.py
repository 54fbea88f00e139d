"""Small parameters are updated together: fewer kernels, the same bits."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adafactor, AdaLomo, Adam, FactoredAdam
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


def assign(net, _=None):
    net.params()[2].value = net.params()[2].value.copy()


def regroup(net, _):
    assign(net)
    net._regroup()


def update_one(net, rule):
    rule.update(["one/bias"], [net.params()[1].value], [np.ones(16, np.float32)])


def lay(laid):
    """Let the first parameter lie otherwise."""

    def act(net, _):
        param = net.params()[0]
        param.value = laid(param.value)

    return act


DONE = {
    # The net, what is done to it between steps, and how many sweeps it has then.
    "even": (even, lambda net, rule: None, 1),
    # From the last layer to the first: three/weight alone, two at half the rate, the other three.
    "small": (small, lambda net, rule: None, 2),
    "freeze": (even, lambda net, rule: setattr(net["two"], "trainable", False), 2),
    "assign": (even, assign, 2),
    "regroup": (even, regroup, 1),
    "add": (even, lambda net, rule: net.add(Dense("four", 5)), 2),
    # At its own count of steps it has numbers of its own, as what is not dense is by itself.
    "one alone": (even, update_one, 1),
    "Fortran": (even, lay(np.asfortranarray), 1),
    "gaps": (even, lay(lambda value: np.repeat(value, 2, 1)[:, ::2]), 1),
    "state loaded": (even, lambda net, rule: rule.load_state_dict(rule.state_dict()), 1),
}


ALONE = {
    "small": {"three"}, "assign": {"two"}, "one alone": {"one"}, "Fortran": {"one"},
    "gaps": {"one"},
}  # fmt: skip
"""The layers with parameters that are updated by themselves."""


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1), sgd, lambda: Adam(lr=0.01)])
@pytest.mark.parametrize("name", DONE)
def test_neighbours_that_have_the_same_numbers_are_updated_by_one_sweep(name, make):
    net, act, sweeps = DONE[name]
    twins = Twins(net, (lambda: Adam(lr=0.01)) if name == "one alone" else make)
    twins.train(BATCHES[:4])
    held = twins.recorded.params()[0].value
    twins.both(act)
    twins.train(BATCHES[:1] * 6)
    found = updates(twins.recorded)
    joint = [kernel for kernel, layer in found if not layer]
    assert joint.count("subtract") == sweeps
    alone = {layer for _, layer in found if layer}
    assert alone == ALONE.get(name, set())
    same = twins.recorded.params()[0].value is held
    assert same == (name not in ("regroup", "Fortran", "gaps"))
    twins.optimizers = tuple(map(copy.deepcopy, twins.optimizers))
    twins.train(BATCHES[:4])


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


@pytest.mark.parametrize("rule", [FactoredAdam, Adafactor, AdaLomo])
def test_factored_rules_are_one_call_only_for_parameters_of_several_blocks(rule):
    layers = [Dense("small", 20, input_sample_shape=(20,)), Dense("wide", 2000), Dense("out", 5)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    optimizer = rule(lr=0.01)
    for x, y in BATCHES:
        net.step(x, y, optimizer)
    assert net.programs.reports()
    made = updates(net)
    assert [layer for name, layer in made if name == "update"] == ["wide"]
    assert {layer for _, layer in made} >= {"small", "wide", "out"}
