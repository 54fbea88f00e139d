"""Products with second derivatives on a device's arrays: against differences and the CPU's."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers
from singanet.errors import CallOrderError
from singanet.layers import (
    LSTM,
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPooling2D,
    MultiHeadAttention,
    Split,
)
from singanet.loss import Huber, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from tests.gradients.test_second_order import (
    REFUSED,
    Doubled,
    Looking,
    Pure,
    conv_net,
    expect_close,
    randomised,
)
from tests.layer_catalogue import CATALOGUE, inputs_of, net_of

RNG = np.random.default_rng


def dense():
    parts = [Dense("a", 5, input_sample_shape=(4,)), Activation("g", "gelu"), Dense("b", 3)]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)


def convolutional():
    parts = [
        Conv2D("a", 4, 3, input_sample_shape=(2, 6, 6)),
        BatchNormalization("n"),
        Activation("s", "silu"),
        MaxPooling2D("p", 2, 2),
        Flatten("f"),
        Dense("b", 3),
    ]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)


def attention():
    parts = [
        MultiHeadAttention("m", 2, causal=True, input_sample_shape=(4, 6)),
        LayerNorm("n"),
        Flatten("f"),
        Dense("b", 3),
    ]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)


def recurrent():
    parts = [LSTM("l", 5, input_sample_shape=(4, 3), return_sequences=False), Dense("b", 3)]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)


NETS = {each.__name__: each for each in (dense, convolutional, attention, recurrent)}


def question(net, weighted, dtype=np.float64, seed=3):
    """Names to ask for, a feed and directions of a net whose parameters are random."""
    rng = RNG(seed)
    names = randomised(net, rng)
    x = rng.standard_normal((5, *net.layers[0].in_shapes))
    feed = {"input": x.astype(dtype), "targets": np.arange(5) % 3}
    if weighted:
        feed["sample_weight"] = (0.1 + rng.random(5)).astype(dtype)
    shapes = {p.name: p.shape for p in net.params()} | {"input": x.shape}
    xs = ["input", *names]
    return xs, feed, {name: rng.standard_normal(shapes[name]) for name in xs}


def on_host(found):
    assert all(type(array) is not np.ndarray for array in found.values())
    return {name: array.get() for name, array in found.items()}


def by_differences(net, xs, feed, vectors, step=1e-6):
    """Central differences of the gradients that ``net`` has on its device."""
    put = net.device.put
    params = {p.name: p for p in net.params() if p.name in vectors}
    before = {name: p.value.copy() for name, p in params.items()}
    ends = []
    for sign in (1, -1):
        for name, p in params.items():
            p.value[...] = before[name] + sign * step * put(vectors[name])
        now = feed | {"input": feed["input"] + sign * step * vectors["input"]}
        ends.append(on_host(net.gradients("loss", xs, now)))
    for name, p in params.items():
        p.value[...] = before[name]
    return {x: (ends[0][x] - ends[1][x]) / (2 * step) for x in xs}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_nets_agree_with_differences_there_and_with_the_cpu(name, weighted, gpu):
    net = NETS[name]()
    xs, feed, vectors = question(net, weighted)
    near = net.hessian_vector_product("loss", xs, feed, vectors, 3.0)
    net.to_device(gpu)
    for _ in range(3):
        # Whatever programs there are of gradients, the products are made by themselves.
        found = on_host(net.hessian_vector_product("loss", xs, feed, vectors, 3.0))
        expect_close(found, near, 1e-9)
        net.gradients("loss", xs, feed)
    wanted = by_differences(net, xs, feed, vectors)
    expect_close(found, {x: 3.0 * array for x, array in wanted.items()}, 1e-7)


@pytest.mark.parametrize("name", NETS)
def test_a_float32_net_gets_float32_and_is_left_as_it_was(name, gpu):
    net = NETS[name]()
    xs, feed, vectors = question(net, True, np.float32)
    net.as_type(np.float32)
    near = net.hessian_vector_product("loss", xs, feed, vectors)
    net.to_device(gpu)
    arrays = net.param_values()
    before = [array.get() for array in arrays]
    found = on_host(net.hessian_vector_product("loss", xs, feed, vectors))
    assert all(array.dtype == np.float32 for array in found.values())
    expect_close(found, near, 1e-5)
    assert net.dtype == np.float32
    assert all(one is other for one, other in zip(arrays, net.param_values(), strict=True))
    assert all(np.array_equal(a, b.get()) for a, b in zip(before, arrays, strict=True))


def test_feeds_and_directions_may_be_there(gpu):
    net = dense()
    xs, feed, vectors = question(net, True)
    near = net.hessian_vector_product("loss", xs, feed, vectors)
    net.to_device(gpu)
    put = gpu.put
    there = {name: put(array) for name, array in vectors.items()}
    fed = {name: put(array) for name, array in feed.items()}
    expect_close(on_host(net.hessian_vector_product("loss", xs, fed, there)), near, 1e-9)


@pytest.mark.parametrize(
    "name", sorted(n for n in CATALOGUE if not getattr(layers, n).traits.stops_gradient)
)
def test_every_layer_agrees_with_the_cpu(name, gpu):
    net, feed, rng = net_of(name), inputs_of(name), RNG(1)
    feed = {k: a if a.dtype.kind == "i" else a.astype(np.float64) for k, a in feed.items()}
    xs = [*randomised(net, rng), *(k for k, a in feed.items() if a.dtype.kind == "f")]
    shapes = {p.name: p.shape for p in net.params()} | {k: a.shape for k, a in feed.items()}
    vectors = {x: rng.standard_normal(shapes[x]) for x in xs}
    y = net.forward(False, feed, ["it"])["it"]
    dy = [rng.standard_normal(part.shape) for part in (y if isinstance(y, list) else [y])]
    dys = {"it": dy if isinstance(y, list) else dy[0]}
    near = net.hessian_vector_product("it", xs, feed, vectors, dys)
    net.to_device(gpu)
    found = on_host(net.hessian_vector_product("it", xs, feed, vectors, dys))
    expect_close(found, near, 1e-9)


@pytest.mark.parametrize("kind", [SigmoidCrossEntropy, SquaredError, Huber])
def test_losses_agree_with_the_cpu(kind, gpu):
    net = dense()
    net.loss = kind()
    xs, feed, vectors = question(net, True)
    feed["targets"] = RNG(6).random((5, 3))
    near = net.hessian_vector_product("loss", xs, feed, vectors)
    net.to_device(gpu)
    expect_close(on_host(net.hessian_vector_product("loss", xs, feed, vectors)), near, 1e-9)


def test_inner_outputs_and_tables_of_rows_agree_with_the_cpu(gpu):
    words = Input("words", (5,))
    h = Dense("a", 6)(Flatten("f")(Embedding("e", 7, 2)(words)))
    one, other = Split("s", 2)(Activation("t", "tanh")(h))
    ends = [Dense("b", 3)(one), Activation("y", "sigmoid")(other)]
    net, rng = FeedForwardNet(inputs=words, outputs=ends, seed=0), RNG(3)
    randomised(net, rng)
    feed = {"words": rng.integers(0, 7, (4, 5))}
    (table,) = (param for param in net.params() if param.name.startswith("e/"))
    names = ["t", "a/weight", "a/bias", table.name]
    u, v = rng.standard_normal((2, 4, 6))
    along = [{"t": v}, {("s", 1): u}, {"s": [u, v]}, {table.name: rng.standard_normal(table.shape)}]
    near = [net.hessian_vector_product(["b", "y"], names, feed, each) for each in along]
    net.to_device(gpu)
    for each, wanted in zip(along, near, strict=True):
        found = on_host(net.hessian_vector_product(["b", "y"], names, feed, each))
        expect_close(found, wanted, 1e-9)


def test_a_users_layer_that_is_pure_is_differentiated_and_another_refused(gpu):
    x = RNG(0).standard_normal((2, 3))
    for kind in (Pure, Doubled):
        net = FeedForwardNet([kind("it", input_sample_shape=(3,))], seed=0)
        net.as_type(np.float64)
        net.to_device(gpu)
        if kind is Pure:
            found = net.hessian_vector_product("it", "input", x, {"input": np.ones((2, 3))})
            np.testing.assert_allclose(found["input"].get(), 12 * x)
        else:
            with pytest.raises(CallOrderError, match="recorded and differentiated; received"):
                net.hessian_vector_product("it", "input", x, {"input": np.ones((2, 3))})


def test_a_loss_that_looks_at_values_is_refused(gpu):
    net = conv_net()
    net.loss = Looking()
    net.to_device(gpu)
    feed = {"input": np.ones((4, 2, 6, 6), np.float32), "targets": np.full((4, 3), 1 / 3)}
    with pytest.raises(CallOrderError, match="can be recorded and differentiated; received"):
        net.hessian_vector_product("loss", "input", feed, {"d/bias": np.ones(3)})


@pytest.mark.parametrize(("changed", "kind", "match"), REFUSED)
def test_bad_vectors(changed, kind, match, gpu):
    net, feed = conv_net(), np.ones((4, 2, 6, 6), np.float32)
    net.to_device(gpu)
    given = {"ys": "d", "xs": "input", "feed": feed, "vectors": {"input": feed}, **changed}
    with pytest.raises(kind, match=match):
        net.hessian_vector_product(**given)
