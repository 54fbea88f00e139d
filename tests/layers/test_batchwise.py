"""Axes in any order, the batch among them, and sums of products."""

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Einsum, Rearrange
from tests.kit.layers import beside_torch, case, cases, expect_refused, refuses, run

CASES = {
    "Rearrange": case(lambda: Rearrange("it", (0, 2, None, 1)), (4, 3),
                      lambda p, x: x.transpose(0, 2, 1)[:, :, None]),
    "Rearrange, without an axis": case(lambda: Rearrange("it", (0, 3, 1)), (4, 1, 3),
                                       lambda p, x: x.transpose(0, 2, 3, 1)[:, 0]),
    "Einsum": case(lambda: Einsum("it", "nij,nkj->nki"), [(4, 3), (2, 3)],
                   lambda p, x: np.stack([b @ a.T for a, b in zip(*x, strict=True)])
                   if len(x[0]) else np.zeros((0, 2, 4))),
    "Einsum of three kinds of axes": case(
        lambda: Einsum("it", "nijk,nlji->nkj"), [(2, 3, 4), (5, 3, 2)],
        lambda p, x: np.einsum("nijk,nlji->nkj", *x)),
    "Einsum of one": case(lambda: Einsum("it", "nij->nj"), (4, 3), lambda p, x: x.sum(axis=1)),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_a_batch_becomes_a_sample_and_a_batch_again(rng):
    x, dy = rng.standard_normal((2, 5, 3)).astype(np.float32)
    y, dx, _ = run(Rearrange("it", (None, 1, 0)), x, dy.T[None])
    assert np.array_equal(y, x.T[None])
    assert np.array_equal(dx, dy)
    y, dx, _ = run(Rearrange("it", (1, 2)), x[None], dy)
    assert np.array_equal(y, x)
    assert np.array_equal(dx, dy[None])
    with pytest.raises(ShapeError, match="'it': expected extent 1 along the axes"):
        run(Rearrange("it", (1, 2)), np.ones((2, 5, 3)))


def test_one_sample_multiplies_all_of_the_other_input(rng):
    x, w = rng.standard_normal((5, 3)), rng.standard_normal((1, 3, 2))
    y, (dx, dw), _ = run(Einsum("it", "nd,zdk->nk"), [x, w], dy := rng.standard_normal((5, 2)))
    np.testing.assert_allclose(y, x @ w[0])
    np.testing.assert_allclose(dx, dy @ w[0].T)
    np.testing.assert_allclose(dw[0], x.T @ dy)
    with pytest.raises(ShapeError, match="one sample of the input 'zdk'"):
        run(Einsum("it", "nd,zdk->nk"), [x, np.ones((5, 3, 2))])


def test_sums_of_products_beside_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    beside_torch(lambda: Einsum("it", "nhqd,nhkd->nqhk"), [(2, 4, 3), (2, 5, 3)],
                 lambda f, x, p: torch.einsum("nhqd,nhkd->nqhk", *x))  # fmt: skip


@refuses([
    (lambda: Rearrange("it", (0, 1, 1)), ArgumentError, "argument order.*each at most once"),
    (lambda: Rearrange("it", ()), ArgumentError, "argument order"),
    (lambda: Rearrange("it", (0, 3)).build((4, 3)), ShapeError, r"the axes of \(0, 3\)"),
    (lambda: Rearrange("it", (0, 2)).build((4, 3)), ShapeError, "extent 1 along all others"),
    (lambda: Einsum("it", "nii->n"), ArgumentError, "argument equation.*distinct letters"),
    (lambda: Einsum("it", "ni,nj"), ArgumentError, "argument equation"),
    (lambda: Einsum("it", "ni,nj->nk"), ArgumentError, "argument equation"),
    (lambda: Einsum("it", "ni,nij->nj").build([(3,), (4, 2)]), ShapeError, "of one extent each"),
    (lambda: Einsum("it", "ni->n").build((3, 2)), ShapeError, "the batch first"),
])  # fmt: skip
def test_what_they_refuse(make, error, words):
    expect_refused(make, error, words)
