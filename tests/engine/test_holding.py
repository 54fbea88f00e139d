"""Nets in fewer bits, on the CPU and on a device: steps, predictions, files, copies, memory."""

import copy
import gc
import pickle

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.checkpoint import open_state
from singanet.device import Device, cpu, cuda
from singanet.engine import holding
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import Activation, Conv2D, Dense, Embedding, Flatten, GatedUnit, Input
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops import numpy_ops
from singanet.ops.narrow import NarrowMatrix
from singanet.optimizer import SGD, Adafactor, Adam, ClipByGlobalNorm
from singanet.params.narrow import NarrowWeights
from singanet.testing import strict_device
from singanet.testing.device_like import DeviceArray
from singanet.training.callbacks import ModelCheckpoint
from tests.conftest import ON_GPU

RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 70, (6, 5))
Y = RNG.integers(0, 70, (6, 5))
X = RNG.standard_normal((32, 16)).astype(np.float32)
T = RNG.standard_normal((32, 8)).astype(np.float32)
PLAIN = Device("cpu", numpy_ops)
"""The CPU with the kernels that a device has, whose sums are the same."""
NEAR = {"stochastic": 2.0**-7, "remainder": 1e-4}
"""How far a GPU's order of sums may lead: a word may be rounded to its other neighbour."""
ROUNDINGS = [*NEAR]
KINDS = [*ROUNDINGS, "int8", "int4"]
by_rounding = pytest.mark.parametrize("rounding", ROUNDINGS)
by_kind = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("recorded", [False, True])


@pytest.fixture(params=["cpu", "strict", *ON_GPU])
def device(request):
    return {"cpu": cpu, "strict": strict_device, "cupy": cuda}[request.param]()


def beside(device):
    """The device whose results ``device`` has to have, and how near by rounding."""
    return (cpu(), dict.fromkeys(ROUNDINGS, 0.0)) if device is cpu() else (PLAIN, NEAR)


def net_of(seed=1):
    """A table that is the head, too, a gated unit, and a Dense with a bias."""
    words = Input("words", (5,), "int64")
    table = Embedding("table", 70, 32)
    x = GatedUnit("unit", 96, 32)(table(words))
    x = Activation("tanh", "tanh")(Dense("middle", 32)(x))
    head = Dense("head", 70, use_bias=False, W_specs=table.params["weight"], W_transpose=True)
    return FeedForwardNet(inputs=words, outputs=head(x), loss=SoftmaxCrossEntropy(), seed=seed)


def narrow(net, kind):
    net.as_type("bfloat16", kind) if kind in ROUNDINGS else net.quantize(kind)


def narrowed(kind="stochastic", *devices, pairs=False, seed=1):
    """A net of ``kind`` that was moved to ``devices``, one after the other."""
    net = net_of(seed)
    narrow(net, kind)
    if pairs:
        net.adapt(2, "all")
    for device in devices:
        net.to_device(device)
    return net


def rounded(net):
    """A net of float32 with the values of ``net``."""
    plain = net_of()
    for one, other in zip(plain.params(), net.params(), strict=True):
        one.value[...] = other.peek()
    return plain


def host(array):
    return array.get() if hasattr(array, "get") else np.array(array)


def values(net):
    return {param.name: host(param.peek()) for param in net.params()}


def expect_equal(found, wanted, near=0.0):
    for (name, want), got in zip(values(wanted).items(), values(found).values(), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=near * np.abs(want).max(), err_msg=name, equal_nan=True
        )


def nearest(value):
    bits = value.view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return up.astype(np.uint32).view(np.float32)


def held(net):
    return [param for param in net.params() if isinstance(param.storage, NarrowWeights)]


def sizes(net):
    return {param.name: param.storage.nbytes for param in held(net)}


def on(net, device):
    return all(type(p.storage.arrays[0]) is device.ops.xp.ndarray for p in held(net))


def test_matrices_are_held_and_the_rest_stays():
    net = net_of()
    before = values(net)
    net.as_type("bfloat16")
    assert {p.name for p in held(net)} == {name for name, a in before.items() if a.ndim == 2}
    for name, value in values(net).items():
        want = nearest(before[name]) if value.ndim == 2 else before[name]
        np.testing.assert_array_equal(value, want)
    assert net.dtype == np.float32
    assert net.executor.can.records


def test_predictions_are_those_of_the_rounded_weights():
    net = narrowed()
    plain = rounded(net)
    want = plain.forward(False, IDS)
    near = {"rtol": 0, "atol": 2e-2 * np.abs(want).max()}
    np.testing.assert_allclose(net.forward(False, IDS), want, **near)
    np.testing.assert_allclose(net.predict(IDS[:1]), plain.predict(IDS[:1]), **near)
    assert not any(isinstance(each, NarrowMatrix) for each in net.param_values())


def linear(rounding, seed=0):
    net = FeedForwardNet([Dense("fc", 8, input_sample_shape=(16,))], loss=SquaredError(), seed=seed)
    net.as_type("bfloat16", rounding)
    return net


def test_with_the_remainder_updates_are_those_of_a_float32_master():
    """Written out: the gradient at the rounded weight moves the weight that is not."""
    net = linear("remainder")
    weight, bias = (np.array(p.peek(), np.float64) for p in net.params())
    rate, rule = 1e-2, SGD(lr=1e-2)
    for _ in range(5):
        seen = nearest(weight.astype(np.float32)).astype(np.float64)
        # The loss is half the mean of the squared distances.
        dy = (X @ seen + bias - T) / T.size
        weight -= rate * (X.T @ dy)
        bias -= rate * dy.sum(0)
        net.step(X, T, rule)
    found = net.params()[0].peek()
    np.testing.assert_allclose(found, weight, rtol=0, atol=2e-5)
    assert not np.array_equal(found, nearest(found))


def test_small_updates_that_rounding_to_nearest_would_lose_arrive_in_the_mean():
    ends = []
    for seed in range(40):
        net, rule = linear("stochastic", seed), SGD(lr=1.0)
        param = net.params()[0]
        param.put(np.ones((16, 8), np.float32))
        net.rng, value = np.random.default_rng(seed), param.value
        for _ in range(10):
            # A tenth of the distance to the next number that bfloat16 has.
            rule.update(["fc/weight"], [value], [np.full((16, 8), -(2.0**-7) / 10, np.float32)])
            param.storage.settle(net.rng)
        ends.append(value.mean())
    assert np.mean(ends) == pytest.approx(1 + 2.0**-7, abs=2.0**-7 * 0.05)
    np.testing.assert_array_equal(param.peek(), nearest(param.peek()))


@by_rounding
@pytest.mark.parametrize("rule", [Adam, Adafactor, SGD])
def test_it_learns_as_in_float32(rule, rounding):
    losses = []
    for net in (net_of(), narrowed(rounding)):
        optimizer = rule(lr=3.0 if rule is SGD else 0.02)
        losses.append([net.step(IDS, Y, optimizer)[0] for _ in range(15)])
    assert losses[0][-1] < losses[0][0] - 0.2
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.04)


def test_clipping_by_the_global_norm_and_accumulation_update_what_is_held():
    net = narrowed("remainder")
    plain, rules = rounded(net), [ClipByGlobalNorm(SGD(lr=0.5), 0.1) for _ in range(2)]
    for _ in range(2):
        for each, rule in zip((plain, net), rules, strict=True):
            each.step(IDS, Y, rule)
    for want, got in zip(values(plain).values(), values(net).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-3)
    plain, net = net_of(), narrowed("remainder")
    for each in (plain, net):
        each.compile(SGD(lr=0.5))
        each.fit(IDS, Y, batch_size=2, epochs=2, accumulate=3, verbose=False, shuffle=False)
    for want, got in zip(values(plain).values(), values(net).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-2)


# -- steps ----------------------------------------------------------------------------------------


class Halved(SGD):
    """A rule of the user's own, which runs as Python."""

    def update(self, names, values, grads, scale=1.0):
        super().update(names, values, grads, 0.5 * scale)


RULES = {
    "SGD": lambda: SGD(lr=0.3, momentum=0.5), "Adam": lambda: Adam(lr=0.01),
    "Adafactor": lambda: Adafactor(lr=0.01), "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),
    "user's": lambda: Halved(lr=0.3)
}  # fmt: skip


def losses_of(net, rule, recorded, recompute="none"):
    net.programs.enabled, net.programs.recompute = recorded, recompute
    return [net.step(IDS, Y, rule)[0] for _ in range(4)]


@pytest.mark.few(3)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
@by_rounding
@pytest.mark.parametrize("rule", RULES)
def test_recorded_steps_have_the_bits_of_the_layers(rule, rounding, recompute):
    nets = narrowed(rounding), narrowed(rounding)
    by_layers, recorded = (losses_of(n, RULES[rule](), k, recompute) for k, n in enumerate(nets))
    assert by_layers == recorded
    expect_equal(*nets)
    assert nets[1].programs.reports()
    # A first step that holds all gradients asks for passes of a caller's.
    assert not nets[1].programs.refusals or rule == "clipped"


# With Adam a gradient that is nothing but rounding moves its parameter as far as any other.
@pytest.mark.few(5)
@both_ways
@by_rounding
@pytest.mark.parametrize("rule", [name for name in RULES if name != "Adam"])
def test_whole_it_is_trained_as_on_the_cpu(rule, rounding, recorded, gpu):
    nets = narrowed(rounding, gpu), narrowed(rounding, PLAIN)
    losses = [losses_of(net, RULES[rule](), recorded) for net in nets]
    np.testing.assert_allclose(*losses, rtol=NEAR[rounding])
    assert losses[0][-1] < losses[0][0]
    # As many numbers were drawn.
    assert str(nets[0].rng.bit_generator.state) == str(nets[1].rng.bit_generator.state)
    expect_equal(*nets, NEAR[rounding])
    assert bool(nets[0].programs.reports()) is recorded
    assert nets[0].programs.refusals == nets[1].programs.refusals


@both_ways
@by_kind
def test_pairs_are_trained_beside_it_and_merged_into_it(kind, recorded, device):
    nets = narrowed(kind, device, pairs=True), narrowed(kind, beside(device)[0], pairs=True)
    kept, net = values(nets[0]), nets[0]
    # On the CPU the other net goes by its layers.
    ways = recorded, recorded and device is not cpu()
    losses = [losses_of(n, Adam(lr=0.05), way) for n, way in zip(nets, ways, strict=True)]
    if device is cpu():
        assert losses[0] == losses[1]
        expect_equal(*nets)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    now = values(net)
    assert all(np.array_equal(now[param.name], kept[param.name]) for param in held(net))
    assert bool(net.programs.reports()) is recorded
    assert not net.programs.refusals
    if kind in ROUNDINGS:
        apart = host(net.forward(False, IDS))
        net.merge()
        merged = host(net.forward(False, IDS))
        np.testing.assert_allclose(merged, apart, atol=3e-2 * np.abs(apart).max())


def test_pairs_are_those_of_weights_with_one_layer_and_blocks_are_not_trained(gpu):
    wanted = ["unit/gate_weight", "unit/up_weight", "unit/down_weight", "middle/weight"]
    assert narrowed().adapt(2, "all") == wanted
    with pytest.raises(CallOrderError, match=r"net.adapt\(lora=8\) trains low-rank pairs"):
        narrowed("int8", gpu).step(IDS, Y, SGD(lr=0.1))


def walked(net, rule, how):
    def walk():
        net.loss.forward(True, net.forward(True, IDS), Y)
        return net.backward(net.loss.backward())

    if how == "step":
        net.step(IDS, Y, rule)
    elif how == "loop":
        for names, given, grads in walk():
            rule.update(names, given, grads)
            del given, grads
    else:
        for names, given, grads in [tuple(item) for item in walk()]:
            rule.update(names, given, grads)


@by_rounding
@pytest.mark.parametrize("how", ["loop", "late"])
def test_loops_of_ones_own_update_as_a_step_does(how, rounding, device):
    other, near = beside(device)
    if device is cpu() and rounding == "stochastic":
        other, near = PLAIN, NEAR  # what is late is rounded late, by other draws
    nets = narrowed(rounding, device), narrowed(rounding, other)
    before, ways = values(nets[0]), (how, "step" if near["remainder"] == 0 else how)
    for net, way in zip(nets, ways, strict=True):
        rule = SGD(lr=0.5)
        for _ in range(3):
            walked(net, rule, way)
            gc.collect()
    expect_equal(*nets, near[rounding])
    assert all(not np.array_equal(value, before[name]) for name, value in values(nets[0]).items())


@by_rounding
def test_a_fit_goes_on_from_the_cpu(rounding, device, tmp_path):
    other, near = beside(device)

    def begun(device, folder):
        net = narrowed(rounding, device)
        net.compile(Adam(lr=0.01) if near["remainder"] == 0 else SGD(lr=0.1, momentum=0.5))
        return net, {"batch_size": 2, "verbose": False, "callbacks": [ModelCheckpoint(folder)]}

    whole, how = begun(other, tmp_path / "whole")
    whole.fit(IDS, Y, epochs=3, **how)
    first, how = begun(other, tmp_path / "parts")
    first.fit(IDS, Y, epochs=2, **how)
    last = sorted((tmp_path / "parts").glob("*.npz"))[-1]
    again, how = begun(device, tmp_path / "parts")
    again.fit(IDS, Y, epochs=3, resume=last, **how)
    expect_equal(again, whole, near[rounding])


def test_recorded_predictions_read_what_is_held_then():
    net, plain = narrowed(), narrowed()
    plain.programs.enabled = False
    for factor in (1.0, 2.0):
        for each in (net, plain):
            lent = each["middle"].params["weight"].value
            lent *= factor
            del lent
        for _ in range(3):
            np.testing.assert_array_equal(net.predict(IDS), plain.predict(IDS))
    assert net.programs.reports()
    net.as_type("float32")
    np.testing.assert_allclose(net.predict(IDS), plain.predict(IDS), atol=1e-2)


@by_kind
def test_nothing_comes_to_the_host_in_a_forward_and_a_backward(kind, monkeypatch):
    device = strict_device()
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


# -- moved, copied, saved -------------------------------------------------------------------------


@by_kind
def test_what_is_held_is_moved_there_and_back(kind, gpu):
    net, wanted = narrowed(kind, gpu), narrowed(kind)
    for param in held(net):
        assert all(type(array) is gpu.ops.xp.ndarray for array in param.storage.arrays)
        assert type(param.peek()) is gpu.ops.xp.ndarray
    expect_equal(net, wanted)
    assert sizes(net) == sizes(wanted)
    np.testing.assert_allclose(host(net.predict(IDS)), wanted.predict(IDS), atol=2e-3)
    net.to_device(cpu())
    for param in held(net):
        assert all(type(array) is np.ndarray for array in param.storage.arrays)
    expect_equal(net, wanted)
    np.testing.assert_array_equal(net.predict(IDS), wanted.predict(IDS))
    before = [param.storage for param in held(net)]
    net.to_device(cpu())  # where it is
    assert all(one is p.storage for one, p in zip(before, held(net), strict=True))


@by_kind
@pytest.mark.parametrize("first", ["float32", "remainder", "int8"])
def test_a_net_that_is_there_is_held_as_on_the_cpu(kind, first, gpu):
    found, wanted = net_of(), net_of()
    found.to_device(gpu)
    for net in (found, wanted):
        net.as_type("float32") if first == "float32" else narrow(net, first)
        narrow(net, kind)
    assert on(found, gpu)
    expect_equal(found, wanted)
    found.as_type("float32")
    wanted.as_type("float32")
    assert not held(found)
    assert all(type(value) is gpu.ops.xp.ndarray for value in found.param_values())
    expect_equal(found, wanted)


def test_back_to_float32_all_is_as_in_any_net():
    net = narrowed()
    kept = values(net)
    net.as_type("float32")
    assert net.executor.can.records
    assert not held(net)
    for param in net.params():
        np.testing.assert_array_equal(param.value, kept[param.name])
    net.step(IDS, Y, SGD(lr=0.1))
    net.as_type("bfloat16")
    net.as_type("float64")
    assert all(param.value.dtype == np.float64 for param in net.params())
    net.as_type("bfloat16")
    assert held(net)
    assert net.dtype == np.float32


def test_blocks_by_what_rows_multiply_are_those_of_the_cpu(gpu):
    found, wanted = net_of(), net_of()
    found.to_device(gpu)
    told, want = (net.quantize("int4", data=IDS) for net in (found, wanted))
    assert told.errors == pytest.approx(want.errors, rel=1e-3)
    assert told.nbytes == want.nbytes
    assert on(found, gpu)


def test_it_does_not_leave_while_it_is_looked_at(gpu):
    net, wanted = net_of(), net_of()
    assert net.param_names()
    assert holding.watch(net, "test", 1 << 20)
    with pytest.raises(CallOrderError, match="moved while its inputs are watched"):
        net.to_device(gpu)
    assert net.device is cpu()
    holding.unwatch(net)
    expect_equal(net, wanted)


@by_kind
def test_copies_are_there_and_hold_as_much(kind, device):
    net = narrowed(kind, device)
    want = host(net.predict(IDS))
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert sizes(made) == sizes(net)
        expect_equal(made, net)
        np.testing.assert_array_equal(host(made.predict(IDS)), want)
        if kind in ROUNDINGS:
            made.step(IDS, Y, SGD(lr=0.1))
        for param in held(made):
            param.storage.arrays[0][...] = 0
    np.testing.assert_array_equal(host(net.predict(IDS)), want)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pickle", ".hdf5", ".bin"])
@by_rounding
def test_files_have_the_bits_of_the_net(suffix, rounding, device, tmp_path):
    nets = narrowed(rounding, device), narrowed(rounding, PLAIN)
    for k, net in enumerate(nets):
        # What is written is the same for what is the same.
        array = net.params()[0].value
        array += array * np.float32(1e-4)
        del array
        net.save(tmp_path / f"{k}{suffix}")
        net.save_model(tmp_path / f"{k}.singanet")
    for name in (suffix, ".singanet"):
        if name != ".hdf5":
            assert (tmp_path / f"0{name}").read_bytes() == (tmp_path / f"1{name}").read_bytes()
    loaded = narrowed(rounding, device, seed=5)
    loaded.load(tmp_path / f"1{suffix}")
    expect_equal(loaded, nets[1])
    made = singanet.load_model(tmp_path / "0.singanet")
    assert {p.storage.rounding for p in held(made)} == {rounding}
    made.to_device(device)
    expect_equal(made, nets[1])


@by_rounding
@pytest.mark.parametrize("trained", [False, True])
def test_a_model_file_holds_what_was_held(rounding, trained, tmp_path):
    net, plain = narrowed(rounding), tmp_path / "plain.singanet"
    net_of().save_model(plain)
    net.compile(SGD(lr=0.1))
    if trained:
        net.step(IDS, Y, SGD(lr=0.3))
    path, weights = tmp_path / "net.singanet", tmp_path / "net.safetensors"
    net.save_model(path)
    net.save(weights)
    made, other = singanet.load_model(path), net_of(9)
    assert sizes(made) == sizes(net)
    other.load(weights)
    expect_equal(made, net)
    expect_equal(other, net)
    if rounding == "stochastic":
        saved = 2 * sum(param.value.size for param in held(net))
        assert path.stat().st_size < plain.stat().st_size - 0.9 * saved
        with open_state(weights) as reader:
            assert reader.entries["middle/weight"].kind == "BF16"
    # Training goes on as that of the net that was saved.
    losses = [each.step(IDS, Y, SGD(lr=0.1))[0] for each in (net, made)]
    assert losses[0] == losses[1]


@by_kind
def test_a_predictor_has_what_is_held(kind, device, tmp_path):
    net = narrowed(kind, device)
    want, predict = host(net.predict(IDS)), net.predictor()
    # It has the floats, and what products read are words.
    near = (2.0**-8 if kind == "remainder" else 1e-5) * np.abs(want).max()
    if device is cpu():
        near = 2e-2 * want.max()
    np.testing.assert_allclose(host(predict(device.put(IDS))), want, rtol=0, atol=near)
    predict.save(tmp_path / "file")
    made = singanet.load_predictor(tmp_path / "file")
    np.testing.assert_allclose(made(IDS), want, rtol=0, atol=near)


# -- memory ---------------------------------------------------------------------------------------


def test_the_memory_of_a_step_counts_what_is_held():
    plain, net = net_of(), narrowed()
    wide, less = (each.memory(6, SGD(lr=0.1)).parts for each in (plain, net))
    assert wide["parameters"] == 4 * sum(value.size for value in values(plain).values())
    assert less["parameters"] == sum(param.storage.nbytes for param in net.params())
    # The largest of the arrays that updates are lent, and what rounding it takes meanwhile.
    lent = 4 * max(param.value.size for param in held(net))
    rounding = max(param.storage.rounding_bytes for param in held(net))
    assert less["other"] == wide["other"] + lent + rounding


@by_kind
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


# -- other layers, and what is refused ------------------------------------------------------------


class Doubled(Dense):
    """A layer of the user's own, which reads its weight as an array."""

    def forward(self, ctx, x):
        ctx.save(x=x)
        assert type(ctx.params["weight"]) is np.ndarray
        return x @ (2 * ctx.params["weight"]) + ctx.params["bias"]


def test_convolutions_stay_and_a_layer_of_ones_own_reads_arrays():
    layers = [Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)), Flatten("flat"), Dense("fc", 3)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    x = RNG.standard_normal((4, 2, 6, 6)).astype(np.float32)
    net.as_type("bfloat16")
    assert [p.name for p in held(net)] == ["fc/weight"]
    assert np.isfinite(net.step(x, np.array([0, 1, 2, 0]), SGD(lr=0.1))[0])
    net, x = FeedForwardNet([Doubled("fc", 3, input_sample_shape=(4,))]), np.ones((2, 4), "f")
    net.as_type("bfloat16")
    weight, bias = (param.peek() for param in net.params())
    np.testing.assert_allclose(net.forward(False, x), x @ (2 * weight) + bias, rtol=1e-6)


def test_what_knows_arrays_alone_is_refused_with_the_way_back(tmp_path):
    net, offloaded = narrowed(), net_of()
    net.compile(SGD(lr=0.1))
    for call in (
        lambda: net.offload(tmp_path / "a"),
        lambda: net.fit(IDS, Y, memory_budget="1GB", offload_folder=tmp_path / "a"),
    ):
        with pytest.raises(CallOrderError, match=r"call net\.as_type\('float32'\) first"):
            call()
    with pytest.raises(ArgumentError, match="'stochastic', 'remainder'"):
        net_of().as_type("bfloat16", "up")
    with pytest.raises(ArgumentError, match="None, but with 'bfloat16'"):
        net_of().as_type("float32", "remainder")
    offloaded.offload(tmp_path / "b")
    with pytest.raises(CallOrderError, match="an offloaded net"):
        offloaded.as_type("bfloat16")
