"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.arithmetic import scaled
from singanet.codecs.codec import LayerCodec
from singanet.codecs.moving import without
from singanet.codecs.onnx import (
    Converter,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    norm_axis,
)


def _write_reduce(g: WrittenGraph, layer: layers.Reduce, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    mode = layer.mode.capitalize()
    if len(xs) == 1:
        return g.reduce(mode, xs[0], layer._over(len(shapes) + 1), layer.keepdims)
    rank = len(shapes[0]) + 1
    axes, x = layer._over(rank), xs[0]
    there = g.cast(xs[1], bool)
    there = g.unsqueeze(there, *range(2, rank)) if rank > 2 else there
    neutral = {"Max": -inf, "Min": inf}.get(mode, 0.0)
    x = g.node("Where", there, x, g.constant(neutral, "neutral"), dtype=g.dtype)
    y = g.reduce("Sum" if mode == "Mean" else mode, x, axes)
    number = g.node("Expand", g.cast(there, g.dtype), g.node("Shape", x, dtype=np.int64))
    number = g.reduce("Sum", number, axes)
    if mode == "Mean":
        y = g.node("Div", y, g.node("Max", number, g.constant(1.0, "one")))
    elif mode != "Sum":
        some = g.node("Greater", number, g.constant(0.0, "none"), dtype=bool)
        y = g.node("Where", some, y, g.constant(0.0, "empty"), dtype=g.dtype)
    return y if layer.keepdims else g.squeeze(y, *axes)


Step = Callable[[Use, Tensor], Tensor]


def _read_operation(mode: str) -> Step:
    return lambda use, x: use.make(layers.Operation, x, mode=mode)


def _read_square(use: Use, x: Tensor) -> Tensor:
    return use.make(layers.Power, x, exponent=2.0)


def reduced(use: Use, x: Tensor, mode: str, axes: list[int], keep: bool) -> Tensor:
    """One number of many along ``axes`` of the graph."""
    places = sorted({x.place(axis) for axis in axes})
    if not places:
        return x
    pooled = {"mean": layers.GlobalAvgPooling2D, "max": layers.GlobalMaxPooling2D}.get(mode)
    if pooled is not None and places == [2, 3] and len(x.sample) == 3 and x.axis == 0:
        flat = use.draw(pooled(use.name()), x)
        whole = x.like(flat)
        return x.like(use.reshaped(whole, (*flat.shape, 1, 1))) if keep else whole
    y = use.make(layers.Reduce, x, mode=mode, axes=places, keepdims=True)
    if keep:
        return y
    return without(use, y, [norm_axis(axis, x.rank) for axis in axes])


def _read_axes(use: Use, x: Tensor) -> list[int] | None:
    given = use.setting("axes", 1)
    if given:
        return [norm_axis(k, x.rank) for k in np.atleast_1d(given).tolist()]
    return None if use.attribute("noop_with_empty_axes", 0) else list(range(x.rank))


def _read_reduction(mode: str, before: Step | None = None, after: Step | None = None) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axes = _read_axes(use, x)
        y = x if before is None else before(use, x)
        if axes is not None:
            y = reduced(use, y, mode, axes, bool(use.attribute("keepdims", 1)))
        return y if after is None else after(use, y)

    return convert


def _read_log_sum_exp(use: Use) -> Tensor:
    """Log Σ exp(x − m) + m, m the largest, so that nothing overflows."""
    x = use.tensor()
    axes = _read_axes(use, x)
    if axes is None:
        return x
    top = reduced(use, x, "max", axes, keep=True)
    low = use.make(layers.Operation, use.make(layers.Subtract, x, top), mode="exp")
    total = use.make(layers.Operation, reduced(use, low, "sum", axes, keep=True), mode="log")
    y = use.make(layers.Add, total, top)
    return y if use.attribute("keepdims", 1) else without(use, y, axes)


def _read_global(mode: str) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        return reduced(use, x, mode, list(range(2, x.rank)), keep=True)

    return convert


def _read_global_lp(use: Use) -> Tensor:
    x = use.tensor()
    if use.attribute("p", 2) != 2:
        raise RefusedError("p=2", f"{use.attribute('p')}")
    total = reduced(use, _read_square(use, x), "sum", list(range(2, x.rank)), keep=True)
    return use.make(layers.Operation, total, mode="sqrt")


def _read_mean_variance(use: Use) -> Tensor:
    x = use.tensor()
    axes = list(use.attribute("axes", [0, 2, 3]))
    centred = use.make(layers.Subtract, x, reduced(use, x, "mean", axes, keep=True))
    spread = reduced(use, _read_square(use, centred), "mean", axes, keep=True)
    root = use.make(layers.Operation, scaled(use, spread, 1.0, 1e-9), mode="sqrt")
    return use.make(layers.Divide, centred, root)


def _read_lp_normalization(use: Use) -> Tensor:
    x, axes = use.tensor(), [use.attribute("axis", -1)]
    if use.attribute("p", 2) == 2:
        total = reduced(use, _read_square(use, x), "sum", axes, keep=True)
        norm = use.make(layers.Operation, total, mode="sqrt")
    else:
        positive = use.make(layers.Operation, x, mode="abs")
        norm = reduced(use, positive, "sum", axes, keep=True)
    # Zeros stay zeros.
    return use.make(layers.Divide, x, use.make(layers.Clip, norm, low=1e-12))


_ROOT, _LOG, _ABS = _read_operation("sqrt"), _read_operation("log"), _read_operation("abs")


REDUCING = (
    LayerCodec(
        layers.Reduce,
        onnx=_write_reduce,
        operators={
            "ReduceSum": _read_reduction("sum"), "ReduceMean": _read_reduction("mean"),
            "ReduceMax": _read_reduction("max"), "ReduceMin": _read_reduction("min"),
            "ReduceL1": _read_reduction("sum", _ABS),
            "ReduceL2": _read_reduction("sum", _read_square, _ROOT),
            "ReduceSumSquare": _read_reduction("sum", _read_square),
            "ReduceLogSum": _read_reduction("sum", None, _LOG),
            "ReduceLogSumExp": _read_log_sum_exp,
            "GlobalAveragePool": _read_global("mean"), "GlobalMaxPool": _read_global("max"),
            "GlobalLpPool": _read_global_lp,
            "MeanVarianceNormalization": _read_mean_variance,
            "LpNormalization": _read_lp_normalization,
        },
    ),
)  # fmt: skip
