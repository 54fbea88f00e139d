"""Normalization by batches, rows, groups, lengths and neighbouring channels."""

from functools import partial

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import (
    LRN,
    BatchNormalization,
    Dummy,
    GroupNorm,
    InstanceNorm,
    L2Norm,
    LayerNorm,
    RMSNorm,
)
from singanet.net import FeedForwardNet
from tests.kit.layers import beside_torch, built, case, cases, expect_refused, refuses, run


def by_channel(values, x):
    """One number for each of the channels, or ``values`` if that is a number."""
    return values.reshape(-1, *[1] * (x.ndim - 2)) if np.ndim(values) else values


def batch_norm(shape, there=("gamma", "beta"), **given):
    def expected(p, x):
        assert list(p) == [*there, "mean", "var"]
        gamma, beta, mean, var = (
            by_channel(p.get(name, default), x)
            for name, default in (("gamma", 1.0), ("beta", 0.0), ("mean", 0), ("var", 1))
        )
        return gamma * (x - mean) / (var + given.get("epsilon", 1e-5)) ** 0.5 + beta

    return case(lambda: BatchNormalization("bn", **given), shape, expected)


def last_axis(p, x):
    return p["gamma"] * (x - p["mean"]) / np.sqrt(p["var"] + 1e-5) + p["beta"]


def normed(rows, epsilon, centred=True):
    """Row by row, as it is written."""
    flat = rows.reshape(-1, rows.shape[-1])
    found = []
    for row in flat:
        row = row - sum(row) / len(row) if centred else row
        found.append(row / (sum(row * row) / len(row) + epsilon) ** 0.5)
    return np.array(found).reshape(rows.shape)


def layer_norm(
    shape, axis=-1, epsilon=1e-5, there=("gamma", "beta"), kind=LayerNorm, offset=0.0, **given
):
    def expected(p, x):
        assert list(p) == [*there]
        start = axis % x.ndim
        y = normed(x.reshape(*x.shape[:start], -1), epsilon, kind is LayerNorm).reshape(x.shape)
        return (offset + p.get("gamma", 1.0 - offset)) * y + p.get("beta", 0.0)

    if offset:
        given["offset"] = offset
    return case(lambda: kind("norm", axis=axis, **given), shape, expected)


def group_norm(shape, groups, epsilon=1e-5, there=("gamma", "beta"), kind=None, **given):
    make = kind or (lambda *a, **more: GroupNorm(a[0], groups, **more))

    def expected(p, x):
        assert list(p) == [*there]
        y = normed(x.reshape(len(x), groups, -1), epsilon).reshape(x.shape)
        return by_channel(p.get("gamma", 1.0), x) * y + by_channel(p.get("beta", 0.0), x)

    return case(lambda: make("norm", **given), shape, expected)


def lrn(shape, size=5, alpha=1.0, beta=0.75, k=1.0):
    def expected(p, x):
        y = np.empty_like(x)
        for c in range(x.shape[1]):
            near = range(max(0, c - size // 2), min(x.shape[1], c + size // 2 + 1))
            y[:, c] = x[:, c] / (k + alpha * sum(x[:, other] ** 2 for other in near)) ** beta
        return y

    return case(lambda: LRN("lrn", size=size, alpha=alpha, beta=beta, k=k), shape, expected)


CASES = {
    **{f"batch of {shape}": batch_norm(shape) for shape in ((5,), (3, 4, 5), (3, 4), (2, 3, 2, 4))},
    "batch, last axis": case(lambda: BatchNormalization("bn", axis=-1), (4, 3), last_axis),
    "batch without scale": batch_norm((3, 2, 2), there=["beta"], scale=False),
    "batch without both": batch_norm((3,), there=[], scale=False, center=False),
    "batch, epsilon": batch_norm((2, 3, 3), epsilon=0.5),
    "batch of one pixel": case(lambda: BatchNormalization("bn"), (1, 1, 1),
        lambda p, x: p["gamma"] * (x - p["mean"]) / np.sqrt(p["var"] + 1e-5) + p["beta"], batch=4),
    "layer": layer_norm((4, 5)),
    "layer, epsilon": case(lambda: LayerNorm("norm", epsilon=0.1), (6,),
        lambda p, x: p["gamma"] * normed(x, 0.1) + p["beta"]),
    "layer without centre": layer_norm((6,), there=["gamma"], center=False),
    "layer of whole images": layer_norm((2, 3, 4), 1, there=[], affine=False),
    "layer of two axes": layer_norm((2, 3, 4), -2),
    "rms": layer_norm((4, 5), epsilon=1e-6, there=["gamma"], kind=RMSNorm),
    "rms with an offset": layer_norm(
        (4, 5), epsilon=1e-6, there=["gamma"], kind=RMSNorm, offset=1.0
    ),
    "rms of images": case(lambda: RMSNorm("norm", axis=1, epsilon=0.1, affine=False), (2, 3, 4),
        lambda p, x: np.stack([s / np.sqrt(np.mean(s**2) + 0.1) for s in x])),
    "group": group_norm((6, 2, 3), 3),
    "group of volumes": group_norm((4, 2, 1, 3), 2, there=["beta"], scale=False),
    "group of all": group_norm((4, 5), 1, there=[], affine=False),
    "group, epsilon": case(lambda: GroupNorm("norm", 2, epsilon=0.5), (6,),
        lambda p, x: p["gamma"] * normed(x.reshape(-1, 2, 3), 0.5).reshape(x.shape) + p["beta"]),
    "instance": group_norm((3, 2, 4), 3, kind=InstanceNorm),
    "instance, sequences": case(
        lambda: InstanceNorm("norm", affine=False, epsilon=0.2), (3, 5), lambda p, x: normed(x, 0.2)
    ),
    "L2": case(lambda: L2Norm("unit"), (5,),
        lambda p, x: np.stack([row / np.sqrt(np.dot(row, row) + 1e-8) for row in x])),
    "L2 of sequences": case(lambda: L2Norm("unit", epsilon=0.3), (3, 4),
        lambda p, x: x / np.sqrt(np.einsum("nld,nld->nl", x, x) + 0.3)[..., None]),
    "LRN": lrn((7, 2, 3)),
    "LRN of other numbers": lrn((4, 3), 3, 0.3, 1.2, 2.0),
    "LRN of all channels": lrn((2, 3), 9),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


# -- peers ----------------------------------------------------------------------------------------

PEERS = {
    **{f"layer from axis {axis}": (
        partial(LayerNorm, "it", axis=axis), shape,
        lambda f, x, p: f.layer_norm(x, p["gamma"].shape, p["gamma"], p["beta"]))
       for axis, shape in ((-1, (7, 33)), (2, (3, 8, 5)))},
    "rms": (lambda: RMSNorm("it"), (4, 5), lambda f, x, p: f.rms_norm(x, (5,), p["gamma"], 1e-6)),
    **{f"{groups} groups": (
        partial(GroupNorm, "it", groups), (8, 7, 9),
        lambda f, x, p, groups=groups: f.group_norm(x, groups, p["gamma"], p["beta"]))
       for groups in (1, 4, 8)},
    "instance": (lambda: InstanceNorm("it"), (8, 7, 9), lambda f, x, p:
                 f.instance_norm(x, weight=p["gamma"], bias=p["beta"])),
    # It divides alpha by the size.
    "LRN": (lambda: LRN("it", size=5, alpha=2e-2, k=2), (8, 5, 6), lambda f, x, p:
            f.local_response_norm(x, 5, alpha=5 * 2e-2, beta=0.75, k=2)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_pytorch(name, dtype):
    shape = PEERS[name][1]
    x = 3 * np.random.default_rng(5).standard_normal((16, *shape)) + 1
    beside_torch(*PEERS[name], dtype, x=x)


def test_rms_norm_with_an_offset_equals_gemmas():
    m = pytest.importorskip("transformers.models.gemma.modeling_gemma")

    def gemma(f, x, p):
        theirs = m.GemmaRMSNorm(6, eps=1e-6)
        del theirs.weight
        theirs.weight = p["gamma"]
        return theirs(x)

    beside_torch(lambda: RMSNorm("norm", offset=1.0), (9, 6), gemma)


# -- batches --------------------------------------------------------------------------------------


def prepared(shape, dtype=np.float64, **options):
    layer = built(BatchNormalization("bn", **options), shape)
    for param in layer.params.values():
        param.retype(param.value.astype(dtype))
    return layer


def values(layer, *suffixes):
    return [layer.params[suffix].value for suffix in suffixes]


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5, 2)])
@pytest.mark.parametrize("new", [0.0, 0.25, 1.0])
def test_training_normalises_by_the_batch_and_moves_the_running_values(rng, shape, new):
    layer = prepared(shape[1:], momentum=new)
    for param in layer.params.values():
        param.value = rng.uniform(0.5, 2.0, param.shape)
    gamma, beta, mean, var = (v.copy() for v in layer.param_values())
    x = 3.0 + 2.0 * rng.standard_normal(shape)
    y = run(layer, x)
    for c in range(3):
        channel = x[:, c].ravel()
        normalised = (channel - channel.mean()) / np.sqrt(channel.var() + 1e-5)
        np.testing.assert_allclose(y[:, c].ravel(), gamma[c] * normalised + beta[c], rtol=1e-10)
        # Momentum weights the new value; the running variance is the unbiased one.
        wanted = (1 - new) * mean[c] + new * channel.mean()
        assert layer.params["mean"].value[c] == pytest.approx(wanted)
        wanted = (1 - new) * var[c] + new * channel.var(ddof=1)
        assert layer.params["var"].value[c] == pytest.approx(wanted)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)])
def test_one_value_a_channel_is_refused_in_training_as_by_pytorch(shape):
    x = np.ones(shape, np.float32)
    net = singanet.FeedForwardNet([BatchNormalization("bn", input_sample_shape=shape[1:])])
    before = [value.copy() for value in net.param_values()]
    with pytest.raises(DataError, match="layer 'bn': expected more than one value per channel"):
        net.forward(True, x)
    assert all(map(np.array_equal, before, net.param_values()))
    assert net.forward(False, x).shape == shape
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)


def test_float32_statistics_survive_a_large_mean():
    """E(x²) − E(x)² would lose every digit here."""
    rng = np.random.default_rng(0)
    x = (1000.0 + rng.standard_normal((64, 2, 16, 16))).astype(np.float32)
    layer = prepared((2, 16, 16), np.float32, momentum=1.0)
    y = run(layer, x)
    exact = x.astype(np.float64)
    mean, var = values(layer, "mean", "var")
    np.testing.assert_allclose(mean, exact.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(axis=(0, 2, 3), ddof=1), rtol=1e-4)
    assert y.dtype == mean.dtype == np.float32
    want = (exact - exact.mean(axis=(0, 2, 3), keepdims=True)) / np.sqrt(
        exact.var(axis=(0, 2, 3), keepdims=True) + 1e-5
    )
    # The spacing of float32 numbers near 1000 is 6e-5.
    np.testing.assert_allclose(y, want, atol=2e-4)


@pytest.mark.parametrize("shape", [(16, 5), (8, 5, 9), (8, 5, 6, 7), (4, 5, 3, 6, 2)])
def test_batch_normalization_agrees_with_pytorch(shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    peer = getattr(torch.nn, f"BatchNorm{max(len(shape) - 2, 1)}d")(5, momentum=0.3)
    layer = built(BatchNormalization("bn", momentum=0.3), shape[1:])
    start = rng.uniform(0.5, 1.5, (4, 5)).astype(np.float32)
    theirs = [peer.weight, peer.bias, peer.running_mean, peer.running_var]
    for value, param, tensor in zip(start, layer.params.values(), theirs, strict=True):
        param.value = value.copy()
        tensor.data[:] = torch.tensor(value)
    for train in (True, True, False):
        peer.train(train)
        peer.zero_grad()
        x = rng.standard_normal(shape).astype(np.float32)
        dy = (rng.standard_normal(shape) / np.sqrt(x.size / 5)).astype(np.float32)
        leaf = torch.tensor(x, requires_grad=True)
        want = peer(leaf)
        want.backward(torch.tensor(dy))
        y, dx, grads = run(layer, x, dy, train)
        pairs = [(y, want.detach()), (dx, leaf.grad), (grads["gamma"], peer.weight.grad),
                 (grads["beta"], peer.bias.grad), (layer.params["mean"].value, peer.running_mean),
                 (layer.params["var"].value, peer.running_var)]  # fmt: skip
        for ours, other in pairs:
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, other.numpy(), rtol=1e-5, atol=1e-5)


# -- exact numbers and starts ---------------------------------------------------------------------


def test_a_large_mean_does_not_spoil_float32(rng):
    x = rng.standard_normal((4, 64)) + 1000
    y = run(LayerNorm("norm", affine=False), x.astype(np.float32))
    exact = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    # Rounding x to float32 alone moves it by up to 6e-5.
    np.testing.assert_allclose(y, exact, atol=2e-4)


def test_zero_vectors_stay_zero():
    y, dx, _ = run(L2Norm("unit"), np.zeros((1, 3)), np.array([[1.0, 0, 0]]))
    assert y.tolist() == [[0, 0, 0]]
    np.testing.assert_allclose(dx, [[1e4, 0, 0]])


def test_a_net_takes_l2_norm_and_backward_leaves_the_output_alone():
    net = FeedForwardNet([Dummy("x", input_sample_shape=(2,)), L2Norm("unit")], seed=0)
    y = net.forward(True, np.array([[3.0, 4.0]]))
    before = y.copy()
    list(net.backward(np.ones((1, 2)), output="x"))
    np.testing.assert_array_equal(y, before)
    np.testing.assert_allclose(y, [[0.6, 0.8]], rtol=1e-6)


def test_lrn_equals_the_values_of_singas_own_test():
    x = np.arange(1.0, 9).reshape(2, 4, 1, 1)
    layer = LRN("lrn", size=3, alpha=0.1, beta=0.75, k=1)
    y, dx, _ = run(layer, x, np.arange(8.0, 0, -1).reshape(2, 4, 1, 1))
    expected = [0.737787, 1.037221, 1.080992, 1.563179, 1.149545, 0.930604, 0.879124, 1.218038]
    np.testing.assert_allclose(y.reshape(-1), expected, atol=1e-6)
    expected = [4.858289, 1.043326, -0.952649, -0.383733, 0.259425, -0.426475, -0.213195, -0.099276]
    np.testing.assert_allclose(dx.reshape(-1), expected, atol=1e-6)


@pytest.mark.parametrize(("layer", "shape", "start"), [
    (
        BatchNormalization("it"), (3, 224, 224),
        {"gamma": [1] * 3, "beta": [0] * 3, "mean": [0] * 3, "var": [1] * 3},
    ),
    (LayerNorm("it"), (3, 4), {"gamma": [1] * 4, "beta": [0] * 4}),
    (RMSNorm("it", offset=1.0), (3,), {"gamma": [0] * 3}),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_it_starts_as_plain_normalization(layer, shape, start):
    assert layer.build(shape) == shape
    assert {name: param.value.tolist() for name, param in layer.params.items()} == start
    trained = [name for name, param in layer.params.items() if param.trainable]
    assert trained == [name for name in start if name in ("gamma", "beta")]


# -- refusals -------------------------------------------------------------------------------------

BAD = {
    (BatchNormalization, "momentum from 0 to 1 and a positive eps"): [
        *[{"momentum": value} for value in (-0.1, 1.1, float("nan"), "0.9")],
        *[{"epsilon": value} for value in (0.0, -1e-5, float("nan"), None)]],
    (BatchNormalization, "argument axis: expected 1 for the chan"): [{"axis": 2}],
    (LayerNorm, "argument axis: expected"): [{"axis": axis} for axis in (0, 1.0, "1", None, True)],
    (LayerNorm, "argument epsilon: expected a positive"): [
        {"epsilon": value} for value in (0, -1e-5, "1", float("nan"))],
    (L2Norm, "argument epsilon"): [{"epsilon": 0}],
    (RMSNorm, "argument offset: expected a number"): [
        {"offset": "one"}, {"offset": 1.0, "affine": False}],
    (GroupNorm, "argument groups: expected an int"): [
        {"groups": groups} for groups in (0, -1, 1.5, None, True)],
    (LRN, ""): [{"size": 4}, {"size": 0}, {"k": 0}, {"mode": "within_channel"}, {"alpha": -1},
                {"beta": "x"}],
}  # fmt: skip
PAIR = [(3, 4), (3, 4)]
WRONG_SHAPES = [
    *[(BatchNormalization("it"), r"\(features,\) or \(channels, positions\.\.\.\)", shape)
      for shape in ((), PAIR)],
    *[(LayerNorm("it", axis=axis), "expected", shape)
      for axis, shape in ((2, (3,)), (-2, (3,)), (-1, ()), (1, (0,)), (-1, PAIR))],
    *[(GroupNorm("it", 2), "expected", shape)
      for shape in ((5, 2, 2), (), (0, 2), (4, 0), [(4,), (4,)])],
    # They would always become 0; PyTorch refuses them in training.
    *[(GroupNorm("it", 4), "more than one number in a group", shape)
      for shape in ((4,), (4, 1), (4, 1, 1))],
    *[(InstanceNorm("it"), r"expected .*\(channels, positions", shape)
      for shape in ((3,), (), (3, 0), (3, 1), (3, 1, 1), PAIR)],
    (L2Norm("it"), "expected samples of at least one axis", ()),
    (LRN("it"), r"expected samples of shape \(channels", ()),
]  # fmt: skip


@refuses([
    *[(partial(kind, "it", **given), ArgumentError, words)
      for (kind, words), rows in BAD.items() for given in rows],
    *[(partial(layer.build, shape), ShapeError, words) for layer, words, shape in WRONG_SHAPES],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    if error is ShapeError:
        assert make.func.__self__.params == {}


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1)])
def test_groups_of_two_numbers_are_fine(shape):
    assert GroupNorm("norm", 2).build(shape) == shape


def test_batch_normalization_has_the_values_of_singa():
    layer = prepared((2,))
    layer.params["beta"].value[:] = 2.0
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    # Its CPU kernels divided by sqrt(var) + 1e-6, so the last digits differ.
    np.testing.assert_allclose(run(layer, x), [[1, 1], [3, 3]], atol=1e-5)
    layer = prepared((2,))
    _, dx, grads = run(layer, x, np.array([[4.0, 3.0], [2.0, 1.0]]))
    np.testing.assert_allclose(dx, np.zeros((2, 2)), atol=2e-5)
    np.testing.assert_allclose(grads["gamma"], [-2, -2], rtol=1e-5)
    np.testing.assert_allclose(grads["beta"], [6, 4], rtol=1e-12)
