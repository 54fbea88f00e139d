"""LRN."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import LRN
from singanet.testing import LayerCase


def by_loops(x, size, alpha, beta, k):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        near = range(max(0, c - size // 2), min(x.shape[1], c + size // 2 + 1))
        total = sum(x[:, other] ** 2 for other in near)
        y[:, c] = x[:, c] / (k + alpha * total) ** beta
    return y


class TestLRN(LayerCase):
    in_shapes = (7, 2, 3)

    def make(self):
        return LRN("lrn")

    def expected(self, params, x):
        return by_loops(x, 5, 1, 0.75, 1)


class TestLRNOfOtherNumbers(LayerCase):
    in_shapes = (4, 3)

    def make(self):
        return LRN("lrn", size=3, alpha=0.3, beta=1.2, k=2)

    def expected(self, params, x):
        return by_loops(x, 3, 0.3, 1.2, 2)


class TestLRNOfAWindowWiderThanTheChannels(LayerCase):
    in_shapes = (2, 3)

    def make(self):
        return LRN("lrn", size=9)

    def expected(self, params, x):
        return x / (1 + np.einsum("ncl,ncl->nl", x, x)[:, None]) ** 0.75


def test_equals_the_values_of_singas_own_test():
    layer = LRN("lrn", size=3, alpha=0.1, beta=0.75, k=1, input_sample_shape=(4, 1, 1))
    x = np.arange(1.0, 9).reshape(2, 4, 1, 1)
    ctx, y = LayerCase().run(layer, x, train=True)
    expected = [0.737787, 1.037221, 1.080992, 1.563179, 1.149545, 0.930604, 0.879124, 1.218038]
    np.testing.assert_allclose(y.reshape(-1), expected, atol=1e-6)
    dx, _ = layer.backward(ctx, np.arange(8.0, 0, -1).reshape(2, 4, 1, 1))
    expected = [4.858289, 1.043326, -0.952649, -0.383733, 0.259425, -0.426475, -0.213195, -0.099276]
    np.testing.assert_allclose(dx.reshape(-1), expected, atol=1e-6)


def test_equals_pytorch_with_alpha_divided_by_size(rng):
    torch = pytest.importorskip("torch")
    layer = LRN("lrn", size=5, alpha=2e-2, k=2, input_sample_shape=(8, 5, 6))
    x = (5 * rng.standard_normal((4, 8, 5, 6))).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = LayerCase().run(layer, x, train=True)
    dx, _ = layer.backward(ctx, dy)
    xt = torch.from_numpy(x).requires_grad_()
    yt = torch.nn.functional.local_response_norm(xt, 5, alpha=5 * 2e-2, beta=0.75, k=2)
    yt.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, yt.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, xt.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [{"size": 4}, {"size": 0}, {"mode": "within_channel"}, {"k": 0}, {"alpha": -1}, {"beta": "x"}],
)
def test_refuses_bad_arguments(arguments):
    with pytest.raises(ArgumentError, match=r"layer 'lrn'"):
        LRN("lrn", **arguments)


def test_refuses_samples_without_channels():
    with pytest.raises(ShapeError, match=r"layer 'lrn': expected samples of shape \(channels"):
        LRN("lrn").build(())
