"""Where parameters are kept: a storage of a user's own, copies, and names of one parameter."""

import copy
import pickle
import zlib

import numpy as np
import pytest

import singanet
from singanet.errors import CallOrderError
from singanet.initializer import Gaussian
from singanet.layers import Activation, Dense
from singanet.loss import SquaredError
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import Memory, ParamStorage

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
