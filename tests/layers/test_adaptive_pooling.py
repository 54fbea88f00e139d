"""Pooling to so many positions."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest

from singanet import layers
from singanet.errors import ArgumentError, ShapeError
from singanet.testing import LayerCase


def cells(size, out):
    """Position by position, by the formula as it is written."""
    return [slice(floor(i * size / out), ceil((i + 1) * size / out)) for i in range(out)]


class TestAdaptiveAvgPooling2D(LayerCase):
    in_shapes = (2, 5, 4)

    def make(self):
        return layers.AdaptiveAvgPooling2D("pool", (3, 2))

    def expected(self, params, x):
        return np.stack(
            [[x[:, :, a, b].mean((2, 3)) for b in cells(4, 2)] for a in cells(5, 3)]
        ).transpose(2, 3, 0, 1)


class TestAdaptiveMaxPooling2D(LayerCase):
    in_shapes = (2, 5, 4)

    def make(self):
        return layers.AdaptiveMaxPooling2D("pool", (3, None))

    def expected(self, params, x):
        return np.stack([x[:, :, a].max(2) for a in cells(5, 3)], axis=2)


class TestMorePositionsThanThereAre(LayerCase):
    in_shapes = (2, 3)

    def make(self):
        return layers.AdaptiveAvgPooling1D("pool", 5)

    def expected(self, params, x):
        return np.stack([x[:, :, a].mean(2) for a in cells(3, 5)], axis=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Avg", "Max"])
@pytest.mark.parametrize(("shape", "out"), [((3, 7), 3), ((3, 6, 9), (None, 4)), ((3, 6, 8), 1),
                                            ((2, 4, 5, 6), (2, 5, 4))])  # fmt: skip
def test_agrees_with_pytorch(dtype, kind, shape, out):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    axes = len(shape) - 1
    case = LayerCase()
    case.make = lambda: getattr(layers, f"Adaptive{kind}Pooling{axes}D")("pool", out)
    case.in_shapes = shape
    layer = case.built(dtype=dtype)
    # Few numbers, of which many are equal.
    x = rng.integers(0, 4, (2, *shape)).astype(dtype)
    ctx, y = case.run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, _ = layer.backward(ctx, dy)
    leaf = torch.tensor(x, requires_grad=True)
    wanted = getattr(torch.nn, f"Adaptive{kind}Pool{axes}d")(out)(leaf)
    wanted.backward(torch.tensor(dy))
    for got, want in ((y, wanted.detach()), (dx, leaf.grad)):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1.5, (2,), (2, 0), "ab", True])
def test_bad_sizes_are_refused(size):
    with pytest.raises(ArgumentError, match="layer 'pool', argument output_size"):
        layers.AdaptiveAvgPooling2D("pool", size)


def test_samples_of_other_axes_are_refused():
    with pytest.raises(ShapeError, match=r"'pool': .*\(channels, length\)"):
        layers.AdaptiveMaxPooling1D("pool", 2).build((3, 4, 5))
