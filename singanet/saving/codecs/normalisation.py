"""Codecs of normalisation layers and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.layer_arrays import Variable
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer
from singanet.saving.codecs.arithmetic import UNIT, affine, scaled
from singanet.saving.codecs.arrays import Arrays, StoredArray, per_feature, stored
from singanet.saving.codecs.choosing import reduced
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.described import WHOLE, DescribedLayer, WeightGroup, unknown
from singanet.saving.codecs.onnx import (
    BATCHES,
    Converter,
    Form,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
    in_shape,
    norm_axis,
    over_last,
)
from singanet.saving.codecs.orders import Uses
from singanet.types import Array


def _write_along(op: str) -> Form:
    return lambda g, layer, xs: g.node(op, xs[0], axis=layer.axis)


def _write_batch_norm(g: WrittenGraph, layer: layers.BatchNormalization, xs: list[Value]) -> Value:
    count = layer.params["mean"].shape
    params = [
        g.param(layer, suffix) if suffix in layer.params else g.constant(np.full(count, k), suffix)
        for suffix, k in (("gamma", 1.0), ("beta", 0.0), ("mean", 0.0), ("var", 1.0))
    ]
    # ONNX's momentum weights the old value.
    numbers = {"epsilon": layer.epsilon, "momentum": 1.0 - layer.momentum}
    shape: Any = layer.in_shapes
    last = len(shape)
    if layer.axis == 1 or last == 1:
        return g.node("BatchNormalization", xs[0], *params, **numbers)
    x = g.transpose(xs[0], 0, last, *range(1, last))
    y = g.node("BatchNormalization", x, *params, **numbers)
    return g.transpose(y, 0, *range(2, last + 1), 1)


def _write_layer_norm(g: WrittenGraph, layer: layers.LayerNorm, xs: list[Value]) -> Value:
    inputs = [xs[0], _write_gamma(g, layer)]
    if layer.center:
        inputs.append(g.param(layer, "beta"))
    return g.node("LayerNormalization", *inputs, axis=layer.axis, epsilon=layer.epsilon)


def _write_gamma(g: WrittenGraph, layer: layers.LayerNorm) -> Value:
    shape: Any = layer.in_shapes
    normalised = shape[layer._first(len(shape) + 1) - 1 :]
    return g.param(layer, "gamma") if layer.scale else g.constant(np.ones(normalised), "ones")


def _write_rms_norm(g: WrittenGraph, layer: layers.RMSNorm, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    rank = len(shape) + 1
    if g.opset >= 23 and not layer.affine:
        gamma = _write_gamma(g, layer)
        return g.node("RMSNormalization", xs[0], gamma, axis=layer.axis, epsilon=layer.epsilon)
    suffix = "gamma" if layer.affine else None
    return write_rms(g, layer, suffix, xs[0], layer, list(range(layer._first(rank), rank)))


def write_rms(
    g: WrittenGraph,
    layer: Layer,
    suffix: str | None,
    x: Value,
    norm: layers.RMSNorm | layers.QueryKeyNorm,
    axes: Sequence[int] = (-1,),
) -> Value:
    """Divide ``x`` by its root mean square over the last ``axes``, and scale by a parameter."""
    gamma = None if suffix is None else g.param(layer, suffix)
    if gamma is not None and norm.offset:
        gamma = g.node("Add", gamma, g.constant(norm.offset, "offset"))
    if g.opset >= 23 and gamma is not None:
        numbers: dict[str, Any] = {"axis": axes[0], "epsilon": norm.epsilon}
        return g.node("RMSNormalization", x, gamma, **numbers)
    mean = g.reduce("Mean", g.node("Mul", x, x), axes)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(norm.epsilon, "epsilon")))
    y = g.node("Div", x, root)
    return y if gamma is None else g.node("Mul", y, gamma)


def _write_group_norm(g: WrittenGraph, layer: layers.GroupNorm, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    channels, groups = shape[0], layer._groups_of(shape[0])
    if groups == channels:
        return _write_instance_norm(g, layer, xs)
    if g.opset >= 21 and len(shape) > 1:
        return g.node(
            "GroupNormalization",
            xs[0],
            *_write_both(g, layer),
            num_groups=groups,
            epsilon=layer.epsilon,
        )
    x = g.reshape(xs[0], (0, groups, -1))
    ones, zeros = (g.constant(np.full(groups, k), what) for k, what in ((1, "ones"), (0, "zeros")))
    y = g.node("InstanceNormalization", x, ones, zeros, epsilon=layer.epsilon)
    return affine(g, layer, g.reshape(y, (0, *shape)))


def _write_instance_norm(g: WrittenGraph, layer: layers.GroupNorm, xs: list[Value]) -> Value:
    return g.node("InstanceNormalization", xs[0], *_write_both(g, layer), epsilon=layer.epsilon)


def _write_both(g: WrittenGraph, layer: layers.GroupNorm) -> list[Value]:
    """Return scale and offset of each channel."""
    channels = (layer.in_shapes or ())[0]
    return [
        g.param(layer, suffix) if suffix in layer.params else g.constant(np.full(channels, k), what)
        for suffix, what, k in (("gamma", "ones", 1.0), ("beta", "zeros", 0.0))
    ]


def _write_l2_norm(g: WrittenGraph, layer: layers.L2Norm, xs: list[Value]) -> Value:
    squares = g.reduce("Sum", g.node("Mul", xs[0], xs[0]), [-1])
    length = g.node("Sqrt", g.node("Add", squares, g.constant(layer.epsilon, "epsilon")))
    return g.node("Div", xs[0], length)


def _write_lrn(g: WrittenGraph, layer: layers.LRN, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    # Runtimes support images only; the window is over the channels.
    x = xs[0] if len(shape) == 3 else g.reshape(xs[0], (0, shape[0], -1, 1))
    y = g.node(
        "LRN", x, size=layer.size, alpha=layer.alpha * layer.size, beta=layer.beta, bias=layer.k
    )
    return y if len(shape) == 3 else g.reshape(y, (0, *shape))


def _read_batch(use: Use) -> list[Any]:
    x = use.tensor()
    if use.attribute("training_mode", 0):
        raise RefusedError("training_mode 0", "1: train the loaded net")
    scale, bias, mean, var = (use.needed(k) for k in range(1, 5))
    if x.rank < 2 or scale.ndim != 1 or not use.attribute("spatial", 1):
        raise RefusedError("a number for each channel", f"{scale.shape}")
    # ONNX's momentum weights the old value, ours the new one.
    momentum, epsilon = 1.0 - use.attribute("momentum", 0.9), use.attribute("epsilon", 1e-5)
    layer = layers.BatchNormalization(use.name(1), momentum=momentum, epsilon=epsilon)
    shape = [x.dims(n) for n in BATCHES]
    y = x
    if x.rank not in (2, 4):
        tail = x.sample[len(x.sample) - x.rank + 2 :]
        y = by_dims(use, x, lambda d: [*d[:2], 1, prod(tail)])
    y = over_last(use, y, min(y.rank - 1, 3), layer)
    use.fill(layer, {"gamma": scale, "beta": bias, "mean": mean, "var": var})
    return [in_shape(use, y, shape)]


def _read_layer(use: Use) -> list[Any]:
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
    use: Use,
    x: Tensor,
    axis: int,
    gamma: Array | None,
    beta: Array | None,
    epsilon: float,
    kind: Any = layers.LayerNorm,
) -> Tensor:
    """Normalise over the axes from ``axis`` on together, with elementwise scale and offset."""
    if x.axis is not None and x.axis >= axis:
        raise RefusedError("normalisation within samples", f"axis {axis}")
    last, shape = x.rank - axis, [x.dims(n) for n in BATCHES]
    tail = x.sample[len(x.sample) - last :]
    if last > 1:
        x = by_dims(use, x, lambda d: [*d[:axis], prod(tail)])
    layer = kind(use.name(1), epsilon=epsilon, affine=gamma is not None)
    y = x.like(use.draw(layer, x))
    for suffix, array, usual in (("gamma", gamma, 1.0), ("beta", beta, 0.0)):
        if suffix in layer.params:
            spread = np.broadcast_to(usual if array is None else array, tail)
            use.fill(layer, {suffix: spread.reshape(-1)})
    return in_shape(use, y, shape)


def _read_rms(use: Use) -> Tensor:
    x = use.tensor()
    axis, epsilon = norm_axis(use.attribute("axis", -1), x.rank), use.attribute("epsilon", 1e-5)
    return normalised(use, x, axis, use.array(1), None, epsilon, layers.RMSNorm)


def _read_instance(use: Use) -> Tensor:
    x = use.tensor()
    layer = layers.InstanceNorm(use.name(1), epsilon=use.attribute("epsilon", 1e-5))
    y = over_last(use, x, x.rank - 1, layer)
    use.fill(layer, {"gamma": use.needed(1), "beta": use.needed(2)})
    return y


def _read_group(use: Use) -> Tensor:
    x, groups = use.tensor(), use.attribute("num_groups")
    gamma, beta = use.needed(1), use.needed(2)
    if len(gamma) == groups != x.sample[-x.rank + 1] and use.opset < 21:
        gamma, beta = (np.repeat(a, x.sample[-x.rank + 1] // groups) for a in (gamma, beta))
    layer = layers.GroupNorm(use.name(1), groups, epsilon=use.attribute("epsilon", 1e-5))
    y = over_last(use, x, x.rank - 1, layer)
    use.fill(layer, {"gamma": gamma, "beta": beta})
    return y


def _read_local_response(use: Use) -> Tensor:
    x, size = use.tensor(), use.attribute("size")
    # ONNX divides alpha by the size.
    layer = layers.LRN(
        use.name(), size, use.attribute("alpha", 1e-4) / size, use.attribute("beta", 0.75),
        k=use.attribute("bias", 1.0),
    )  # fmt: skip
    return over_last(use, x, x.rank - 1, layer)


def _read_softmax(kind: Any) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axis = norm_axis(use.attribute("axis", -1 if use.opset >= 13 else 1), x.rank)
        if use.opset < 13 and axis != x.rank - 1:
            # Before opset 13, all axes from this one on are one.
            shape = [x.dims(n) for n in BATCHES]
            flat = by_dims(use, x, lambda d: [*d[:axis], prod(d[axis:])])
            y = flat.like(use.draw(kind(use.name(), flat.place(axis)), flat))
            return in_shape(use, y, shape)
        return x.like(use.draw(kind(use.name(), x.place(axis)), x))

    return convert


_FLAGS = {"epsilon": float, "center": bool, "scale": bool}
_SPECS = {"gamma_specs": ("gamma", WHOLE), "beta_specs": ("beta", WHOLE)}
_SCALED = per_feature(gamma=("gamma", "weight"), beta=("beta", "bias"))


def _of_batches(d: DescribedLayer) -> dict[str, Any]:
    return {
        "momentum": 1.0 - float(d.config["momentum"]),
        "synchronized": bool(d.config.get("synchronized", False)),
        "axis": -1 if _of_features(d) else 1,
    }


def _of_features(d: DescribedLayer) -> bool:
    """Return whether the channels are the last axis of sequences or rows."""
    return d.axis() == len(d.shapes[0]) < 3


def _along_axis(d: DescribedLayer, layer: Layer) -> list[Layer]:
    return [layer] if _of_features(d) else d.along_axis(layer)


def _normalization(d: DescribedLayer) -> list[Layer]:
    """Convert Normalization: a BatchNormalization with fixed statistics."""
    d.expect(invert=False)
    axis = d.axis()
    given = {}
    channels = np.zeros(d.shapes[0][axis - 1], np.float32)
    for array, ours in (("mean", "mean"), ("variance", "var")):
        if d.config.get(array) is not None:
            given[ours] = channels + np.asarray(d.config[array], np.float32).reshape(-1)
    # Keras divides by at least 1e-7.
    channels_at = -1 if _of_features(d) else 1
    norm = layers.BatchNormalization(
        d.name, axis=channels_at, momentum=0.0, epsilon=1e-14, center=False, scale=False
    )
    norm.trainable = False
    d.marks[d.name] = WeightGroup("", _statistics, given or None)
    return _along_axis(d, norm)


def _statistics(layer: Layer, uses: Uses) -> Sequence[Variable]:
    """Return the learned mean and variance, and Keras' count, which we lack."""
    learned = stored(StoredArray("mean", "mean"), StoredArray("var", "variance")).keras
    assert learned is not None
    nothing = Variable("vars/2", "count", (), (), lambda: np.zeros((), np.int32), lambda a: ())
    return [*learned(layer, uses), nothing]


def _unit(d: DescribedLayer) -> list[Layer]:
    """Convert UnitNormalization, over its axes together."""
    axes, shape = d.axes(), d.shapes[0]
    rest = [k for k in range(1, len(shape) + 1) if k not in axes]
    order = (*rest, *axes)
    norm: list[Layer] = [layers.L2Norm(d.name, epsilon=UNIT)]
    if len(axes) > 1:
        flat, whole = [*(shape[k - 1] for k in rest), -1], [shape[k - 1] for k in order]
        ends = (("flat", flat), ("whole", whole))
        before, after = (layers.Reshape(f"{d.name}_{end}", to) for end, to in ends)
        norm = [before, *norm, after]
    return d.permuted(order, *norm)


def _scale(layer: layers.RMSNorm, uses: Uses) -> Sequence[Variable]:
    if layer.offset:
        raise ArgumentError(
            f"layer {layer.name!r}, as Keras' RMSNormalization",
            expected="a scale of gamma",
            received=f"a scale of {layer.offset} + gamma",
            advice="save in another format: safetensors, hdf5, npz",
        )
    found = per_feature(gamma=("scale", "weight")).keras
    assert found is not None
    return found(layer, uses)


def _of_groups(d: DescribedLayer) -> dict[str, Any]:
    groups = int(d.config["groups"])
    return {"groups": d.shapes[0][d.axis() - 1] if groups == -1 else groups}


def _over_last(d: DescribedLayer) -> dict[str, Any]:
    return {"axis": -len(d.axes())}


def _axes_last(d: DescribedLayer, layer: Layer) -> list[Layer]:
    """Return ``layer``, which normalises the last axes, on samples with Keras' axes there."""
    axes, rank = d.axes(), len(d.shapes[0])
    order = [d.ours(k) for k in range(1, rank + 1)]
    if order[rank - len(axes) :] != axes:
        raise unknown(d.where, "the last axes of samples", f"axis={str(d.config['axis'])[:60]}")
    return d.permuted(order, layer)


NORMALISATION = (
    LayerCodec(
        layers.BatchNormalization,
        per_feature(
            gamma=("gamma", "weight"),
            beta=("beta", "bias"),
            mean=("moving_mean", "running_mean"),
            var=("moving_variance", "running_var"),
        ),
        {
            "BatchNormalization": KerasClass(
                _FLAGS, _SPECS, {"renorm": False}, _of_batches, _along_axis, masked=True
            ),
            "Normalization": KerasClass(draw=_normalization),
        },
        onnx=_write_batch_norm,
        operators={"BatchNormalization": _read_batch},
        elements="features",
    ),
    LayerCodec(
        layers.LayerNorm,
        _SCALED,
        KerasClass(_FLAGS, _SPECS, {"rms_scaling": False}, _over_last, _axes_last, masked=True),
        "LayerNormalization",
        _write_layer_norm,
        {"LayerNormalization": _read_layer},
        elements="each",
    ),
    LayerCodec(
        layers.RMSNorm,
        Arrays(_scale, per_feature(gamma=("scale", "weight")).torch),
        KerasClass({"epsilon": float}, more=_over_last, around=_axes_last, masked=True),
        "RMSNormalization",
        _write_rms_norm,
        {"RMSNormalization": _read_rms},
    ),
    LayerCodec(
        layers.GroupNorm,
        _SCALED,
        KerasClass(_FLAGS, _SPECS, {}, _of_groups, DescribedLayer.along_axis, masked=True),
        "GroupNormalization",
        _write_group_norm,
        {"GroupNormalization": _read_group},
    ),
    LayerCodec(
        layers.InstanceNorm,
        Arrays(torch=_SCALED.torch),
        onnx=_write_instance_norm,
        operators={"InstanceNormalization": _read_instance},
    ),
    LayerCodec(
        layers.L2Norm,
        keras=KerasClass(draw=_unit),
        keras_name="UnitNormalization",
        onnx=_write_l2_norm,
    ),
    LayerCodec(layers.LRN, onnx=_write_lrn, operators={"LRN": _read_local_response}),
    LayerCodec(
        layers.Softmax,
        keras=KerasClass(more=lambda d: {"axis": d.axis()}, masked=True),
        onnx=_write_along("Softmax"),
        operators={"Softmax": _read_softmax(layers.Softmax)},
    ),
    LayerCodec(
        layers.LogSoftmax,
        onnx=_write_along("LogSoftmax"),
        operators={"LogSoftmax": _read_softmax(layers.LogSoftmax)},
    ),
)
