"""Weights in fewer bits on a device: rounded with the draws, and to the bits, of the CPU."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint.halves import narrow
from singanet.device import cpu
from singanet.ops import narrow as matrices
from singanet.ops.narrow import Bfloat16Matrix, BlockMatrix
from singanet.params import narrow as storages
from singanet.params.narrow import Bfloat16Weights, BlockWeights, rounded_at_random
from singanet.testing import strict_device
from tests.ops.test_held import KINDS, blocks

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
    change.reshape(-1)[: seed % 3] = [np.nan, np.inf][: seed % 3]
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
