"""Squared error, absolute error and Huber against their formulas and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss import (
    GaussianNLL,
    Huber,
    MeanAbsoluteError,
    Poisson,
    SmoothL1,
    SquaredError,
)


def test_squared_error_by_hand() -> None:
    x, y = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([[0.0, 4.0], [0.0, 1.0]])
    loss = SquaredError()
    np.testing.assert_allclose(loss.forward(True, x, y), [(0.5 + 2) / 2, 8 / 2])
    np.testing.assert_allclose(loss.backward(), (x - y) / 4)
    assert loss.evaluate(False, x, y) == pytest.approx((0.5 + 2 + 8) / 4)


def test_singas_gradient() -> None:
    x, y = np.array([[1.0, 2.0]]), np.array([[3, -1]])
    loss = SquaredError(reduction="sum")
    loss.forward(True, x, y)
    np.testing.assert_array_equal(loss.backward(), [[-2, 3]])


def test_link_is_the_identity() -> None:
    x = np.ones((2, 2))
    assert SquaredError().link(x) is x


def test_bad_targets_of_squared_error() -> None:
    with pytest.raises(ShapeError, match=r"shape \(3, 1\); received targets of shape \(3,\)"):
        SquaredError().forward(True, np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(DataError, match="numbers"):
        SquaredError().forward(True, np.zeros(2), np.array(["a", "b"]))
    with pytest.raises(DataError, match="numbers"):
        SquaredError().forward(True, np.zeros(2), np.zeros(2, complex))


rng = np.random.default_rng(0)


def test_absolute_error_by_hand() -> None:
    x, y = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([[0.0, 4.0], [0.0, 1.0]])
    loss = MeanAbsoluteError()
    np.testing.assert_allclose(loss.forward(True, x, y), [1.5, 2])
    np.testing.assert_allclose(loss.backward(), np.array([[1, -1], [0, -1]]) / 4)


def test_huber_by_hand() -> None:
    x, y = np.array([[0.5, 3.0], [-4.0, 2.0]]), np.zeros((2, 2))
    loss = Huber(delta=2.0)
    expected = [(0.125 + 2 * (3 - 1)) / 2, (2 * (4 - 1) + 2) / 2]
    np.testing.assert_allclose(loss.forward(True, x, y), expected)
    np.testing.assert_allclose(loss.backward(), np.array([[0.5, 2], [-2, 2]]) / 4)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (MeanAbsoluteError(), "L1Loss", {}),
        (Huber(0.6), "HuberLoss", {"delta": 0.6}),
        (SmoothL1(0.6), "SmoothL1Loss", {"beta": 0.6}),
        (Poisson(), "PoissonNLLLoss", {}),
    ],
)
def test_equals_pytorch(ours: Any, theirs: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    y = np.abs(y) if theirs == "PoissonNLLLoss" else y
    tx = torch.tensor(x, requires_grad=True)
    value = getattr(torch.nn, theirs)(**options)(tx, torch.tensor(y))
    value.backward()
    assert ours.evaluate(True, x, y) == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gaussian_equals_pytorch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x, y = rng.normal(size=(4, 2, 6)).astype(dtype), rng.normal(size=(4, 2, 3)).astype(dtype)
    tx = torch.tensor(x, requires_grad=True)
    value = torch.nn.functional.gaussian_nll_loss(
        tx[..., :3], torch.tensor(y), tx[..., 3:].exp(), eps=0
    )
    value.backward()
    loss = GaussianNLL()
    assert loss.evaluate(True, x, y) == pytest.approx(value.item(), rel=1e-6)
    np.testing.assert_allclose(loss.backward(), tx.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_what_likelihoods_refuse() -> None:
    with pytest.raises(DataError, match="Poisson: expected targets of at least 0; received -1"):
        Poisson().forward(True, np.zeros((2, 1)), np.array([[1.0], [-1.0]]))
    with pytest.raises(ShapeError, match="GaussianNLL: expected outputs of shape.*2 D"):
        GaussianNLL().forward(True, np.zeros((2, 3)), np.zeros((2, 1)))
    with pytest.raises(ShapeError, match=r"GaussianNLL.*\(2, 2\)"):
        GaussianNLL().forward(True, np.zeros((2, 4)), np.zeros((2, 1)))
    with pytest.raises(ArgumentError, match=r"SmoothL1\(beta=\)"):
        SmoothL1(0)


def test_bad_input() -> None:
    for loss in (MeanAbsoluteError(), Huber()):
        with pytest.raises(ShapeError, match=r"\(2, 1\).*\(2,\)"):
            loss.forward(True, np.zeros((2, 1)), np.zeros(2))
    for delta in (0, -1.0, float("inf"), "1"):
        with pytest.raises(ArgumentError, match="delta"):
            Huber(delta)  # type: ignore[arg-type]
