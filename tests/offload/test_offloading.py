"""Offloaded nets train as nets in memory do, to the bit; their folder is a checkpoint."""

import copy
import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet import errors
from singanet import optimizer as opt
from singanet.engine.plan import run_step
from singanet.errors import ArgumentError, CallOrderError, FileAccessError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SquaredError
from singanet.offload.generation import PlacedFile
from singanet.offload.shelf import Room
from singanet.optimizer import SGD, Adam
from singanet.parallel import AllReduce, LocalSGD
from singanet.testing import communicators
from singanet.training.callbacks import ModelCheckpoint
from tests.keeping import WAYS, keeping_net
from tests.offload.twins import KEEP, WIDTH, Twins, arrays_of, batch, expect_same, net_of


@pytest.fixture
def x_y():
    return batch()


RULES = [
    partial(getattr(opt, name), lr=0.01)
    for name in (
        "AMSGrad", "AdaGrad", "AdaLomo", "Adadelta", "Adafactor", "Adam", "AdamW", "Adamax",
        "FactoredAdam", "LAMB", "Lion", "Muon", "NAdam", "Nesterov", "RAdam", "RMSProp",
    )
]  # fmt: skip
RULES += [partial(SGD, lr=0.1, momentum=0.9), partial(opt.GaLore, lr=0.01, rank=16, refresh=2)]
ALL = 3_000_000


@pytest.mark.parametrize("keep", [KEEP, ALL])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_recorded_and_those_in_memory(tmp_path, x_y, rule, keep):
    twins = Twins(net_of, tmp_path / "net", keep, rule)
    twins.step(*x_y, times=3)
    assert twins.net.executor.programs.reports()
    assert not twins.net.executor.programs.refusals
    assert twins.net.executor.shelf.peak <= keep
    twins.expect_same()
    np.testing.assert_array_equal(twins.net.predict(x_y[0]), twins.plain.predict(x_y[0]))
    twins.net.onload()
    twins.step(*x_y, times=3)  # recorded, too
    twins.expect_same()


@pytest.mark.parametrize("extra", [{}, {"clip": 0.5, "clip_by": "global"}, {"accumulate": 2}])
def test_fit_evaluate_and_checkpoints_are_those_in_memory(tmp_path, extra):
    data, nets = batch(samples=16), [net_of(), net_of()]
    for k, net in enumerate(nets):
        net.compile(Adam(lr=0.01))
        if k:
            net.offload(tmp_path / "net", KEEP)
        keeps = [ModelCheckpoint(tmp_path / f"{k}")]
        net.told = net.fit(*data, 4, 2, callbacks=keeps, verbose=False, **extra)
    plain, net = nets
    assert net.told == plain.told
    assert net.evaluate(*data).logs == plain.evaluate(*data).logs
    saved = [dict(np.load(tmp_path / f"{k}" / "epoch-0002.npz")) for k in (0, 1)]
    expect_same({**saved[1], "session": 0}, {**saved[0], "session": 0})


@pytest.mark.parametrize("way", [
    AllReduce, partial(AllReduce, dtype="float16"), partial(LocalSGD, every=2),
    lambda rule, comm: AllReduce(opt.ClipByGlobalNorm(rule, 0.1), comm),
    lambda rule, comm: opt.Accumulator(AllReduce(rule, comm), 2),
])  # fmt: skip
def test_ranks_that_sum_gradients_train_as_in_memory(tmp_path, way):
    x, y = batch(samples=8)

    def train(folder, comm):
        net, rule = net_of(), way(Adam(lr=0.01), comm)
        if folder is not None:
            net.offload(folder / f"{comm.rank}", KEEP, optimizer=rule)
        own = slice(comm.rank, None, comm.size)
        found = []
        for _ in range(4):
            net.step(x[own], y[own], rule)
            found.append(arrays_of(net))
            if folder is not None:
                assert net.executor.programs.reports() or len(found) < 3
                assert net.executor.shelf.peak <= KEEP
                other = net_of()
                other.load(folder / f"{comm.rank}")
                expect_same(arrays_of(other), found[-1])
        return found, rule.state_dict()

    with communicators(2) as comms:
        plain = comms.run(partial(train, None))
    with communicators(2) as comms:
        offloaded = comms.run(partial(train, tmp_path))
    for (found, state), (wanted, other) in zip(offloaded, plain, strict=True):
        for at, after in zip(found, wanted, strict=True):
            expect_same(at, after)
        expect_same(state, other)


LEFT_OPEN = """
import sys, time
from tests.offload.twins import KEEP, batch, net_of
net, (x, y) = net_of(), batch()
net.offload(sys.argv[1], KEEP)
walk = net.backward(net.forward(True, x) - y)
next(walk)
time.sleep(0.5)  # until the folder's thread has nothing to do
"""


ROOT = Path(__file__).parents[2]


def test_a_walk_that_is_left_open_lets_the_process_end(tmp_path):
    call = [sys.executable, "-c", LEFT_OPEN, str(tmp_path / "net")]
    subprocess.run(call, check=True, timeout=60, cwd=ROOT)


def test_own_loops_may_update_values_in_place(tmp_path, x_y):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    for _ in range(2):
        for each, rule in twins.each():
            for names, values, grads in each.backward(each.forward(True, x_y[0]) - x_y[1]):
                rule.update(names, values, grads)
                for value in values:
                    value -= 1e-3
    twins.expect_same()
    assert twins.net.executor.shelf.peak <= KEEP
    for each, _ in twins.each():  # broken off after a layer
        walk = each.backward(each.forward(True, x_y[0]) - x_y[1])
        _, values, grads = next(walk)
        values[0] -= grads[0]
        walk.close()
    twins.expect_same()


def _predicts(net, item, seen):
    seen.append(net.predict(batch(5)[0]))


def _looks_at_others(net, item, seen):
    seen += [param.peek().copy() for param in net.params()]


def _changes_others(net, item, seen):
    for layer in net.layers:
        if layer.name != item.layer and layer.name.startswith("fc"):
            layer.params["weight"].value[...] *= 0.9


def _puts(net, item, seen):
    for layer in net.layers:
        if layer.name.startswith("fc"):
            values = layer.params["weight"].peek()
            layer.params["weight"].put(values * 0.9)


def _walks_again(net, item, seen):
    for _, values, grads in net.backward(net.forward(True, batch(2)[0]) - batch(2)[1]):
        for value, grad in zip(values, grads, strict=True):
            value -= np.float32(1e-5) * grad


def _steps(net, item, seen):
    seen.append(net.step(*batch(3), SGD(lr=0.1)))


@pytest.mark.parametrize("keep", [KEEP, ALL])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "act", [_predicts, _looks_at_others, _changes_others, _puts, _walks_again, _steps]
)
def test_what_a_loop_does_between_layers(tmp_path, x_y, act, first, keep):
    twins = Twins(net_of, tmp_path / "net", keep, optimizer=None)
    seen = {id(net): [] for net, _ in twins.each()}
    for _ in range(2):
        for net, rule in twins.each():
            for item in net.backward(net.forward(True, x_y[0]) - x_y[1]):
                if not first:
                    rule.update(*item)
                act(net, item, seen[id(net)])
                if first:
                    params = {param.name: param for param in net.params()}
                    rule.update(item.names, [params[n].value for n in item.names], item.grads)
        twins.expect_same()
    for one, other in zip(*seen.values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("keep", [KEEP, ALL])
def test_steps_with_a_hook_and_own_loops_are_recorded(tmp_path, x_y, keep):
    twins = Twins(net_of, tmp_path / "net", keep)
    seen = {id(net): [] for net, _ in twins.each()}
    for _ in range(3):
        for net, rule in twins.each():

            def look(item, net=net):
                seen[id(net)].extend(value.copy() for value in item.values)

            net.step(*x_y, rule, look)
            for item in net.backward(net.forward(True, x_y[0]) - x_y[1]):
                rule.update(*item)
        twins.expect_same()
    for one, other in zip(*seen.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(twins.net.executor.programs.reports()) == 1
    assert not twins.net.executor.programs.refusals
    assert twins.net.executor.shelf.peak <= keep


def test_gradients_are_those_in_memory(tmp_path, x_y):
    plain, net = net_of(), net_of()
    net.offload(tmp_path / "net", KEEP)
    wanted = ["fc0/weight", "fc2", "input"]
    feed = {"input": x_y[0], "targets": x_y[1]}
    expect_same(*(each.gradients("loss", wanted, feed) for each in (net, plain)))
    for one, other in zip(net.train(*x_y)[0], plain.train(*x_y)[0], strict=True):
        assert one is other is None or np.array_equal(one, other)


def test_shared_frozen_and_added_parameters(tmp_path, x_y):
    nets = []
    for k in range(2):
        net = singanet.FeedForwardNet(loss=SquaredError(), seed=1)
        one = net.add(Dense("one", WIDTH, input_sample_shape=(WIDTH,)))
        shared = net.add(Dense("two", WIDTH, use_bias=False), one)
        net.add(Dense("three", WIDTH, W_specs=shared.params["weight"], use_bias=False), shared)
        one.trainable = False
        rule = Adam(lr=0.01)
        if k:
            net.offload(tmp_path / "net", KEEP)
        net.step(*x_y, rule)
        one.trainable = True
        net.step(*x_y, rule)
        net.add(Dense("top", WIDTH))
        net.step(*x_y, rule)
        net.step(*x_y, rule)
        nets.append(net)
    expect_same(arrays_of(nets[1]), arrays_of(nets[0]))
    assert not nets[1].layers[-1].params["weight"].storage.in_memory
    expect_same(arrays_of(copy.deepcopy(nets[1])), arrays_of(nets[0]))


@pytest.mark.parametrize("way", ["predict", "loop", "gradients"])
@pytest.mark.parametrize("stepped", [False, True])
def test_layers_that_are_added_go_to_the_folder_before_any_pass(tmp_path, x_y, way, stepped):
    twins, made, added = Twins(net_of, tmp_path / "net", KEEP), [], {"top/weight", "top/bias"}
    for each, rule in twins.each():
        if stepped:
            each.step(*x_y, rule)
        each.add(Dense("top", WIDTH))
        if way == "predict":
            made.append({"y": each.predict(x_y[0])})
        elif way == "loop":
            each.loss.forward(True, each.forward(True, x_y[0]), x_y[1])
            walk = each.backward(each.loss.backward())
            made.append(
                {n: g for names, _, grads in walk for n, g in zip(names, grads, strict=True)}
            )
        else:
            feed = {"input": x_y[0], "targets": x_y[1]}
            made.append(dict(enumerate(each.gradients("loss", ["top/weight", "fc0/weight"], feed))))
        assert added <= {param.name for param in each.params()}
    expect_same(*made)
    assert not twins.net.layers[-1].params["weight"].storage.in_memory
    twins.expect_same()


@pytest.mark.parametrize("rule", [
    lambda: opt.AccumulatingAdam(lr=0.01, every=2),
    lambda: opt.ClipByValue(Adam(lr=0.01), 0.1), lambda: opt.ClipByLayerNorm(Adam(lr=0.01), 0.1),
    lambda: opt.ClipByRunningNorm(Adam(lr=0.01), 1.5),
    lambda: opt.BlockCoordinate(Adam(lr=0.01), steps=2),
    lambda: opt.Accumulator(opt.ClipByGlobalNorm(Adam(lr=0.01), 0.1), 3),
    lambda: Adam(lr=0.01, constraint=opt.MaxNorm(0.5)),
    lambda: Adam(lr=0.01, regularizer=opt.L2Regularizer(lambda step: 0.1 / (1 + step))),
])  # fmt: skip
def test_stages_are_recorded_and_those_in_memory(tmp_path, x_y, rule):
    twins = Twins(net_of, tmp_path / "net", KEEP, rule)
    twins.step(*x_y, times=5)
    assert not twins.net.executor.programs.refusals
    twins.expect_same()


def test_a_read_that_fails_within_a_step_undoes_it(tmp_path, monkeypatch, x_y):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    twins.step(*x_y)
    reads, real = iter(range(1000)), PlacedFile.read

    def fails(self, *given):
        if next(reads) == 9 and threading.current_thread() is not threading.main_thread():
            raise FileAccessError("file", expected="bytes", received="none", advice="mend it")
        real(self, *given)

    draws = twins.net.rng.bit_generator.state
    with monkeypatch.context() as patch:
        patch.setattr(PlacedFile, "read", fails)
        with pytest.raises(FileAccessError, match="mend it"):
            twins.net.step(*x_y, twins.there)
    assert twins.net.rng.bit_generator.state == draws
    twins.expect_same()
    twins.step(*x_y, times=2)
    twins.expect_same()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_within_a_recorded_step_undoes_it(tmp_path, x_y, error):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    twins.step(*x_y)

    def raises(outputs, y):
        raise error

    with pytest.raises(error):
        twins.net.step(*x_y, twins.there, measure=raises)
    twins.step(*x_y, times=2)
    twins.expect_same()


@pytest.mark.parametrize("keep", [KEEP, ALL])
def test_what_runs_between_and_within_recorded_steps(tmp_path, x_y, keep):
    twins = Twins(net_of, tmp_path / "net", keep)
    seen = {id(net): [] for net, _ in twins.each()}
    for k in range(3):
        for net, rule in twins.each():

            def look(outputs, y, net=net):
                top = net.layers[-1].params["weight"].value.copy()
                seen[id(net)] += [net.predict(x_y[0][:2]), top]
                return 0.0

            net.step(*x_y, rule, measure=look)
            seen[id(net)] += [net.predict(x_y[0]), net.params()[0].peek().copy()]
            net.layers[0].params["weight"].value[...] *= 0.5
            net.layers[-1].params["weight"].put(np.full((WIDTH, WIDTH), k, np.float32))
            seen[id(net)].append(net.predict(x_y[0]))
    found, wanted = seen.values()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    twins.expect_same()


def test_threads_predict_at_once(tmp_path, x_y):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    wanted = twins.plain.predict(x_y[0])
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: twins.net.predict(x_y[0]), range(12)):
            np.testing.assert_array_equal(found, wanted)


def test_a_walk_does_not_go_on_within_a_step(tmp_path, x_y):
    net = net_of()
    net.offload(tmp_path / "net", KEEP)
    walk = net.backward(net.forward(True, x_y[0]) - x_y[1])
    next(walk)
    with pytest.raises(CallOrderError, match="continues within it"):
        net.step(*x_y, SGD(lr=0.1), measure=lambda *_: next(walk))


def test_a_step_within_a_step_is_refused(tmp_path, x_y):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    twins.step(*x_y)
    with pytest.raises(CallOrderError, match="from within one"):
        twins.net.step(*x_y, twins.there, measure=lambda *_: twins.net.step(*x_y, twins.there))
    twins.step(*x_y)
    twins.expect_same()


def test_state_of_a_checkpoint_goes_to_the_folder(tmp_path, x_y):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    twins.step(*x_y, times=2)
    for _, rule in twins.each():
        rule.load_state_dict(twins.here.state_dict())
    twins.step(*x_y, times=2)
    twins.expect_same()
    assert twins.there.state("fc1/weight").is_away


@pytest.mark.parametrize("keep", [KEEP, ALL])
def test_values_may_be_changed_between_steps(tmp_path, x_y, keep):
    twins = Twins(net_of, tmp_path / "net", keep)
    for each, rule in twins.each():
        each.step(*x_y, rule)
        each.layers[0].params["weight"].value[...] *= 0.5
        each.layers[-1].params["weight"].value = np.ones((WIDTH, WIDTH), np.float32)
        held = each.layers[0].params["weight"].value
        each.step(*x_y, rule)
    twins.expect_same()
    with pytest.raises(ValueError, match="read-only"):  # no longer the net's: nothing gets lost
        held[0] = 0
    for copied in (copy.deepcopy(twins.net), pickle.loads(pickle.dumps(twins.net))):
        expect_same(arrays_of(copied), arrays_of(twins.plain))
        assert copied.step(*x_y, SGD(lr=0.1))


def test_changed_values_stay_when_the_optimizers_state_gets_its_place(tmp_path, x_y):
    plain, net = net_of(), net_of()
    net.offload(tmp_path / "net", KEEP)
    for each in (plain, net):
        top = each.layers[-1]
        top.trainable = False
        top.params["weight"].value = np.ones((WIDTH, WIDTH), np.float32)
        each.step(*x_y, Adam(lr=0.01))
    net.executor.end()
    again = net_of()
    again.layers[-1].trainable = False
    again.offload(tmp_path / "net", KEEP, optimizer=Adam(lr=0.01), resume=True)
    expect_same(arrays_of(again), arrays_of(plain))


def test_what_a_hook_changes_is_kept_and_what_nobody_changes_is_not_written(tmp_path, x_y):
    def halve(item):
        for value in item.values:
            value *= 0.5

    plain, net = net_of(), net_of()
    net.offload(tmp_path / "net", KEEP)
    latest = tmp_path / "net" / "latest"
    for each in (plain, net):
        gathering = opt.Accumulator(SGD(lr=0.1), 3)
        each.step(*x_y, gathering, halve)
        before = latest.read_text("ascii")
        each.step(*x_y, gathering)
    # A gradient was added, and that is all.
    assert latest.read_text("ascii") == before
    net.executor.end()
    again = net_of()
    again.offload(tmp_path / "net", KEEP, optimizer=SGD(lr=0.1), resume=True)
    found, wanted = arrays_of(again), arrays_of(plain)
    trained = [param.name for param in plain.params() if not param.is_state]
    assert all(np.array_equal(found[name], wanted[name]) for name in trained)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5", "bin", "pickle"])
def test_files_are_read_and_written_one_array_at_a_time(tmp_path, suffix):
    plain, net = net_of(), net_of(seed=4)
    plain.save(tmp_path / f"plain.{suffix}")
    net.offload(tmp_path / "net", 310_000)
    net.load(tmp_path / f"plain.{suffix}")
    net.save(tmp_path / f"net.{suffix}")
    assert net.executor.shelf.peak <= 310_000
    other = net_of(seed=5)
    other.load(tmp_path / f"net.{suffix}")
    expect_same(arrays_of(other), arrays_of(plain))
    net.save_model(tmp_path / "net.singanet")
    expect_same(arrays_of(singanet.load_model(tmp_path / "net.singanet")), arrays_of(plain))


def test_a_net_is_filled_in_the_folder(tmp_path):
    net = net_of()
    net.offload(tmp_path / "net", KEEP)
    assert not any(layer.params["weight"].storage.in_memory for layer in net.layers[4:])
    expect_same(arrays_of(net), arrays_of(net_of()))
    assert not net.executor.notes


def test_going_on_from_the_folder(tmp_path, x_y):
    twins, folder = Twins(net_of, tmp_path / "net", KEEP), tmp_path / "net"
    twins.step(*x_y, times=2)
    twins.net.executor.end()
    net = twins.net = net_of()
    twins.there = Adam(lr=0.01)
    net.offload(folder, KEEP, optimizer=twins.there, resume=True)
    twins.step(*x_y, times=2)
    twins.expect_same()
    net.onload()
    wrong = net_of()
    before = arrays_of(wrong)
    of_adam = "earlier training: the folder has 'optimizer/fc0/bias/"
    for optimizer, match in [
        (None, f"{of_adam}.*; received none;"),
        (SGD(lr=0.1, momentum=0.9), f"{of_adam}.*; received a SGD;"),
        (opt.AMSGrad(lr=0.01), "earlier training: the folder has no 'optimizer/fc0/.*a AMSGrad;"),
    ]:
        with pytest.raises(errors.DataError, match=match):
            wrong.offload(folder, KEEP, optimizer=optimizer, resume=True)
    narrow = singanet.FeedForwardNet([Dense("fc0", 3, input_sample_shape=(WIDTH,))])
    with pytest.raises(errors.StateMismatchError, match="fc0/weight"):
        narrow.offload(folder, resume=True)
    expect_same(arrays_of(wrong), before)
    net_of().offload(folder, KEEP, optimizer=Adam(lr=0.01), resume=True)


KILLED = """
import sys
import singanet.program.loads
from singanet.optimizer import Adam
from tests.offload.twins import KEEP, batch, net_of
singanet.program.loads.SMALL = 0
net, rule, x_y = net_of(), Adam(lr=0.01), batch()
net.offload(sys.argv[1], KEEP, activations=True)
while True:
    net.step(*x_y, rule)
    print(rule.state("fc0/weight").step, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_a_killed_process_loses_at_most_a_step(tmp_path, x_y):
    call = [sys.executable, "-c", KILLED, str(tmp_path / "net")]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        # Killed wherever its steps are once it was found to hold the files.
        line = process.stdout.readline()
        with pytest.raises(FileAccessError, match=f"process {process.pid}"):
            net_of().offload(tmp_path / "net", resume=True, optimizer=Adam(lr=0.01))
        process.kill()
        told = int([line, *process.stdout.readlines()][-1])
    files = {path.name.partition(".")[0] for path in (tmp_path / "net").iterdir()}
    assert files - {"a", "b", "latest", ""} == set()
    net, rule = net_of(), Adam(lr=0.01)
    net.offload(tmp_path / "net", KEEP, optimizer=rule, resume=True)
    steps = rule.state("fc0/weight").step
    assert told <= steps <= told + 1
    plain, own = net_of(), Adam(lr=0.01)
    for _ in range(steps):
        plain.step(*x_y, own)
    expect_same(arrays_of(net), arrays_of(plain))
    assert net.step(*x_y, rule) == plain.step(*x_y, own)


@pytest.mark.parametrize("at", range(0, 26, 5))
def test_a_full_disk_undoes_the_step(tmp_path, monkeypatch, x_y, at):
    twins = Twins(net_of, tmp_path / "net", KEEP)
    twins.expect_a_full_disk_undoes_a_step(x_y, at, monkeypatch)


@pytest.mark.parametrize("activations", [False, True])
def test_a_vanished_folder_is_told_and_loses_nothing(tmp_path, activations):
    x_y = batch(samples=256 if activations else 4)
    twins = Twins(net_of, tmp_path / "net", KEEP, activations=activations)
    twins.step(*x_y)
    shutil.rmtree(tmp_path / "net")
    with pytest.raises(FileAccessError, match="net" if activations else "latest"):
        twins.net.step(*x_y, twins.there)
    expect_same(arrays_of(twins.net), arrays_of(twins.plain))
    (tmp_path / "net").mkdir()
    with pytest.raises(CallOrderError):
        twins.net.offload(tmp_path / "elsewhere")
    twins.net.onload()
    twins.step(*x_y)


def test_a_disk_that_is_full_from_the_start(tmp_path, monkeypatch):
    net = net_of()
    before = arrays_of(net)

    def full(handle, start, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileAccessError, match="No space"):
        net.offload(tmp_path / "net")
    assert not (tmp_path / "net").exists()
    expect_same(arrays_of(net), before)


def test_folders_that_cannot_be(tmp_path):
    net, mine = net_of(), tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    for folder, options, match in [
        (mine, {}, r"notes\.txt"), (mine / "notes.txt", {}, "mine"),
        (tmp_path / "a" / "b", {}, "a"),
        (tmp_path / "no", {"resume": True}, "received none"),
    ]:  # fmt: skip
        with pytest.raises(FileAccessError, match=match):
            net.offload(folder, **options)
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(FileAccessError):
            net.offload(tmp_path / "closed")
    for keep in (0, -1, "much", 1.5, None, True):
        with pytest.raises(ArgumentError, match="keep"):
            net.offload(tmp_path / "new", keep)
    with pytest.raises(ArgumentError, match="layer 'fc"):
        net.offload(tmp_path / "new", "100kB")
    assert [path.name for path in tmp_path.iterdir()] in (["mine"], ["mine", "closed"])
    with pytest.raises(CallOrderError):
        net.onload()


def test_calls_that_an_offloaded_net_takes_and_files_that_are_none_of_its(tmp_path, x_y):
    net, other, folder = net_of(), net_of(), tmp_path / "new"
    net.offload(folder, 110_000)
    with pytest.raises(ArgumentError, match="keep"):
        net.step(*x_y, Adam(lr=0.1))
    net.step(*x_y, SGD(lr=0.1))
    for options, match in [({}, "resume=True"), ({"resume": True}, "no other training")]:
        with pytest.raises(FileAccessError, match=match):
            other.offload(folder, **options)
    for call in (lambda: net.as_type("float64"), lambda: net.memory(4)):
        with pytest.raises(CallOrderError):
            call()
    found, wanted = net.predictor()(x_y[0]), net.predict(x_y[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert net.dtype == np.float32
    net.onload()
    (folder / "latest").write_text("../notes")
    with pytest.raises(errors.FileFormatError, match="latest"):
        other.offload(folder, resume=True)
    (folder / "latest").write_text("a.safetensors")
    for content in (b"no such thing", b"", bytes(16), b"\x01" + bytes(7)):
        (folder / "a.safetensors").write_bytes(content)
        with pytest.raises(errors.FileFormatError):
            other.offload(folder, resume=True)
    assert (folder / "b.safetensors").exists()


LARGE = """
import sys
from pathlib import Path
import numpy as np
import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import Adam

def resident(key):
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

def run(depth, width, keep, folder):
    layers = [Dense(f"fc{k}", width, input_sample_shape=(width,)) for k in range(depth)]
    net, rule = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=1), Adam(lr=1e-4)
    net.offload(folder, keep)
    for _ in range(2):
        net.step(np.ones((2, width), "f"), np.zeros((2, width), "f"), rule)

# It compiles what the large one calls.
run(2, 300, "2MB", sys.argv[1] + "/small")
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
run(12, 1024, "30MB", sys.argv[1] + "/large")
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.full
def test_a_net_larger_than_the_memory_it_gets(tmp_path):
    call = [sys.executable, "-c", LARGE, str(tmp_path)]
    told = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "large" / "a.safetensors").stat().st_size > 150_000_000
    # What is kept, a layer's gradient and new state, and threads' scratch.
    assert int(told) < 80_000_000


class Plain(SGD):
    """A user's optimizer that keeps state of its own."""

    def update(self, names, values, grads, scale=1.0):
        self.seen = getattr(self, "seen", {})
        for name, value, grad in zip(names, values, grads, strict=True):
            self.seen[name] = self.seen.get(name, 0) + grad
            value -= np.float32(0.01) * self.seen[name]


class Foreign:
    """One that has nothing of the library's."""

    def register_all(self, specs):
        pass

    update = Plain.update


@pytest.mark.parametrize("rule", [lambda: Plain(lr=1.0), Foreign])
def test_an_optimizer_of_the_users_own(tmp_path, x_y, rule):
    twins = Twins(net_of, tmp_path / "net", KEEP, rule)
    twins.step(*x_y, times=3)
    expect_same(arrays_of(twins.net), arrays_of(twins.plain))


@pytest.mark.parametrize("keep", [310_000, 620_000])
@pytest.mark.parametrize("way", WAYS)
def test_layers_may_keep_arrays(tmp_path, x_y, way, keep):
    twins = Twins(partial(keeping_net, WIDTH, way), tmp_path / "net", keep)
    twins.step(*x_y, times=3)
    twins.expect_same()


def test_memory_is_used_again(tmp_path, x_y, monkeypatch):
    net, rule, made, new = net_of(), Adam(lr=0.01), [], Room.new
    monkeypatch.setattr(Room, "new", lambda self, nbytes: made.append(nbytes) or new(self, nbytes))
    net.offload(tmp_path / "net", KEEP)
    for _ in range(3):
        net.step(*x_y, rule)
    known = len(made)
    for _ in range(5):
        net.step(*x_y, rule)
    # Each of these steps reads eleven arrays; the thread may have one for a moment longer.
    assert len(made) - known <= 5


def test_layers_may_not_write_on_arrays(tmp_path, x_y):
    net = keeping_net(WIDTH)
    net.offload(tmp_path / "net", KEEP)
    net.layers[2].spoils = True
    with pytest.raises(ValueError, match="read-only"):
        net.step(*x_y, Adam(lr=0.01))


def test_layers_that_run_again(tmp_path, x_y):
    def make():
        net = net_of()
        net.programs.recompute, net.layers[4].recompute = "cheap", True
        return net

    twins = Twins(make, tmp_path / "net", KEEP)
    twins.step(*x_y, times=3)
    twins.expect_same()


def test_layers_that_run_again_are_not_all_in_memory(tmp_path, x_y, monkeypatch):
    net, held = net_of(), []

    def runs(*arguments, **named):
        y, ctx = run_step(*arguments, **named)
        large = [a for a in ctx.params.values() if a.nbytes > 1 << 16]
        held.append(bool(large) and isinstance(ctx.params, dict))
        return y, ctx

    monkeypatch.setattr("singanet.engine.recompute.by_layers.run_step", runs)
    net.programs.enabled, net.programs.recompute = False, "sqrt"
    net.offload(tmp_path / "net", KEEP)
    for _ in net.backward(net.forward(True, x_y[0]) - x_y[1]):
        pass
    assert held
    assert not any(held)


@pytest.mark.parametrize("small", [8, 1 << 16])
@pytest.mark.parametrize("level", ["layers", "sqrt"])
def test_own_loops_over_layers_that_run_again_have_two_layers_at_most(
    tmp_path, x_y, level, small, monkeypatch
):
    # A stored array, or a part of one, may be small.
    monkeypatch.setattr("singanet.offload.offloaded.SMALL", small)

    def make():
        net = net_of()
        net.programs.recompute = "none" if level == "layers" else level
        for layer in net.layers[1:] if level == "layers" else ():
            layer.recompute = True
        return net

    twins = Twins(make, tmp_path / "net", 250_000, lambda: SGD(lr=0.01))
    for each, rule in twins.each():
        for item in each.backward(each.forward(True, x_y[0]) - x_y[1]):
            rule.update(*item)
    twins.expect_same()
    assert twins.net.executor.shelf.peak <= 250_000


class OwnLoss(SquaredError):  # noqa: N818
    """A user's loss, which is a Python step."""

    def forward(self, flag, x, y, sample_weight=None):
        return 2 * super().forward(flag, x, y.copy(), sample_weight)

    def backward(self):
        return 2 * super().backward()


@pytest.mark.parametrize("loss", [SquaredError, OwnLoss])
@pytest.mark.parametrize("extra", [{}, {"clip": 0.5, "clip_by": "global"}, {"accumulate": 2}])
@pytest.mark.parametrize("broken", [False, True])
def test_mixed_precision_is_that_in_memory(tmp_path, loss, extra, broken):
    wide, nets = 240, []
    x, y = np.random.default_rng(0).standard_normal((2, 8, wide), np.float32)
    for k in (0, 1):
        layers = [Dense("a", wide, input_sample_shape=(wide,)), BatchNormalization("norm")]
        layers += [Dropout("drop", 0.2), Activation("relu"), Dense("b", wide)]
        net = singanet.FeedForwardNet(layers, loss=loss(), seed=1)
        precision = opt.MixedPrecision(scale=2.0**18 if broken else 2.0**8)
        net.compile(Adam(lr=0.01), mixed_precision=precision)
        if k:
            net.offload(tmp_path / "net", 1_500_000)
            assert not net.params()[0].storage.in_memory
        history = net.fit(x, y, 2, 3, verbose=False, **extra)
        if k:
            # It walks twice, so that it never has the gradients of two layers.
            programs = net.executor.programs
            assert not programs.refusals
            for report in programs.reports():
                assert "draws" in [kernel.name for kernel in report.kernels]
        nets.append((net, history, precision))
    (plain, history, precision), (net, found, own) = nets
    assert found == history
    for what in ("scale", "good", "skipped"):
        assert getattr(own, what) == getattr(precision, what)
    assert (precision.skipped > 0) == broken
    expect_same(arrays_of(net), arrays_of(plain))
    expect_same(own.masters, precision.masters)
    states = [each.compiled.optimizer.state_dict() for each in (net, plain)]
    expect_same(*({k: v.ravel() for k, v in state.items()} for state in states))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_checkpoints_of_fits_are_written_one_array_at_a_time(tmp_path, suffix):
    wide, depth = 400, 6
    layers = [Dense(f"fc{k}", wide, input_sample_shape=(wide,)) for k in range(depth)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=1)
    net.compile(Adam(lr=1e-3))
    whole, layer = 3 * 4 * wide * wide * depth, 3 * 4 * wide * wide
    net_of().save_model(tmp_path / "other.singanet")  # what is imported late
    tracemalloc.start()
    try:
        net.offload(tmp_path / "net", 2 * layer)
        keeps = ModelCheckpoint(tmp_path / "kept", format=suffix)
        net.fit(np.ones((4, wide), "f"), np.zeros((4, wide), "f"), callbacks=[keeps], verbose=False)
        net.save_model(tmp_path / "net.singanet")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Beside what is kept: a layer's gradient, and its state when it is new.
    assert net.executor.shelf.peak <= 2 * layer
    assert peak < 0.45 * whole
    other = singanet.load_model(tmp_path / "net.singanet")
    expect_same(arrays_of(other), arrays_of(net))
    # Loaded state is flat until its first update.
    found, wanted = (each.compiled.optimizer.state_dict() for each in (other, net))
    expect_same({k: v.ravel() for k, v in found.items()}, {k: v.ravel() for k, v in wanted.items()})


def refused_in_a_child(net, rule):
    """How many of two calls a forked child is refused by name."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told = 0
    for call in (lambda: net.step(*batch(), rule), lambda: net.forward(False, batch()[0])):
        try:
            call()
        except CallOrderError as error:
            told += "forked" in str(error)
    os._exit(told)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    twins = Twins(net_of, tmp_path / "net", 500_000)
    twins.step(*batch())
    assert refused_in_a_child(twins.net, twins.there) == 2
    twins.step(*batch(1))
    twins.expect_same()
