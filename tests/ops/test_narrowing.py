"""Matrices that compiled functions narrow, beside NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint.gguf_blocks import BLOCKS, eighths
from singanet.checkpoint.halves import narrow
from singanet.ops import narrowing
from singanet.ops.casts import has_compiler
from singanet.ops.narrow import BLOCK, Bfloat16Matrix, BlockMatrix
from singanet.params.narrow import fitted

pytestmark = pytest.mark.skipif(
    not has_compiler() or narrowing._blocks("Q8_0") is None, reason="no compiler, or no float16"
)


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(narrowing, "_LEAST", 1)


def values_of(seed, inputs, outputs):
    """Numbers of unlike sizes in any layout, with columns of zeros and of one number."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((inputs, 2 * outputs), np.float32)
    values *= 10.0 ** rng.integers(-9, 3, 2 * outputs)
    values[:, rng.integers(2 * outputs)] = 0
    values[:, rng.integers(2 * outputs)] = -1.5
    layouts = values[:, :outputs], values[:, ::2], np.asfortranarray(values[:, :outputs])
    return layouts[seed % 3].astype(np.float32, order="K")


def blocks_of(values, encode, size):
    """NumPy's blocks (outputs, blocks of a column, bytes)."""
    rows = np.ascontiguousarray(values.T).reshape(-1, BLOCK)
    return encode(rows).reshape(values.shape[1], -1, size)


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 200))
def test_blocks_of_8_bits_are_those_of_ggml(seed, blocks, outputs):
    values = values_of(seed, BLOCK * blocks, outputs)
    held, wanted = (BlockMatrix(BLOCK * blocks, outputs, "Q8_0") for _ in range(2))
    assert narrowing.narrowed(values, held)
    made = blocks_of(values, eighths, 34)
    for slab, columns in wanted.slabs:
        wanted.put(slab, made[columns])
    for one, other in zip(held.arrays, wanted.arrays, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 200))
def test_blocks_of_4_bits_are_fitted_as_by_numpy(seed, blocks, outputs):
    """Sums in another order may end at another float16, and codes at another half."""
    values = values_of(seed, BLOCK * blocks, outputs)
    held = BlockMatrix(BLOCK * blocks, outputs, "Q4_1")
    assert narrowing.narrowed(values, held)
    theirs = BLOCKS["Q4_1"].decode(blocks_of(values, fitted, 20).reshape(-1, 20))
    theirs = theirs.reshape(outputs, -1, BLOCK)
    mine = np.asarray(held).T.reshape(theirs.shape)
    exact = values.T.reshape(theirs.shape).astype(np.float64)
    size = np.square(exact).sum(-1)
    own, other = (np.square(each - exact).sum(-1) for each in (mine, theirs))
    # A block keeps the better of four fits, of which a rounding may change the order.
    assert (own <= 1.1 * other + 1e-6 * size).all()
    assert own.sum() <= 1.01 * other.sum() + 1e-6 * size.sum()
    # Nothing is beside the matrix.
    count = len(held.codes) * held.panels * 64
    assert not held.scales.swapaxes(1, 2).reshape(count, -1)[outputs:].any()
    assert not held.scales[:, blocks:].any()


@given(st.integers(0, 99), st.integers(1, 200), st.integers(1, 200))
def test_words_are_rounded_to_nearest(seed, inputs, outputs):
    values = values_of(seed, inputs, outputs)
    held = Bfloat16Matrix(inputs, outputs)
    assert narrowing.narrowed(values, held)
    np.testing.assert_array_equal(held.get(0, outputs), narrow(values))
    assert held.words.any() == values.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_left_to_numpy(value):
    values = np.ones((64, 64), np.float32)
    values[5, 7] = value
    for held in (Bfloat16Matrix(64, 64), BlockMatrix(64, 64, "Q4_1")):
        assert not narrowing.narrowed(values, held)
        assert not any(array.any() for array in held.arrays)
    assert not narrowing.narrowed(np.ones((64, 64)), Bfloat16Matrix(64, 64))
