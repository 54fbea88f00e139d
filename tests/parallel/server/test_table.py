"""Shards: initial values, pulls, pushes and clocks."""

import zlib

import numpy as np
import pytest

from singanet.errors import DataError, ShapeError
from singanet.initializer import Gaussian, Orthogonal, Uniform
from singanet.optimizer import SGD, Adam, ClipByValue, Lion, RMSProp
from singanet.parallel.server import Shard
from singanet.params.param import Param, ParamSpec


def table(rows=10, width=3, initializer=None, **spec):
    param = Param(ParamSpec("table", **spec), (rows, width), initializer or Gaussian(0.0, 1.0))
    param.seed = 7
    return param


def grads(count, width=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize(
    "owned", [slice(None), slice(0, None, 3), slice(2, None, 3), slice(15_000, 39_000)]
)
@pytest.mark.parametrize("initializer", [Gaussian(0, 1), Uniform(-1, 1), Orthogonal()])
def test_a_shard_begins_with_the_rows_of_one_process(owned, initializer):
    rows = 40_000 if initializer != Orthogonal() else 400
    param = table(rows, 5, initializer)
    assert np.array_equal(Shard(param, SGD(lr=1.0), owned).values, param.initial()[owned])


def test_initial_values_are_what_numpy_draws_at_once():
    param = table(40_000, 5)
    rng = np.random.default_rng([7, zlib.crc32(b"table")])
    assert np.array_equal(param.initial(), rng.normal(size=(40_000, 5)).astype(np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=0.1, momentum=0.9),
        lambda: Adam(lr=lambda step: 0.1 / (1 + step)),
        lambda: RMSProp(lr=0.1, weight_decay=0.01),
        lambda: Lion(lr=0.1),
        lambda: ClipByValue(SGD(lr=0.1), 0.5),
    ],
)
def test_a_push_is_an_update_of_the_library(make):
    shard, own = Shard(table(lr_mult=2.0), make()), make()
    expected = table(lr_mult=2.0)
    own.register("table", expected.spec)
    for step in range(3):
        rows = np.array([1, 4, 8]) - step % 2
        own.update(["table"], [expected.value], [(rows, grads(3, seed=step))])
        shard.push(rows, grads(3, seed=step))
    assert np.array_equal(shard.values, expected.value)
    assert shard.clocks.tolist() == [1, 2, 0, 1, 2, 0, 0, 1, 2, 0]


def test_rows_in_any_order():
    one, other = Shard(table(), SGD(lr=1.0)), Shard(table(), SGD(lr=1.0))
    rows, by = np.array([7, 2, 5]), grads(3)
    one.push(rows, by, np.array([3, 2, 1]))
    order = np.argsort(rows)
    other.push(rows[order], by[order], np.array([2, 1, 3]))
    values, clocks = one.pull(np.array([2, 5, 7, 0]))
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(values, other.values[[2, 5, 7, 0]])
    assert clocks.tolist() == [2, 1, 3, 0]


def test_pulled_values_are_copies():
    shard = Shard(table(), SGD(lr=1.0))
    before = shard.values.copy()
    values, clocks = shard.pull(np.arange(10))
    values += 1
    clocks += 1
    assert np.array_equal(shard.values, before)
    assert not shard.clocks.any()


def test_push_and_newer():
    shard = Shard(table(), SGD(lr=1.0))
    begun = shard.values.copy()
    shard.push(np.array([3, 4]), grads(2))
    values, clocks = shard.pull(np.array([4, 9]))
    np.testing.assert_allclose(values, [begun[4] - grads(2)[1], begun[9]], rtol=1e-6)
    assert clocks.tolist() == [1, 0]
    shard.push(np.array([4]), grads(1), np.array([5]))
    positions, values, clocks = shard.newer(np.array([9, 4, 3]), np.array([0, 1, 0]), 1)
    assert positions.tolist() == [1]
    assert clocks.tolist() == [6]
    assert np.array_equal(values, shard.values[[4]])


def test_a_shard_in_files_trains_alike(tmp_path):
    whole = Shard(table(), Adam(lr=0.1))
    mapped = Shard(table(), Adam(lr=0.1), folder=tmp_path)
    for shard in (whole, mapped):
        shard.push(np.array([1, 2]), grads(2))
        shard.push(np.array([2, 3]), grads(2, seed=1))
    assert np.array_equal(whole.values, mapped.values)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"table.values", "table.first", "table.second"}
    moment = np.fromfile(tmp_path / "table.first", np.float32)
    assert np.array_equal(moment, whole.optimizer.state("table").arrays[0])
    assert moment.any()


def test_dense_gradients():
    shard, value = Shard(table(), SGD(lr=0.5)), table().value
    shard.update(grads(10), 2.0)
    np.testing.assert_allclose(shard.values, value - grads(10), rtol=1e-6)
    assert shard.clocks.tolist() == [1] * 10


@pytest.mark.parametrize(
    ("rows", "error"),
    [([0, 10], DataError), ([-1, 2], DataError), ([3, 3], DataError), ([0.5, 1.0], ShapeError)],
)
def test_what_is_refused_changes_nothing(rows, error):
    shard = Shard(table(), SGD(lr=1.0))
    with pytest.raises(error):
        shard.push(np.array(rows), grads(2))
    with pytest.raises(ShapeError):
        shard.push(np.array([1, 2]), grads(3))
    if rows != [3, 3]:
        with pytest.raises(error):
            shard.pull(np.array(rows))
    assert np.array_equal(shard.values, table().value)
    assert not shard.clocks.any()
