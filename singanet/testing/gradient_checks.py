"""Numerical gradients along random directions, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import numpy as np

from singanet.base.tracebacks import entry_point
from singanet.errors import SingaNetError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.ops import ops_for
from singanet.params.grads import dense_gradient
from singanet.params.param import Param
from singanet.types import Array


class GradientError(SingaNetError, AssertionError):
    """A gradient of backward differs from the numerical one."""


@dataclass(frozen=True)
class GradientRow:
    """The slope along a direction, ``numerical`` by differences and ``analytic`` by backward.

    ``what`` names the input or parameter.
    """

    what: str
    numerical: float
    analytic: float

    @property
    def error(self) -> float:
        """|numerical - analytic| relative to the larger of both, and to 1; infinite for NaN."""
        scale = max(1.0, abs(self.numerical), abs(self.analytic))
        error = abs(self.numerical - self.analytic) / scale
        return inf if isnan(error) else error


@entry_point
def check_gradients(
    layer: Layer,
    x: Any,
    *,
    train: bool = True,
    seed: int = 0,
    directions: int = 3,
    step: float = 1e-6,
    tolerance: float = 1e-6,
) -> list[GradientRow]:
    """Compare ``layer.backward`` with central differences, and return every comparison.

    Each float input and each trained parameter is moved along random directions, in float64, with
    the same random draws and running state in each evaluation. The layer is restored. Inputs of a
    layer that stops gradients are not compared. Errors: `GradientError` naming the worst input or
    parameter.

    Args:
        layer: The layer, which is built if needed.
        x: An array (batch first), or a list of several inputs.
        train: Whether to call forward as in training.
        seed: Seed of the draws and directions.
        directions: Number of directions for each input and parameter.
        step: Distance along a direction.
        tolerance: Maximum relative error.
    """
    many = isinstance(x, (list, tuple))
    inputs = [_double(part) for part in (x if many else [x])]
    if layer.out_shapes is None:
        shapes = [tuple(part.shape[1:]) for part in inputs]
        layer.build(shapes if many else shapes[0])
    with _in_double(layer.params.values()) as reset:
        ops = ops_for(inputs[0])

        def run() -> tuple[Context, Any]:
            reset()
            params = {suffix: param.value for suffix, param in layer.params.items()}
            ctx = Context(ops, np.random.default_rng(seed), params, train, True, np.dtype(float))
            return ctx, layer.forward(ctx, list(inputs) if many else inputs[0])

        ctx, y = run()
        rng = np.random.default_rng(seed + 1)
        weights = [_direction(rng, part) for part in _as_list(y)]
        dy = list(weights) if isinstance(y, (list, tuple)) else weights[0]
        dx, by_suffix = layer.backward(ctx, dy)
        named: dict[str, tuple[Array, Any]] = {
            f"parameter {suffix!r}": (param.value, _dense(by_suffix.get(suffix), param.value))
            for suffix, param in layer.params.items()
            if param.trainable
        }
        for k, part in enumerate(inputs):
            if part.dtype.kind == "f" and not layer.traits.stops_gradient:
                grads = _as_list(dx)
                named[f"input {k}"] = (part, grads[k] if k < len(grads) else None)
        return _compare(
            f"layer {layer.name!r}",
            named,
            lambda: _weighted(run()[1], weights),
            rng,
            directions,
            step,
            tolerance,
        )


@entry_point
def check_net_gradients(
    net: FeedForwardNet,
    x: Any,
    *,
    seed: int = 0,
    directions: int = 2,
    step: float = 1e-6,
    tolerance: float = 1e-6,
) -> list[GradientRow]:
    """Compare the gradients of ``net.backward`` with central differences of a training forward.

    Every output of the net gets a random gradient. The net's parameters, dtype and generator are
    restored. Errors: `GradientError` naming the worst parameter.

    Args:
        net: The net.
        x: An array (batch first), or a dict from input to array.
        seed: Seed of the draws and directions.
        directions: Number of directions for each parameter.
        step: Distance along a direction.
        tolerance: Maximum relative error.
    """
    params = net.params()
    dtype, generator = net.dtype, net.rng
    feed = {k: _double(v) for k, v in x.items()} if isinstance(x, Mapping) else _double(x)
    with _in_double(params) as reset:
        net.dtype = np.dtype(np.float64)
        try:

            def run() -> Any:
                reset()
                net.rng = np.random.default_rng(seed)
                return net.forward(True, feed)

            y = run()
            rng = np.random.default_rng(seed + 1)
            outputs = y if isinstance(y, dict) else {"": y}
            dys = {
                name: [_direction(rng, part) for part in _as_list(value)]
                for name, value in outputs.items()
            }
            handed = {
                name: list(dy) if isinstance(outputs[name], (list, tuple)) else dy[0]
                for name, dy in dys.items()
            }
            grads: dict[str, Any] = {}
            for names, _, values in net.backward(handed if isinstance(y, dict) else handed[""]):
                grads.update(zip(names, values, strict=True))

            def value() -> float:
                y = run()
                outputs = y if isinstance(y, dict) else {"": y}
                return sum(_weighted(outputs[name], dy) for name, dy in dys.items())

            named = {
                p.name: (p.value, _dense(grads.get(p.name), p.value)) for p in params if p.trainable
            }
            return _compare("net", named, value, rng, directions, step, tolerance)
        finally:
            net.dtype, net.rng = dtype, generator


@entry_point
def check_loss(
    loss: Any,
    x: Array,
    y: Array,
    *,
    seed: int = 0,
    directions: int = 3,
    step: float = 1e-6,
    tolerance: float = 1e-6,
) -> list[GradientRow]:
    """Compare ``loss.backward`` with central differences of the sum of the losses.

    The outputs are moved along random directions, in float64. Errors: `GradientError` if both
    differ.

    Args:
        loss: The loss, of any class with `forward` and `backward`.
        x: Outputs of a net, floats (B, ...).
        y: Targets.
        seed: Seed of the directions.
        directions: Number of directions.
        step: Distance along a direction.
        tolerance: Maximum relative error.
    """
    x, y = _double(x), _double(y)
    loss.forward(True, x, y)
    summed = getattr(loss, "reduction", "mean") == "sum"
    dx = loss.backward() * (len(x) / (loss.count(x, y) if summed else 1.0))
    rng = np.random.default_rng(seed)

    def value() -> float:
        return float(loss.forward(False, x, y).sum())

    where = f"loss {type(loss).__name__}"
    return _compare(where, {"outputs": (x, dx)}, value, rng, directions, step, tolerance)


def _compare(
    where: str,
    named: Mapping[str, tuple[Array, Any]],
    value: Callable[[], float],
    rng: np.random.Generator,
    directions: int,
    step: float,
    tolerance: float,
) -> list[GradientRow]:
    rows = []
    for what, (array, grad) in named.items():
        if grad is None or tuple(grad.shape) != tuple(array.shape):
            raise GradientError(
                f"{where}, {what}",
                expected=f"a gradient of shape {tuple(array.shape)}",
                received="none" if grad is None else f"shape {tuple(grad.shape)}",
                advice="return it from backward",
            )
        for _ in range(directions):
            along = _direction(rng, array)
            start = array.copy()
            array += step * along
            above = value()
            array[...] = start - step * along
            below = value()
            array[...] = start
            rows.append(
                GradientRow(what, (above - below) / (2 * step), float((grad * along).sum()))
            )
    worst = max(rows, key=lambda row: row.error, default=None)
    if worst is not None and not worst.error <= tolerance:
        raise GradientError(
            f"{where}, {worst.what}",
            expected=f"the numerical slope {worst.numerical:.9g}",
            received=f"{worst.analytic:.9g} from backward (relative error {worst.error:.2g})",
            advice="check the formula in backward; inputs at a kink also differ",
        )
    return rows


@contextmanager
def _in_double(params: Iterable[Param]) -> Iterator[Callable[[], None]]:
    """Use float64 copies of the parameters; yields a function that resets their running state."""
    listed = list(params)
    before = [param.value for param in listed]
    try:
        for param in listed:
            param.retype(param.value.astype(np.float64))
        state = [(param, param.value.copy()) for param in listed if param.is_state]

        def reset() -> None:
            for param, value in state:
                param.value[...] = value

        yield reset
    finally:
        for param, value in zip(listed, before, strict=True):
            param.retype(value)


def _dense(grad: Any, like: Array) -> Any:
    """Return a row-sparse gradient as an array of the shape of ``like``, others unchanged."""
    return dense_gradient(ops_for(like), grad, like.shape)


def _double(array: Any) -> Any:
    """Return a float64 copy of a float array, or a copy of another array."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array.copy()


def _direction(rng: np.random.Generator, like: Array) -> Array:
    return ops_for(like).xp.asarray(rng.standard_normal(like.shape))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _weighted(y: Any, weights: list[Array]) -> float:
    return sum(float((part * w).sum()) for part, w in zip(_as_list(y), weights, strict=True))
