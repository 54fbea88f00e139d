"""Products with second derivatives: against differences, PyTorch's, and on a device the CPU's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers, loss
from singanet.errors import ArgumentError, CallOrderError, ShapeError
from singanet.layers import LSTM, Activation, Dense, Embedding, Flatten, MultiHeadAttention, Split
from singanet.ops.interface import ACTIVATIONS
from tests.layer_catalogue import CATALOGUE, inputs_of, net_of

RNG = np.random.default_rng


def expect_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        scale = 1 + np.abs(expected[name]).max(initial=0)
        assert np.abs(array - expected[name]).max(initial=0) < tolerance * scale, name


def on_host(found):
    assert all(type(array) is not np.ndarray for array in found.values())
    return {name: array.get() for name, array in found.items()}


def randomised(net, rng):
    net.as_type(np.float64)
    for param in net.params():
        if param.is_state:
            param.value[...] = np.abs(param.value) + 0.3
        else:
            param.value[...] = 0.5 * rng.standard_normal(param.shape)
    return [p.name for p in net.params() if not p.is_state]


def drawn(net, xs, feed, rng):
    shapes = {p.name: p.shape for p in net.params()} | {k: a.shape for k, a in feed.items()}
    return {x: rng.standard_normal(shapes[x]) for x in xs}


@dataclass
class Question:
    """What is asked of a net whose parameters are random; ``step`` is that of differences."""

    net: FeedForwardNet
    ys: object
    xs: list
    feed: dict
    vectors: dict
    dys: object = None
    step: float = 1e-6

    def asked(self):
        return self.net.hessian_vector_product(self.ys, self.xs, self.feed, self.vectors, self.dys)

    def by_differences(self):
        params = {p.name: p for p in self.net.params() if p.name in self.vectors}
        before = {name: p.value.copy() for name, p in params.items()}
        ends = []
        for step in (self.step, -self.step):
            for name, p in params.items():
                p.value[...] = before[name] + step * self.vectors[name]
            moved = {k: step * v for k, v in self.vectors.items() if k in self.feed}
            feed = {k: a + moved.get(k, a.dtype.type(0)) for k, a in self.feed.items()}
            ends.append(self.net.gradients(self.ys, self.xs, feed, self.dys))
        for name, p in params.items():
            p.value[...] = before[name]
        return {x: (ends[0][x] - ends[1][x]) / (2 * self.step) for x in self.xs}


# -- what is asked --------------------------------------------------------------------------


def of_layer(name):
    net, feed, rng = net_of(name), inputs_of(name), RNG(1)
    feed = {k: a if a.dtype.kind == "i" else a.astype(np.float64) for k, a in feed.items()}
    xs = [*randomised(net, rng), *(k for k, a in feed.items() if a.dtype.kind == "f")]
    vectors = drawn(net, xs, feed, rng)
    y = net.forward(False, feed, ["it"])["it"]
    dy = [rng.standard_normal(part.shape) for part in (y if isinstance(y, list) else [y])]
    return Question(net, "it", xs, feed, vectors, {"it": dy if isinstance(y, list) else dy[0]})


def of_activation(mode):
    net = FeedForwardNet([Activation("it", mode, input_sample_shape=(5,))], seed=0)
    net.as_type(np.float64)
    x, v, dy = RNG(0).standard_normal((3, 3, 5))
    return Question(net, "it", ["input"], {"input": x}, {"input": v}, dy, 1e-5)


def of_a_net(make, weighted, targets=None, dtype=np.float64):
    net, rng = make(), RNG(3)
    xs = ["input", *randomised(net, rng)]
    x = rng.standard_normal((5, *net.layers[0].in_shapes)).astype(dtype)
    feed = {"input": x, "targets": np.arange(5) % 3 if targets is None else targets}
    if weighted:
        feed["sample_weight"] = (0.1 + rng.random(5)).astype(dtype)
    return Question(net, "loss", xs, feed, drawn(net, xs, feed, rng), 3.0)


def of_rows():
    words = Input("words", (5,))
    last = LSTM("l", 3, return_sequences=False)(Embedding("e", 7, 4)(words))
    net, rng = FeedForwardNet(inputs=words, outputs=Dense("d", 1)(last), seed=0), RNG(4)
    xs, feed = randomised(net, rng), {"words": rng.integers(0, 7, (3, 5))}
    return Question(net, "d", xs, feed, drawn(net, xs, feed, rng))


def of_inner_outputs(vectors):
    """Of a net with two outputs, in whose middle is a table of rows and a split."""
    words = Input("words", (5,))
    h = Dense("a", 6)(Flatten("f")(Embedding("e", 7, 2)(words)))
    one, other = Split("s", 2)(Activation("t", "tanh")(h))
    ends = [Dense("b", 3)(one), Activation("y", "sigmoid")(other)]
    net, rng = FeedForwardNet(inputs=words, outputs=ends, seed=0), RNG(3)
    randomised(net, rng)
    feed = {"words": rng.integers(0, 7, (4, 5))}
    xs = ["t", "a/weight", "a/bias", "e/weight"]
    return Question(net, ["b", "y"], xs, feed, vectors(*rng.standard_normal((2, 4, 6))))


def dense(loss=loss.SoftmaxCrossEntropy):
    first = Dense("a", 5, input_sample_shape=(4,))
    return FeedForwardNet([first, Activation("g", "gelu"), Dense("d", 3)], loss=loss(), seed=0)


def conv_net(activation="relu"):
    parts = [
        layers.Conv2D("c", 4, 3, input_sample_shape=(2, 6, 6)), layers.BatchNormalization("n"),
        Activation("r", activation), layers.MaxPooling2D("p", 2, 2), Flatten("f"), Dense("d", 3),
    ]  # fmt: skip
    return FeedForwardNet(parts, loss=loss.SoftmaxCrossEntropy(), seed=0)


def attention():
    first = MultiHeadAttention("m", 2, causal=True, input_sample_shape=(4, 6))
    parts = [first, layers.LayerNorm("n"), Flatten("f"), Dense("b", 3)]
    return FeedForwardNet(parts, loss=loss.SoftmaxCrossEntropy(), seed=0)


def recurrent():
    first = LSTM("l", 5, input_sample_shape=(4, 3), return_sequences=False)
    return FeedForwardNet([first, Dense("b", 3)], loss=loss.SoftmaxCrossEntropy(), seed=0)


NETS = {
    "dense": dense,
    "convolutional": partial(conv_net, "silu"),
    "attention": attention,
    "recurrent": recurrent,
}
LOSSES = ["SigmoidCrossEntropy", "SquaredError", "Huber"]
ASKED = {
    **{
        f"layer {name}": partial(of_layer, name)
        for name in sorted(CATALOGUE.keys() - {"MixtureOfExperts"})  # refused: it chooses by values
        if not getattr(layers, name).traits.stops_gradient
    },
    **{mode: partial(of_activation, mode) for mode in sorted(set(ACTIVATIONS) - {"relu"})},
    **{
        f"{name}{', weighted' * weighted}": partial(of_a_net, make, weighted)
        for name, make in NETS.items()
        for weighted in (False, True)
    },
    **{
        name: partial(of_a_net, partial(dense, getattr(loss, name)), True, RNG(6).random((5, 3)))
        for name in LOSSES
    },
    "rows": of_rows,
    "inner output": partial(of_inner_outputs, lambda u, v: {"t": v}),
    "one of several": partial(of_inner_outputs, lambda u, v: {("s", 1): u}),
    "all of several": partial(of_inner_outputs, lambda u, v: {"s": [u, v]}),
    "a table": partial(of_inner_outputs, lambda u, v: {"e/weight": np.resize(u, (7, 2))}),
}
INNER = {"inner output", "one of several", "all of several"}


@pytest.mark.parametrize("name", [name for name in ASKED if name not in INNER])
def test_products_agree_with_differences(name):
    question = ASKED[name]()
    expect_close(question.asked(), question.by_differences(), 1e-7)


@pytest.mark.parametrize("name", ASKED)
def test_products_on_a_device_are_those_of_the_cpu(name, gpu):
    question = ASKED[name]()
    near, net = question.asked(), question.net
    net.to_device(gpu)
    expect_close(on_host(question.asked()), near, 1e-9)
    # Whatever programs there are of gradients, the products are made by themselves.
    if name in NETS:
        for _ in range(2):
            net.gradients("loss", question.xs, question.feed)
            expect_close(on_host(question.asked()), near, 1e-9)
        question.vectors = {key: gpu.put(v) for key, v in question.vectors.items()}
        question.feed = {key: gpu.put(array) for key, array in question.feed.items()}
        expect_close(on_host(question.asked()), near, 1e-9)


@pytest.mark.parametrize("name", NETS)
def test_a_float32_net_gets_float32_and_is_left_as_it_was(name, gpu):
    question = of_a_net(NETS[name], True, dtype=np.float32)
    net, found = question.net, []
    net.as_type(np.float32)
    for device in (None, gpu):
        if device is not None:
            net.to_device(device)
        arrays, host = net.param_values(), net.device.ops.host
        before = [host(array).copy() for array in arrays]
        for _ in range(3):
            net.gradients("loss", question.xs[-1], question.feed)
        reports = len(net.programs.reports())
        found.append({key: host(array) for key, array in question.asked().items()})
        assert all(array.dtype == np.float32 for array in found[-1].values())
        assert net.dtype == np.float32
        assert all(one is other for one, other in zip(arrays, net.param_values(), strict=True))
        assert all(np.array_equal(a, host(b)) for a, b in zip(before, arrays, strict=True))
        net.gradients("loss", question.xs[-1], question.feed)
        assert len(net.programs.reports()) == reports > 0
    expect_close(found[1], found[0], 1e-5)


@pytest.mark.parametrize("mode", ["softplus", "gelu", "silu", "sigmoid", "tanh"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_smooth_activations_at_zero(mode, zero):
    # Where kernels join two branches. The tail of the normal distribution has nine digits here.
    slope, bend = {
        "softplus": (0.5, 0.25), "gelu": (0.5, 2 / np.sqrt(2 * np.pi)), "silu": (0.5, 0.5),
        "sigmoid": (0.25, 0.0), "tanh": (1.0, 0.0),
    }[mode]  # fmt: skip
    net = FeedForwardNet(
        [Activation("it", mode, input_sample_shape=(1,)), Dense("scale", 1, use_bias=False)],
        loss=loss.SquaredError(),
        seed=0,
    )
    net.as_type(np.float64)
    x, v, w = np.full((1, 1), zero), np.full((1, 1), 3.0), 2.0
    net.param_values()[0][...] = w
    found = net.hessian_vector_product("it", "input", {"input": x}, {"input": v})
    assert found["input"].item() == pytest.approx(3 * bend, rel=1e-8, abs=1e-12)
    # (w f(x) - t)² / 2: w² f'² + (w f - t) w f''.
    f = net.forward(False, x, ["it"])["it"].item()
    feed = {"input": x, "targets": np.full((1, 1), 0.7)}
    found = net.hessian_vector_product("loss", "input", feed, {"input": v})
    wanted = w**2 * slope**2 + (w * f - 0.7) * w * bend
    assert found["input"].item() == pytest.approx(3 * wanted, rel=1e-8)


def test_no_times_the_loss_is_nothing():
    net = FeedForwardNet(
        [Dense("a", 3, input_sample_shape=(4,))], loss=loss.SoftmaxCrossEntropy(), seed=0
    )
    feed = {"input": RNG(4).standard_normal((6, 4)), "targets": np.arange(6) % 3}
    vectors = {"a/weight": RNG(5).standard_normal((4, 3))}
    assert net.hessian_vector_product("loss", "a/weight", feed, vectors)["a/weight"].any()
    for _ in range(3):
        found = net.hessian_vector_product("loss", "a/weight", feed, vectors, 0.0)
        assert not found["a/weight"].any()
        assert not net.gradients("loss", "a/weight", feed, dys=0.0)["a/weight"].any()


def test_vectors_of_inner_outputs_and_of_what_is_not_asked_for():
    x = Input("x", (4,))
    one, _ = Split("s", 2)(Activation("t", "tanh")(Dense("a", 4)(x)))
    net = FeedForwardNet(inputs=x, outputs=Activation("y", "sigmoid")(Dense("b", 3)(one)), seed=0)
    rng = RNG(3)
    randomised(net, rng)
    array, v = rng.standard_normal((2, 4)), rng.standard_normal((2, 4))
    w = net.params()[net.param_names().index("b/weight")].value
    b = net.params()[net.param_names().index("b/bias")].value
    h = net.forward(False, array, ["t"])["t"]

    def slope(h):
        y = 1 / (1 + np.exp(-(h @ w + b)))
        return (y * (1 - y)) @ w.T

    expected = (slope(h + 1e-6 * v) - slope(h - 1e-6 * v)) / 2e-6
    for name, vector in [("t", v), (("s", 0), v), ("s", [v, np.zeros((2, 4))])]:
        found = net.hessian_vector_product("y", ["t", "b/weight"], array, {name: vector})
        np.testing.assert_allclose(found["t"], expected, rtol=1e-7, atol=1e-9)
        assert found["b/weight"].any()
    assert not net.hessian_vector_product("b", "t", array, {"t": v})["t"].any()


def test_as_torch_func_on_a_convolutional_net():
    torch = pytest.importorskip("torch")
    net, rng = conv_net(), RNG(5)
    xs = randomised(net, rng)
    x, y = rng.standard_normal((4, 2, 6, 6)), np.arange(4) % 3
    tensors = {p.name: torch.tensor(p.value) for p in net.params()}
    functional = torch.nn.functional

    def value(params):
        p = {**tensors, **params}
        h = functional.conv2d(
            torch.tensor(x), p["c/weight"].reshape(4, 2, 3, 3), p["c/bias"], padding=1
        )
        h = functional.batch_norm(
            h, p["n/mean"], p["n/var"], p["n/gamma"], p["n/beta"], eps=net.layers[1].epsilon
        )
        h = functional.max_pool2d(torch.relu(h), 2).flatten(1)
        return functional.cross_entropy(h @ p["d/weight"] + p["d/bias"], torch.tensor(y))

    vectors = {name: rng.standard_normal(tensors[name].shape) for name in xs}
    _, expected = torch.func.jvp(
        torch.func.grad(value),
        ({name: tensors[name] for name in xs},),
        ({name: torch.tensor(v) for name, v in vectors.items()},),
    )
    found = net.hessian_vector_product("loss", xs, {"input": x, "targets": y}, vectors)
    expect_close(found, {k: v.numpy() for k, v in expected.items()}, 1e-12)


def test_as_torch_func_on_attention():
    torch = pytest.importorskip("torch")
    net = FeedForwardNet(
        [MultiHeadAttention("m", 2, causal=True, input_sample_shape=(4, 6))], seed=0
    )
    rng = RNG(6)
    xs = ["input", *randomised(net, rng)]
    x, dy = rng.standard_normal((2, 3, 4, 6))
    tensors = {p.name: torch.tensor(p.value) for p in net.params()} | {"input": torch.tensor(x)}

    def value(p):
        def heads(part):
            h = p["input"] @ p[f"m/{part}_weight"] + p[f"m/{part}_bias"]
            return h.reshape(3, 4, 2, 3).transpose(1, 2)

        q, k, v = heads("query"), heads("key"), heads("value")
        scores = q @ k.transpose(2, 3) / 3**0.5
        scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        h = (scores.softmax(-1) @ v).transpose(1, 2).reshape(3, 4, 6)
        return ((h @ p["m/output_weight"] + p["m/output_bias"]) * torch.tensor(dy)).sum()

    vectors = {name: rng.standard_normal(tensors[name].shape) for name in xs}
    _, expected = torch.func.jvp(
        torch.func.grad(value), (tensors,), ({k: torch.tensor(vectors[k]) for k in tensors},)
    )
    found = net.hessian_vector_product("m", xs, x, vectors, dy)
    expect_close(found, {k: expected[k].numpy() for k in xs}, 1e-12)


def mlp_and_lstm():
    return {
        "mlp": FeedForwardNet(
            [Dense("a", 4, input_sample_shape=(5,)), Activation("g", "gelu"), Dense("b", 3)], seed=0
        ),
        "lstm": FeedForwardNet([LSTM("l", 3, input_sample_shape=(4, 5))], seed=0),
    }


def torch_value(torch, name, net, p, x):
    """What the net named makes of ``x`` with parameters ``p``, in torch alone."""
    if name == "mlp":
        h = torch.nn.functional.gelu(x @ p["a/weight"] + p["a/bias"])
        return h @ p["b/weight"] + p["b/bias"]
    w, u, b_x, b_h = (p[param.name] for param in net.params())
    h = c = torch.zeros(x.shape[0], 3, dtype=x.dtype)
    outs = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w + b_x + h @ u + b_h).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outs.append(h)
    return torch.stack(outs, 1)


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_as_torch_func_on_an_mlp_and_an_lstm(name):
    torch = pytest.importorskip("torch")
    net, rng = mlp_and_lstm()[name], RNG(8)
    xs = ["input", *randomised(net, rng)]
    x = rng.standard_normal((2, *net.layers[0].in_shapes))
    tensors = {p.name: torch.tensor(p.value) for p in net.params()} | {"input": torch.tensor(x)}
    y = net._execution_plan().outputs[0]

    def out(p):
        return torch_value(torch, name, net, p, p["input"])

    np.testing.assert_allclose(net.forward(False, x), out(tensors).numpy(), rtol=1e-12)
    dy = rng.standard_normal(tuple(out(tensors).shape))
    vectors = {name: rng.standard_normal(tuple(tensors[name].shape)) for name in xs}
    _, expected = torch.func.jvp(
        torch.func.grad(lambda p: (out(p) * torch.tensor(dy)).sum()),
        (tensors,),
        ({k: torch.tensor(vectors[k]) for k in tensors},),
    )
    found = net.hessian_vector_product(y, xs, x, vectors, dy)
    # The tail of the normal distribution, of which gelu is made, has 11 digits.
    expect_close(found, {k: expected[k].numpy() for k in xs}, 1e-10 if name == "mlp" else 1e-12)
    jacobian, wanted = net.jacobian(y, xs, x)[y], torch.func.jacrev(out)(tensors)
    for key in xs:
        own = jacobian[key]
        np.testing.assert_allclose(
            own.reshape(wanted[key].shape), wanted[key].numpy(), rtol=1e-10, atol=1e-12
        )


def test_the_hessian_is_symmetric_and_linear_in_the_vector():
    net, rng = conv_net(), RNG(7)
    xs = ["input", *randomised(net, rng)]
    feed = {"input": rng.standard_normal((4, 2, 6, 6)), "targets": np.arange(4) % 3}
    shapes = {p.name: p.shape for p in net.params()} | {"input": (4, 2, 6, 6)}
    u, v = ({x: rng.standard_normal(shapes[x]) for x in xs} for _ in range(2))
    hu, hv, both = (
        net.hessian_vector_product("loss", xs, feed, w)
        for w in (u, v, {x: 2 * u[x] + v[x] for x in xs})
    )
    one, two = (sum((a[x] * b[x]).sum() for x in xs) for a, b in ((u, hv), (v, hu)))
    assert one == pytest.approx(two, rel=1e-12)
    expect_close(both, {x: 2 * hu[x] + hv[x] for x in xs}, 1e-13)


class Doubled(layers.Layer):
    """A user's layer: y = 2 x³, pure where it says so."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return 2 * x**3

    def backward(self, ctx, dy):
        return 6 * ctx.saved["x"] ** 2 * dy, {}


class Pure(Doubled):
    pure = True


def test_a_users_layer_that_is_pure_is_differentiated_and_another_refused():
    x = RNG(0).standard_normal((2, 3))
    net = FeedForwardNet([Pure("it", input_sample_shape=(3,))], seed=0)
    net.as_type(np.float64)
    found = net.hessian_vector_product("it", "input", x, {"input": np.ones((2, 3))})
    np.testing.assert_allclose(found["input"], 12 * x)
    other = FeedForwardNet([Doubled("it", input_sample_shape=(3,))], seed=0)
    with pytest.raises(CallOrderError, match="can be recorded and differentiated; received"):
        other.hessian_vector_product("it", "input", x, {"input": np.ones((2, 3))})


class Looking(loss.MeanSquaredError):
    def compute(self, ops, x, y):
        assert float(x.max()) < 1e9
        return super().compute(ops, x, y)


def test_a_loss_that_looks_at_values_is_refused():
    net = conv_net()
    net.loss = Looking()
    feed = {"input": np.ones((4, 2, 6, 6), np.float32), "targets": np.full((4, 3), 1 / 3)}
    with pytest.raises(CallOrderError, match="'loss', which has no known derivative"):
        net.hessian_vector_product("loss", "input", feed, {"d/bias": np.ones(3)})


REFUSED = [
    ({"vectors": {}}, ArgumentError, "an empty dict"),
    ({"vectors": [1]}, ArgumentError, "received list"),
    ({"vectors": {"d/weight": np.ones(3)}}, ShapeError, r"vector of 'd/weight'.*\(3,\)"),
    ({"vectors": {"input": np.ones((4, 2, 6))}}, ShapeError, r"vector of 'input'"),
    ({"vectors": {"input": 1.0}}, ArgumentError, "expected an array"),
    ({"vectors": {"f": [np.ones((4, 36))]}}, ArgumentError, "vector of 'f': .* received list"),
    ({"ys": "f", "vectors": {"d/weight": np.ones((36, 3))}}, ArgumentError, "'d/weight' of xs"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "match"), REFUSED)
def test_bad_vectors(changed, kind, match):
    feed = np.ones((4, 2, 6, 6), np.float32)
    given = {"ys": "d", "xs": "input", "feed": feed, "vectors": {"input": feed}, **changed}
    with pytest.raises(kind, match=match):
        conv_net().hessian_vector_product(**given)
