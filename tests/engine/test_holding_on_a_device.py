"""Nets in fewer bits on a device: they train, predict, save and go on as on the CPU."""

import copy
import gc
import pickle

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.device import Device, cpu
from singanet.engine import holding
from singanet.errors import CallOrderError
from singanet.layers import Activation, Dense, Embedding, GatedUnit, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops
from singanet.optimizer import SGD, Adafactor, Adam, ClipByGlobalNorm
from singanet.params.narrow import NarrowWeights
from singanet.testing.device_like import DeviceArray
from singanet.training.callbacks import ModelCheckpoint
from tests.engine.test_holding import Halved

RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 70, (6, 5))
Y = RNG.integers(0, 70, (6, 5))
PLAIN = Device("cpu", numpy_ops)
"""The CPU with the kernels that a device has, whose sums are the same."""
NEAR = {"stochastic": 2.0**-7, "remainder": 1e-4}
"""How far a GPU's order of sums may lead: a word may be rounded to its other neighbour."""
ROUNDINGS = [*NEAR]
KINDS = [*ROUNDINGS, "int8", "int4"]


def net_of(seed=1):
    """A table that is the head, too, a gated unit, and a Dense with a bias."""
    words = Input("words", (5,), "int64")
    table = Embedding("table", 70, 32)
    x = GatedUnit("unit", 96, 32)(table(words))
    x = Activation("tanh", "tanh")(Dense("middle", 32)(x))
    head = Dense("head", 70, use_bias=False, W_specs=table.params["weight"], W_transpose=True)
    return FeedForwardNet(inputs=words, outputs=head(x), loss=SoftmaxCrossEntropy(), seed=seed)


def narrowed(kind, *devices, pairs=False):
    """A net of ``kind`` that was moved to ``devices``, one after the other."""
    net = net_of()
    narrow(net, kind)
    if pairs:
        net.adapt(2, "all")
    for device in devices:
        net.to_device(device)
    return net


def narrow(net, kind):
    if kind in ROUNDINGS:
        net.as_type("bfloat16", kind)
    else:
        net.quantize(kind)


def host(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)


def values(net):
    return {param.name: host(param.peek()) for param in net.params()}


def expect_equal(found, wanted, near=0.0):
    for (name, want), got in zip(values(wanted).items(), values(found).values(), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=near * np.abs(want).max(), err_msg=name, equal_nan=True
        )


def held(net):
    return [param for param in net.params() if isinstance(param.storage, NarrowWeights)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_moved_there_and_back(kind, gpu):
    net, wanted = narrowed(kind, gpu), narrowed(kind)
    for param in held(net):
        assert all(type(array) is gpu.ops.xp.ndarray for array in param.storage.arrays)
        assert type(param.peek()) is gpu.ops.xp.ndarray
    expect_equal(net, wanted)
    assert [p.storage.nbytes for p in held(net)] == [p.storage.nbytes for p in held(wanted)]
    np.testing.assert_allclose(host(net.predict(IDS)), wanted.predict(IDS), atol=2e-3)
    net.to_device(cpu())
    for param in held(net):
        assert all(type(array) is np.ndarray for array in param.storage.arrays)
    expect_equal(net, wanted)
    np.testing.assert_array_equal(net.predict(IDS), wanted.predict(IDS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["float32", "remainder", "int8"])
def test_a_net_that_is_there_is_held_as_on_the_cpu(kind, first, gpu):
    found, wanted = net_of(), net_of()
    found.to_device(gpu)
    for net in (found, wanted):
        net.as_type("float32") if first == "float32" else narrow(net, first)
        narrow(net, kind)
    assert all(type(p.storage.arrays[0]) is gpu.ops.xp.ndarray for p in held(found))
    expect_equal(found, wanted)
    found.as_type("float32")
    wanted.as_type("float32")
    assert not held(found)
    assert all(type(value) is gpu.ops.xp.ndarray for value in found.param_values())
    expect_equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_is_it_stays(kind):
    net = narrowed(kind)
    before = [param.storage for param in held(net)]
    net.to_device(cpu())
    assert all(one is p.storage for one, p in zip(before, held(net), strict=True))


def test_blocks_by_what_rows_multiply_are_those_of_the_cpu(gpu):
    found, wanted = net_of(), net_of()
    found.to_device(gpu)
    told, want = (net.quantize("int4", data=IDS) for net in (found, wanted))
    assert told.errors == pytest.approx(want.errors, rel=1e-3)
    assert told.nbytes == want.nbytes
    assert all(type(p.storage.arrays[0]) is gpu.ops.xp.ndarray for p in held(found))


def test_it_does_not_leave_while_it_is_looked_at(gpu):
    net, wanted = net_of(), net_of()
    assert net.param_names()
    assert holding.watch(net, "test", 1 << 20)
    with pytest.raises(CallOrderError, match="moved while it is looked at"):
        net.to_device(gpu)
    assert net.device is cpu()
    holding.unwatch(net)
    expect_equal(net, wanted)


RULES = {
    "SGD": lambda: SGD(lr=0.3, momentum=0.5),
    "Adafactor": lambda: Adafactor(lr=0.01),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),
    "user's": lambda: Halved(lr=0.3),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("rule", RULES)
def test_whole_it_is_trained_as_on_the_cpu(rule, rounding, recorded, gpu):
    nets = narrowed(rounding, gpu), narrowed(rounding, PLAIN)
    losses = []
    for net in nets:
        net.programs.enabled = recorded
        optimizer = RULES[rule]()
        losses.append([net.step(IDS, Y, optimizer)[0] for _ in range(4)])
    np.testing.assert_allclose(*losses, rtol=NEAR[rounding])
    assert losses[0][-1] < losses[0][0]
    # As many numbers were drawn.
    assert str(nets[0].rng.bit_generator.state) == str(nets[1].rng.bit_generator.state)
    expect_equal(*nets, NEAR[rounding])
    assert bool(nets[0].programs.reports()) is recorded
    assert nets[0].programs.refusals == nets[1].programs.refusals


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_trained_beside_it_as_on_the_cpu(kind, recorded, gpu):
    nets = narrowed(kind, gpu, pairs=True), narrowed(kind, PLAIN, pairs=True)
    kept, losses = values(nets[0]), []
    for net in nets:
        net.programs.enabled = recorded
        optimizer = Adam(lr=0.05)
        losses.append([net.step(IDS, Y, optimizer)[0] for _ in range(4)])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    now = values(nets[0])
    assert all(np.array_equal(now[param.name], kept[param.name]) for param in held(nets[0]))
    assert not nets[0].programs.refusals
    if kind in ROUNDINGS:
        apart = host(nets[0].forward(False, IDS))
        nets[0].merge()
        merged = host(nets[0].forward(False, IDS))
        np.testing.assert_allclose(merged, apart, atol=3e-2 * np.abs(apart).max())


def test_blocks_are_not_trained_there(gpu):
    with pytest.raises(CallOrderError, match=r"net.adapt\(lora=8\) trains pairs"):
        narrowed("int8", gpu).step(IDS, Y, SGD(lr=0.1))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("how", ["loop", "late"])
def test_loops_of_ones_own_update_there(how, rounding, gpu):
    nets = narrowed(rounding, gpu), narrowed(rounding, PLAIN)
    before = values(nets[0])
    for net in nets:
        rule = SGD(lr=0.5)
        for _ in range(3):
            stepped_by(net, how, rule)
            gc.collect()
    expect_equal(*nets, NEAR[rounding])
    assert all(not np.array_equal(value, before[name]) for name, value in values(nets[0]).items())


def stepped_by(net, how, rule):
    def walk():
        net.loss.forward(True, net.forward(True, IDS), Y)
        return net.backward(net.loss.backward())

    if how == "loop":
        for names, given, grads in walk():
            rule.update(names, given, grads)
            del given, grads
    else:
        for names, given, grads in [tuple(item) for item in walk()]:
            rule.update(names, given, grads)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_comes_to_the_host_in_a_forward_and_a_backward(kind, monkeypatch):
    device = singanet.testing.strict_device()
    net = narrowed(kind, device, pairs=kind not in ROUNDINGS)
    net.programs.enabled = False
    x, dy = device.put(IDS), device.put(np.ones((6, 5, 70), np.float32))
    net.forward(True, x)

    def refuse(*_):
        raise AssertionError("a look of the host")

    with monkeypatch.context() as patched:
        patched.setattr(DeviceArray, "get", refuse)
        for _ in range(2):
            net.forward(True, x)
            for item in net.backward(dy):
                del item


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pickle", ".bin"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_files_are_those_of_the_cpu(suffix, rounding, gpu, tmp_path):
    nets = narrowed(rounding, gpu), narrowed(rounding, PLAIN)
    for k, net in enumerate(nets):
        # What is written is the same for what is the same.
        array = net.params()[0].value
        array += array * np.float32(1e-4)
        del array
        net.save(tmp_path / f"{k}{suffix}")
        net.save_model(tmp_path / f"{k}.singanet")
    for name in (suffix, ".singanet"):
        assert (tmp_path / f"0{name}").read_bytes() == (tmp_path / f"1{name}").read_bytes()
    loaded = narrowed(rounding, gpu)
    loaded.load(tmp_path / f"1{suffix}")
    expect_equal(loaded, nets[1])
    made = singanet.load_model(tmp_path / "0.singanet")
    assert {p.storage.rounding for p in held(made)} == {rounding}
    made.to_device(gpu)
    expect_equal(made, nets[1])


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_there_and_hold_as_much(kind, gpu):
    net = narrowed(kind, gpu)
    want = host(net.predict(IDS))
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [p.storage.nbytes for p in held(made)] == [p.storage.nbytes for p in held(net)]
        expect_equal(made, net)
        np.testing.assert_array_equal(host(made.predict(IDS)), want)
        for param in held(made):
            param.storage.arrays[0][...] = 0
    np.testing.assert_array_equal(host(net.predict(IDS)), want)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_fit_goes_on_there_from_the_cpu(rounding, gpu, tmp_path):
    def begun(device, folder):
        net = narrowed(rounding, device)
        net.compile(SGD(lr=0.1, momentum=0.5))
        return net, {"batch_size": 2, "verbose": False, "callbacks": [ModelCheckpoint(folder)]}

    whole, how = begun(PLAIN, tmp_path / "whole")
    whole.fit(IDS, Y, epochs=3, **how)
    first, how = begun(PLAIN, tmp_path / "parts")
    first.fit(IDS, Y, epochs=2, **how)
    last = sorted((tmp_path / "parts").glob("*.npz"))[-1]
    again, how = begun(gpu, tmp_path / "parts")
    again.fit(IDS, Y, epochs=3, resume=last, **how)
    expect_equal(again, whole, NEAR[rounding])


@pytest.mark.parametrize("kind", KINDS)
def test_a_predictor_has_what_is_held_there(kind, gpu, tmp_path):
    net = narrowed(kind, gpu)
    want, predict = host(net.predict(IDS)), net.predictor()
    # It has the floats, and what products read are words.
    near = (2.0**-8 if kind == "remainder" else 1e-5) * np.abs(want).max()
    np.testing.assert_allclose(host(predict(gpu.put(IDS))), want, rtol=0, atol=near)
    predict.save(tmp_path / "file")
    made = singanet.load_predictor(tmp_path / "file")
    np.testing.assert_allclose(made(IDS), want, rtol=0, atol=near)


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_a_step_is_the_devices(kind, gpu):
    pairs = kind not in ROUNDINGS
    net, near = narrowed(kind, gpu, pairs=pairs), narrowed(kind, PLAIN, pairs=pairs)
    plain = net_of()
    if pairs:
        plain.adapt(2, "all")
    plain.to_device(gpu)
    found, wanted, wide = (each.memory(6, SGD(lr=0.1)).parts for each in (net, near, plain))
    assert found["parameters"] == wanted["parameters"]
    if kind == "stochastic":
        assert found["parameters"] == sum(param.storage.nbytes for param in net.params())
    largest = max(param.storage.matrix.size for param in held(net))
    # What an update is lent and rounds, or where none is what a product widens at a time.
    assert found["other"] == wide["other"] + (4 if pairs else 28) * largest
    assert str(net.summary()) == str(near.summary())


def test_a_budget_counts_what_is_held_there(gpu):
    nets = narrowed("remainder", gpu), narrowed("remainder", PLAIN)
    # On the host what LLVM takes counts, too, the most where it compiles.
    for net, budget in zip(nets, ("4MB", "64MB"), strict=True):
        net.compile(SGD(lr=0.1))
        net.fit(IDS, Y, batch_size=2, epochs=3, verbose=False, memory_budget=budget)
    expect_equal(*nets, NEAR["remainder"])
