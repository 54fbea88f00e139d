"""Errors in recorded steps, what recording leaves behind, and what it takes: as by the layers.

The numbers are those of the findings that the tests come from.
"""

from __future__ import annotations

import copy
import gc
import threading
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet.errors import CallOrderError, SingaNetError
from singanet.layers import Activation, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models import build
from singanet.optimizer import (
    SGD,
    AccumulatingAdam,
    AccumulatingSGD,
    Adam,
    ClipByValue,
    Regularizer,
)
from singanet.program.cost import CALL_BYTES

from .twins import Twins, expect_items_same, expect_same
from .user_parts import Alike, Breaks, Counts, Draws, Follows, Probe


def sgd():
    return SGD(lr=0.1, momentum=0.9)


def adam():
    return Adam(lr=0.02)


def chain(*parts):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=2)
    net.add(Dense("one", 6, input_sample_shape=(5,)))
    net.add(Activation("tanh", "tanh"))
    for part in parts:
        net.add(part())
    net.add(Dense("two", 6))
    net.add(Dense("out", 3))
    return net


def word_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


def batch_of(rng, batch=4):
    x = rng.standard_normal((batch, 5)).astype(np.float32)
    return x, rng.integers(0, 3, batch)


def outcome(act):
    """What ``act`` returns, or the class and text of its error."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return type(error), str(error)


# -- rehearsals leave nothing behind (11) ---------------------------------------------------


@pytest.mark.parametrize("part", [Counts, Draws, Follows])
@pytest.mark.parametrize("how", ["step", "loop", "fit", "cheap"])
def test_a_layer_is_run_as_often_as_by_the_layers(part, how, placed, rng):
    twins = Twins(lambda: placed(chain(lambda: part("part"))), sgd)
    if how == "cheap":
        twins.recorded.programs.recompute = "cheap"
    for _ in range(6):
        x, y = batch_of(rng)
        if how == "loop":
            twins.forward(True, x)
            twins.walk(rng.standard_normal((4, 3)).astype(np.float32))
            twins.expect_equal()
        elif how == "fit":
            for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
                net.compile(optimizer)
                net.fit(x, y, 2, shuffle=False, verbose=False)
            twins.expect_equal()
        else:
            twins.step(x, y)
        twins.forward(False, x)
    if part is Draws:
        one, two = (next(p for p in net.layers if isinstance(p, Draws)) for net in twins.nets)
        assert one.calls == two.calls


@pytest.mark.parametrize("part", [Counts, Draws, Follows])
@pytest.mark.parametrize("what", ["memory", "record", "record evaluation"])
def test_telling_the_memory_and_recording_leave_the_net(part, what, placed, rng):
    twins = Twins(lambda: placed(chain(lambda: part("part"))), sgd)
    for number in range(6):
        x, y = batch_of(rng)
        if number in (0, 3):
            net, optimizer = twins.recorded, twins.optimizers[0]
            if what == "memory":
                net.memory(4, optimizer)
                net.memory(4)
            elif what == "record":
                net.record(x, y, optimizer)
            else:
                net.record(x)
            if number:
                twins.expect_equal()
        twins.step(x, y)


def test_recording_keeps_what_was_registered_by_hand(placed, rng):
    """19 g: a rate of 0 for the first layer, said to the optimizer and not to the net."""
    # Without a momentum, which would go on.
    twins = Twins(lambda: placed(chain()), lambda: SGD(lr=0.1))
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        net.step(*batch_of(np.random.default_rng(1)), optimizer)
        for spec in net.param_specs():
            if spec.name.startswith("one/"):
                optimizer.register(spec.name, type(spec)(spec.name, lr_mult=0.0))
    x, y = batch_of(rng)
    twins.recorded.record(x, y, twins.optimizers[0])
    before = twins.recorded.params()[0].value.copy()
    for _ in range(4):
        twins.step(x, y)
    np.testing.assert_array_equal(before, twins.recorded.params()[0].value)


# -- refusals of optimizers (13) ------------------------------------------------------------


@pytest.mark.parametrize("make", [AccumulatingSGD, AccumulatingAdam])
@pytest.mark.parametrize("how", ["step", "cheap", "record"])
def test_optimizers_that_refuse_rows_do_so_at_every_step(make, how, placed, rng):
    def refused(net, optimizer, x, y):
        if how == "record":
            return outcome(lambda: net.record(x, y, optimizer).run(x, y))
        return outcome(lambda: net.step(x, y, optimizer))

    twins = Twins(lambda: placed(word_net()), lambda: make(2, lr=0.1))
    if how == "cheap":
        twins.recorded.programs.recompute = "cheap"
    table = twins.recorded.params()[0].value.copy()
    for _ in range(5):
        x, y = rng.integers(0, 11, (4, 5)), rng.integers(0, 3, 4)
        one, two = twins.both(lambda net, optimizer, x=x, y=y: refused(net, optimizer, x, y))
        assert isinstance(one, tuple)
        assert issubclass(one[0], SingaNetError)
        if how != "record":
            assert one == two
            twins.expect_equal()
        np.testing.assert_array_equal(twins.recorded.params()[0].value, table)


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("level", ["none", "cheap"])
def test_parameters_in_half_precision_are_refused_at_every_step(make, level, placed, rng):
    def half_net():
        net = chain()
        net.as_type(np.float16)
        return placed(net)

    twins = Twins(half_net, make)
    twins.recorded.programs.recompute = level
    for _ in range(5):
        x, y = batch_of(rng)
        one, two = twins.both(
            lambda net, optimizer, x=x, y=y: outcome(lambda: net.step(x, y, optimizer))
        )
        assert one == two
        twins.expect_equal()


# -- subclasses of arrays (14) --------------------------------------------------------------


class Mine(np.ndarray):
    """A class of arrays of the user's."""


def mapped(array, path):
    made = np.memmap(path, array.dtype, "w+", shape=array.shape)
    made[...] = array
    return made


CASTS = {
    "memmap": mapped,
    "subclass": lambda array, path: array.view(Mine),
    "masked": lambda array, path: np.ma.masked_array(array),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("what", ["x", "labels", "weights", "all"])
def test_subclasses_of_arrays_after_plain_ones(cast, what, placed, rng, tmp_path):
    twins = Twins(lambda: placed(chain()), sgd)
    for number in range(10):
        x, y = batch_of(rng)
        given = {"x": x, "labels": y, "weights": rng.uniform(0, 2, 4).astype(np.float32)}
        # Recorded with plain ones; the others come in turn with them then.
        if number >= 4 and number % 3:
            for key in given:
                if what in (key, "all"):
                    given[key] = CASTS[cast](given[key], tmp_path / key)
        weights = given["weights"] if what in ("weights", "all") else None
        one, two = twins.both(
            lambda net, optimizer, given=given, weights=weights: outcome(
                lambda: net.step(given["x"], given["labels"], optimizer, sample_weight=weights)
            )
        )
        assert one == two
        assert isinstance(one[0], float)
        twins.expect_equal()


def test_mapped_labels_after_plain_ones_in_fit(placed, rng, tmp_path):
    x, y = batch_of(rng, 12)
    twins = Twins(lambda: placed(chain()), sgd)
    for labels in (y, mapped(y, tmp_path / "y"), y):
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            net.compile(optimizer)
            net.fit(x, labels, 4, shuffle=False, verbose=False)
        twins.expect_equal()


# -- errors in the backward part (15) -------------------------------------------------------


class BreakingRegularizer(Regularizer):
    """Adds nothing; raises when the fuse says so and the parameter has its shape."""

    def __init__(self, fuse):
        super().__init__(0.1)
        self.fuse = fuse

    def add(self, xp, value, grad, coefficient, out):
        if "error" in self.fuse and value.size == self.fuse["size"]:
            raise self.fuse.pop("error")
        xp.add(grad, 0 * value, out=out)


class BreakingRate:
    """A schedule that raises at the third call after the fuse was lit."""

    def __init__(self, fuse):
        self.fuse = fuse

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
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
    net.add(Dense("small1", 6, input_sample_shape=(5,)))
    net.add(Dense("wide1", 3000))
    net.add(Activation("relu1"))
    net.add(Breaks("breaks"))
    net.add(Dense("small2", 6, b_specs=of_biases))
    net.add(Dense("wide2", 3000, b_specs=of_biases))
    net.add(Activation("relu2"))
    net.add(Dense("out", 3, b_specs=of_biases))
    return net


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


def expect_consistent(twins, act):
    """``act`` raises in both; the recorded net then stands before the step, or as by the layers."""
    before = [state_of(*pair) for pair in zip(twins.nets, twins.optimizers, strict=True)]
    seen = []
    for pair, old in zip(zip(twins.nets, twins.optimizers, strict=True), before, strict=True):
        with pytest.raises((RuntimeError, KeyboardInterrupt), match="on purpose"):
            act(*pair)
        moved, counted, slots = moved_of(*pair, old)
        assert moved == counted == slots
        seen.append(moved)
    assert seen[0] in (set(), seen[1])
    if seen[0]:
        twins.expect_equal()


def go_on(twins, rng):
    """Some more steps, which may begin from different states."""
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        x, y = batch_of(np.random.default_rng(9))
        losses = [net.step(x, y, optimizer)[0] for _ in range(4)]
        assert np.isfinite(losses).all()
    counts = {key: int(array) for key, array in twins.optimizers[0].state_dict().items()
              if key.endswith("/step")}  # fmt: skip
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("make", [sgd, adam, clipped])
@pytest.mark.parametrize("level", ["none", "cheap"])
def test_an_error_of_a_layer_in_backward(error, make, level, placed, rng):
    twins = Twins(lambda: placed(mixed_net()), make)
    twins.recorded.programs.recompute = level
    for _ in range(4):
        twins.step(*batch_of(rng))
    for net in twins.nets:
        layer = next(layer for layer in net.layers if isinstance(layer, Breaks))
        layer.fuse["error"] = error("on purpose")
    x, y = batch_of(rng)
    expect_consistent(twins, lambda net, optimizer: net.step(x, y, optimizer))
    go_on(twins, rng)


@pytest.mark.parametrize("make", [sgd, clipped])
def test_an_error_between_updates_that_waited_and_those_that_did_not(make, placed, rng):
    """Biases with settings of their own wait with the weights, and are updated by themselves."""
    twins = Twins(lambda: placed(mixed_net({"lr_mult": 2.0})), make)
    for _ in range(4):
        twins.step(*batch_of(rng))
    for net in twins.nets:
        layer = next(layer for layer in net.layers if isinstance(layer, Breaks))
        layer.fuse["error"] = RuntimeError("on purpose")
    x, y = batch_of(rng)
    expect_consistent(twins, lambda net, optimizer: net.step(x, y, optimizer))
    go_on(twins, rng)


@pytest.mark.parametrize("size", [6 * 3000, 3, 5 * 6])
def test_an_error_of_a_regularizer(size, placed, rng):
    fuses = iter([{}, {}])
    twins = Twins(
        lambda: placed(mixed_net()),
        lambda: Adam(lr=0.02, regularizer=BreakingRegularizer(next(fuses))),
    )
    for _ in range(4):
        twins.step(*batch_of(rng))
    for optimizer in twins.optimizers:
        optimizer.regularizer.fuse |= {"size": size, "error": RuntimeError("on purpose")}
    x, y = batch_of(rng)
    expect_consistent(twins, lambda net, optimizer: net.step(x, y, optimizer))
    go_on(twins, rng)


def test_an_error_of_a_schedule(placed, rng):
    fuses = iter([{}, {}])
    twins = Twins(lambda: placed(mixed_net()), lambda: Adam(lr=BreakingRate(next(fuses))))
    for _ in range(4):
        twins.step(*batch_of(rng))
    for optimizer in twins.optimizers:
        optimizer.lr.fuse["error"] = RuntimeError("on purpose")
    x, y = batch_of(rng)
    expect_consistent(twins, lambda net, optimizer: net.step(x, y, optimizer))
    go_on(twins, rng)


@pytest.mark.parametrize("where", ["forward", "loss", "measure"])
def test_an_error_before_backward_changes_no_parameter(where, placed, rng):
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
    for _ in range(4):
        twins.step(*batch_of(rng), measure=measure)
    x, y = batch_of(rng)
    Trips.fuse[where] = True
    if where == "loss":
        y = y + 7
    for pair in zip(twins.nets, twins.optimizers, strict=True):
        before = state_of(*pair)
        with pytest.raises((RuntimeError, SingaNetError)):
            pair[0].step(x, y, pair[1], measure=measure)
        assert moved_of(*pair, before) == (set(), set(), set())
    Trips.fuse.clear()
    for _ in range(4):
        twins.step(*batch_of(rng), measure=measure)


# -- memory (17) ----------------------------------------------------------------------------


@pytest.mark.few(1, rest="slow")
@pytest.mark.parametrize(("name", "batch"), [("char_rnn", 8), ("transformer", 8)])
def test_the_memory_told_is_what_steps_take(name, batch):
    """Scratch of a step by the layers is not kept for good, or it is told."""

    def trained(batch):
        net, optimizer = build(name, seed=0), Adam(lr=0.01)
        x = np.zeros((batch, *net.nodes()[0].layer.in_shapes), np.int64)
        y = np.zeros(net.forward(False, x).shape[:-1], np.int64)
        for _ in range(3):
            net.step(x, y, optimizer)
        return net, optimizer, x, y

    trained(1)  # imports, caches of kernels, NumPy's pools
    gc.collect()
    tracemalloc.start()
    try:
        net, optimizer, x, y = trained(batch)
        gc.collect()
        tracemalloc.reset_peak()
        net.step(x, y, optimizer)
        measured = tracemalloc.get_traced_memory()[1] - x.nbytes - y.nbytes
    finally:
        tracemalloc.stop()
    parts = net.memory(batch, optimizer).parts
    # This is a later step; and tracemalloc does not see oneDNN's code.
    told = sum(size for name, size in parts.items() if name not in ("first step", "kernels"))
    # What is told of the arena is what is ever written; tracemalloc sees what is asked for.
    unwritten = net.programs.reports()[-1].layout.nbytes - parts["arena"]
    assert unwritten >= 0
    # The holes that recording leaves in Python's heap are told, too: 600 of a call's 2,300 bytes.
    seen = told - parts["program"] * 600 // CALL_BYTES
    assert 0.95 * seen <= measured <= 1.05 * (told + unwritten) + 600_000


# -- small things (19) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "part", [lambda: Dropout("drop", 0.3), lambda: Probe("probe")], ids=["dropout", "probe"]
)
def test_copies_between_forward_and_backward(part, placed, rng):
    """19 a: copied or refused as by the layers; the pass under way goes on."""
    twins = Twins(lambda: placed(chain(part)))
    for _ in range(5):
        x, _ = batch_of(rng)
        twins.forward(True, x)
        one, two = twins.both(lambda net, _: outcome(lambda: copy.deepcopy(net)))
        assert type(one) is type(two)
        if isinstance(one, tuple):
            assert one[0] is two[0]
        else:
            two.programs.enabled = False
            expect_same(one.forward(False, x), two.forward(False, x))
        twins.walk(rng.standard_normal((4, 3)).astype(np.float32))
        twins.expect_equal()


@pytest.mark.parametrize(
    "part", [lambda: Dropout("drop", 0.3), lambda: Probe("probe")], ids=["dropout", "probe"]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_walk_outlives_its_net(part, begun, placed, rng):
    """19 b."""
    twins = Twins(lambda: placed(chain(part)))
    for number in range(4):
        x, _ = batch_of(rng)
        twins.forward(True, x)
        dy = rng.standard_normal((4, 3)).astype(np.float32)
        if number < 3:
            twins.walk(dy)
    walks = twins.both(lambda net, _: net.backward(dy))
    pairs = [[next(walk) for walk in walks]] if begun else []
    twins.nets = ()
    gc.collect()
    pairs += zip(*walks, strict=True)
    for one, two in pairs:
        expect_items_same(one, two)


@pytest.mark.parametrize("asked", ["one", "tanh", "two", "out"])
def test_gradients_of_layers_that_kept_nothing(asked, placed, rng):
    """19 c: an error by the layers is one by replays."""

    def make():
        net = chain()
        net.layers[0].trainable = False
        return placed(net)

    def walk(net, dy):
        return [(item.layer, item.output_grads.keys()) for item in net.backward(dy, [asked])]

    twins = Twins(make)
    for _ in range(5):
        twins.forward(True, batch_of(rng)[0])
        dy = rng.standard_normal((4, 3)).astype(np.float32)
        one, two = twins.both(lambda net, _, dy=dy: outcome(lambda: walk(net, dy)))
        assert one == two


@pytest.mark.parametrize("kind", [">i8", ">i4", ">i2"])
def test_labels_of_the_other_byte_order(kind, placed, rng):
    """19 d: taken or refused as by the layers."""
    twins = Twins(lambda: placed(chain()), sgd)
    for number in range(8):
        x, y = batch_of(rng)
        labels = y.astype(kind) if number % 2 else y
        one, two = twins.both(
            lambda net, optimizer, x=x, y=labels: outcome(lambda: net.step(x, y, optimizer))
        )
        assert one == two
        twins.expect_equal()


@pytest.mark.parametrize("caller", ["measure", "on_layer"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_step_within_a_step_is_refused_and_changes_nothing(caller, recorded):
    """By the layers its walk is lost, and a program would update behind the other's back."""
    net, rng = singanet.models.build("mlp", seed=0), np.random.default_rng(0)
    x = rng.standard_normal((4, *net.nodes()[0].layer.in_shapes), np.float32)
    y, optimizer, refused = np.zeros(4, np.int64), singanet.optimizer.SGD(lr=0.1), []
    net.programs.enabled = recorded
    twin = copy.deepcopy(net)

    def inside(*_):
        before = [value.copy() for value in net.param_values()]
        with pytest.raises(CallOrderError, match="no other step of the net under way"):
            net.step(x, y, optimizer)
        refused.append(all(map(np.array_equal, before, net.param_values())))
        # Another net may be trained, also a copy of this one.
        copy.deepcopy(net).step(x, y, singanet.optimizer.SGD(lr=0.1))
        return 0.5

    for _ in range(3):
        net.step(x, y, optimizer, **{caller: inside})
        twin.step(x, y, optimizer)
    assert refused
    assert all(refused)
    assert all(map(np.array_equal, net.param_values(), twin.param_values()))


def test_a_step_that_was_left_at_its_very_end_is_not_under_way():
    net, optimizer = singanet.models.build("mlp", seed=0), singanet.optimizer.SGD(lr=0.1)
    x = np.zeros((4, *net.nodes()[0].layer.in_shapes), np.float32)
    # As an interrupt leaves it that comes before the end is noted.
    net.programs._stepping = threading.get_ident()
    net.step(x, np.zeros(4, np.int64), optimizer)
    assert net.programs._stepping is None
