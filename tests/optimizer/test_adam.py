"""Adam against SINGA's formula, and PyTorch where ε does not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import Adam

rng = np.random.default_rng(0)


def test_nine_steps_of_singas_formula_for_two_parameters() -> None:
    values = [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(2)]
    expected = [v.astype(float) for v in values]
    first = [np.zeros((4, 6)) for _ in range(2)]
    second = [np.zeros((4, 6)) for _ in range(2)]
    optimizer = Adam(lr=0.1)
    for t in range(1, 10):
        for i in (0, 1):
            g = rng.normal(size=(4, 6)).astype(np.float32)
            optimizer.apply(0, g, values[i], f"p{i}", step=t)
            first[i] = 0.9 * first[i] + 0.1 * g.astype(float)
            second[i] = 0.999 * second[i] + 0.001 * g.astype(float) ** 2
            alpha = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            expected[i] = expected[i] - alpha * first[i] / (np.sqrt(second[i]) + 1e-8)
            np.testing.assert_allclose(values[i], expected[i], atol=2e-6)


def test_epsilon_betas_and_their_schedules() -> None:
    w = rng.normal(size=3)
    expected, m, v = w.copy(), np.zeros(3), np.zeros(3)
    optimizer = Adam(0.1, lambda t: 0.8 + 0.01 * t, 0.95, epsilon=0.3)
    for t in range(4):
        g = rng.normal(size=3)
        optimizer.update(["w"], [w], [g])
        b = 0.8 + 0.01 * t
        m, v = b * m + (1 - b) * g, 0.95 * v + 0.05 * g * g
        alpha = 0.1 * np.sqrt(1 - 0.95 ** (t + 1)) / (1 - b ** (t + 1))
        expected = expected - alpha * m / (np.sqrt(v) + 0.3)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_pytorch_without_epsilon(weight_decay: float) -> None:
    torch = pytest.importorskip("torch")
    w = rng.normal(size=(4, 3))
    theirs = torch.nn.Parameter(torch.tensor(w))
    peer = torch.optim.Adam([theirs], lr=0.05, eps=0.0, weight_decay=weight_decay)
    ours = Adam(lr=0.05, epsilon=0.0, weight_decay=weight_decay)
    for _ in range(8):
        g = rng.normal(size=(4, 3))
        theirs.grad = torch.tensor(g)
        peer.step()
        ours.update(["w"], [w], [g])
        np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=1e-11)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("beta_1", 1.0), ("beta_2", -0.1), ("beta_2", "x"), ("epsilon", -1e-8), ("epsilon", None)],
)
def test_bad_settings(name: str, bad: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"Adam\({name}=\)"):
        Adam(lr=0.1, **{name: bad})
