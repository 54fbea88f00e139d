"""Initializers against the moments and bounds of their formulas, and the spec dicts."""

import math
from typing import Any

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import initializer as init
from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Conv2D, Dense

WIDE = (300, 500)


def draw(rule, shape=WIDE, fans=(0, 0)) -> Any:
    return rule(np.random.default_rng(7), shape, fans)


def test_constant_uniform_and_gaussian_have_their_moments():
    np.testing.assert_array_equal(draw(init.Constant(0.25), (2, 3)), [[0.25] * 3] * 2)
    assert draw(init.Constant(), ()).shape == ()
    x = draw(init.Uniform(-1.0, 3.0))
    assert -1 <= x.min() <= x.max() < 3
    counts, _ = np.histogram(x, bins=4, range=(-1, 3))
    np.testing.assert_allclose(counts / x.size, 0.25, atol=0.01)
    x = draw(init.Gaussian(2.0, 0.5))
    assert abs(x.mean() - 2) < 0.01
    assert abs(x.std() - 0.5) < 0.01
    assert abs((x < 2 + 0.5).mean() - 0.8413) < 0.01
    np.testing.assert_array_equal(draw(init.Eye(3.0), (2, 3)), [[3, 0, 0], [0, 3, 0]])


def test_truncated_normal_stays_within_two_deviations():
    x = draw(init.TruncatedNormal(1.0, 0.5))
    assert np.abs(x - 1).max() <= 1.0
    # Variance of a standard normal cut at +-2: 1 - 4 phi(2) / (Phi(2) - Phi(-2)).
    phi = math.exp(-2) / math.sqrt(2 * math.pi)
    expected = 1 - 4 * phi / math.erf(2 / math.sqrt(2))
    assert abs(x.var() / 0.25 - expected) < 0.01


@pytest.mark.parametrize(("name", "scale"), [("Glorot", 2 / 50), ("He", 2 / 20), ("Lecun", 1 / 20)])
def test_with_fans(name, scale):
    x = draw(getattr(init, f"{name}Normal")(), fans=(20, 30))
    assert abs(x.var() / scale - 1) < 0.02
    assert np.abs(x).max() > 3 * math.sqrt(scale)
    x, bound = draw(getattr(init, f"{name}Uniform")(), fans=(20, 30)), math.sqrt(3 * scale)
    assert 0.999 * bound < np.abs(x).max() <= bound
    assert abs(x.mean()) < 0.02 * bound


def test_keras_name_of_the_whole_bell():
    drawn = [
        init.VarianceScaling(distribution=name)(np.random.default_rng(0), (4, 3), (4, 3))
        for name in ("normal", "untruncated_normal")
    ]
    assert np.array_equal(*drawn)


@pytest.mark.parametrize(("rule", "name", "settings"), [
    (init.GlorotTruncated(), "GlorotNormal", {}), (init.HeTruncated(), "HeNormal", {}),
    (init.LecunTruncated(), "LecunNormal", {}),
    *(
        (init.VarianceScaling(**given), "VarianceScaling", given)
        for given in (
            {}, {"scale": 3.0, "mode": "fan_out", "distribution": "uniform"},
            {"scale": 0.5, "mode": "fan_avg", "distribution": "truncated_normal"}
        )
    )
])  # fmt: skip
def test_variance_and_ends_are_those_of_keras(rule, name, settings):
    keras = pytest.importorskip("keras")
    theirs = getattr(keras.initializers, name)(seed=0, **settings)(WIDE, "float32")
    wanted = np.asarray(keras.ops.convert_to_numpy(theirs))
    x = draw(rule)
    assert abs(x.var() / wanted.var() - 1) < 0.02
    # Not the largest: Keras on PyTorch draws a few beyond two deviations.
    ends = [np.quantile(np.abs(drawn), 0.999) for drawn in (x, wanted)]
    assert abs(ends[0] / ends[1] - 1) < 0.01
    assert np.abs(x).max() <= 2.0 / 0.8796 * x.std() * 1.02
    assert not rule._draws_one_by_one((300, 500)) or "distribution" in settings


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(6, 2, 3), (4, 4, 3, 2), (2, 6, 3, 3, 3)])
def test_dirac_is_that_of_pytorch(shape, groups):
    torch = pytest.importorskip("torch")
    wanted = torch.nn.init.dirac_(torch.empty(shape), groups).numpy()
    np.testing.assert_array_equal(draw(init.Dirac(groups=groups), shape), wanted)
    flat = (shape[0], math.prod(shape[1:]))
    rows = draw(init.Dirac(list(shape[2:]), groups), flat)
    np.testing.assert_array_equal(rows, wanted.reshape(flat))


@pytest.mark.parametrize(("call", "words"), [
    *((lambda g=g: init.Dirac(**g), "Dirac: expected kernel=")
      for g in ({"kernel": 3}, {"kernel": (0, 3)}, {"kernel": ()}, {"groups": 0})),
    *((lambda r=r, s=s: draw(r, s), "Dirac: expected filters") for r, s in (
        (init.Dirac(), (4, 9)), (init.Dirac((3, 3)), (4, 10)), (init.Dirac((3,)), (9,)),
        (init.Dirac(groups=3), (4, 2, 3)))),
    *((lambda g=g: init.VarianceScaling(**g), rf"VarianceScaling\({next(iter(g))}=\)")
      for g in ({"mode": "fan"}, {"distribution": "gaussian"})),
    *((lambda r=r, s=s: draw(r, s), r"received shape \(") for r, s in (
        (init.Eye(), (3,)), (init.Eye(), (2, 2, 2)), (init.Orthogonal(), (3,)))),
    (lambda: init.Uniform(1, 0), "low <= high"), (lambda: init.Gaussian(0, -1), "std >= 0"),
    *((lambda s=s: draw(init.GlorotUniform(), s), "expected known fans.*received shape")
      for s in ((), (0, 4), (3, 0))),
    *((lambda s=s: init.from_spec(s, "layer 'a'"), words) for s, words in (
        ({"init": "gausian"}, "layer 'a'.*'gausian'; did you mean 'gaussian'"),
        *(({**s}, "name or an Initializer")
          for s in ({}, {"init": None}, {"init": 3}, {"init": np.zeros(2)})),
        ({"init": "gaussian", "mean": 0}, "without.*std"),
        ({"init": "uniform", "high": 0}, "without.*low"),
        ({"init": "uniform"}, "without.*'low', 'high'"))),
])  # fmt: skip
def test_what_is_no_rule_or_fits_no_shape_is_refused(call, words):
    with pytest.raises((ArgumentError, UnknownNameError), match=words):
        call()


@pytest.mark.parametrize(
    ("shape", "fans"),
    [((40, 10), (40, 10)), ((8, 3, 5, 5), (75, 200)), ((6,), (6, 6)), ((4, 2, 3), (6, 12))],
)
def test_fans_come_from_the_shape_when_unknown(shape, fans):
    for rule in (init.GlorotUniform(), init.HeNormal(), init.LecunUniform()):
        np.testing.assert_array_equal(draw(rule, shape), draw(rule, shape, fans))


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (6, 2, 3)])
def test_orthogonal_rows_or_columns(shape):
    x = draw(init.Orthogonal(2.0), shape)
    assert x.shape == shape
    matrix = x.reshape(shape[0], -1)
    small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_orthogonal_is_not_biased_to_one_sign():
    rng = np.random.default_rng(0)
    corners = [init.Orthogonal()(rng, (3, 3), (0, 0))[0, 0] for _ in range(400)]
    assert abs(float(np.mean(corners))) < 0.1


@pytest.mark.parametrize("rule", [
    init.Uniform(0, 1), init.Gaussian(0, 1), init.TruncatedNormal(0, 1), init.GlorotUniform(),
    init.Orthogonal()
])  # fmt: skip
def test_the_generator_decides_every_draw(rule):
    np.testing.assert_array_equal(draw(rule, (7, 5)), draw(rule, (7, 5)))
    other = rule(np.random.default_rng(8), (7, 5), (0, 0))
    assert not np.array_equal(draw(rule, (7, 5)), other)


@pytest.mark.parametrize(("spec", "expected"), [
    ({"init": "gaussian", "mean": 0, "std": 0.1}, init.Gaussian(0, 0.1)),
    ({"init": "Uniform", "low": -1, "high": 1}, init.Uniform(-1, 1)),
    ({"init": "CONSTANT", "value": 3}, init.Constant(3)),
    ({"init": "constant"}, init.Constant(0.0)),
    ({"init": "xavier", "name": "w"}, init.GlorotUniform()),
    ({"init": "msra"}, init.HeNormal()), ({"init": "lecun_normal"}, init.LecunNormal()),
    ({"init": "orthogonal", "gain": 2.0}, init.Orthogonal(2.0)), ({"init": "eye"}, init.Eye()),
    ({"init": "he_truncated"}, init.HeTruncated()),
    (
        {"init": "variance_scaling", "mode": "fan_out", "scale": 2.0},
        init.VarianceScaling(2.0, "fan_out")
    ),
    ({"init": "dirac", "kernel": [3, 3]}, init.Dirac((3, 3))),
    ({"init": "truncated_normal", "mean": 0, "std": 1}, init.TruncatedNormal(0, 1))
])  # fmt: skip
def test_specs(spec, expected):
    before = dict(spec)
    made = init.from_spec(spec, "layer 'a'")
    assert type(made) is type(expected)
    assert made == expected
    assert spec == before


def test_a_spec_may_hold_an_initializer_of_ones_own():
    class Ramp(init.Initializer):
        def __call__(self, rng, shape, fans):
            return np.arange(math.prod(shape), dtype=float).reshape(shape)

    rule = Ramp()
    assert init.from_spec({"init": rule}, "x") is rule
    np.testing.assert_array_equal(draw(rule, (2, 2)), [[0, 1], [2, 3]])


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", None, True])
def test_numbers_must_be_finite(bad):
    for make in (
        lambda: init.Constant(bad), lambda: init.Uniform(0, bad), lambda: init.Gaussian(bad, 1),
        lambda: init.TruncatedNormal(0, bad), lambda: init.Orthogonal(bad), lambda: init.Eye(bad)
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="finite number"):
            make()


def test_a_convolution_begun_by_dirac_passes_its_channels_on():
    specs = {"init": "dirac", "kernel": (3, 3)}
    layer = Conv2D("c", 2, 3, W_specs=specs, input_sample_shape=(2, 5, 4))
    net = FeedForwardNet([layer])
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 4)).astype(np.float32)
    np.testing.assert_array_equal(net.forward(False, x), x)
    again = FeedForwardNet.from_config(net.to_config())
    np.testing.assert_array_equal(again.forward(False, x), x)


def test_the_names_of_keras_have_its_defaults():
    net = FeedForwardNet(seed=0)
    layer = net.add(Dense(400, kernel_initializer="random_normal", bias_initializer="ones",
                          input_shape=(50,)))  # fmt: skip
    weight, bias = layer.param_values()
    assert abs(weight.std() - 0.05) < 2e-3
    assert (bias == 1.0).all()
    spread = Dense(400, kernel_initializer="random_uniform", input_shape=(50,)).param_values()[0]
    assert 0.049 < abs(spread).max() <= 0.05
