"""Programs recorded by hand, and programs of copies, threads, errors and ready nets."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import singanet
import singanet.program
from singanet import FeedForwardNet
from singanet.engine.backward import ones
from singanet.errors import ArgumentError, CallOrderError, ShapeError, SingaNetError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByValue, Regularizer
from singanet.program.programs import Programs
from singanet.testing import strict_device
from singanet.testing.device_like import device_like
from tests.kit.threads import in_threads

from .program_case import (
    ACCUMULATING,
    CHAIN,
    IMAGES,
    WORDS,
    adam,
    chain,
    image_net,
    residual_net,
    sgd,
    vectors,
    word_net,
)
from .test_changes import by_hand, run
from .twins import Twins, expect_same
from .user_parts import Alike, Breaks

BATCHES = IMAGES.batches(12, 8)
X, Y = BATCHES[0]

# -- recorded by hand -----------------------------------------------------------------------


def test_recording_leaves_all_as_it_was():
    made, optimizer = image_net(), adam()
    before = [value.copy() for value in made.param_values()]
    draws = made.rng.bit_generator.state
    program = made.record(X, Y, optimizer)
    made.record(X)
    expect_same(before, made.param_values())
    assert made.rng.bit_generator.state == draws
    assert optimizer.state_dict() == {}
    assert program.notes == []


def test_steps_equal_those_by_the_layers():
    """So do evaluations, and steps that are not by hand between them."""
    twins, made = by_hand()
    shown = twins.recorded.record(X)
    for number, (x, y) in enumerate(BATCHES):
        if number % 3 == 2:
            twins.step(x, y)
        else:
            run(twins, made, x, y)
        np.testing.assert_array_equal(shown.run(x), twins.nets[1].forward(False, x))


@pytest.mark.parametrize("given", [{"y": Y}, {"optimizer": adam()}])
def test_targets_go_with_an_optimizer(given):
    with pytest.raises(ArgumentError, match="neither"):
        image_net().record(X, **given)


def test_wrong_batches_are_refused_at_the_recording_or_the_run():
    with pytest.raises(ShapeError, match="'conv'"):
        image_net().record(np.zeros((8, 1, 6, 6), np.float32))
    twins, made = by_hand()
    run(twins, made, X, Y)
    wrong = [made.run, lambda x, y: twins.nets[1].step(x, y, twins.optimizers[1])]
    for act in wrong:
        with pytest.raises(SingaNetError, match="'out'"):
            act(X, Y + 5)
    twins.expect_equal()
    for given, words in (
        ((X[:3], Y[:3]), r"\(8, 2, 6, 6\).*\(3, 2, 6, 6\).*rerecord=True"),
        ((X, Y, np.ones(8, np.float32)), "float32 weights"),
        ((X, Y.astype(np.uint8)), r"\(8,\) int64 with no weights; received \(8,\) uint8"),
    ):
        with pytest.raises(CallOrderError, match=words):
            made.run(*given)
        twins.expect_equal()
    run(twins, made, X, Y)


def test_a_net_on_another_device_is_recorded_there():
    made = image_net()
    wanted = made.forward(False, X)
    made.to_device(strict_device())
    program = made.record(device_like.asarray(X))
    for timed in (False, True):
        found = program.run(device_like.asarray(X), timed=timed)
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-5)
    assert "forward" in str(program.report())


def test_another_shape_is_recorded_again_where_asked():
    twins, made = by_hand(rerecord=True)
    for size in (8, 3, 3, 8):
        run(twins, made, *IMAGES.batches(1, size)[0])
    run(twins, made, X, Y, np.linspace(0, 2, 8))
    run(twins, made, X, Y)


def test_another_thread_is_refused():
    _, made = by_hand()
    with pytest.raises(CallOrderError, match="another thread"):
        in_threads(lambda: made.run(X, Y))


def test_timed_runs_are_steps_whose_kernels_are_measured():
    twins, made = by_hand()
    for x, y in BATCHES[:3]:
        assert made.run(x, y, timed=True) == twins.nets[1].step(x, y, twins.optimizers[1])
        twins.expect_equal()
    report = made.report()
    assert report.seconds is not None
    assert len(report.seconds) == len(report.kernels)
    assert all(seconds >= 0 for seconds in report.seconds)
    assert sum(report.seconds) > 0


def test_loss_that_cannot_be_recorded_is_said_to_be_a_python_step():
    class Mine(SoftmaxCrossEntropy):
        pass

    made = image_net()
    made.loss = Mine()
    assert any("loss" in note for note in made.record(X, Y, SGD(lr=0.1)).notes)


# -- states, copies, threads ----------------------------------------------------------------


def test_nets_interleaved_do_not_meet(rng):
    pairs = [Twins(image_net, adam), Twins(residual_net, adam), Twins(image_net, adam)]
    pairs[2].optimizers = pairs[0].optimizers
    for number, (x, y) in enumerate(BATCHES[:6]):
        pairs[0].step(x, y)
        pairs[1].step(vectors(rng, 4, 6), vectors(rng, 4, 3))
        if number % 2:
            pairs[2].step(x[::-1], y[::-1])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_the_net_records_for_itself(duplicate):
    twins = Twins(image_net, adam)
    twins.train(BATCHES[:4])
    copied = [duplicate(net) for net in twins.nets]
    assert copied[0].programs.reports() == []
    kept = [value.copy() for value in twins.recorded.param_values()]
    other = Twins(lambda: copied.pop(0), adam)
    other.train(BATCHES[4:])
    other.expect_recorded()
    expect_same(twins.recorded.param_values(), kept)
    twins.train(BATCHES[4:])


def test_threads_have_programs_of_their_own():
    net, twin = image_net(), image_net()
    # Parameters are filled at the first use, which is one thread's.
    assert net.param_values()
    twin.programs.enabled = False
    wanted = [twin.forward(False, x) for x, _ in BATCHES]
    together = threading.Barrier(3)

    def work():
        together.wait()
        for _ in range(10):
            for (x, _), out in zip(BATCHES, wanted, strict=True):
                np.testing.assert_array_equal(net.forward(False, x), out)

    # Threads take turns at nearly every instruction.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(*[work] * 3)
    finally:
        sys.setswitchinterval(interval)
    assert len(net.programs.reports()) == 3


def test_two_threads_may_drop_the_same_program():
    """Each looks for the oldest beyond the capacity, and both may find the same."""
    net = image_net()
    for _ in range(3):
        net.forward(False, X)
    ((key, program),) = net.programs._every()
    net.programs._drop(key, program)
    net.programs._drop(key, program)
    assert net.programs.reports() == []
    np.testing.assert_array_equal(net.forward(False, X), net.forward(False, X))


# -- errors ---------------------------------------------------------------------------------


# -- memory, and what is recorded when ------------------------------------------------------


def test_cleared_programs_give_their_memory_back():
    data = IMAGES.batches(4, 256)
    # Imports, and what NumPy and Python keep for good.
    twins = Twins(image_net, adam)
    for x, y in data:
        twins.step(x, y)
        twins.forward(False, x)
    del twins
    net, optimizer = image_net(), adam()
    net.step(*data[0], optimizer)
    gc.collect()
    tracemalloc.start()
    try:
        for x, y in data:
            net.step(x, y, optimizer)
            net.forward(False, x)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        net.programs.clear()
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # An image's four maps of 4 × 4, forward and back, are 2 KB at the least.
    assert held > 256 * 2048
    assert left < 200_000


NAMES = [
    "lenet", "lstm", "mlp", "resnet20", "preresnet20", "char_rnn", "transformer", "wide_deep",
    "deepfm", "autoencoder",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.full
def test_ready_nets_in_the_callers_loop(name, rng):
    twins = Twins(lambda: singanet.models.build(name, seed=0), adam)
    net = twins.recorded

    def drawn(array):
        if isinstance(array, (list, dict)):
            parts = array.items() if isinstance(array, dict) else enumerate(array)
            made = {key: drawn(part) for key, part in parts}
            return made if isinstance(array, dict) else [*made.values()]
        if array.dtype.kind != "f":
            return rng.integers(0, 2, array.shape).astype(array.dtype)
        return rng.standard_normal(array.shape).astype(array.dtype)

    for _ in range(4):
        x = drawn(ones(net._execution_plan(), 2, net.device, 5))
        dy = drawn(twins.forward(True, x)[0])
        twins.loop(x, dy)
        twins.forward(False, x)
    twins.expect_recorded()


@pytest.mark.parametrize(
    ("at_once", "firsts"), [(False, [True, False, False]), (True, [False] * 3)]
)
def test_memory_is_not_given_back_before_a_batch_that_is_not_recorded(at_once, firsts, monkeypatch):
    seen: list[bool] = []
    real = Programs._before_recording
    monkeypatch.setattr(
        Programs, "_before_recording", lambda self, first: seen.append(first) or real(self, first)
    )
    net = image_net()
    net.programs.at_once = at_once
    for _ in range(3):
        net.forward(False, X[:0])
    assert net.programs.refusals == ["a batch of no samples"]
    assert seen == firsts


def test_a_first_call_by_the_layers_does_not_run_beside_the_arena(monkeypatch):
    """Of other micro-batches: both together took as much as two arenas."""
    taken: list[int] = []
    net, rule = image_net(), Accumulator(SGD(lr=0.1), 3)
    real = net.programs._layers.train

    def train(*given):
        taken.append(sum(map(len, net.programs._arena._free)))
        return real(*given)

    monkeypatch.setattr(net.programs._layers, "train", train)
    for _ in range(9):
        net.step(X, Y, rule)
    assert taken
    assert not any(taken)
    assert net.programs._arena._free


# -- The room itself ------------------------------------------------------------------------


def test_every_public_name_is_there():
    for name in singanet.program.__all__:
        assert getattr(singanet.program, name).__name__ == name
    with pytest.raises(AttributeError, match="singanet.program: .*'Recorder'"):
        _ = singanet.program.Recorder


def test_nets_import_no_recorder_until_they_record():
    late = ("recording", "recomputing", "reporting", "replaying.replay")
    names = [f"singanet.program.{name}" for name in late]
    code = f"import sys, singanet; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- Errors, and what recording leaves behind -----------------------------------------------


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


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("level", ["none", "cheap"])
def test_parameters_in_half_precision_are_refused_at_every_step(make, level, placed):
    def half_net():
        net = chain()
        net.as_type(np.float16)
        return placed(net)

    twins = Twins(half_net, make)
    twins.recorded.programs.recompute = level
    for x, y in CHAIN.batches(5):
        twins.outcomes(lambda net, rule, x=x, y=y: net.step(x, y, rule))


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
