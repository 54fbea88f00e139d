"""GroupNorm and InstanceNorm."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import GroupNorm, InstanceNorm
from singanet.testing import LayerCase


def by_loops(x, groups, epsilon):
    y = np.empty_like(x)
    size = x.shape[1] // groups
    for n in range(len(x)):
        for g in range(groups):
            part = x[n, g * size : (g + 1) * size]
            centred = part - part.sum() / part.size
            spread = (centred**2).sum() / part.size
            y[n, g * size : (g + 1) * size] = centred / (spread + epsilon) ** 0.5
    return y


class TestGroupNorm(LayerCase):
    in_shapes = (6, 2, 3)

    def make(self):
        return GroupNorm("norm", 3)

    def expected(self, params, x):
        y = by_loops(x, 3, 1e-5)
        return np.einsum("nchw,c->nchw", y, params["gamma"]) + params["beta"][:, None, None]


class TestGroupNormOfFeatures(LayerCase):
    in_shapes = (6,)

    def make(self):
        return GroupNorm("norm", 2, epsilon=0.5)

    def expected(self, params, x):
        return by_loops(x, 2, 0.5) * params["gamma"] + params["beta"]


class TestGroupNormWithoutScaleOfVolumes(LayerCase):
    in_shapes = (4, 2, 1, 3)

    def make(self):
        return GroupNorm("norm", 2, scale=False)

    def expected(self, params, x):
        assert list(params) == ["beta"]
        rows = x.reshape(len(x), 2, 12)
        mean, var = rows.mean(axis=2, keepdims=True), rows.var(axis=2, keepdims=True)
        y = ((rows - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
        return y + params["beta"][:, None, None, None]


class TestGroupNormWithoutParameters(LayerCase):
    in_shapes = (4, 5)

    def make(self):
        return GroupNorm("norm", 1, affine=False)

    def expected(self, params, x):
        assert params == {}
        return by_loops(x, 1, 1e-5)


@pytest.mark.parametrize("shape", [(5, 2, 2), (), (0, 2), (4, 0), [(4,), (4,)]])
def test_refuses_channels_that_form_no_groups(shape):
    with pytest.raises(ShapeError, match=r"layer 'norm': expected"):
        GroupNorm("norm", 2).build(shape)


@pytest.mark.parametrize("groups", [0, -1, 1.5, None, True])
def test_refuses_bad_groups(groups):
    with pytest.raises(ArgumentError, match=r"'norm', argument groups: expected an int"):
        GroupNorm("norm", groups)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm_equals_pytorch(groups, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: GroupNorm("norm", groups)
    case.in_shapes = (8, 7, 9)
    layer = case.built()
    x = (3 * rng.standard_normal((4, 8, 7, 9)) + 1).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    xt, gamma, beta = (torch.from_numpy(a).requires_grad_() for a in (x, *layer.param_values()))
    yt = torch.nn.functional.group_norm(xt, groups, gamma, beta)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, gamma.grad, beta.grad]
    for got, want in zip([y, dx, grads["gamma"], grads["beta"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


class TestInstanceNorm(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return InstanceNorm("norm")

    def expected(self, params, x):
        rows = x.reshape(len(x), 3, 8)
        centred = rows - np.einsum("ncp->nc", rows)[..., None] / 8
        spread = np.einsum("ncp,ncp->nc", centred, centred)[..., None] / 8
        y = centred / np.sqrt(spread + 1e-5) * params["gamma"][:, None] + params["beta"][:, None]
        return y.reshape(x.shape)


class TestInstanceNormOfSequences(LayerCase):
    in_shapes = (3, 5)

    def make(self):
        return InstanceNorm("norm", affine=False, epsilon=0.2)

    def expected(self, params, x):
        return (x - x.mean(axis=2, keepdims=True)) / np.sqrt(x.var(axis=2, keepdims=True) + 0.2)


@pytest.mark.parametrize("shape", [(3,), (), (3, 0), (3, 1), (3, 1, 1), [(3, 4), (3, 4)]])
def test_refuses_samples_without_positions(shape):
    with pytest.raises(ShapeError, match=r"layer 'norm': expected .*\(channels, positions"):
        InstanceNorm("norm").build(shape)


def test_instance_norm_equals_pytorch(rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: InstanceNorm("norm")
    case.in_shapes = (8, 7, 9)
    layer = case.built()
    x = (3 * rng.standard_normal((4, 8, 7, 9)) + 1).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    xt, gamma, beta = (torch.from_numpy(a).requires_grad_() for a in (x, *layer.param_values()))
    yt = torch.nn.functional.instance_norm(xt, weight=gamma, bias=beta)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, gamma.grad, beta.grad]
    for got, want in zip([y, dx, grads["gamma"], grads["beta"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1)])
def test_groups_of_one_number_are_refused(shape):
    """They would always become 0; PyTorch refuses them in training."""
    with pytest.raises(ShapeError, match="more than one number in a group"):
        GroupNorm("norm", 4).build(shape)
    assert GroupNorm("norm", 2).build(shape) == shape
