"""Sample axes of any extent, from the input of a net to its output."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import GRU, LSTM, Activation, Conv2D, Dense, Dropout, Dummy, Flatten, Input
from singanet.net import FeedForwardNet
from singanet.testing import check_net_gradients


def test_one_net_takes_sequences_of_any_length(rng):
    net = FeedForwardNet(seed=1)
    net.add(LSTM("rnn", 4, input_sample_shape=(None, 3)))
    net.add(Activation("act", "tanh"))
    net.add(Dropout("drop", 0.5))
    net.add(GRU("top", 2, return_sequences=False))
    net.add(Dense("fc", 5))
    x = rng.standard_normal((2, 9, 3)).astype(np.float32)
    for steps in (9, 1, 4):
        assert net.forward(True, x[:, :steps]).shape == (2, 5)
        for names, _, _ in net.backward(np.ones((2, 5), np.float32)):
            assert len(names) in (0, 2, 4)
    check_net_gradients(net, x[:, :3])


def test_the_other_axes_are_still_checked():
    net = FeedForwardNet()
    net.add(LSTM("rnn", 4, input_sample_shape=(None, 3)))
    with pytest.raises(ShapeError, match=r"shape \(batch, any, 3\); received shape \(2, 5, 4\)"):
        net.forward(False, np.zeros((2, 5, 4), np.float32))
    with pytest.raises(ShapeError, match=r"\(batch, any, 3\)"):
        net.forward(False, np.zeros((2, 3), np.float32))


def test_a_known_extent_is_still_a_maximum():
    net = FeedForwardNet()
    net.add(LSTM("rnn", 4, input_sample_shape=(5, 3)))
    with pytest.raises(ShapeError, match=r"\(batch, 5, 3\); received shape \(2, 6, 3\)"):
        net.forward(False, np.zeros((2, 6, 3), np.float32))


@pytest.mark.parametrize("layer", [Flatten("f"), Conv2D("c", 2)])
def test_a_layer_that_needs_extents_says_so(layer):
    net = FeedForwardNet()
    net.add(Dummy("in", input_sample_shape=(1, None, 3)))
    with pytest.raises(ShapeError, match=f"layer '{layer.name}': expected a known extent"):
        net.add(layer)
    assert layer.name not in net


def test_negative_extents_are_no_shapes():
    with pytest.raises(ShapeError, match="layer 'in': expected extents, or None for any"):
        Dummy("in").build((-2, 3))


def test_symbols_states_and_sampling_step_by_step(rng):
    """The char-rnn way: trained on windows, sampled one step at a time with states handed on."""
    x = Input("x", (None, 3))
    h, c = Input("h", (2, 4)), Input("c", (2, 4))
    y, *states = LSTM("rnn", 4, num_stacks=2, return_state=True)(x, h, c)
    net = FeedForwardNet(inputs=[x, h, c], outputs=[y, *states], seed=3)
    data = rng.standard_normal((2, 5, 3)).astype(np.float32)
    zero = np.zeros((2, 2, 4), np.float32)
    whole, h_last, c_last = net.forward(False, {"x": data, "h": zero, "c": zero})
    h_now, c_now = zero, zero
    for t in range(5):
        step = {"x": data[:, t : t + 1], "h": h_now, "c": c_now}
        out, h_now, c_now = net.forward(False, step)
        np.testing.assert_allclose(out[:, 0], whole[:, t], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h_now, h_last, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c_now, c_last, rtol=1e-5, atol=1e-6)
    check_net_gradients(net, {"x": data, "h": zero, "c": zero})


def test_lengths_travel_through_a_net(rng):
    x, lengths = Input("x", (6, 3)), Input("lengths", ())
    net = FeedForwardNet(
        inputs=[x, lengths], outputs=GRU("rnn", 2, bidirectional=True)(x, lengths), seed=3
    )
    data = rng.standard_normal((3, 6, 3)).astype(np.float32)
    out = net.forward(True, {"x": data, "lengths": np.array([6, 1, 3])})
    assert not out[1, 1:].any()
    assert out[1, 0].all()
    names = [name for item in net.backward(np.ones_like(out)) for name in item.names]
    assert len(names) == 8
