"""Normalisations, and the softmax family."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.onnx.operators.elementwise import scaled
from singanet.onnx.operators.reducing import reduced
from singanet.onnx.shaping import in_shape, over_last
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, RefusedError, Tensor, norm_axis
from singanet.types import Array


def _batch(use: Use) -> list[Any]:
    x = use.tensor()
    if use.attribute("training_mode", 0):
        raise RefusedError("training_mode 0", "1: train the loaded net")
    scale, bias, mean, var = (use.needed(k) for k in range(1, 5))
    if x.rank < 2 or scale.ndim != 1 or not use.attribute("spatial", 1):
        raise RefusedError("a number for each channel", f"{scale.shape}")
    # ONNX weights what was there, we what comes.
    momentum = 1.0 - use.attribute("momentum", 0.9)
    layer = layers.BatchNormalization(use.name(1), momentum, epsilon=use.attribute("epsilon", 1e-5))
    shape = [x.dims(n) for n in BATCHES]
    y = x
    if x.rank not in (2, 4):
        tail = x.sample[len(x.sample) - x.rank + 2 :]
        y = in_shape(use, x, [[*d[:2], 1, prod(tail)] for d in shape])
    y = over_last(use, y, min(y.rank - 1, 3), layer)
    use.fill(layer, {"gamma": scale, "beta": bias, "mean": mean, "var": var})
    return [in_shape(use, y, shape)]


def _layer(use: Use) -> list[Any]:
    x, axis = use.tensor(), norm_axis(use.attribute("axis", -1), use.tensor().rank)
    gamma, beta, epsilon = use.array(1), use.array(2), use.attribute("epsilon", 1e-5)
    found = [normalised(use, x, axis, gamma, beta, epsilon)]
    if any(use.sheet.readers.get(name) for name in use.node.outputs[1:]):
        axes = list(range(axis, x.rank))
        mean = reduced(use, x, "mean", axes, keep=True)
        square = use.make(layers.Power, use.make(layers.Subtract, x, mean), exponent=2.0)
        spread = scaled(use, reduced(use, square, "mean", axes, keep=True), 1.0, epsilon)
        found += [mean, use.make(layers.Power, spread, exponent=-0.5)]
    return found


def normalised(
    use: Use, x: Tensor, axis: int, gamma: Array | None, beta: Array | None, epsilon: float
) -> Tensor:
    """Over the axes from ``axis`` on together, with a number for each element."""
    if x.axis is not None and x.axis >= axis:
        raise RefusedError("samples that stay apart", f"axis {axis}")
    last, shape = x.rank - axis, [x.dims(n) for n in BATCHES]
    tail = x.sample[len(x.sample) - last :]
    if last > 1:
        x = in_shape(use, x, [[*d[:axis], prod(tail)] for d in shape])
    kind = layers.LayerNorm(use.name(1), epsilon=epsilon, affine=gamma is not None)
    y = x.like(use.draw(kind, x))
    use.fill(kind, {"gamma": _spread(gamma, tail)})
    if gamma is not None:
        use.fill(kind, {"beta": np.zeros(prod(tail)) if beta is None else _spread(beta, tail)})
    return in_shape(use, y, shape)


def _spread(array: Array | None, tail: Any) -> Array | None:
    return None if array is None else np.broadcast_to(array, tail).reshape(-1)


def _rms(use: Use) -> Tensor:
    x = use.tensor()
    axis, gamma = norm_axis(use.attribute("axis", -1), x.rank), use.array(1)
    if x.axis is not None and x.axis >= axis:
        raise RefusedError("samples that stay apart", f"axis {axis}")
    last, shape = x.rank - axis, [x.dims(n) for n in BATCHES]
    tail = x.sample[len(x.sample) - last :]
    if last > 1:
        x = in_shape(use, x, [[*d[:axis], prod(tail)] for d in shape])
    epsilon = use.attribute("epsilon", 1e-5)
    layer = layers.RMSNorm(use.name(1), epsilon=epsilon, affine=gamma is not None)
    y = x.like(use.draw(layer, x))
    use.fill(layer, {"gamma": _spread(gamma, tail)})
    return in_shape(use, y, shape)


def _instance(use: Use) -> Tensor:
    x = use.tensor()
    layer = layers.InstanceNorm(use.name(1), epsilon=use.attribute("epsilon", 1e-5))
    y = over_last(use, x, x.rank - 1, layer)
    use.fill(layer, {"gamma": use.needed(1), "beta": use.needed(2)})
    return y


def _group(use: Use) -> Tensor:
    x, groups = use.tensor(), use.attribute("num_groups")
    gamma, beta = use.needed(1), use.needed(2)
    if len(gamma) == groups != x.sample[-x.rank + 1] and use.opset < 21:
        gamma, beta = (np.repeat(a, x.sample[-x.rank + 1] // groups) for a in (gamma, beta))
    layer = layers.GroupNorm(use.name(1), groups, epsilon=use.attribute("epsilon", 1e-5))
    y = over_last(use, x, x.rank - 1, layer)
    use.fill(layer, {"gamma": gamma, "beta": beta})
    return y


def _local_response(use: Use) -> Tensor:
    x, size = use.tensor(), use.attribute("size")
    # ONNX divides its alpha by the size.
    layer = layers.LRN(
        use.name(), size, use.attribute("alpha", 1e-4) / size, use.attribute("beta", 0.75),
        k=use.attribute("bias", 1.0),
    )  # fmt: skip
    return over_last(use, x, x.rank - 1, layer)


def _softmax(kind: Any) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axis = norm_axis(use.attribute("axis", -1 if use.opset >= 13 else 1), x.rank)
        if use.opset < 13 and axis != x.rank - 1:
            # Older ones take all axes from this one on together.
            shape = [x.dims(n) for n in BATCHES]
            flat = in_shape(use, x, [[*d[:axis], prod(d[axis:])] for d in shape])
            y = flat.like(use.draw(kind(use.name(), flat.place(axis)), flat))
            return in_shape(use, y, shape)
        return x.like(use.draw(kind(use.name(), x.place(axis)), x))

    return convert


NORMALISING: Mapping[str, Converter] = {
    "BatchNormalization": _batch, "LayerNormalization": _layer, "RMSNormalization": _rms,
    "InstanceNormalization": _instance, "GroupNormalization": _group, "LRN": _local_response,
    "Softmax": _softmax(layers.Softmax), "LogSoftmax": _softmax(layers.LogSoftmax),
}  # fmt: skip
