"""Clipping by value, layer, whole net and running estimate, around any optimizer."""

import math

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.optimizer import (
    SGD,
    Adam,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    clip_by_global_norm,
    global_norm,
)
from singanet.params.param import ParamSpec
from singanet.types import RowSparse

rng = np.random.default_rng(0)


def moved(optimizer, grads, scale=1.0):
    """How far SGD at rate 1 moves from zero: the gradient that arrived."""
    shape = [(4, 2) if isinstance(g, tuple) else g.shape for g in grads]
    values = [np.zeros(s) for s in shape]
    optimizer.update([str(i) for i in range(len(grads))], values, grads, scale)
    return [-value for value in values]


def norm(grads):
    return math.sqrt(
        sum(
            float(
                (g[1] if isinstance(g, tuple) else g).ravel()
                @ (g[1] if isinstance(g, tuple) else g).ravel()
            )
            for g in grads
        )
    )


def test_by_value():
    g = np.array([-3.0, 0.2, 0.6])
    (arrived,) = moved(ClipByValue(SGD(lr=1.0), 0.5), [g])
    np.testing.assert_array_equal(arrived, [-0.5, 0.2, 0.5])
    (arrived,) = moved(ClipByValue(SGD(lr=1.0), 0.5), [g], scale=2.0)
    np.testing.assert_array_equal(arrived, [-0.5, 0.4, 0.5])
    np.testing.assert_array_equal(g, [-3, 0.2, 0.6])
    rows = RowSparse(np.array([1, 3]), np.array([[2.0, 0.1], [-2.0, 0.0]]))
    (arrived,) = moved(ClipByValue(SGD(lr=1.0), 0.5), [rows])
    np.testing.assert_array_equal(arrived, [[0, 0], [0.5, 0.1], [0, 0], [-0.5, 0]])


@pytest.mark.parametrize("scale", [1.0, 0.001, -3.0])
def test_by_layer_norm(scale):
    rows = RowSparse(np.array([1, 3]), rng.normal(size=(2, 2)))
    grads = [rng.normal(size=(3, 4)), rows, rng.normal(size=4)]
    arrived = moved(ClipByLayerNorm(SGD(lr=1.0), 0.7), grads, scale)
    size = norm(grads) * abs(scale)
    assert norm(arrived) == pytest.approx(min(size, 0.7))
    factor = scale * min(1.0, 0.7 / size)
    np.testing.assert_allclose(arrived[0], factor * grads[0])
    np.testing.assert_allclose(arrived[1][[1, 3]], factor * rows.rows)
    (zero,) = moved(ClipByLayerNorm(SGD(lr=1.0), 0.7), [np.zeros(3)])
    np.testing.assert_array_equal(zero, 0)


class Layers:
    """A net as far as clipping sees it: items layer by layer, and what is alive of them."""

    def __init__(self, grads):
        self.grads = grads
        self.values = [np.zeros_like(g) for g in grads]
        self.runs = 0

    def __call__(self):
        self.runs += 1
        for i, g in enumerate(self.grads):
            yield [f"l{i}"], [self.values[i]], [g.copy()]
        yield [], [], []


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_by_global_norm_equals_pytorchs(limit):
    grads = [rng.normal(size=(3, 4)), rng.normal(size=5), rng.normal(size=(2, 2))]
    net = Layers(grads)
    total = clip_by_global_norm(SGD(lr=1.0), limit, net)
    assert total == pytest.approx(norm(grads))
    assert net.runs == 2
    for value, g in zip(net.values, grads, strict=True):
        np.testing.assert_allclose(-value, g * min(1.0, limit / norm(grads)))
    torch = pytest.importorskip("torch")
    peers = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
    for peer, g in zip(peers, grads, strict=True):
        peer.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_norm_(peers, limit)
    for value, peer in zip(net.values, peers, strict=True):
        np.testing.assert_allclose(-value, peer.grad.numpy(), rtol=1e-5)


def test_global_norm_of_a_pass():
    grads = [rng.normal(size=(3, 4)), rng.normal(size=5)]
    assert global_norm(Layers(grads)()) == pytest.approx(norm(grads))
    assert global_norm([(["a"], [np.zeros(2)], [None])]) == 0


def test_gradients_without_a_norm_change_nothing():
    net = Layers([np.ones(2), np.array([np.inf, 1.0])])
    with pytest.raises(ArgumentError, match="finite norm; received a norm of inf"):
        clip_by_global_norm(SGD(lr=1.0), 1.0, net)
    assert not any(value.any() for value in net.values)


def test_by_running_norm_follows_its_definition():
    clipper = ClipByRunningNorm(SGD(lr=1.0), 1.0, decay=0.8)
    estimate = 0.0
    for step in range(6):
        grads = [rng.normal(size=3) * (0.1 + step), rng.normal(size=4)]
        so_far = []
        for i, g in enumerate(grads):
            so_far.append(g)
            value = np.zeros(g.shape)
            clipper.update([f"l{i}"], [value], [g])
            n = max(estimate, norm(so_far))
            np.testing.assert_allclose(-value, g * min(1.0, 1.0 / n))
            assert norm([value]) <= 1 + 1e-12
        total = norm(grads)
        estimate = total if step == 0 else 0.8 * estimate + 0.2 * total


def test_a_refused_update_leaves_the_estimate():
    clipper = ClipByRunningNorm(SGD(lr=1.0), 1.0)
    clipper.update(["w"], [np.zeros(2)], [np.ones(2)])
    before = clipper.state_dict()
    with pytest.raises(ShapeError):
        clipper.update(["w"], [np.zeros(2)], [np.ones(3)])
    assert {k: v.tolist() for k, v in clipper.state_dict().items()} == {
        k: v.tolist() for k, v in before.items()
    }


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: ClipByValue(inner, 0.3),
        lambda inner: ClipByLayerNorm(inner, 0.5),
        lambda inner: ClipByRunningNorm(inner, 0.5),
        lambda inner: ClipByValue(ClipByRunningNorm(inner, 0.5), 0.3),
    ],
)
def test_resume_is_exact_and_specs_pass_through(wrap):
    def steps(optimizer, values, which):
        for step in which:
            draws = np.random.default_rng(step)
            for i in (1, 0):
                g = draws.normal(size=values[i].shape)
                optimizer.update([f"l{i}"], [values[i]], [g])

    def make():
        optimizer = wrap(Adam(lr=0.1))
        optimizer.register_all([ParamSpec("l0", lr_mult=0.0)])
        optimizer.register("l1", ParamSpec("l1", lr_mult=2.0))
        return optimizer

    whole, halved = ([np.ones((2, 3)), np.ones(4)] for _ in range(2))
    one, first, second = make(), make(), make()
    steps(one, whole, range(5))
    steps(first, halved, range(2))
    second.load_state_dict(first.state_dict())
    steps(second, halved, range(2, 5))
    for a, b in zip(whole, halved, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(whole[0], 1)


def test_state_of_another_kind():
    state = SGD(lr=0.1).state_dict()
    with pytest.raises(DataError, match="clip.estimate"):
        ClipByRunningNorm(SGD(lr=0.1), 1.0).load_state_dict(state)


@pytest.mark.parametrize("bad", [-1.0, math.nan, "1"])
def test_bad_limits(bad):
    inner = SGD(lr=0.1)
    for make in (
        lambda: ClipByValue(inner, bad),
        lambda: ClipByLayerNorm(inner, bad),
        lambda: ClipByRunningNorm(inner, bad),
        lambda: clip_by_global_norm(inner, bad, list),
        lambda: ClipByRunningNorm(inner, 1.0, decay=bad),
    ):
        with pytest.raises(ArgumentError, match=r"limit|max_norm|decay"):
            make()


def test_only_optimizers_are_wrapped():
    with pytest.raises(ArgumentError, match="received float"):
        ClipByValue(0.1, SGD(lr=0.1))
