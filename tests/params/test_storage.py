"""Where parameters are kept: a storage of a user's own, copies, and names of one parameter."""

import copy
import pickle
import zlib

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.checkpoint import write_folder, write_state
from singanet.errors import ArgumentError, CallOrderError, StateMismatchError
from singanet.initializer import Gaussian
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD
from singanet.parallel import Hybrid, Sharded
from singanet.params.param import Param, ParamSpec
from singanet.params.param_files import keep_params, param_sources, put_params
from singanet.params.storage import Memory, ParamStorage
from tests.kit.nets import values_of
from tests.kit.ranks import together

X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)


class Zipped(ParamStorage):
    """A user's: compressed bytes, unpacked whenever somebody looks."""

    place = "zipped"
    way_back = "unzip it"

    def __init__(self, array):
        self.shape, self.type, self.reads = array.shape, array.dtype, 0
        self.write(array)

    @property
    def dtype(self):
        return self.type

    def read(self):
        self.reads += 1
        return np.frombuffer(zlib.decompress(self.bytes), self.type).reshape(self.shape)

    def lend(self):
        return self.read()

    def write(self, array):
        self.bytes = zlib.compress(np.ascontiguousarray(array, self.type).tobytes())


def make():
    return singanet.FeedForwardNet(
        [Dense("a", 8, input_sample_shape=(4,)), Activation("r", "relu"), Dense("b", 3)],
        loss=SquaredError(),
        seed=3,
    )


def zipped():
    net = make()
    y = net.predict(X)
    for param in net.params():
        param.storage = Zipped(param.value)
    return net, y


def test_a_net_runs_on_a_storage_of_ones_own_and_keeps_nothing_in_memory(tmp_path):
    net, y = zipped()
    np.testing.assert_array_equal(net.predict(X), y)
    assert all(param.storage.array is None for param in net.params())
    assert all(param.storage.reads for param in net.params())
    net.save(tmp_path / "net.npz")
    other = make()
    other.load(tmp_path / "net.npz")
    np.testing.assert_array_equal(other.predict(X), y)


def test_a_file_is_loaded_into_a_storage_of_ones_own(tmp_path):
    net, y = zipped()
    net.save(tmp_path / "net.npz")
    for param in net.params():
        param.put(np.zeros(param.shape, np.float32))
    assert not net.predict(X).any()
    net.load(tmp_path / "net.npz")
    np.testing.assert_array_equal(net.predict(X), y)
    assert not any(param.storage.in_memory for param in net.params())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_in_memory_and_the_original_stays(copied):
    net, y = zipped()
    other = copied(net)
    assert all(param.storage.in_memory for param in other.params())
    assert not any(param.storage.in_memory for param in net.params())
    np.testing.assert_array_equal(other.predict(X), y)


def test_another_type_is_refused_by_where_it_is():
    net, _ = zipped()
    with pytest.raises(CallOrderError, match=r"received one that is zipped.*unzip it"):
        net.params()[0].retype(np.zeros(net.params()[0].shape, np.float64))
    with pytest.raises(CallOrderError, match="unzip it"):
        net.as_type("float64")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_two_names_of_a_parameter_stay_one(copied):
    first = Param(ParamSpec("w"), (3, 2), Gaussian(0.0, 1.0))
    second = first.named("outer/w")
    first, second = copied((first, second))
    assert (first.name, second.name) == ("w", "outer/w")
    assert first.root is second.root
    # Filled by the name that is asked first.
    drawn = second.value
    assert first.value is drawn
    np.testing.assert_array_equal(drawn, Param(ParamSpec("outer/w"), (3, 2), Gaussian(0, 1)).value)
    second.trainable = False
    second.spec = ParamSpec("outer/w", lr_mult=2.0)
    assert not first.trainable
    assert first.spec == ParamSpec("w", lr_mult=2.0)
    first.storage = Memory(np.ones((3, 2), np.float32))
    assert second.value.all()


def test_a_shallow_copy_has_the_array_until_one_of_both_gets_another():
    param = Param(ParamSpec("w"), (3, 2), Gaussian(0.0, 1.0))
    value, other = param.value, copy.copy(param)
    assert other.value is value
    other.retype(np.zeros((3, 2)))
    assert param.value is value
    assert param.array_type == np.float32


# -- To files and back ----------------------------------------------------------------------


IDS = np.arange(12).reshape(4, 3) % 7
Y = np.array([0, 1, 0, 1])


def words(seed=1):
    return FeedForwardNet(
        [Embedding("e", 7, 4, input_sample_shape=(3,)), Flatten("f"), Dense("d", 2)],
        loss=SoftmaxCrossEntropy(),
        seed=seed,
    )


def blocks(seed=1, lora=2):
    """Pairs beside blocks of int8; equal seeds give equal blocks."""
    net = FeedForwardNet(
        [Dense("a", 64, input_sample_shape=(64,)), Dense("b", 2)],
        loss=SoftmaxCrossEntropy(),
        seed=seed,
    )
    net.quantize("int8")
    net.adapt(lora=lora, where="all")
    return net


def expect_same(net, want):
    for name, value in values_of(net).items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)


@pytest.mark.parametrize("write", [write_state, write_folder])
def test_no_writer_takes_what_stands_for_a_table(tmp_path, write):
    net = words()
    net.step(IDS, Y, Hybrid(SGD(lr=0.5)))
    with pytest.raises(ArgumentError, match=r"'e/weight'.*param\.peek\(\)"):
        write(tmp_path / "w.npz", {param.name: param.value for param in net.params()})
    assert not list(tmp_path.glob("*.npz"))
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ArgumentError, match=r"param\.peek\(\)"):
            take({param.name: param.value for param in net.params()})
        take(net)
    write_state(tmp_path / "w.npz", {param.name: param.peek() for param in net.params()})
    twin = words(2)
    twin.load(tmp_path / "w.npz")
    expect_same(twin, values_of(net))


def test_sources_and_copies_are_the_values_wherever_they_are():
    net = words()
    net.step(IDS, Y, Hybrid(SGD(lr=0.5)))
    want, kept = values_of(net), {}
    for source in param_sources(net.params(), "net/"):
        np.testing.assert_array_equal(source.array(), want[source.name.removeprefix("net/")])
    keep_params(net.params(), kept)
    net.step(IDS, Y, Hybrid(SGD(lr=0.5)))
    put_params(net.params(), kept, net.device.put, "here")
    expect_same(net, want)
    keep_params(net.params(), kept)
    expect_same(net, kept)


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.h5", "w", "w.pickle"])
def test_blocks_stay_as_they_are_where_a_file_has_their_values(tmp_path, name):
    net, twin = blocks(), blocks()
    x = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    net.step(x, np.arange(8) % 2, SGD(lr=0.5))
    want = values_of(net)
    net.save(tmp_path / name)
    assert twin.load(tmp_path / name).complete
    expect_same(twin, want)
    assert not twin["a"].params["weight"].storage.trains


def test_blocks_of_other_values_are_refused_before_anything_changes(tmp_path):
    net, other = blocks(1), blocks(2)
    net.save(tmp_path / "w.npz")
    before = values_of(other)
    with pytest.raises(CallOrderError, match=r"read-only array of 'a/weight'.*as_type"):
        other.load(tmp_path / "w.npz")
    with pytest.raises(StateMismatchError, match=r"'a/weight'.*in blocks of 8 bits"):
        put_params(other.params(), values_of(net), other.device.put, "here")
    expect_same(other, before)
    report = other.load(tmp_path / "w.npz", strict=False)
    assert [found.name for found in report.mismatched] == ["a/weight", "b/weight"]
    np.testing.assert_array_equal(other["a"].params["weight"].peek(), before["a/weight"])
    np.testing.assert_array_equal(other["a"].params["bias"].peek(), net["a"].params["bias"].peek())


def test_no_writer_takes_what_stands_for_slices(tmp_path):
    def work(comm):
        net = FeedForwardNet(
            [Dense("a", 64, input_sample_shape=(64,)), Dense("b", 2)],
            loss=SoftmaxCrossEntropy(),
            seed=1,
        )
        stage = Sharded(SGD(lr=0.1), comm, level=3, smallest=0)
        x = np.ones((4, 64), np.float32)
        net.step(x, Y, stage)
        stands = net["a"].params["weight"].storage.stand_in
        with pytest.raises(ArgumentError, match="on other ranks"):
            write_state(tmp_path / f"{comm.rank}.npz", {"w": stands})

    together(work)
