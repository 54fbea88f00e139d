"""Nets over sequences whose length differs from call to call."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import layers as nn
from singanet.errors import ShapeError
from singanet.layers import Concat, Conv1D, Dense, Index, Input, LayerNorm, MatMul, Reshape, Scale
from singanet.testing import check_net_gradients


def language_model():
    layers = [
        nn.Embedding("chars", 7, 5, input_sample_shape=(None,)), nn.GRU("gru", 4),
        LayerNorm("norm"), nn.Activation("tanh", "tanh"),
        nn.TimeDistributed("scores", Dense("fc", 7)), nn.Softmax("chance", axis=-1),
    ]  # fmt: skip
    net = FeedForwardNet(layers, seed=0)
    return net


def test_one_net_takes_every_length():
    net = language_model()
    x = np.random.default_rng(0).integers(0, 7, (3, 9))
    whole = net.forward(False, x)
    assert whole.shape == (3, 9, 7)
    # The recurrent layer looks only back, so a shorter text gives the first outputs.
    for length in (1, 4):
        np.testing.assert_allclose(net.forward(False, x[:, :length]), whole[:, :length], rtol=1e-5)
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, rtol=1e-5)
    assert "any" in net.summary()


def moved():
    """A net whose layers move, join and look beside what has any number of steps."""
    x = Input("x", (None, 4))
    transposed = nn.Permute("turn", (2, 1))(x)
    near = nn.DepthwiseConv1D("deep", 3)(Conv1D("near", 4, 3)(transposed))
    y = Concat("both", 1)([near, Scale("scale")(transposed)])
    a, b = nn.Slice("parts", 1, [6])(y)
    heads = Reshape("heads", (3, 2, -1))(a)
    seen = MatMul("scores", transpose_a=True)([heads, heads])
    mixed = Reshape("back", (6, -1))(MatMul("mix")([heads, nn.Softmax("chance", -1)(seen)]))
    ends = [mixed[:, :, 0], mixed[:, :, -1], b[:, :, ::-1][:, :, 0]]
    return FeedForwardNet(inputs=[x], outputs=Concat("ends", 1)(ends), seed=0)


def test_moves_and_products_at_every_length_are_those_of_a_net_of_that_length():
    net = moved()
    assert "any" in net.summary()
    for length in (1, 2, 5):
        x = np.random.default_rng(length).standard_normal((2, length, 4)).astype(np.float32)
        transposed = x.transpose(0, 2, 1)
        params = dict(zip(net.param_names(), net.param_values(), strict=True))
        near = slow_convolution(transposed, params["near/weight"], params["near/bias"])
        near = np.stack([
            slow_convolution(near[:, c : c + 1], params["deep/weight"][c : c + 1],
                             params["deep/bias"][c : c + 1])[:, 0] for c in range(4)
        ], 1)  # fmt: skip
        y = np.concatenate([near, transposed], 1)
        heads = y[:, :6].reshape(2, 3, 2, length)
        scores = np.exp(np.einsum("nhdq,nhdk->nhqk", heads, heads))
        mixed = np.einsum("nhdq,nhqk->nhdk", heads, scores / scores.sum(-1, keepdims=True))
        mixed = mixed.reshape(2, 6, length)
        wanted = np.concatenate([mixed[..., 0], mixed[..., -1], y[:, 6:, -1]], 1)
        np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-4, atol=1e-5)
        check_net_gradients(moved(), x)


def slow_convolution(x, weight, bias):
    """Each position with those beside it."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    kernels = weight.reshape(len(weight), -1, 3)
    steps = [np.einsum("nck,fck->nf", wide[:, :, t : t + 3], kernels) for t in range(x.shape[2])]
    return np.stack(steps, -1) + bias[:, None]


@pytest.mark.parametrize(("make", "shape"), [
    (lambda: Reshape("r", (2, -1)), (None, 4)), (lambda: Reshape("r", (2, 2)), (None, 4)),
    (lambda: Reshape("r", (-1, 4)), (None, None)), (lambda: Index("r", [1]), (None, 4)),
    (lambda: Index("r", [(1, None, None)]), (None, 4)), (lambda: Scale("r"), (None, 4)),
    (lambda: nn.Slice("r", 1, [2]), (None, 4)),
    (lambda: Conv1D("r", 2, padding_mode="reflect"), (4, None)),
    (lambda: Conv1D("r", 2), (None, 4)),
])  # fmt: skip
def test_what_depends_on_the_extent_is_refused(make, shape):
    with pytest.raises(ShapeError, match="layer 'r'"):
        make().build(shape)


def test_sequences_that_do_not_fit_are_told_when_they_come():
    net = FeedForwardNet([Conv1D("near", 2, 4, border_mode="valid", input_sample_shape=(1, None))])
    assert net.forward(False, np.ones((1, 1, 4), np.float32)).shape == (1, 2, 1)
    with pytest.raises(ShapeError, match="at least as long as the kernel 4"):
        net.forward(False, np.ones((1, 1, 3), np.float32))
    a, b = Input("a", (None, 3)), Input("b", (None, 3))
    for layer in (MatMul("m", transpose_a=True), Concat("m", 2)):
        net = FeedForwardNet(inputs=[a, b], outputs=layer([a, b]))
        x = {"a": np.ones((2, 4, 3), np.float32), "b": np.ones((2, 5, 3), np.float32)}
        with pytest.raises(ShapeError, match="layer 'm'"):
            net.forward(False, x)


@pytest.mark.parametrize("length", [1, 6])
def test_gradients_are_right_at_every_length(length):
    check_net_gradients(language_model(), np.random.default_rng(1).integers(0, 7, (2, length)))


def test_an_axis_that_parameters_span_must_be_known():
    with pytest.raises(ShapeError, match=r"layer 'norm'.*a known size from axis 1 on"):
        LayerNorm("norm", axis=1).build((None, 4))
    net = FeedForwardNet()
    with pytest.raises(ShapeError, match="layer 'inner'"):
        net.add(nn.TimeDistributed("steps", Dense("inner", 3), input_sample_shape=(5, None)))
