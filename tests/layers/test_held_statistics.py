"""``trainable = False`` on a layer with running state: it runs as in evaluation, and stays."""

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.layers import Activation as Act
from singanet.layers import BatchNormalization, Conv2D, Dense, Flatten, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

rng = np.random.default_rng(0)
X = (3 + 2 * rng.normal(size=(32, 5))).astype(np.float32)
Y = rng.integers(0, 3, 32)


def net():
    first, norm = Dense("a", 6, input_sample_shape=(5,)), BatchNormalization("bn")
    parts = [first, norm, Act("relu"), Dense("b", 3)]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)


def statistics(made):
    return [param.value.copy() for param in made.params() if param.is_state]


def same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("recorded", [False, True])
def test_statistics_stand_still_and_are_used(recorded, tmp_path):
    made = net()
    made.programs.enabled = recorded
    made["bn"].trainable = False
    before = statistics(made)
    made.compile(SGD(lr=0.1))
    made.fit(X, Y, epochs=3, batch_size=8, verbose=False)
    assert same(statistics(made), before)
    assert np.array_equal(made.forward(True, X), made.forward(False, X))
    made.save_model(tmp_path / "m.singanet")
    loaded = singanet.load_model(tmp_path / "m.singanet")
    loaded.fit(X, Y, epochs=1, verbose=False)
    assert same(statistics(loaded), before)


def test_assignments_after_recording_are_seen():
    made, layers = net(), net()
    layers.programs.enabled = False
    for flag in (True, True, True, False, False, False, True, True):
        moved = []
        for one in (made, layers):
            one["bn"].trainable = flag
            before = statistics(one)
            one.step(X, Y, SGD(lr=0.1))
            moved.append(not same(statistics(one), before))
        assert moved == [flag, flag]
        assert same(made.param_values(), layers.param_values())


def test_gradients_are_those_of_an_affine_layer():
    torch = pytest.importorskip("torch")
    made = net()
    for _ in range(5):
        made.step(X, Y, SGD(lr=0.1))
    made["bn"].trainable = False
    grads, _ = made.train(X, Y)
    leaves = {p.name: torch.tensor(p.value, requires_grad=not p.is_state) for p in made.params()}
    h = torch.tensor(X) @ leaves["a/weight"] + leaves["a/bias"]
    norm = [leaves[f"bn/{name}"] for name in ("mean", "var", "gamma", "beta")]
    h = torch.nn.functional.batch_norm(h, *norm, False, 0.0, 1e-5)
    scores = torch.relu(h) @ leaves["b/weight"] + leaves["b/bias"]
    torch.nn.functional.cross_entropy(scores, torch.tensor(Y)).backward()
    for name, grad in zip(made.param_names(), grads, strict=True):
        if name.startswith("bn/"):
            assert grad is None
        else:
            np.testing.assert_allclose(grad, leaves[name].grad.numpy(), rtol=1e-3, atol=1e-6)


def test_a_nested_base_stands_still_in_the_net_around():
    conv = Conv2D("c", 4, 3, input_sample_shape=(2, 6, 6))
    base = FeedForwardNet([conv, BatchNormalization("bn"), Flatten("f")], name="base")
    made = FeedForwardNet([base, Dense("top", 3)], loss=SoftmaxCrossEntropy(), seed=0)
    x = rng.normal(size=(8, 2, 6, 6)).astype(np.float32)
    made.step(x, Y[:8], SGD(lr=0.1))
    base.trainable = False
    features = base.predict(x)
    for _ in range(3):
        made.step(x, Y[:8], SGD(lr=0.1))
    assert np.array_equal(base.predict(x), features)
    made.nested["base"].trainable = True
    before = statistics(base)
    made.step(x, Y[:8], SGD(lr=0.1))
    assert not same(statistics(base), before)


class Counter(Layer):
    """A layer of a user's with state of its own."""

    def setup(self, in_shapes):
        self.add_state("seen", (1,))
        self.add_param("gain", (1,))
        return in_shapes

    def forward(self, ctx, x):
        if ctx.train:
            ctx.update_state("seen", ctx.params["seen"] + 1)
        ctx.save(x=x)
        return x * (1 + ctx.params["gain"])

    def backward(self, ctx, dy):
        return dy * (1 + ctx.params["gain"]), {"gain": (dy * ctx.saved["x"]).sum(keepdims=True)[0]}


def test_a_users_layer_is_told_by_its_context():
    counter = Counter("count")
    counter.trainable = False
    parts = [Dense("a", 3, input_sample_shape=(5,)), counter]
    made = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)
    for _ in range(3):
        made.step(X, Y, SGD(lr=0.1))
    assert counter.params["seen"].value == 0
    counter.params["seen"].held = False
    made.step(X, Y, SGD(lr=0.1))
    assert counter.params["seen"].value == 1
