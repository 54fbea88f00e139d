"""Parameters."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.initializer import Constant, Gaussian, GlorotUniform, HeNormal, Uniform
from singanet.layers import Dense
from singanet.params.param import Param, ParamSpec, make_param


def make(specs=None, shape=(2, 3)):
    return make_param("fc", "weight", shape, specs, Constant(0.5), (2, 3))


def test_a_parameter_is_named_after_layer_and_suffix():
    param = make()
    assert param.name == "fc/weight"
    assert repr(param) == "Param('fc/weight', shape=(2, 3))"
    np.testing.assert_array_equal(param.value, np.full((2, 3), 0.5, np.float32))


def test_spec_keys_reach_the_spec():
    param = make({"name": "w", "lr_mult": 2.0, "decay_mult": 0.0, "regularizer": 0.1,
                  "constraint": 3.0, "trainable": False})  # fmt: skip
    assert param.spec == ParamSpec("w", 2.0, 0.0, 0.1, 3.0)
    assert not param.trainable


def test_values_depend_on_seed_and_name_alone():
    def value(name, seed):
        param = Param(ParamSpec(name), (50,), Gaussian(0.0, 1.0))
        param.seed = seed
        return param.value

    np.testing.assert_array_equal(value("a", 1), value("a", 1))
    assert (value("a", 1) != value("b", 1)).all()
    assert (value("a", 1) != value("a", 2)).all()


def test_the_value_is_one_live_array():
    param = make()
    param.value[0, 0] = 9.0
    assert param.value[0, 0] == 9.0
    assert param.value is param.value


def test_a_value_of_another_shape_is_refused():
    param = make()
    with pytest.raises(ShapeError, match=r"'fc/weight': expected shape \(2, 3\).*\(3, 2\)"):
        param.value = np.zeros((3, 2))
    assert param.value.shape == (2, 3)


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ArgumentError, match="a parameter name"):
        make({"name": name})


def test_an_unknown_key_is_refused():
    with pytest.raises(UnknownNameError, match="'decay_mul'; did you mean 'decay_mult'"):
        make({"decay_mul": 1.0})


def test_an_unknown_initializer_is_refused():
    with pytest.raises(UnknownNameError, match="gausian"):
        make({"init": "gausian", "mean": 0, "std": 1})


def test_a_value_of_another_type_becomes_the_parameters_own():
    """A float64 array stayed one, and the net computed in it from there on."""
    param = make()
    param.value = np.full((2, 3), 0.1)
    assert param.value.dtype == np.float32
    param.value = np.ones((2, 3), int)
    assert param.value.dtype == np.float32
    own = np.zeros((2, 3), np.float32)
    param.value = own
    assert param.value is own
    with pytest.raises(ArgumentError, match="'fc/weight': expected an array of numbers"):
        param.value = np.full((2, 3), "a")
    assert param.value is own
    param.retype(np.zeros((2, 3)))
    assert param.value.dtype == np.float64
    param.value = own
    assert param.value.dtype == np.float64


@pytest.mark.parametrize(
    "rule",
    [Uniform(-1, 2), Gaussian(1, 3), Constant(0.5), GlorotUniform(), HeNormal()],
    ids=lambda rule: type(rule).__name__,
)
def test_large_parameters_are_drawn_piece_by_piece_to_the_same_numbers(rule):
    """A copy in float64 beside them took twice what they leave."""
    shape = (1500, 1501)
    param = Param(ParamSpec("fc/weight"), shape, rule, shape)
    tracemalloc.start()
    value = param.initial()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < value.nbytes + (20 << 20)
    rng = np.random.default_rng([0, zlib.crc32(b"fc/weight")])
    np.testing.assert_array_equal(value, rule(rng, shape, shape).astype(np.float32), strict=True)


@pytest.mark.parametrize("name", ["a\ud800", "a\tb", "a\n", "x" * 4097, "é" * 2049, "a//b", "../a"])
def test_names_that_no_file_holds_are_refused_before_training(name):
    with pytest.raises(ArgumentError):
        Dense(name, 3)
    with pytest.raises(ArgumentError):
        make({"name": name})
    with pytest.raises(ArgumentError):
        singanet.FeedForwardNet(name=name)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("way", ["retype", "as_type", "value"])
def test_the_other_byte_order_becomes_the_machines(way, dtype, tmp_path):
    """Otherwise files would have a type that no net computes in."""
    rng, other = np.random.default_rng(0), np.dtype(dtype).newbyteorder("S")
    net = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(4,))], seed=0)
    net.as_type(other if way == "as_type" else dtype)
    numbers = [rng.standard_normal(param.shape) for param in net.params()]
    for param, given in zip(net.params(), numbers, strict=True):
        if way == "retype":
            param.retype(given.astype(other))
        else:
            param.value = given.astype(other)
    assert net.dtype.isnative
    net.save_model(tmp_path / "m.singanet")
    made = singanet.load_model(tmp_path / "m.singanet")
    for param, given in zip(made.params(), numbers, strict=True):
        np.testing.assert_array_equal(param.value, given.astype(dtype), strict=True)
