import signal
from collections import Counter
from functools import partial

import numpy as np
import pytest

from singanet import layers
from singanet.checkpoint import matching, write_state
from singanet.errors import ArgumentError, CallOrderError, CheckpointError, StateMismatchError
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.optimizer import Adam
from singanet.params.param import Param
from singanet.params.param_files import put_params
from singanet.saving.codecs import keras_layers
from tests.interrupts import signalled_at
from tests.kit.files import bytes_of, flipped, names_in

FILES = ["m", "m.bin", "m.pickle", "m.h5", "m.npz", "m.safetensors", "m.weights.h5"]


def make(seed, width=3, top="fc"):
    parts = [
        layers.Conv2D("conv", 2, 3, input_sample_shape=(1, 4, 4)), layers.BatchNormalization("bn"),
        layers.Flatten("flat"), layers.Dense(top, width),
    ]  # fmt: skip
    net, rng = FeedForwardNet(parts, seed=seed), np.random.default_rng(seed)
    for param in net.params():
        param.value[...] = rng.standard_normal(param.shape)
    return net


@pytest.mark.parametrize("name", FILES)
def test_what_is_saved_is_loaded(tmp_path, name):
    net, other = make(1), make(2)
    arrays = other.param_values()
    net.save(tmp_path / name)
    report = other.load(tmp_path / name)
    assert report.complete
    assert bytes_of(other) == bytes_of(net)
    # In place: whoever holds the live arrays still does.
    assert all(a is b for a, b in zip(arrays, other.param_values(), strict=True))


@pytest.fixture
def at_each_put(monkeypatch):
    """Lets Ctrl-C come when the parameter of that number has been written."""
    put, left = Param.put, []

    def struck(param, array):
        put(param, array)
        left[:] = [number - 1 for number in left]
        if 0 in left:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Param, "put", struck)
    return left


@pytest.mark.parametrize("run", [matching.RUN, 0], ids=["small", "large"])
@pytest.mark.parametrize("name", FILES)
def test_an_interrupt_amid_a_load_comes_after_it(tmp_path, monkeypatch, at_each_put, name, run):
    """It left a net of two files."""
    monkeypatch.setattr(matching, "RUN", run)
    net = make(1)
    net.save(tmp_path / name)
    for number in range(1, len(net.params()) + 1):
        other = make(2)
        at_each_put[:] = [number]
        with pytest.raises(KeyboardInterrupt):
            other.load(tmp_path / name)
        assert bytes_of(other) == bytes_of(net)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_amid_arrays_that_are_put_back_comes_after_it(at_each_put):
    net, other = make(1), make(2)
    arrays = dict(zip(net.param_names(), net.param_values(), strict=True))
    at_each_put[:] = [1]
    with pytest.raises(KeyboardInterrupt):
        put_params(other.params(), arrays, other.device.put, "test")
    assert bytes_of(other) == bytes_of(net)


def test_an_interrupt_before_the_optimizer_is_loaded_comes_after_it(tmp_path, at_each_put):
    net, adam = make(1), Adam(lr=0.01)
    rng = np.random.default_rng(0)
    net.compile(adam, SoftmaxCrossEntropy())
    net.step(rng.standard_normal((4, 1, 4, 4)).astype(np.float32), np.arange(4) % 3, adam)
    net.save(tmp_path / "m.weights.h5", optimizer=adam)
    other, loaded = make(2), Adam(lr=0.01)
    at_each_put[:] = [len(net.params())]
    with pytest.raises(KeyboardInterrupt):
        other.load(tmp_path / "m.weights.h5", optimizer=loaded)
    assert bytes_of(other) == bytes_of(net)
    wanted, found = adam.state_dict(), loaded.state_dict()
    assert wanted.keys() == found.keys()
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)


# A file that was being opened is closed by the collector. h5py ends what strikes within its own
# calls of ours by errors of its own.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("run", [matching.RUN, 0], ids=["small", "large"])
@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".h5")])
def test_an_interrupt_at_any_line_leaves_a_net_whole(tmp_path, monkeypatch, name, run):
    monkeypatch.setattr(matching, "RUN", run)
    net = make(1)
    net.save(tmp_path / name)
    before, after, line, ends = bytes_of(make(2)), bytes_of(net), 1, Counter()
    step = np.random.default_rng(0)
    while True:
        other = make(2)
        if not signalled_at(line, partial(other.load, tmp_path / name)):
            break
        found = bytes_of(other)
        assert found in (before, after)
        ends["all" if found == after else "none"] += 1
        line += int(step.integers(1, 8))
    assert min(ends["all"], ends["none"]) > 10, ends


@pytest.mark.parametrize("use_pickle", [False, True])
def test_a_record_larger_than_the_buffer(tmp_path, use_pickle):
    """SINGA stops there; here the argument asks for nothing."""
    big = layers.Dense("fc", 600, input_sample_shape=(600,))
    net = FeedForwardNet([big], seed=1)
    assert net.param_values()[0].nbytes > 1 << 20
    path, before = str(tmp_path / "m"), bytes_of(net)
    net.save(path, 1, use_pickle)
    for value in net.param_values():
        value[...] = 0
    assert net.load(path, 1, use_pickle).complete
    assert bytes_of(net) == before
    assert names_in(tmp_path) == (["m.pickle"] if use_pickle else ["m.bin", "m.desc"])


def test_the_format_can_be_named(tmp_path):
    net, other = make(1), make(2)
    for format in ("hdf5", "npz", "keras", "keras-legacy"):
        net.save(tmp_path / "file.x", format=format)
        other = make(2)
        other.load(tmp_path / "file.x")
        assert bytes_of(other) == bytes_of(net), format


@pytest.mark.parametrize("name", ["m.keras", "m.PT", "m.pth", "m.onnx", "m.txt", "m.singanet"])
def test_a_suffix_of_others_is_refused_before_anything_is_written(tmp_path, name):
    for write in (make(1).save, lambda path: write_state(path, {"w": np.ones(2)})):
        with pytest.raises(ArgumentError, match=r"a name that ends in '\.bin'.*'\.safetensors'"):
            write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m", "run-0.5", "v1.2", "m."])
def test_a_name_without_a_suffix_is_that_of_a_snapshot(tmp_path, name):
    make(1).save(tmp_path / name)
    assert make(2).load(tmp_path / name).complete


@pytest.mark.parametrize("name", FILES)
def test_what_is_refused_changes_nothing(tmp_path, name):
    """A damaged file, an array that may not be written, the file of another net."""
    net, other, wide = make(1), make(2), make(2, width=4)
    net.save(tmp_path / name)
    file = tmp_path / "m.bin" if name == "m" else tmp_path / name
    raw = file.read_bytes()
    before = bytes_of(other), bytes_of(wide)
    file.write_bytes(flipped(raw, raw.index(net.param_values()[-1].tobytes()) + 2))
    with pytest.raises(CheckpointError, match="fc/bias|layers/dense/vars/1"):
        other.load(tmp_path / name)
    file.write_bytes(raw)
    other.params()[-1].value.flags.writeable = False
    with pytest.raises(CallOrderError, match="read-only array of 'fc/bias'"):
        other.load(tmp_path / name)
    with pytest.raises(StateMismatchError, match=r"fc/weight of \(32, 3\), not \(32, 4\)"):
        wide.load(tmp_path / name)
    assert (bytes_of(other), bytes_of(wide)) == before
    report = wide.load(tmp_path / name, strict=False)
    assert [each.name for each in report.mismatched] == ["fc/weight", "fc/bias"]
    assert bytes_of(wide)["conv/weight"] == bytes_of(net)["conv/weight"]
    assert bytes_of(wide)["fc/bias"] == before[1]["fc/bias"]


def test_rename_and_cast(tmp_path):
    net, other = make(1), make(2, top="top")
    net.as_type("float64")
    net.save(tmp_path / "m.npz")
    rename = {"fc/weight": "top/weight", "fc/bias": "top/bias"}
    with pytest.raises(StateMismatchError, match="float64, not float32.*pass cast=True"):
        other.load(tmp_path / "m.npz", rename=rename)
    report = other.load(tmp_path / "m.npz", rename=rename, cast=True)
    assert "rename=" in report.renamed[-1].rule
    for here, there in zip(other.param_values(), net.param_values(), strict=True):
        assert here.dtype == np.float32
        np.testing.assert_array_equal(here, there.astype("f4"))


def test_what_keras_lacks_and_two_parameters_of_one_name(tmp_path):
    shared = {"use_bias": False, "W_specs": {"name": "shared"}, "input_sample_shape": (2,)}
    scale = [layers.Scale("s", input_sample_shape=(3,))]
    lstm = [layers.LSTM("l", 2, num_layers=2, input_sample_shape=(4, 3))]
    two = [layers.Dense(name, 2, **shared) for name in "ab"]
    for parts, calls, words in (
        (scale, ["save"], "layer 's'.*layers with a form in Keras.*Scale"),
        (lstm, ["save"], "layer 'l', as a Keras LSTM.*num_layers=2"),
        (two, ["save", "load"], "two parameters called 'shared'"),
    ):
        for call in calls:
            with pytest.raises(ArgumentError, match=words):
                getattr(FeedForwardNet(parts), call)(tmp_path / "m.weights.h5")
    assert list(tmp_path.iterdir()) == []
    make(1).save(tmp_path / "k.weights.h5")
    for call in (make(1).save, make(1).load):
        with pytest.raises(ArgumentError, match="data_format: expected the data_format of the K"):
            call(tmp_path / "k.weights.h5", data_format="NCHW")


@pytest.mark.parametrize("name", FILES)
def test_running_state_that_was_kept_in_float16_is_widened(tmp_path, name):
    """Earlier versions wrote all arrays of a net of float16 in that type."""
    net, other = make(1), make(2)
    for each in (net, other):
        each.as_type("float16")
    older = {p.name: p.value.astype(np.float16) for p in net.params()}
    beside = {"layers": keras_layers(net)} if name.endswith("weights.h5") else {}
    write_state(tmp_path / name, older, **beside)
    assert other.load(tmp_path / name).complete
    for param in other.params():
        assert param.value.dtype == (np.float32 if param.is_state else np.float16)
        np.testing.assert_array_equal(param.value, older[param.name])
