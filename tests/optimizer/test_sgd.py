"""SGD against its formulas and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import SGD

rng = np.random.default_rng(0)


def test_singas_value() -> None:
    w = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    g = np.array([0.1, 0.3, 0.1, 0.2], np.float32)
    SGD(lr=0.1).apply(0, g, w, "w")
    np.testing.assert_allclose(w, [0.09, 0.17, 0.29, 0.38], rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_step_by_step(nesterov: bool) -> None:
    w = rng.normal(size=5)
    expected, h = w.copy(), np.zeros(5)
    optimizer = SGD(lr=lambda t: 0.1 / (t + 1), momentum=lambda t: 0.9 - 0.1 * t, nesterov=nesterov)
    for t in range(5):
        g = rng.normal(size=5)
        optimizer.update(["w"], [w], [g])
        lr, mu = 0.1 / (t + 1), 0.9 - 0.1 * t
        h = mu * h + lr * g
        expected = expected - (mu * h + lr * g if nesterov else h)
        np.testing.assert_allclose(w, expected, rtol=1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ],
)
def test_equals_pytorch_at_a_constant_rate(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    w = rng.normal(size=(4, 3))
    theirs = torch.nn.Parameter(torch.tensor(w))
    peer = torch.optim.SGD([theirs], lr=0.05, **options)
    ours = SGD(lr=0.05, **options)
    for _ in range(8):
        g = rng.normal(size=(4, 3))
        theirs.grad = torch.tensor(g)
        peer.step()
        ours.update(["w"], [w], [g])
        np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=1e-12)


def test_state_is_only_what_is_needed() -> None:
    plain, heavy = SGD(lr=0.1), SGD(lr=0.1, momentum=0.5)
    for optimizer in (plain, heavy):
        optimizer.update(["w"], [np.ones(2)], [np.ones(2)])
    assert set(plain.state_dict()) == {"w/step"}
    assert set(heavy.state_dict()) == {"w/step", "w/momentum"}


@pytest.mark.parametrize("momentum", [-0.1, 1.0, "x"])
def test_bad_momentum(momentum: Any) -> None:
    with pytest.raises(ArgumentError, match=r"SGD\(momentum=\)"):
        SGD(lr=0.1, momentum=momentum)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ArgumentError, match="above 0 with nesterov"):
        SGD(lr=0.1, nesterov=True)
