"""Parameters to files and back: read-only ones stay, stand-ins are refused."""

import copy
import pickle

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.checkpoint import write_folder, write_state
from singanet.errors import ArgumentError, CallOrderError, StateMismatchError
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.parallel import Hybrid, Sharded
from singanet.params.param_files import keep_params, param_sources, put_params
from tests.kit.nets import values_of
from tests.kit.ranks import together

X = np.arange(12).reshape(4, 3) % 7
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
    net.step(X, Y, Hybrid(SGD(lr=0.5)))
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
    net.step(X, Y, Hybrid(SGD(lr=0.5)))
    want, kept = values_of(net), {}
    for source in param_sources(net.params(), "net/"):
        np.testing.assert_array_equal(source.array(), want[source.name.removeprefix("net/")])
    keep_params(net.params(), kept)
    net.step(X, Y, Hybrid(SGD(lr=0.5)))
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
