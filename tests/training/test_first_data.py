"""A list of layers takes its input shape from the first data that it is fitted to."""

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers import Activation, Conv2D, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from tests.html_check import read_html


def net_of(*parts, build=None):
    net = FeedForwardNet(list(parts), seed=3)
    if build is not None:
        net.build(build)
    net.compile(singanet.optimizer.SGD(lr=0.1), SoftmaxCrossEntropy())
    return net


def dense():
    return [Dense("a", 6), Activation("r"), Dropout("d", 0.2), Dense("b", 3)]


X = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
Y = np.arange(24) % 3


class Once:
    """An iterable of one iteration."""

    def __init__(self):
        self.batches = iter([(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)])

    def __iter__(self):
        return self.batches


class DrawsAnew:
    """Another order at each iteration, as PyTorch's loaders have."""

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __iter__(self):
        order = self.rng.permutation(24)
        return ((X[rows], Y[rows]) for rows in np.split(order, 3))


SOURCES = {
    "array": lambda: (X, Y),
    "list": lambda: (X.tolist(), Y.tolist()),
    "dict": lambda: ({"input": X}, Y),
    "loader": lambda: (ArrayLoader(X, Y, 8, seed=3), None),
    "batches": lambda: ([(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)], None),
    "iterator": lambda: (iter([(X[:12], Y[:12]), (X[12:], Y[12:])]), None),
    "once": lambda: (Once(), None),
    "draws anew": lambda: (DrawsAnew(), None),
    "function": lambda: ((lambda epoch: iter([(X[epoch:], Y[epoch:])])), None),
}


@pytest.mark.parametrize("source", SOURCES)
def test_it_trains_as_one_that_was_told_its_shape(source, same):
    told, net = net_of(*dense(), build=(5,)), net_of(*dense())
    histories = []
    for each in (told, net):
        x, y = SOURCES[source]()
        histories.append(each.fit(x, y, batch_size=8, verbose=False))
    assert histories[0] == histories[1]
    same(told, net)


def test_a_single_batch_and_other_kinds_of_data(same):
    told, net = net_of(*dense(), build=(5,)), net_of(*dense())
    assert told.train_on_batch(X, Y) == net.train_on_batch(X, Y)
    same(told, net)
    images = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    images.fit(np.zeros((6, 1, 4, 4), np.float32), Y[:6], verbose=False)
    assert images.summary().count("(1, 4, 4)")
    words = net_of(Embedding("e", 9, 4), Flatten("f"), Dense("d", 3))
    words.fit(np.zeros((6, 7), np.int64), Y[:6], verbose=False)
    assert words["d"].params["weight"].shape == (28, 3)


def test_data_that_are_refused_leave_it_as_it_was(same):
    told, net = net_of(*dense(), build=(5,)), net_of(*dense())
    with pytest.raises(DataError, match="same number of samples"):
        net.fit(X[:, :2], Y[:3], verbose=False)
    for batches, words in (
        ([], "at least one batch"),
        ([X], r"\(x, y\)"),
        ([(X, Y, Y, Y)], "of 4"),
    ):
        with pytest.raises(DataError, match=words):
            net.fit(iter(batches), verbose=False)
        assert net.pending
    convolution = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    with pytest.raises(ShapeError):
        convolution.fit(X, Y, verbose=False)
    convolution.fit(X.reshape(-1, 1, 5, 1), Y, verbose=False)
    for each in (told, net):
        each.fit(X, Y, batch_size=8, verbose=False)
    same(told, net)


def test_a_step_builds_the_net():
    net = net_of(*dense())
    net.step(X, Y, SGD(lr=0.1))
    assert not net.pending
    images = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    with pytest.raises(DataError, match="channels last"):
        images.step(np.zeros((2, 6, 6, 3)), Y[:2], SGD(lr=0.1))
    assert images.pending


def test_only_training_does():
    net = net_of(*dense())
    for call in (net.predict, lambda x: net.evaluate(x, Y)):
        with pytest.raises(CallOrderError, match="known input shape"):
            call(X)


def test_a_notebook_names_its_layers():
    text = " ".join(read_html(net_of(*dense())._repr_html_()).text)
    for part in dense():
        assert f"{part.name} {type(part).__name__} not built" in text
    assert "without layers" not in text


@pytest.mark.parametrize("kind", ["array", "loader"])
def test_within_a_budget(kind):
    x, y = SOURCES[kind]()
    net, plain = net_of(*dense()), net_of(*dense())
    with pytest.raises(ArgumentError, match="net.fit, memory_budget: expected at least"):
        net.fit(x, y, 8, memory_budget=1, verbose=False)
    assert net.pending  # as before
    found = net.fit(x, y, 8, memory_budget="1GB", verbose=False)
    assert found["loss"] == plain.fit(*SOURCES[kind](), 8, verbose=False)["loss"]


@pytest.mark.parametrize("shape", [(28, 28, 1), (20, 30, 3), (9, 9, 4)])
def test_images_with_channels_last_are_no_maps_of_many_channels(shape):
    x = np.zeros((6, *shape), np.float32)
    net = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    with pytest.raises(DataError, match=r"channels last.*transpose.*input_shape=.* to 'c'"):
        net.fit(x, Y[:6], verbose=False)
    assert net.pending
    net.fit(x.transpose(0, 3, 1, 2), Y[:6], verbose=False)
    # What is said is taken, and what sees no axes.
    net_of(Conv2D("c", 2, 3, input_sample_shape=shape), Flatten("f"), Dense("d", 3))
    net_of(Flatten("f"), Dense("d", 3)).fit(x, Y[:6], verbose=False)
    net = net_of(Conv2D("c", 2, 3), Flatten("f"), Dense("d", 3))
    net.fit(np.zeros((6, 8, 16, 4), np.float32), Y[:6], verbose=False)
