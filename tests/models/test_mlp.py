"""The multi-layer perceptron."""

from __future__ import annotations

import numpy as np

from singanet.models import build


def test_samples_of_any_shape_are_flattened():
    net = build("mlp", (2, 3, 4), 5, hidden=(7, 6))
    assert sum(v.size for v in net.param_values()) == 25 * 7 + 8 * 6 + 7 * 5
    x = np.random.default_rng(0).standard_normal((3, 2, 3, 4)).astype(np.float32)
    w1, b1, w2, b2, w3, b3 = net.param_values()
    h = np.maximum(np.maximum(x.reshape(3, -1) @ w1 + b1, 0) @ w2 + b2, 0)
    np.testing.assert_allclose(net.forward(False, x), h @ w3 + b3, rtol=1e-5, atol=1e-6)
