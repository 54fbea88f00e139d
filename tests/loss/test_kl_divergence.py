"""KL divergence against its definition and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import DataError, ShapeError
from singanet.loss import KLDivergence

rng = np.random.default_rng(0)


def test_definition_with_zeros_in_the_targets() -> None:
    x = rng.normal(size=(2, 3))
    t = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    q = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    expected = [
        0.5 * np.log(0.5 / q[0, 0]) + 0.5 * np.log(0.5 / q[0, 1]),
        -np.log(q[1, 2]),
    ]
    np.testing.assert_allclose(KLDivergence().forward(False, x, t), expected)
    np.testing.assert_allclose(KLDivergence().link(x), q)


def test_nothing_is_lost_where_both_agree() -> None:
    t = rng.dirichlet([1.0] * 4, 5)
    loss = KLDivergence()
    np.testing.assert_allclose(loss.forward(True, np.log(t), t), 0, atol=1e-14)
    np.testing.assert_allclose(loss.backward(), 0, atol=1e-15)


def test_equals_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, t = rng.normal(size=(5, 4)), rng.dirichlet([1.0] * 4, 5)
    tx = torch.tensor(x, requires_grad=True)
    value = torch.nn.functional.kl_div(
        torch.log_softmax(tx, 1), torch.tensor(t), reduction="batchmean"
    )
    value.backward()
    ours = KLDivergence()
    assert ours.evaluate(True, x, t) == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-15)


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5], [0.0, 0.0]])
def test_rows_that_are_no_distribution(row: Any) -> None:
    with pytest.raises(DataError, match=f"sum {sum(row):g} at index 1"):
        KLDivergence().forward(True, np.zeros((2, 2)), np.array([[0.5, 0.5], row]))


def test_bad_shapes() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        KLDivergence().forward(True, np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(DataError, match="classes"):
        KLDivergence().forward(True, np.zeros(2), np.zeros(2))


def test_targets_that_are_no_numbers() -> None:
    y = np.array([[0.5, 0.5], [np.nan, 1.0]])
    with pytest.raises(DataError, match="distributions.*index 1"):
        KLDivergence().forward(True, np.zeros((2, 2)), y)
