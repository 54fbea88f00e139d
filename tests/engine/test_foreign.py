"""Layers of a user's own that do not keep to what they said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ShapeError
from singanet.layers import Dense, Flatten, Layer
from singanet.loss import SquaredError
from singanet.optimizer import SGD

X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Free(Layer):
    """A layer that does as it is told."""

    def __init__(
        self,
        name: str,
        forward: Callable[[Any], Any] = lambda x: x,
        backward: Callable[[Any], Any] = lambda dy: (dy, {}),
        setup: Callable[[Any], Any] = lambda shape: shape,
        **more: Any,
    ) -> None:
        super().__init__(name, **more)
        self.does = forward, backward, setup

    def setup(self, in_shapes: Any) -> Any:
        return self.does[2](in_shapes)

    def forward(self, ctx: Any, x: Any) -> Any:
        return self.does[0](x)

    def backward(self, ctx: Any, dy: Any) -> Any:
        return self.does[1](dy)


class Weighing(Free):
    """One with a parameter."""

    def setup(self, in_shapes: Any) -> Any:
        self.add_param("w", (4,))
        return in_shapes


def net(layer: Layer) -> FeedForwardNet:
    parts = [Dense("in", 4, input_sample_shape=(4,)), layer, Dense("out", 2)]
    return FeedForwardNet(parts, loss=SquaredError(), seed=0)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Free("odd", lambda x: x[:, :3]), r"an array \(batch, 4\).*an array of shape \(3, 3\)"),
        (Free("odd", lambda x: None), "an array.*received a NoneType"),
        (Free("odd", lambda x: [x, x]), r"received a list of an array of shape \(3, 4\), an"),
        (Free("odd", lambda x: x.sum(axis=1)), r"received an array of shape \(3,\)"),
        (Free("odd", backward=lambda dy: dy), "backward to return the input gradient and a dict"),
        (Free("odd", backward=lambda dy: (dy, None)), r"write return dx, \{'weight': dw\}"),
        (Free("odd", backward=lambda dy: (dy[:, :1], {})), r"received an array of shape \(3, 1\)"),
        (Weighing("odd", backward=lambda dy: (dy, {"w": dy})), r"gradient of 'w'.*shape \(4,\)"),
        (Weighing("odd"), "a gradient for the parameter 'w'"),
    ],
)
def test_the_layer_is_named(layer: Layer, words: str) -> None:
    """NumPy complained about shapes in the next layer, or Python about unpacking."""
    made = net(layer)
    with pytest.raises(ShapeError, match=f"layer 'odd'.*{words}"):
        made.step(X, np.zeros((3, 2), np.float32), SGD(lr=0.1))


@pytest.mark.parametrize("result", [None, 4, "four"])
def test_a_setup_without_shapes(result: Any) -> None:
    with pytest.raises(ShapeError, match="'odd'.*setup to return.*return in_shapes"):
        net(Free("odd", setup=lambda shape: result))


def _negate(x: Any) -> Any:
    x *= -1
    return x


@pytest.mark.parametrize("before", [False, True])
def test_a_forward_in_place_leaves_the_callers_array(before: bool) -> None:
    """Every second call computed on what the one before had left."""
    odd = Free("odd", _negate, lambda dy: (-dy, {}), input_sample_shape=None if before else (4,))
    parts = [Flatten("f", input_sample_shape=(4,)), odd] if before else [odd]
    made = FeedForwardNet([*parts, Dense("out", 2)], loss=SquaredError(), seed=0)
    x, y = X.copy(), np.zeros((3, 2), np.float32)
    want = -X @ made["out"].params["weight"].value
    for _ in range(3):
        np.testing.assert_allclose(made.predict(x), want, rtol=1e-6)
        made.step(x, y, SGD(lr=0.0))
        made.forward(True, x)
    assert np.array_equal(x, X)


def test_several_inputs_and_no_gradient_for_one() -> None:
    class Both(Free):
        def setup(self, in_shapes: Any) -> Any:
            return in_shapes[0]

    made = FeedForwardNet(loss=SquaredError(), seed=0)
    made.add(Dense("a", 4, input_sample_shape=(4,)))
    made.add(Dense("b", 4, input_sample_shape=(4,)), [])
    made.add(Both("both", lambda x: x[0] + x[1], lambda dy: ([dy, None], {})), ["a", "b"])
    x = {"a": X, "b": X}
    made.step(x, X, SGD(lr=0.1))
    made["both"].does = (lambda x: x[0], lambda dy: ([dy], {}), None)  # type: ignore[attr-defined]
    with pytest.raises(ShapeError, match=r"'both'.*arrays \(batch, 4\), \(batch, 4\)"):
        made.train(x, X)
