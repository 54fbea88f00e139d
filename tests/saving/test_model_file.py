"""Whole models in a file: the loaded net predicts and goes on training as the saved one."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, device, errors, loss, metric
from singanet.checkpoint import write_state
from singanet.errors import (
    ArgumentError,
    ConfigError,
    FileAccessError,
    FileFormatError,
    SingaNetError,
    StateMismatchError,
    UnknownNameError,
    VersionError,
)
from singanet.layers import BatchNormalization, Conv2D, Dense, Dropout, Flatten, Layer
from singanet.ops import ops_for
from singanet.optimizer import SGD, Adam, ClipByLayerNorm, L1Regularizer
from singanet.optimizer.schedules import Plateau, Step
from singanet.saving import objects as config
from singanet.saving.whole_model import is_model_file
from tests.kit.files import flipped, names_in, read_state, rewrite_text


@pytest.fixture
def file(tmp_path):
    return tmp_path / "net.singanet"


def classifier(seed=3, **given):
    parts = [
        Conv2D("conv", 4, 3, input_sample_shape=(1, 6, 6)), BatchNormalization("bn"),
        Flatten("flat"), Dropout("drop", 0.4), Dense("fc", 3),
    ]  # fmt: skip
    return FeedForwardNet(parts, loss=loss.SoftmaxCrossEntropy(), seed=seed, **given)


def data(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((count, 1, 6, 6), np.float32), rng.integers(0, 3, count)


def assert_same(a, b):
    """Parameters, running state, optimizer state and the generator, to the bit."""
    for one, two in zip(a.params(), b.params(), strict=True):
        assert one.name == two.name
        assert one.value.dtype == two.value.dtype
        assert one.value.tobytes() == two.value.tobytes(), one.name
    states = [net.compiled.optimizer.state_dict() for net in (a, b)]
    assert list(states[0]) == list(states[1])
    for key, array in states[0].items():
        assert array.tobytes() == states[1][key].tobytes(), key
    assert a.rng.bit_generator.state == b.rng.bit_generator.state


def plain(**given):
    """Without batch statistics, which float16 does not take."""
    parts = [Flatten("flat", input_sample_shape=(1, 6, 6)), Dense("fc", 3)]
    return FeedForwardNet(parts, loss=loss.SoftmaxCrossEntropy(), seed=1)


def momentum():
    return SGD(lr=Step(0.1, 4, 0.5), momentum=0.9, weight_decay=1e-3)


TRAININGS = {
    "momentum": (classifier, momentum, {}),
    "adam": (classifier, lambda: Adam(lr=0.01, regularizer=L1Regularizer(1e-4)), {}),
    "clipped": (classifier, lambda: ClipByLayerNorm(SGD(lr=Plateau(0.1, patience=1)), 0.5), {}),
    "running norm": (classifier, momentum, {"clip": 0.5, "clip_by": "running"}),
    "accumulated": (classifier, momentum, {"accumulate": 3}),
    "clipped sums": (classifier, momentum, {"clip": 0.1, "accumulate": 2}),
    "mixed": (plain, momentum, {"mixed_precision": "float16"}),
}


@pytest.mark.parametrize(("build", "make", "how"), TRAININGS.values(), ids=TRAININGS)
def test_training_goes_on_to_the_bit(build, make, how, file):
    """By fits, with what they put around the optimizer, and by steps of one's own."""
    x, y = data()
    net, around = build(), {name: each for name, each in how.items() if name != "mixed_precision"}
    more = {name: each for name, each in how.items() if name == "mixed_precision"}
    net.compile(make(), metrics=[metric.Accuracy()], **more)
    net.fit(x, y, batch_size=8, epochs=1, verbose=False, **around)
    net.fit(x, y, batch_size=8, epochs=2, verbose=False)
    net.save_model(file)
    other = singanet.load_model(file)
    assert_same(net, other)
    assert other.metric is other.compiled.metrics["accuracy"]
    fit = {"batch_size": 8, "epochs": 3, "initial_epoch": 1, "verbose": False, **around}
    assert dict(net.fit(x, y, **fit)) == dict(other.fit(x, y, **fit))
    for each in (net, other):
        each.step(x[:8], y[:8], each.compiled.optimizer)
    assert_same(net, other)
    np.testing.assert_array_equal(net.predict(x), other.predict(x))
    for key in net.compiled.around:
        states = [each.compiled.clipped(*key).state_dict() for each in (net, other)]
        assert list(states[0]) == list(states[1])
        for name, array in states[0].items():
            np.testing.assert_array_equal(array, states[1][name])


def test_what_was_set_after_building_comes_back(file):
    left = FeedForwardNet([Dense("fc", 4, input_sample_shape=(3,))], name="tower")
    a, b = Input("a", (3,)), Input("b", (3,))
    top = Dense("top", 2)(singanet.layers.Concat("c", 1)(left(a), left(b)))
    net = FeedForwardNet(inputs=[b, a], outputs=top, seed=2, name="twins")
    net.compile(SGD(lr=0.1), loss.SquaredError(), {"error": metric.RootMeanSquaredError()})
    net.as_type("float64")
    net.freeze("c")
    net["top"].params["bias"].trainable = False
    net.most_steps = 12
    net.save_model(file)
    other = singanet.load_model(file)
    assert other.name == "twins"
    assert other.most_steps == 12
    assert other.dtype == np.float64
    assert other.frozen() == net.frozen()
    assert not other["top"].params["bias"].trainable
    assert list(other.compiled.metrics) == ["error"]
    assert other.nested["tower"]["fc"].params["weight"].value is other.param_values()[0]
    x = {"a": np.ones((2, 3)), "b": np.zeros((2, 3))}
    np.testing.assert_array_equal(net.forward(False, x), other.forward(False, x))


def test_several_losses_and_metrics_of_outputs_come_back(file):
    x = Input("x", (3,))
    outputs = [Dense("p", 2)(x), Dense("q", 1)(x)]
    several = loss.MultiLoss({"p": loss.SoftmaxCrossEntropy(), "q": loss.SquaredError()}, {"q": 2})
    net = FeedForwardNet(inputs=x, outputs=outputs, loss=several, seed=0)
    net.compile(SGD(lr=0.1), metrics={"p": metric.Accuracy()})
    net.save_model(file)
    other = singanet.load_model(file)
    assert other.metric is None
    batch = np.ones((4, 3), np.float32)
    targets = {"p": np.zeros(4, int), "q": np.zeros((4, 1), np.float32)}
    assert other.train_on_batch(batch, targets) == net.train_on_batch(batch, targets)


def test_the_training_can_be_left_out_and_weights_alone_taken(file):
    net = classifier()
    net.compile(SGD(lr=lambda step: 0.1))
    with pytest.raises(ConfigError, match=r"argument 'learning_rate'.*training=False"):
        net.save_model(file)
    assert not file.exists()
    net.save_model(file, training=False)
    assert singanet.load_model(file).compiled is None
    net.compile(Adam(lr=0.01))
    net.step(*data(8), net.compiled.optimizer)
    net.save_model(file)
    assert singanet.load_model(file, training=False).compiled is None
    assert singanet.load_model(file).compiled is not None
    other = classifier(seed=9)
    assert other.load(file).complete
    np.testing.assert_array_equal(net.param_values()[0], other.param_values()[0])


def test_what_cannot_be_written_leaves_the_old_file(file):
    net = classifier()
    net.save_model(file)
    before = file.read_bytes()
    for suffix in ("npz", "h5", "weights.h5", "pickle", "bin", "keras", "pt", "onnx"):
        with pytest.raises(ArgumentError, match=r"call it 'name.singanet'"):
            net.save_model(file.parent / f"a.{suffix}")
    with pytest.raises(FileAccessError):
        net.save_model(file.parent / "nowhere" / "net.singanet")

    class Broken(Dense):
        pass

    net.add(Broken("more", 2))
    with pytest.raises(ConfigError, match="Broken"):
        net.save_model(file)
    assert file.read_bytes() == before
    assert names_in(file.parent) == [file.name]


def test_a_file_of_the_first_version_is_read_for_ever():
    """Written when the format was made: two outputs of x W + b through tanh, momentum 0.5."""
    net = singanet.load_model(Path(__file__).parent / "files" / "version1.singanet")
    x = np.array([[1.0, -2.0, 0.5]], np.float32)
    # W = 0.1, 0.2, ... row by row and b = (0.5, -0.5), less one step of 0.1 on the loss of zeros.
    weight = np.arange(1, 7, dtype=np.float64).reshape(3, 2) / 10
    bias = np.array([0.5, -0.5])
    y = np.tanh(x @ weight + bias)
    dz = y / 2 * (1 - y * y)
    weight, bias = weight - 0.1 * x.T @ dz, bias - 0.1 * dz[0]
    np.testing.assert_allclose(net.forward(False, x), np.tanh(x @ weight + bias), rtol=1e-5)
    assert net.name == "golden"
    assert list(net.nested) == ["inner"]
    assert isinstance(net.loss, loss.SquaredError)
    state = net.compiled.optimizer.state_dict()
    np.testing.assert_allclose(state["inner/fc/bias/momentum"], 0.1 * dz[0], rtol=1e-5)
    assert net.compiled.optimizer.momentum == 0.5


def test_another_process_needs_no_code(file, tmp_path):
    net = classifier()
    net.save_model(file)
    x, _ = data(5)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy, singanet; net = singanet.load_model(sys.argv[1]); "
        "numpy.save(sys.argv[3], net.predict(numpy.load(sys.argv[2])))"
    )
    paths = [file, tmp_path / "x.npy", tmp_path / "y.npy"]
    subprocess.run([sys.executable, "-W", "error", "-c", code, *paths], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), net.predict(x))


# -- classes of the user's own -------------------------------------------------------------------


class Doubled(Layer):
    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x * 2

    def backward(self, ctx, dy):
        return dy * 2, {}


def test_a_class_that_is_not_registered_is_named(file, monkeypatch):
    monkeypatch.setattr(config, "_registered", {})
    singanet.register("acme.doubled.v1")(Doubled)
    net = FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,)), Doubled("twice")], seed=0)
    net.save_model(file)
    x, again = np.ones((2, 3), np.float32), singanet.load_model(file)
    np.testing.assert_array_equal(again.forward(False, x), net.forward(False, x))
    monkeypatch.setattr(config, "_registered", {})
    with pytest.raises(UnknownNameError) as caught:
        singanet.load_model(file)
    for part in ("net.singanet", "layer 'twice'", "@singanet.register('acme.doubled.v1')"):
        assert part in str(caught.value)
    assert len(str(caught.value)) < 400


# -- files that are refused ----------------------------------------------------------------------


@pytest.fixture
def saved(file):
    net = classifier()
    net.compile(SGD(lr=0.1, momentum=0.9), metrics=[metric.Accuracy()])
    net.step(*data(8), net.compiled.optimizer)
    net.save_model(file)
    return file


def dense(about):
    return about["net"]["layers"][-1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a.update(version=2), VersionError, "version 1 to 1.*received model version 2"),
        (lambda a: a.update(version=True), VersionError, "version True"),
        (lambda a: a["net"].update(version=9), ConfigError, "version 1 to 2; received version 9"),
        (lambda a: a.update(format="x"), FileFormatError, "another format"),
        (lambda a: [a], FileFormatError, "another format"),
        (lambda a: a.update(net=None), ConfigError, "singanet net"),
        (lambda a: a.update(seed=-1), ConfigError, "'seed'"),
        (lambda a: a.update(seed="1"), ConfigError, "'seed'"),
        (lambda a: a.update(dtype="object"), ConfigError, "'dtype'"),
        (lambda a: a.update(generator=None), ConfigError, "the model"),
        (lambda a: a["generator"].update(state=3), ConfigError, "the model"),
        (lambda a: dense(a).update({"class": "os.system"}), UnknownNameError, "layer 'fc'"),
        (lambda a: dense(a)["arguments"].update(units=4), StateMismatchError, "fc/weight"),
        (lambda a: dense(a)["arguments"].update(units=10**11), StateMismatchError, "fc/"),
        (lambda a: dense(a)["arguments"].update(units=10**25), SingaNetError, "fc"),
        (lambda a: a["net"]["layers"].pop() and None, StateMismatchError, "fc/weight"),
        (lambda a: dense(a)["arguments"].update(W_specs={"dict": {"name": "conv/weight"}}),
         ArgumentError, "two parameters called 'conv/weight'"),
        (lambda a: a.update(training=3), ConfigError, "the training"),
        (lambda a: a["training"].update(epochs=-1), ConfigError, "epochs"),
        (lambda a: a["training"].update(fit=[[1, "layer"]]), ConfigError, "unpack"),
        (lambda a: a["training"].update(fit=[[1, "never", 2]]), UnknownNameError, "never"),
        (lambda a: a["training"].update(fit=7), ConfigError, "the training"),
        (lambda a: a["training"].update(fit=[[0.5, "running", 1]]), SingaNetError, "Running"),
        (lambda a: a["training"].update(optimizer={"class": "eval"}), ConfigError, "arguments"),
        (lambda a: a["training"]["optimizer"].update({"class": "Dense"}), UnknownNameError,
         "an Optimizer|a Optimizer"),
        (lambda a: a["training"]["optimizer"].update({"class": "Adam"}), SingaNetError, "Adam"),
        (lambda a: a["training"].update(metrics={"loss": a["training"]["metrics"]["accuracy"]}),
         ArgumentError, "metrics"),
        (lambda a: a["training"].update(precision={"class": "MixedPrecision", "arguments": {}}),
         SingaNetError, "MixedPrecision"),
    ],
)  # fmt: skip
def test_a_description_that_is_not_of_these_arrays_is_refused(saved, change, error, message):
    rewrite_text(saved, lambda about, state: change(about))
    with pytest.raises(error, match=message) as caught:
        singanet.load_model(saved)
    assert saved.name in str(caught.value)
    assert len(str(caught.value)) < 700


def test_arrays_that_are_missing_extra_or_damaged_are_named(saved):
    state, name = read_state(saved), "net/conv/weight"
    weight = state.pop(name)
    for more, told in (
        ({}, "conv/weight"), ({name: weight, "net/more": weight}, "more"),
        ({name: weight.view(np.int32)}, "int32"),
    ):  # fmt: skip
        write_state(saved, {**state, **more}, "safetensors")
        with pytest.raises(StateMismatchError, match=told):
            singanet.load_model(saved)
    write_state(saved, {**state, name: weight}, "safetensors")
    raw = saved.read_bytes()
    saved.write_bytes(flipped(raw, len(raw) - 3))
    with pytest.raises((errors.ChecksumError, ConfigError)):
        singanet.load_model(saved)


def test_other_files_are_no_models(tmp_path, saved):
    """What is said of each is looked at in tests/checkpoint/test_kinds_of_files.py."""
    classifier().save(tmp_path / "w.safetensors")
    for name in ("nothing.singanet", ""):
        with pytest.raises(FileAccessError):
            singanet.load_model(tmp_path / name)
        assert not is_model_file(tmp_path / name)
    assert [each for each in names_in(tmp_path) if is_model_file(tmp_path / each)] == [saved.name]


def test_a_forged_claim_makes_no_array(saved):
    """A description of a terabyte in a file of kilobytes costs nothing."""
    rewrite_text(saved, lambda a, state: dense(a)["arguments"].update(units=10**11))
    tracemalloc.start()
    try:
        with pytest.raises(StateMismatchError):
            singanet.load_model(saved)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_writing_and_reading_hold_one_array_beside_the_net(file):
    """Weights of 8 MB twice: neither way makes copies of all of them."""
    parts = [Dense("a", 1024, input_sample_shape=(2048,)), Dense("b", 2048)]
    net = FeedForwardNet(parts, seed=0)
    size = sum(value.nbytes for value in net.param_values())
    assert size > 16 << 20
    net.save_model(file)
    tracemalloc.start()
    try:
        net.save_model(file)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.reset_peak()
        other = singanet.load_model(file)
        assert tracemalloc.get_traced_memory()[1] < size + (4 << 20)
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(other.param_values()[0], net.param_values()[0])


def test_a_net_on_a_device_is_written_and_read(xp, file):
    places = {"numpy": device.cpu, "cupy": device.cuda}
    like = device.Device("device_like", ops_for(xp.zeros(1)))
    net = FeedForwardNet([FeedForwardNet([Dense("fc", 3)], name="inner")], seed=0)
    net.build((4,))
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    y = net.forward(False, x)
    net.to_device(places.get(xp.__name__, lambda: like)())
    assert isinstance(net.nested["inner"].forward(False, x), xp.ndarray)
    net.compile(SGD(lr=0.1, momentum=0.9), loss.SquaredError())
    net.save_model(file)
    np.testing.assert_allclose(singanet.load_model(file).forward(False, x), y, rtol=1e-6)
