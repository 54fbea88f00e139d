"""Products of many rows as stacks of small ones, against NumPy's own sums in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy.conv import im2col
from singanet.ops.numpy.conv.im2col import laid_out, rows_product, summed_product

# rows, values a row, columns: whole, in pieces with a rest, in parts of the columns, prime
SIZES = [
    (1, 1, 1),
    (100, 7, 5),
    (4096, 144, 16),
    (4099, 144, 16),
    (1000, 96, 192),
    (700, 640, 64),
    (501, 127, 131),
    (90, 2304, 256),
]


def operands(groups, m, k, n):
    rng = np.random.default_rng(m + k + n)
    return (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((groups, m, k), (groups, k, n), (groups, m, n))
    )


def close(got, want, terms):
    """Within half of what kernels are allowed, for sums as large as sqrt(terms)."""
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-6 * np.sqrt(terms))


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
@pytest.mark.parametrize("groups", [1, 3])
def test_products_and_sums_are_those_of_float64(m, k, n, groups):
    rows, kernels, others = operands(groups, m, k, n)
    out = np.empty((groups, m, n), np.float32)
    rows_product(ops, rows, laid_out(ops, kernels, m), out)
    close(out, np.einsum("gmk,gkn->gmn", rows.astype(float), kernels.astype(float)), k)
    sums = summed_product(ops, rows, others)
    close(sums, np.einsum("gmk,gmn->gnk", rows.astype(float), others.astype(float)), m)


def test_operands_may_lie_anyhow():
    """Rows column by column, results between others, kernels transposed."""
    rows, kernels, others = operands(2, 3000, 50, 16)
    want = rows.astype(float) @ kernels.astype(float)
    by_column = rows.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    transposed = kernels.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    room = np.full((3000, 3, 2, 16), 7.0, np.float32)
    rows_product(ops, by_column, laid_out(ops, transposed, 3000), room[:, 1].transpose(1, 0, 2))
    close(room[:, 1].transpose(1, 0, 2), want, 50)
    assert (room[:, [0, 2]] == 7.0).all()
    apart = np.zeros((2, 3000, 32), np.float32)[:, :, ::2]
    apart[...] = others
    sums = others.astype(float).transpose(0, 2, 1) @ rows.astype(float)
    close(summed_product(ops, by_column, apart), sums, 3000)
    close(summed_product(ops, rows, apart), sums, 3000)


@pytest.mark.parametrize("small", [1, 50, 3000, 10**9])
def test_whatever_counts_as_small(small, monkeypatch):
    monkeypatch.setattr(im2col, "_SMALL", small)
    rows, kernels, others = operands(2, 333, 24, 48)
    out = np.empty((2, 333, 48), np.float32)
    rows_product(ops, rows, laid_out(ops, kernels, 333), out)
    close(out, rows.astype(float) @ kernels.astype(float), 24)
    sums = others.astype(float).transpose(0, 2, 1) @ rows.astype(float)
    close(summed_product(ops, rows, others), sums, 333)


def test_a_product_of_many_rows_is_a_stack_of_small_ones(monkeypatch):
    """Which is what makes it fast: no product is larger than OpenBLAS takes without copies."""
    seen = []
    matmul = np.matmul

    def counted(a, b, **keywords):
        seen.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
        return matmul(a, b, **keywords)

    monkeypatch.setattr(np, "matmul", counted)
    for m, k, n in ((4099, 144, 16), (700, 640, 64), (5000, 256, 256)):
        rows, kernels, others = operands(1, m, k, n)
        rows_product(ops, rows, laid_out(ops, kernels, m), np.empty((1, m, n), np.float32))
        summed_product(ops, rows[:, :600], others[:, :600])
    assert max(seen) <= im2col._SMALL
    assert len(seen) <= 12


@given(size=st.integers(1, 5000), most=st.integers(1, 700))
def test_pieces_fill_what_they_may(size, most):
    piece = im2col._piece(size, most)
    assert 1 <= piece <= min(size, most)
    # Halves of what is allowed at worst, unless the rows are fewer.
    assert 2 * piece >= min(size, most)


@given(size=st.integers(1, 5000), near=st.sampled_from([48, 64]))
def test_parts_divide(size, near):
    part = im2col._part(size, near)
    assert size % part == 0
    assert part == size or abs(part - near) <= near // 3
