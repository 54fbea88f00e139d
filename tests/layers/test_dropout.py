"""Dropout."""

from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import AlphaDropout, Context, Dropout, GaussianNoise, SpatialDropout
from singanet.ops import numpy_ops
from tests.kit.layers import built, case, cases, expect_refused, refuses


def unchanged(make, shape=(3, 4, 5)):
    """In evaluation the identity; the checks of gradients draw the same mask at each step."""
    return case(make, shape, lambda p, x: x.copy())


CASES = {
    "Dropout": unchanged(lambda: Dropout("drop", 0.3)),
    "Dropout of nothing": unchanged(lambda: Dropout("drop", 0.0), (4,)),
    "SpatialDropout": unchanged(lambda: SpatialDropout("drop", 0.3, axis=-1)),
    "AlphaDropout": unchanged(lambda: AlphaDropout("drop", 0.3)),
    "GaussianNoise": unchanged(lambda: GaussianNoise("noise", 0.3)),
}


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def context(seed=0, train=True, keep=True):
    return Context(numpy_ops, np.random.default_rng(seed), {}, train, keep=keep)


def made(p):
    layer = built(Dropout("drop", p), (100, 100))
    return layer


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_p_is_the_share_that_is_dropped_and_the_mean_stays(p):
    """SINGA gave cuDNN 1 − p."""
    y = made(p).forward(context(), np.ones((10, 100, 100), np.float32))
    # Of 100,000 draws the share lies within 5 deviations but once in two million seeds.
    deviation = np.sqrt(p * (1 - p) / y.size)
    assert abs((y == 0).mean() - p) < 5 * deviation
    np.testing.assert_allclose(y[y != 0], 1 / (1 - p), rtol=1e-6)
    assert y.mean() == pytest.approx(1.0, abs=5 * deviation / (1 - p))


def test_elements_are_dropped_independently():
    y = made(0.5).forward(context(), np.ones((10, 100, 100), np.float32)) - 1.0
    for axis in range(3):
        neighbour = np.roll(y, 1, axis=axis)
        # The mean of 100,000 products of independent signs.
        assert abs((y * neighbour).mean()) < 5 / np.sqrt(y.size)


def test_the_seed_fixes_the_mask_and_each_call_draws_another():
    layer, x = made(0.5), np.ones((1, 100, 100))
    one, same = context(3), context(3)
    a, b = layer.forward(one, x), layer.forward(one, x)
    assert (a != b).any()
    np.testing.assert_array_equal(layer.forward(same, x), a)
    np.testing.assert_array_equal(layer.forward(same, x), b)


def test_the_mask_does_not_depend_on_the_float_type_or_the_memory_layout():
    layer, x = made(0.5), np.ones((2, 100, 100), np.float32)
    want = layer.forward(context(), x) != 0
    np.testing.assert_array_equal(layer.forward(context(), x.astype(np.float64)) != 0, want)
    fortran = np.asfortranarray(x)
    np.testing.assert_array_equal(layer.forward(context(), fortran) != 0, want)


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (0.5, False)])
def test_nothing_is_drawn_where_nothing_is_dropped(p, train):
    ctx, x = context(train=train), np.arange(20000.0).reshape(2, 100, 100)
    np.testing.assert_array_equal(made(p).forward(ctx, x), x)
    assert ctx.rng.random() == np.random.default_rng(0).random()


def test_the_mask_costs_one_byte_an_element():
    ctx = context()
    made(0.5).forward(ctx, np.ones((2, 100, 100)))
    assert sum(array.nbytes for array in ctx.saved.values()) == 2 * 100 * 100


def test_output_shape_of_singa():
    assert Dropout("drop", input_sample_shape=(64, 1, 12)).get_output_sample_shape() == (64, 1, 12)


@pytest.mark.parametrize(("axis", "alone"), [(1, (2, 3)), (-1, (1, 2)), (0, (1, 2, 3))])
def test_channels_are_dropped_as_a_whole(axis, alone):
    layer = built(SpatialDropout("drop", 0.5, axis=axis), (20, 6, 20))
    y = layer.forward(context(), np.ones((4, 20, 6, 20)))
    np.testing.assert_array_equal(y.max(axis=alone), y.min(axis=alone))
    assert set(np.unique(y)) == {0.0, 2.0}


def test_alpha_dropout_keeps_mean_and_variance():
    layer = built(AlphaDropout("drop", 0.4), (100, 100))
    y = layer.forward(context(), np.random.default_rng(1).standard_normal((20, 100, 100)))
    assert abs(y.mean()) < 0.01
    assert abs(y.var() - 1) < 0.02
    # a = (q + α² q p)^-½, and what is dropped becomes a α − a α p.
    scale = (0.6 + 1.7580993408473766**2 * 0.6 * 0.4) ** -0.5
    dropped = np.isclose(y, -1.7580993408473766 * scale * 0.6, rtol=1e-9)
    assert abs(dropped.mean() - 0.4) < 0.01


def test_noise_is_normal_and_of_the_deviation():
    layer = built(GaussianNoise("noise", 0.5), (100, 100))
    y = layer.forward(context(), np.ones((20, 100, 100), np.float32)) - 1
    assert y.dtype == np.float32
    assert abs(y.mean()) < 0.005
    assert abs(y.std() - 0.5) < 0.005
    for deviations, share in [(1, 0.6827), (2, 0.9545), (3, 0.9973)]:
        assert abs((np.abs(y) < 0.5 * deviations).mean() - share) < 0.005
    assert abs((y[:, 1:] * y[:, :-1]).mean()) < 0.005


@refuses([
    *[(partial(Dropout, "it", rate), ArgumentError, "argument rate: expected")
      for rate in (-0.1, 1.0, 1.5, float("nan"), "0.5", None, [0.5])],
    (lambda: AlphaDropout("it", 1.0), ArgumentError, "argument rate"),
    (lambda: Dropout("it").build([(3,), (3,)]), ShapeError, "expected one input; received"),
    (lambda: GaussianNoise("it", 0.0), ArgumentError, "argument stddev"),
    (lambda: SpatialDropout("it", 0.5, axis="last"), ArgumentError, "argument axis"),
    *[(partial(SpatialDropout("it", 0.5, axis=axis).build, (4, 5)), ShapeError,
       f"samples with the axis {axis}") for axis in (3, -3)],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
