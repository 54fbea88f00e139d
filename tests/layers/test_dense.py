"""Dense."""

from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Dense, TimeDistributed
from tests.kit.layers import case, cases, expect_refused, refuses

CASES = {
    "Dense": case(lambda: Dense("fc", 3), (5,), lambda p, x:
                  np.einsum("ni,io->no", x, p["weight"]) + p["bias"]),
    "over steps": case(lambda: Dense("fc", 4), (2, 3, 5), lambda p, x:
                       np.einsum("nabi,io->nabo", x, p["weight"]) + p["bias"]),
    "transposed": case(lambda: Dense("fc", 3, use_bias=False, W_transpose=True), (5,),
                       lambda p, x: np.einsum("ni,oi->no", x, *p.values())),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_parameters_have_names_shapes_and_order():
    layer = Dense("fc", 32, input_sample_shape=(64,))
    assert layer.get_output_sample_shape() == (32,)
    assert layer.param_names() == ["fc/weight", "fc/bias"]
    assert [value.shape for value in layer.param_values()] == [(64, 32), (32,)]


def test_default_weights_are_glorot_uniform_and_biases_zero():
    layer = Dense("fc", 300, input_sample_shape=(200,))
    layer.get_output_sample_shape()
    weight, bias = layer.param_values()
    bound = np.sqrt(6 / 500)
    assert weight.dtype == np.float32
    assert np.abs(weight).max() <= bound
    # The variance of U(-a, a) is a²/3.
    assert weight.var() == pytest.approx(bound**2 / 3, rel=0.02)
    assert not bias.any()


def test_a_sequence_of_any_length_is_what_time_distributed_makes_of_it(rng):
    net = FeedForwardNet([Dense("fc", 3, input_sample_shape=(None, 4))], seed=0)
    same = FeedForwardNet([TimeDistributed("td", Dense("fc", 3), (None, 4))], seed=0)
    for length in (1, 6):
        x = rng.standard_normal((2, length, 4)).astype(np.float32)
        np.testing.assert_array_equal(net.forward(False, x), same.forward(False, x))


def test_shares_a_parameter_given_as_a_spec():
    first = Dense("enc", 3, input_sample_shape=(5,))
    first.get_output_sample_shape()
    second = Dense("dec", 5, W_specs=first.params["weight"], W_transpose=True)
    with pytest.raises(ShapeError, match="shared parameter 'enc/weight'"):
        Dense("bad", 4, W_specs=first.params["weight"]).build((5,))
    assert second.build((3,)) == (5,)
    assert second.params["weight"] is first.params["weight"]


FEATURES = r"expected .*\(features,\).*Flatten"


@refuses([
    *[(partial(Dense("it", 3).build, shape), ShapeError, FEATURES)
      for shape in ((), (4, None), [(3,), (3,)])],
    *[(partial(Dense, "it", count), ArgumentError, "argument units: expected")
      for count in (0, -1, 2.5, "3", None)],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    assert error is ArgumentError or make.func.__self__.params == {}


def test_refuses_an_unknown_spec_key():
    with pytest.raises(UnknownNameError, match="did you mean 'lr_mult'"):
        Dense("fc", 3, W_specs={"lr_mlt": 2.0}).build((4,))


def test_linear_is_no_activation():
    assert [Dense("fc", 3, activation=given).activation for given in (None, "linear", "relu")] == [
        None, None, "relu"]  # fmt: skip
