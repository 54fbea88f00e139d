"""Weights that are held in fewer bits: rounding, arrays that are lent, copies."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint.halves import narrow
from singanet.device import cpu
from singanet.errors import CallOrderError
from singanet.ops import narrow as matrices
from singanet.ops.narrow import Bfloat16Matrix, BlockMatrix
from singanet.params import narrow as storages
from singanet.params.narrow import Bfloat16Weights, BlockWeights, rounded_at_random
from singanet.testing import strict_device
from tests.ops.test_held import KINDS, blocks


def weights(rounding="stochastic", transposed=False, shape=(40, 70)):
    return Bfloat16Weights(
        Bfloat16Matrix(*(shape[::-1] if transposed else shape)), transposed, rounding
    )


def nearest(values):
    """By PyTorch's definition: the two neighbours that bfloat16 has, and the nearer one."""
    down = (np.asarray(values, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    up = ((down.view(np.uint32)) + 0x10000).view(np.float32)
    wide, below, above = (np.asarray(a, np.float64) for a in (values, down, up))
    even = (down.view(np.uint32) >> 16) & 1 == 0
    low, high = np.abs(wide - below), np.abs(above - wide)
    return np.where((low < high) | ((low == high) & even), down, up)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_assigned_is_rounded_to_nearest(transposed):
    values = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
    held = weights(transposed=transposed)
    held.write(values)
    np.testing.assert_array_equal(held.read(), nearest(values))
    np.testing.assert_array_equal(np.asarray(held.factor()), nearest(values))
    assert held.dtype == np.float32
    # Rules that go through blocks of rows would else copy it.
    assert held.lend().flags.c_contiguous


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_with_the_remainder_each_float_comes_back(bits):
    values = np.array([bits], np.uint32).view(np.float32)
    held = weights("remainder", shape=values.shape)
    held.write(values)
    got = held.read()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(values))
    there = ~np.isnan(values)
    np.testing.assert_array_equal(got.view(np.uint32)[there], values.view(np.uint32)[there])
    seen, finite = np.asarray(held.factor()), np.isfinite(values)
    with np.errstate(over="ignore"):
        off = np.abs(seen[finite].astype(np.float64) - values[finite])
    assert np.all((off <= 2.0**-8 * np.abs(values[finite])) | (off <= 2.0**-134) | np.isinf(off))


def test_the_remainder_takes_memory_from_the_first_update_on():
    held = weights("remainder", shape=(64, 64))
    held.write(nearest(np.ones((64, 64))))
    assert held.nbytes == 2 * 64 * 64
    array = held.lend()
    array += np.float32(1e-6)
    held.settle()
    assert held.nbytes == 4 * 64 * 64
    np.testing.assert_array_equal(held.read(), np.float32(1) + np.float32(1e-6))


def test_stochastic_rounding_keeps_the_mean_and_goes_to_a_neighbour():
    value = np.float32(1.0) + np.float32(2.0**-7) * np.float32(0.3)
    values = np.full((400, 500), value)
    words = rounded_at_random(values, np.random.default_rng(0), 500)
    got = (words.astype(np.uint32) << 16).view(np.float32)
    assert {*np.unique(got)} == {np.float32(1.0), np.float32(1.0 + 2.0**-7)}
    share = np.mean(got > 1.0)
    assert abs(share - 0.3) < 5 * np.sqrt(0.3 * 0.7 / got.size)
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5], np.float32)
    many = rounded_at_random(np.tile(special, (50, 1)), np.random.default_rng(1), 64)
    back = (many.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back, np.tile(special, (50, 1)))


def test_an_array_that_is_lent_counts_until_nobody_has_it():
    held = weights()
    held.write(np.zeros((40, 70), np.float32))
    array = held.lend()
    assert held.lend() is array
    array[...] = 1.25
    np.testing.assert_array_equal(held.read(), 1.25)
    array[...] = 2.5  # after it was held again, and still in hand
    np.testing.assert_array_equal(np.asarray(held.factor()), 2.5)
    del array
    held.settle()
    array = held.lend()
    array[0, 0] = 1.001
    held.settle(np.random.default_rng(0))
    first = held.read()[0, 0]
    assert first in (1.0, np.float32(1.0 + 2.0**-7))
    assert array[0, 0] == first
    held.settle(np.random.default_rng(5))  # what was rounded stays so
    assert held.read()[0, 0] == first
    del array
    held.write(np.ones((40, 70), np.float32))
    np.testing.assert_array_equal(held.lend(), 1.0)


@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
def test_copies_hold_as_much_and_are_apart(rounding):
    held = weights(rounding, transposed=True)
    values = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
    held.lend()[...] = values
    want = held.read()
    for made in (copy.deepcopy(held), pickle.loads(pickle.dumps(held))):
        assert made.rounding == rounding
        assert made.nbytes == held.nbytes
        np.testing.assert_array_equal(made.read(), want)
        made.write(np.zeros((40, 70), np.float32))
        np.testing.assert_array_equal(held.read(), want)


def test_blocks_are_only_read():
    held = BlockWeights(BlockMatrix(64, 64, "Q4_0"), True)
    assert not held.trains
    assert not held.lend().flags.writeable
    with pytest.raises(CallOrderError, match=r"blocks of 4 bits.*then quantize it"):
        held.write(np.zeros((64, 64), np.float32))
    other = copy.deepcopy(held)
    other.matrix.scales[...] = 1
    assert not held.read().any()
    assert other.read().all()


ROUNDINGS = ["stochastic", "remainder"]


def both(device, shape, transposed, rounding):
    """Weights without numbers on the CPU, and on ``device``."""
    size = shape[::-1] if transposed else shape
    modules = np, device.ops.xp
    return [Bfloat16Weights(Bfloat16Matrix(*size, xp), transposed, rounding) for xp in modules]


def expect_same(near, far, device):
    for one, other in zip(near.arrays, far.arrays, strict=True):
        np.testing.assert_array_equal(device.ops.host(other), one)
    got, want = device.ops.host(far.read()), near.read()
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    assert near.nbytes == far.nbytes


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_bits_are_rounded_alike(bits):
    device, values = strict_device(), np.array([bits], np.uint32).view(np.float32)
    far = device.put(values)
    got = device.ops.host(narrow(far, device.ops.xp))
    np.testing.assert_array_equal(got, narrow(values))
    one, other = (np.random.default_rng(len(bits)) for _ in range(2))
    got = device.ops.host(rounded_at_random(far, other, 64))
    np.testing.assert_array_equal(got, rounded_at_random(values, one, 64))
    assert one.random() == other.random()


@given(
    st.integers(1, 70),
    st.integers(1, 140),
    st.booleans(),
    st.sampled_from(ROUNDINGS),
    st.integers(0, 5),
)
def test_updates_of_any_shape_are_held_alike(rows, columns, transposed, rounding, seed):
    device, rng = strict_device(), np.random.default_rng(seed)
    near, far = both(device, (rows, columns), transposed, rounding)
    value = rng.standard_normal((rows, columns), np.float32)
    near.write(value)
    far.write(value)
    expect_same(near, far, device)
    change = np.float32(1e-3) * rng.standard_normal((rows, columns), np.float32)
    count = min(seed % 3, change.size)
    change.reshape(-1)[:count] = [np.nan, np.inf][:count]
    for each, moved in ((near, change), (far, device.put(change))):
        array = each.lend()
        array += moved
        del array
        each.settle(np.random.default_rng(seed))
    expect_same(near, far, device)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("columns", [64, 200, 450, 512])
def test_what_is_drawn_run_by_run_is_that_of_the_cpu(columns, rounding, gpu, monkeypatch):
    # Of one panel each on the CPU, and there of up to three of these.
    monkeypatch.setattr(storages, "_PIECE", 64 * 33)
    monkeypatch.setattr(matrices, "_ON_DEVICE", 3 * 64 * 33)
    near, far = both(gpu, (33, columns), False, rounding)
    assert len([*near.matrix.parts(storages._PIECE)]) == -(-columns // 64)
    assert len([*far.matrix.parts(storages._PIECE)]) == -(-columns // 192)
    value = np.random.default_rng(0).standard_normal((33, columns), np.float32)
    for each, put in ((near, cpu().put), (far, gpu.put)):
        array, rng = each.lend(), np.random.default_rng(1)
        array[...] = put(value)
        # Still in hand, it is rounded once.
        each.settle(rng)
        each.settle(rng)
        assert each.lend() is array
    expect_same(near, far, gpu)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_they_are_moved_there_and_back(rounding, gpu):
    held = Bfloat16Weights(Bfloat16Matrix(40, 70), False, rounding)
    array = held.lend()
    array[...] = np.random.default_rng(0).standard_normal((40, 70), np.float32)
    # What was changed and not looked at since is moved as well.
    far = held.moved(gpu.put)
    del array
    assert far.rounding == rounding
    expect_same(held, far, gpu)
    for made in (copy.deepcopy(far), pickle.loads(pickle.dumps(far))):
        made.write(np.zeros((40, 70), np.float32))
        expect_same(held, far, gpu)
    back = far.moved(cpu().put)
    assert type(back.lend()) is np.ndarray
    np.testing.assert_array_equal(back.read(), held.read())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_moved_there_and_back(kind, transposed, gpu):
    held = BlockWeights(blocks(kind, 96, 70)[0], transposed)
    far = held.moved(gpu.put)
    assert far.place == held.place
    assert not far.trains
    np.testing.assert_array_equal(gpu.ops.host(far.lend()), held.read())
    for made in (copy.deepcopy(far), pickle.loads(pickle.dumps(far)), far.moved(cpu().put)):
        np.testing.assert_array_equal(gpu.ops.host(made.read()), held.read())
    assert isinstance(far.matrix, BlockMatrix)
