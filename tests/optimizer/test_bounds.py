"""Penalties, constraints and clipping against their formulas, around any optimizer."""

import json
import math
from functools import partial

import numpy as np
import pytest

from singanet import optimizer as opt
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.optimizer import SGD, ClipByRunningNorm, ClipByValue, L2Constraint, MaxNorm
from singanet.optimizer.regularization import sum_of_squares
from singanet.params.param import ParamSpec
from singanet.types import RowSparse

rng = np.random.default_rng(0)
W, G = np.array([1.0, -2.0, 0.0]), np.array([0.5, 0.5, 0.5])


def moved(optimizer, grads, scale=1.0):
    """How far SGD at rate 1 moves from zero: the gradient that arrived."""
    values = [np.zeros((4, 2) if isinstance(g, tuple) else g.shape) for g in grads]
    optimizer.update([str(i) for i in range(len(grads))], values, grads, scale)
    return [-value for value in values]


def norm(grads):
    arrays = [np.ravel(g[1] if isinstance(g, tuple) else g) for g in grads]
    return math.sqrt(sum(float(array @ array) for array in arrays))


# --- penalties and constraints --------------------------------------------------------------------


def test_penalties():
    np.testing.assert_allclose(opt.L2Regularizer(1e-4).apply(0, W, G), G + 1e-4 * W)
    np.testing.assert_allclose(opt.L1Regularizer(0.1).apply(0, W, G), G + 0.1 * np.sign(W))
    regularizer = opt.L2Regularizer(lambda step: 0.1 * step)
    np.testing.assert_allclose(regularizer.apply(0, W, G, step=3), G + 0.3 * W)
    np.testing.assert_allclose(regularizer.apply(0, W, G), G)
    w, optimizer = W.copy(), SGD(lr=1.0, regularizer=regularizer)
    optimizer.update(["w"], [w], [G])
    np.testing.assert_allclose(w, W - G)
    optimizer.update(["w"], [w], [np.zeros(3)])
    np.testing.assert_allclose(w, (W - G) * 0.9)
    np.testing.assert_array_equal(G, 0.5)
    np.testing.assert_array_equal(W, [1, -2, 0])


def test_singas_constraint():
    g = rng.normal(size=(3, 4))
    expected = g * 0.02 / (np.linalg.norm(g) / g.size)
    np.testing.assert_allclose(L2Constraint(0.02).apply(0, g, g), expected)
    (arrived,) = moved(SGD(lr=1.0, constraint=L2Constraint(0.02)), [g], scale=7.0)
    np.testing.assert_allclose(arrived, expected)
    zero = np.zeros(3)
    np.testing.assert_array_equal(L2Constraint(0.02).apply(0, zero, zero), zero)
    np.testing.assert_array_equal(opt.Constraint(1.0).apply(0, g, g), g)


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_clip_norm(size):
    g = rng.normal(size=(3, 4))
    g *= size / np.linalg.norm(g)
    np.testing.assert_allclose(opt.ClipNorm(1.0).apply(0, g, g), g * min(1.0, 1.0 / size))
    (arrived,) = moved(SGD(lr=1.0, constraint=1.0), [g], scale=2.0)
    np.testing.assert_allclose(arrived, 2 * g * min(1.0, 1.0 / (2 * size)))


def test_max_norm_bounds_the_weights_after_the_update():
    w, g = rng.normal(size=(2, 3, 4))
    after = w - 0.5 * g
    units = np.linalg.norm(after, axis=0)
    limit = float(np.median(units))
    SGD(lr=0.5, constraint=MaxNorm(limit, axis=0)).update(["w"], [w], [g])
    np.testing.assert_allclose(w, after * np.minimum(1, limit / units))
    whole, zero = after.copy(), np.zeros(3)
    MaxNorm(0.1).project(whole)
    np.testing.assert_allclose(whole, after * 0.1 / np.linalg.norm(after))
    MaxNorm(1.0).project(zero)
    np.testing.assert_array_equal(zero, 0)


def test_max_norm_of_kernels_is_keras_own():
    keras = pytest.importorskip("keras")
    kernel = np.random.default_rng(1).normal(size=(3, 3, 4, 5))
    theirs = keras.constraints.MaxNorm(2.0, axis=[0, 1, 2])(keras.ops.convert_to_tensor(kernel))
    ours = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    MaxNorm(2.0, axis=[1, 2, 3]).project(ours)
    np.testing.assert_allclose(ours.transpose(2, 3, 1, 0), np.asarray(theirs), rtol=1e-6)


WHOLE = [opt.ClipNorm(0.5), L2Constraint(0.5), MaxNorm(0.5), MaxNorm(0.5, axis=0)]
RULES = [*(partial(SGD, lr=0.5, constraint=each) for each in WHOLE), partial(opt.LAMB, lr=0.5)]


@pytest.mark.parametrize("make", RULES)
@pytest.mark.parametrize("rows", [[1, 3, 4], [2, 3, 4]])
def test_rows_whose_update_is_one_are_not_parted(make, rows):
    table, grad = rng.normal(size=(6, 40_000)), rng.normal(size=(3, 40_000))
    scattered, expected, alone = table.copy(), table.copy(), table[rows]
    make().update(["t"], [scattered], [RowSparse(np.array(rows), grad)])
    make().update(["t"], [alone], [grad])
    expected[rows] = alone
    np.testing.assert_allclose(scattered, expected, rtol=1e-12)


def test_norm_of_rows_of_large_and_of_strided_gradients():
    rows = rng.normal(size=(5, 3))
    assert sum_of_squares(RowSparse(np.arange(5), rows)) == pytest.approx((rows**2).sum())
    large = rng.normal(size=(3, 100_003)).astype(np.float32)
    for view in (large, large.T, large[:, ::2], large[:0]):
        exact = (view.astype(float) ** 2).sum()
        assert sum_of_squares(view) == pytest.approx(exact, rel=1e-5)


# --- clipping -------------------------------------------------------------------------------------


def test_by_value():
    g = np.array([-3.0, 0.2, 0.6])
    rows = RowSparse(np.array([1, 3]), np.array([[2.0, 0.1], [-2.0, 0.0]]))
    for grad, scale, wanted in [
        (g, 1.0, [-0.5, 0.2, 0.5]),
        (g, 2.0, [-0.5, 0.4, 0.5]),
        (rows, 1.0, [[0, 0], [0.5, 0.1], [0, 0], [-0.5, 0]]),
    ]:
        (arrived,) = moved(ClipByValue(SGD(lr=1.0), 0.5), [grad], scale)
        np.testing.assert_array_equal(arrived, wanted)
    np.testing.assert_array_equal(g, [-3, 0.2, 0.6])


@pytest.mark.parametrize("scale", [1.0, 0.001, -3.0])
def test_by_layer_norm(scale):
    rows = RowSparse(np.array([1, 3]), rng.normal(size=(2, 2)))
    grads = [rng.normal(size=(3, 4)), rows, rng.normal(size=4)]
    arrived = moved(opt.ClipByLayerNorm(SGD(lr=1.0), 0.7), grads, scale)
    size = norm(grads) * abs(scale)
    assert norm(arrived) == pytest.approx(min(size, 0.7))
    factor = scale * min(1.0, 0.7 / size)
    np.testing.assert_allclose(arrived[0], factor * grads[0])
    np.testing.assert_allclose(arrived[1][[1, 3]], factor * rows.rows)
    (zero,) = moved(opt.ClipByLayerNorm(SGD(lr=1.0), 0.7), [np.zeros(3)])
    np.testing.assert_array_equal(zero, 0)


class Layers:
    """A net as clipping sees it: items layer by layer."""

    def __init__(self, grads):
        self.grads, self.values, self.runs = grads, [np.zeros_like(g) for g in grads], 0

    def __call__(self):
        self.runs += 1
        for i, g in enumerate(self.grads):
            yield [f"l{i}"], [self.values[i]], [g.copy()]
        yield [], [], []


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_by_global_norm_equals_pytorchs(limit):
    grads = [rng.normal(size=(3, 4)), rng.normal(size=5), rng.normal(size=(2, 2))]
    net = Layers(grads)
    assert opt.clip_by_global_norm(SGD(lr=1.0), limit, net) == pytest.approx(norm(grads))
    assert net.runs == 2
    for value, g in zip(net.values, grads, strict=True):
        np.testing.assert_allclose(-value, g * min(1.0, limit / norm(grads)))
    assert opt.global_norm(Layers(grads)()) == pytest.approx(norm(grads))
    assert opt.global_norm([(["a"], [np.zeros(2)], [None])]) == 0
    torch = pytest.importorskip("torch")
    peers = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
    for peer, g in zip(peers, grads, strict=True):
        peer.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_norm_(peers, limit)
    for value, peer in zip(net.values, peers, strict=True):
        np.testing.assert_allclose(-value, peer.grad.numpy(), rtol=1e-5)


def test_gradients_without_a_norm_change_nothing():
    net = Layers([np.ones(2), np.array([np.inf, 1.0])])
    with pytest.raises(ArgumentError, match="finite norm; received a norm of inf"):
        opt.clip_by_global_norm(SGD(lr=1.0), 1.0, net)
    assert not any(value.any() for value in net.values)


def test_by_running_norm_follows_its_definition():
    clipper, estimate = ClipByRunningNorm(SGD(lr=1.0), 1.0, decay=0.8), 0.0
    for step in range(6):
        grads = [rng.normal(size=3) * (0.1 + step), rng.normal(size=4)]
        for i, g in enumerate(grads):
            value = np.zeros(g.shape)
            clipper.update([f"l{i}"], [value], [g])
            n = max(estimate, norm(grads[: i + 1]))
            np.testing.assert_allclose(-value, g * min(1.0, 1.0 / n))
            assert norm([value]) <= 1 + 1e-12
        total = norm(grads)
        estimate = total if step == 0 else 0.8 * estimate + 0.2 * total


def test_a_refused_update_or_state_leaves_the_estimate():
    clipper = ClipByRunningNorm(SGD(lr=1.0), 1.0)
    clipper.update(["w"], [np.zeros(2)], [np.ones(2)])
    before = clipper.state_dict()
    with pytest.raises(ShapeError):
        clipper.update(["w"], [np.zeros(2)], [np.ones(3)])
    with pytest.raises(DataError, match=r"clip.estimate"):
        clipper.load_state_dict(SGD(lr=0.1).state_dict())
    assert str(clipper.state_dict()) == str(before)


WRAPPERS = [
    lambda inner: ClipByValue(inner, 0.3),
    lambda inner: opt.ClipByLayerNorm(inner, 0.5),
    lambda inner: ClipByRunningNorm(inner, 0.5),
    lambda inner: ClipByRunningNorm(inner, 0.5, decay=0.5),
    lambda inner: ClipByValue(ClipByRunningNorm(inner, 0.5), 0.3),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_resume_is_exact_and_specs_pass_through(wrap):

    def steps(optimizer, values, which):
        for step in which:
            draws = np.random.default_rng(step)
            for i in (1, 0):
                g = draws.normal(size=values[i].shape)
                optimizer.update([f"l{i}"], [values[i]], [g])

    def registered(optimizer):
        optimizer.register_all([ParamSpec("l0", lr_mult=0.0)])
        optimizer.register("l1", ParamSpec("l1", lr_mult=2.0))
        return optimizer

    whole, halved = ([np.ones((2, 3)), np.ones(4)] for _ in range(2))
    one, first = (registered(wrap(opt.Adam(lr=0.1))) for _ in range(2))
    second = registered(type(one).from_config(json.loads(json.dumps(one.to_config()))))
    steps(one, whole, range(5))
    steps(first, halved, range(2))
    second.load_state_dict(first.state_dict())
    steps(second, halved, range(2, 5))
    for a, b in zip(whole, halved, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(whole[0], 1)


# --- refusals -------------------------------------------------------------------------------------

INNER, NAN, INF = SGD(lr=0.1), math.nan, math.inf
BAD = [(kind, (bad,), "coefficient") for bad in (-1.0, NAN, "x", None)
       for kind in (opt.L1Regularizer, opt.L2Regularizer)]  # fmt: skip
BAD += [(kind, (bad,), "threshold")
        for bad in (0, -1.0, INF, "x") for kind in (opt.ClipNorm, L2Constraint, MaxNorm)
]  # fmt: skip
BAD += [(kind, (INNER, bad), "limit|max_norm")
        for kind in (ClipByValue, opt.ClipByLayerNorm, ClipByRunningNorm, opt.ClipByGlobalNorm)
        for bad in (-1.0, NAN, "1")]  # fmt: skip
BAD += [(ClipByRunningNorm, (INNER, 1.0, bad), "decay") for bad in (-1.0, NAN, "1")]
BAD += [(opt.clip_by_global_norm, (INNER, bad, list), "max_norm") for bad in (-1.0, NAN, "1")]
BAD += [(MaxNorm, (1.0, "rows"), "axis"), (ClipByValue, (0.1, INNER), "received float")]


@pytest.mark.parametrize(("kind", "given", "name"), BAD)
def test_bad_arguments(kind, given, name):
    with pytest.raises(ArgumentError, match=name):
        kind(*given)
