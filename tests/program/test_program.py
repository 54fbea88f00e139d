"""Programs recorded by hand, and programs of copies, threads, errors and ready nets."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet.engine.backward import ones
from singanet.errors import ArgumentError, CallOrderError, ShapeError, SingaNetError
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator
from singanet.program.programs import Programs
from singanet.testing import strict_device
from singanet.testing.device_like import device_like

from .program_case import IMAGES, adam, image_net, residual_net, vectors
from .test_changes import by_hand, run
from .twins import Twins, expect_same

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
    caught = []

    def work():
        try:
            made.run(X, Y)
        except CallOrderError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "another thread" in caught[0]


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
    wrong, together = [], threading.Barrier(3)

    def work():
        together.wait()
        for _ in range(10):
            for (x, _), out in zip(BATCHES, wanted, strict=True):
                if not np.array_equal(net.forward(False, x), out):
                    wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(3)]
    # Threads take turns at nearly every instruction.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
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
