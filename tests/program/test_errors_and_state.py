"""Errors in recorded steps, what recording leaves behind, and what it takes: as by the layers."""

import copy
import threading

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import CallOrderError, SingaNetError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ClipByValue, Regularizer

from .program_case import ACCUMULATING, CHAIN, WORDS, adam, chain, sgd, word_net
from .twins import Twins
from .user_parts import Alike, Breaks


def test_recording_keeps_what_was_registered_by_hand(placed):
    """A rate of 0 for the first layer, said to the optimizer and not to the net."""
    # Without a momentum, which would go on.
    twins = Twins(lambda: placed(chain()), lambda: SGD(lr=0.1))
    (x, y), first = CHAIN.batches(2)
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        net.step(*first, optimizer)
        for spec in net.param_specs():
            if spec.name.startswith("one/"):
                optimizer.register(spec.name, type(spec)(spec.name, lr_mult=0.0))
    twins.recorded.record(x, y, twins.optimizers[0])
    before = twins.recorded.params()[0].value.copy()
    twins.train([(x, y)] * 4)
    np.testing.assert_array_equal(before, twins.recorded.params()[0].value)


# -- what is refused is refused at every step -----------------------------------------------


@pytest.mark.parametrize("kind", ACCUMULATING)
@pytest.mark.parametrize("how", ["step", "cheap", "record"])
def test_optimizers_that_refuse_rows_do_so_at_every_step(kind, how, placed):
    twins = Twins(lambda: placed(word_net()), lambda: ACCUMULATING[kind](lr=0.1))
    if how == "cheap":
        twins.recorded.programs.recompute = "cheap"
    table = twins.recorded.params()[0].value.copy()
    for x, y in WORDS.batches(5):
        if how == "record":
            for net, rule in zip(twins.nets, twins.optimizers, strict=True):
                with pytest.raises(SingaNetError):
                    net.record(x, y, rule).run(x, y)
        else:
            twins.refuse(lambda net, rule, x=x, y=y: net.step(x, y, rule))
        np.testing.assert_array_equal(twins.recorded.params()[0].value, table)


# -- errors in the backward part ------------------------------------------------------------


class BreakingRegularizer(Regularizer):
    """Adds nothing; raises at a parameter of ``size`` numbers once the fuse was lit."""

    def __init__(self, size):
        super().__init__(0.1)
        self.fuse, self.size = {}, size

    def add(self, xp, value, grad, coefficient, out):
        if "error" in self.fuse and value.size == self.size:
            raise self.fuse.pop("error")
        xp.add(grad, 0 * value, out=out)


class BreakingRate:
    """A schedule that raises at the third call after the fuse was lit."""

    def __init__(self):
        self.fuse = {}

    def __call__(self, step):
        if "error" in self.fuse:
            self.fuse["calls"] = self.fuse.get("calls", 0) + 1
            if self.fuse["calls"] == 3:
                raise self.fuse.pop("error")
        return 0.02


def clipped():
    return ClipByValue(Adam(lr=0.02), 1e-3)


def mixed_net(of_biases=None):
    """Small parameters, and one above 64 KiB, on both sides of the layer that breaks."""
    layers = [
        Dense("small1", 6, input_sample_shape=(5,)), Dense("wide1", 3000), Activation("relu1"),
        Breaks("breaks"),
        Dense("small2", 6, b_specs=of_biases), Dense("wide2", 3000, b_specs=of_biases),
        Activation("relu2"), Dense("out", 3, b_specs=of_biases),
    ]  # fmt: skip
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=2)


def state_of(net, optimizer):
    values = {p.name: p.value.copy() for p in net.params() if not p.is_state}
    return values, optimizer.state_dict()


def moved_of(net, optimizer, before):
    """Which parameters moved, and which have counted a step or moved their state."""
    values, state = state_of(net, optimizer)
    moved = {name for name in values if not np.array_equal(values[name], before[0][name])}
    counted, slots = set(), set()
    for key, array in state.items():
        name, _, slot = key.rpartition("/")
        if not np.array_equal(array, before[1].get(key, np.zeros_like(array))):
            (counted if slot == "step" else slots).add(name)
    return moved, counted, slots


def of_layer(net, rule):
    return net["breaks"].fuse


def regularized(size):
    return lambda: Adam(lr=0.02, regularizer=BreakingRegularizer(size))


ERRORS = {
    # Settings of the biases, the rule, and the fuse of what raises in the backward part.
    **{rule.__name__: (None, rule, of_layer) for rule in (sgd, adam, clipped)},
    # Biases with settings of their own wait with the weights, and are updated by themselves.
    **{
        f"{rule.__name__}, biases apart": ({"lr_mult": 2.0}, rule, of_layer)
        for rule in (sgd, clipped)
    },
    **{
        f"regularizer of {size}": (None, regularized(size), lambda net, r: r.regularizer.fuse)
        for size in (6 * 3000, 3, 5 * 6)
    },
    "schedule": (None, lambda: Adam(BreakingRate()), lambda net, rule: rule.lr.fuse),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("level", ["none", "cheap"])
@pytest.mark.parametrize("name", ERRORS)
def test_errors_in_the_backward_part_leave_a_state_from_which_nets_go_on(
    name, level, error, placed
):
    """The recorded net then stands before the step, or as by the layers."""
    of_biases, make, fuse_of = ERRORS[name]
    twins = Twins(lambda: placed(mixed_net(of_biases)), make)
    twins.recorded.programs.recompute = level
    twins.train(CHAIN.batches(4))
    twins.both(lambda net, rule: fuse_of(net, rule).update(error=error("on purpose")))
    x, y = CHAIN.batches(1, seed=9)[0]
    seen = []
    for net, rule in zip(twins.nets, twins.optimizers, strict=True):
        old = state_of(net, rule)
        with pytest.raises(error, match="on purpose"):
            net.step(x, y, rule)
        moved, counted, slots = moved_of(net, rule, old)
        assert moved == counted == slots
        seen.append(moved)
    assert seen[0] in (set(), seen[1])
    if seen[0]:
        twins.expect_equal()
    # Some more steps, which may begin from different states.
    for net, rule in zip(twins.nets, twins.optimizers, strict=True):
        assert np.isfinite([net.step(x, y, rule)[0] for _ in range(4)]).all()
    state = twins.optimizers[0].state_dict()
    counts = {int(array) for key, array in state.items() if key.endswith("/step")}
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("where", ["forward", "loss", "measure"])
def test_an_error_before_backward_changes_no_parameter(where, placed):
    class Trips(Alike):
        fuse = {}

        def forward(self, ctx, x):
            if where in self.fuse:
                raise RuntimeError("on purpose")
            return x * np.float32(1.25)

        def backward(self, ctx, dy):
            return dy * np.float32(1.25), {}

    def measure(out, y):
        if "measure" in Trips.fuse:
            raise RuntimeError("on purpose")
        return 0.0

    twins = Twins(lambda: placed(chain(lambda: Trips("trips"))), adam)
    twins.train(CHAIN.batches(4), measure=measure)
    x, y = CHAIN.batches(1, seed=1)[0]
    Trips.fuse[where] = True
    for pair in zip(twins.nets, twins.optimizers, strict=True):
        before = state_of(*pair)
        with pytest.raises((RuntimeError, SingaNetError)):
            pair[0].step(x, y + 7 * (where == "loss"), pair[1], measure=measure)
        assert moved_of(*pair, before) == (set(), set(), set())
    Trips.fuse.clear()
    twins.train(CHAIN.batches(4), measure=measure)


# -- passes under way -----------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["measure", "on_layer"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_step_within_a_step_is_refused_and_changes_nothing(caller, recorded):
    """By the layers its walk is lost, and a program would update behind the other's back."""
    net, optimizer, refused = chain(), SGD(lr=0.1), []
    x, y = CHAIN.batches(1)[0]
    net.programs.enabled = recorded
    twin = copy.deepcopy(net)

    def inside(*_):
        before = [value.copy() for value in net.param_values()]
        with pytest.raises(CallOrderError, match="no other step of the net under way"):
            net.step(x, y, optimizer)
        refused.append(all(map(np.array_equal, before, net.param_values())))
        # Another net may be trained, also a copy of this one.
        copy.deepcopy(net).step(x, y, SGD(lr=0.1))
        return 0.5

    for _ in range(3):
        net.step(x, y, optimizer, **{caller: inside})
        twin.step(x, y, optimizer)
    assert refused
    assert all(refused)
    assert all(map(np.array_equal, net.param_values(), twin.param_values()))


def test_a_step_that_was_left_at_its_very_end_is_not_under_way():
    net = chain()
    # As an interrupt leaves it that comes before the end is noted.
    net.programs._stepping = threading.get_ident()
    net.step(*CHAIN.batches(1)[0], SGD(lr=0.1))
    assert net.programs._stepping is None
