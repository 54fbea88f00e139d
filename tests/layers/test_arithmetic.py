"""Powers, bounds and parts, and what symbols compute with."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Clip, Dense, Index, Power, Scale
from singanet.testing import LayerCase, check_net_gradients


class TestPower(LayerCase):
    in_shapes = (3, 2)

    def make(self):
        return Power("cube", 3)

    def expected(self, params, x):
        return x * x * x


class TestRoot(LayerCase):
    def make(self):
        return Power("root", 0.5)

    def draw(self, rng, batch):
        return rng.uniform(0.5, 2.0, (batch, 4))

    def expected(self, params, x):
        return np.exp(0.5 * np.log(x))


class TestClip(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return Clip("bounded", -0.4, 0.7)

    def expected(self, params, x):
        return np.where(x < -0.4, -0.4, np.where(x > 0.7, 0.7, x))


class TestIndex(LayerCase):
    in_shapes = (3, 5, 4)

    def make(self):
        return Index("part", [-1, (None, None, -2)])

    def expected(self, params, x):
        return x[:, 2][:, [4, 2, 0]]


class TestScaleAndOffset(LayerCase):
    def make(self):
        return Scale("line", -2.0, offset=0.5)

    def expected(self, params, x):
        return 0.5 - x - x


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Power("it", "2"), ArgumentError, "argument exponent"),
        (lambda: Clip("it"), ArgumentError, "low, high or both"),
        (lambda: Clip("it", 1.0, 0.0), ArgumentError, "low, high or both"),
        (lambda: Clip("it", float("nan")), ArgumentError, "low, high or both"),
        (lambda: Index("it", []), ArgumentError, "argument index"),
        (lambda: Index("it", [(0, 1)]), ArgumentError, "argument index"),
        (lambda: Index("it", [(0, 1, 0)]), ArgumentError, "argument index"),
        (lambda: Index("it", [3]).build((3, 2)), ShapeError, "samples that have the part"),
        (lambda: Index("it", [0, 0, 0]).build((3, 2)), ShapeError, "samples that have the part"),
        (lambda: Index("it", [(2, 2, None)]).build((3,)), ShapeError, "samples that have"),
        (lambda: Scale("it", offset=1.0), ArgumentError, "argument offset"),
        (lambda: Scale("it", 1.0, offset="1"), ArgumentError, "argument offset"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=f"layer 'it'.*{words}"):
        make()


FORMULAS = {
    "sums": lambda a, b: 1.5 + a + b - 2 - (3 - b),
    "products": lambda a, b: (2 * a * b * -1.0) / 4,
    "quotients": lambda a, b: a / b + 1 / b,
    "powers": lambda a, b: (-a) ** 2 - b**-1,
    "parts": lambda a, b: a[:, 1:, ::-1] * b[:, -1:, :],
}


@pytest.mark.parametrize("name", FORMULAS)
def test_symbols_compute_what_arrays_do(name):
    formula, rng = FORMULAS[name], np.random.default_rng(0)
    a, b = Input("a", (3, 2)), Input("b", (3, 2))
    net = FeedForwardNet(inputs=[a, b], outputs=formula(a, b), seed=0)
    feed = {"a": rng.standard_normal((4, 3, 2)), "b": rng.uniform(0.5, 2, (4, 3, 2))}
    net.as_type("float64")
    np.testing.assert_allclose(net.forward(False, feed), formula(**feed), rtol=1e-12)
    again = FeedForwardNet.from_config(net.to_config())
    again.as_type("float64")
    np.testing.assert_array_equal(again.forward(False, feed), net.forward(False, feed))
    out = net.nodes()[-1].name
    dy = rng.standard_normal(formula(**feed).shape)
    found = net.gradients(out, ["a", "b"], feed, dys=dy)
    for key in feed:
        step = {**feed, key: feed[key].copy()}
        step[key][0, 2, 1] += 1e-6
        slope = ((formula(**step) - formula(**feed)) * dy).sum() / 1e-6
        assert found[key][0, 2, 1] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_layers_of_symbols_have_names_and_train():
    x = Input("x", (4,))
    gate = Dense("gate", 3)(x)
    y = Dense("value", 3)(x) * gate + gate * 0.5 + gate
    net = FeedForwardNet(inputs=x, outputs=y, seed=0)
    names = [node.name for node in net.nodes()]
    assert [name for name in names if name[0] in "pt"] == ["times", "times_1", "plus", "plus_1"]
    check_net_gradients(net, np.random.default_rng(0).standard_normal((3, 4)))


def test_what_symbols_refuse():
    a = Input("a", (3,))
    for compute in (
        lambda: a + np.ones(3),
        lambda: np.ones(3) * a,
        lambda: a / 0,
        lambda: a - "b",
        lambda: "c" * a,
    ):
        with pytest.raises(ArgumentError, match="expected symbols"):
            compute()
    for part in (lambda: a[0], lambda: a[1:], lambda: a[:, None], lambda: a[..., 0]):
        with pytest.raises(ArgumentError, match="part of a symbol"):
            part()
    with pytest.raises(TypeError, match="not iterable"):
        list(a)
    with pytest.raises(ShapeError, match="layer 'plus'"):
        a + Input("b", (4,))
    assert a[:] is a
