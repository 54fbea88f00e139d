"""Tangents that are carried through a recorded pass."""

from __future__ import annotations

import numpy as np

from singanet import FeedForwardNet, Input
from singanet.layers import Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError


def net_of_two():
    """Scores for numbers and for labels, of the same inputs."""
    x = Input("x", (3,))
    ends = [Dense("numbers", 2, use_bias=False)(x), Dense("labels", 4, use_bias=False)(x)]
    loss = MultiLoss({"numbers": SquaredError(), "labels": SoftmaxCrossEntropy()})
    net = FeedForwardNet(inputs=x, outputs=ends, loss=loss, seed=0)
    net.as_type("float64")
    return net


def test_the_second_derivatives_of_two_losses_and_what_they_left_behind(rng):
    net, x, count = net_of_two(), rng.standard_normal((5, 3)), 5
    y = {"numbers": rng.standard_normal((5, 2)), "labels": rng.integers(0, 4, 5)}
    net.train(x, y)
    before = {name: part.copy() for name, part in net.loss.parts.items()}
    v, u = rng.standard_normal((3, 2)), rng.standard_normal((3, 4))
    found = net.hessian_vector_product(
        "loss",
        ["numbers/weight", "labels/weight"],
        {"x": rng.permutation(x), "targets": y},
        {"numbers/weight": v, "labels/weight": u},
    )
    # Half the mean square is quadratic: XᵀX v over all numbers, in whatever order samples come.
    np.testing.assert_allclose(found["numbers/weight"], x.T @ x @ v / (2 * count), rtol=1e-9)
    # Its parts are those of the last step, not of the question.
    assert before.keys() == net.loss.parts.keys()
    for name, part in net.loss.parts.items():
        np.testing.assert_array_equal(part, before[name])
    p = net.forward(False, x)["labels"]
    p = np.exp(p - p.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    again = net.hessian_vector_product(
        "loss", "labels/weight", {"x": x, "targets": y}, {"labels/weight": u}
    )
    moved = x @ u
    slopes = p * (moved - (p * moved).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(again["labels/weight"], x.T @ slopes / count, rtol=1e-8, atol=1e-12)
