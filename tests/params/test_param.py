"""Parameters."""

import itertools
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import singanet
from singanet import FeedForwardNet
from singanet.checkpoint.gguf_blocks import quarters
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.initializer import Constant, Gaussian, GlorotUniform, HeNormal, Uniform
from singanet.layers import Dense
from singanet.ops import numpy_ops as ops
from singanet.ops import ops_for
from singanet.params.grads import add_gradients, dense_gradient
from singanet.params.narrow import fed_back, fitted
from singanet.params.param import Param, ParamSpec, make_param
from singanet.testing.device_like import device_like
from singanet.types import RowSparse


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


@pytest.mark.parametrize(
    ("specs", "error", "words"),
    [
        *(({"name": name}, ArgumentError, "a parameter name") for name in ("", 3, None)),
        ({"decay_mul": 1.0}, UnknownNameError, "'decay_mul'; did you mean 'decay_mult'"),
        ({"init": "gausian", "mean": 0, "std": 1}, UnknownNameError, "gausian"),
        # Names that no file holds, before training.
        *(({"name": name}, ArgumentError, None)
          for name in ("a\ud800", "a\tb", "a\n", "x" * 4097, "é" * 2049, "a//b", "../a")),
    ],
)  # fmt: skip
def test_refused_specs(specs, error, words):
    with pytest.raises(error, match=words):
        make(specs)
    if not words:
        for named in (lambda name: Dense(name, 3), lambda name: FeedForwardNet(name=name)):
            with pytest.raises(error):
                named(specs["name"])


def test_a_value_of_another_type_becomes_the_parameters_own():
    """A float64 array stayed one, and the net computed in it from there on."""
    param = make()
    with pytest.raises(ShapeError, match=r"'fc/weight': expected shape \(2, 3\).*\(3, 2\)"):
        param.value = np.zeros((3, 2))
    param.value = np.full((2, 3), 0.1)
    assert param.value.dtype == np.float32
    param.value[0, 0] = 9.0
    assert param.value[0, 0] == 9.0
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


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("way", ["retype", "as_type", "value"])
def test_the_other_byte_order_becomes_the_machines(way, dtype, tmp_path):
    """Otherwise files would have a type that no net computes in."""
    rng, other = np.random.default_rng(0), np.dtype(dtype).newbyteorder("S")
    net = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(4,))], seed=0)
    net.as_type(other if way == "as_type" else dtype)
    numbers = [rng.standard_normal(param.shape) for param in net.params()]
    for param, array in zip(net.params(), numbers, strict=True):
        if way == "retype":
            param.retype(array.astype(other))
        else:
            param.value = array.astype(other)
    assert net.dtype.isnative
    net.save_model(tmp_path / "m.singanet")
    made = singanet.load_model(tmp_path / "m.singanet")
    for param, array in zip(made.params(), numbers, strict=True):
        np.testing.assert_array_equal(param.value, array.astype(dtype), strict=True)


SHAPE = (5, 2)


def dense(grad):
    if not isinstance(grad, RowSparse):
        return grad
    total = np.zeros(SHAPE)
    for index, row in zip(grad.indices, grad.rows, strict=True):
        total[index] += row
    return total


SOME = {
    "dense": np.arange(10.0).reshape(SHAPE),
    "sparse": RowSparse(np.array([1, 4]), np.array([[1.0, 2], [3, 4]])),
    "other": RowSparse(np.array([0, 1]), np.array([[10.0, 20], [30, 40]])),
    "empty": RowSparse(np.zeros(0, np.int64), np.zeros((0, 2))),
}


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SOME, repeat=2)))
def test_sums_equal_those_of_dense_gradients_and_change_neither(a, b):
    before = {name: dense(SOME[name]).copy() for name in (a, b)}
    total = add_gradients(ops, SOME[a], SOME[b])
    assert isinstance(total, RowSparse) == (a != "dense" and b != "dense")
    np.testing.assert_array_equal(dense(total), before[a] + before[b])
    for name, value in before.items():
        np.testing.assert_array_equal(dense(SOME[name]), value)
    if not isinstance(total, RowSparse):
        assert not np.shares_memory(total, SOME["dense"])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=20))
def test_sum_rows_equals_a_loop(pairs):
    """Each row once, in order; of a device's arrays as well."""
    indices = np.array([index for index, _ in pairs], np.uint8)
    rows = np.array([[value, -value] for _, value in pairs], np.float32).reshape(-1, 2)
    expected = {}
    for index, value in pairs:
        expected[index] = expected.get(index, 0) + value
    for xp in (np, device_like):
        given = xp.asarray(indices), xp.asarray(rows)
        found, sums = ops_for(given[1]).sum_rows(*given)
        assert (found.dtype, sums.dtype) == (np.int64, np.float32)
        assert found.tolist() == sorted(expected)
        assert sums.tolist() == [[expected[index], -expected[index]] for index in sorted(expected)]


def test_dense_form(xp):
    sparse = RowSparse(*(xp.asarray(part) for part in SOME["sparse"]))
    kernels = ops_for(sparse.rows)
    made = dense_gradient(kernels, sparse, SHAPE)
    host = made.get() if hasattr(made, "get") else made
    np.testing.assert_array_equal(host, dense(SOME["sparse"]))
    assert dense_gradient(kernels, made, SHAPE) is made


def numbers(blocks):
    """What blocks of Q4_1 stand for: a scale and a minimum in float16, then 32 of 4 bits."""
    blocks = blocks.reshape(-1, 20)
    scale, least = (blocks[:, k : k + 2].copy().view("<f2").astype(np.float64) for k in (0, 2))
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return codes * scale + least


def error(values, blocks):
    return ((numbers(blocks) - values) ** 2).sum(1)


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.just(32)),
        elements=st.floats(-100, 100, width=32),
    )
)
def test_no_block_is_off_by_more_than_that_of_its_range(values):
    plain = error(values, quarters(values))
    # float16 rounds scale and minimum in each.
    slack = 1e-6 + 32 * (2.0**-11 * np.abs(values).max(1)) ** 2
    assert (error(values, fitted(values)) <= plain + slack).all()


def test_blocks_of_normal_numbers_are_nearer():
    values = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    plain, ours = error(values, quarters(values)).sum(), error(values, fitted(values)).sum()
    assert ours < 0.95 * plain


def test_equal_numbers_and_those_on_a_line_are_kept():
    line = np.arange(32, dtype=np.float32) % 16 / 2 - 3
    values = np.stack([np.zeros(32, np.float32), np.full(32, 2.5, np.float32), line])
    np.testing.assert_allclose(numbers(fitted(values)), values, atol=1e-6)


def both(values, moments):
    """By what inputs have in common, and each by itself."""
    alone = fitted(np.ascontiguousarray(values.T).reshape(-1, 32))
    shape = values.shape[::-1]
    return [numbers(each).reshape(shape).T for each in (fed_back(values, moments), alone)]


def test_inputs_that_have_nothing_in_common_or_have_been_nothing_are_fitted_by_themselves():
    values = np.random.default_rng(1).standard_normal((96, 7)).astype(np.float32)
    nothing = np.zeros((96, 96), np.float32)
    for moments in (np.eye(96, dtype=np.float32), nothing):
        np.testing.assert_allclose(*both(values, moments), atol=1e-5)
    nothing[3, 3] = 1e8
    assert np.isfinite(both(values, nothing)[0]).all()


@pytest.mark.parametrize("rank", [8, 40])
def test_products_are_nearer_where_inputs_go_together(rank):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((400, rank)) @ rng.standard_normal((rank, 96))
    x += 0.1 * rng.standard_normal(x.shape)
    values = rng.standard_normal((96, 20)).astype(np.float32)
    made, plain = both(values, (x.T @ x).astype(np.float32))
    assert np.linalg.norm(x @ (made - values)) < 0.6 * np.linalg.norm(x @ (plain - values))
