"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from singanet import layers
from singanet.onnx.operators.elementwise import scaled
from singanet.onnx.shaping import in_shape
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, RefusedError, Tensor, norm_axis

Step = Callable[[Use, Tensor], Tensor]


def _operation(mode: str) -> Step:
    return lambda use, x: use.make(layers.Operation, x, mode=mode)


def _square(use: Use, x: Tensor) -> Tensor:
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
    gone = {norm_axis(axis, x.rank) for axis in axes}
    shapes = [[s for k, s in enumerate(y.dims(n)) if k not in gone] for n in BATCHES]
    return replace(in_shape(use, y, shapes), dtype=y.dtype)


def _axes(use: Use, x: Tensor) -> list[int] | None:
    given = use.setting("axes", 1)
    if given:
        return [norm_axis(k, x.rank) for k in np.atleast_1d(given).tolist()]
    return None if use.attribute("noop_with_empty_axes", 0) else list(range(x.rank))


def _reduction(mode: str, before: Step | None = None, after: Step | None = None) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axes = _axes(use, x)
        y = x if before is None else before(use, x)
        if axes is not None:
            y = reduced(use, y, mode, axes, bool(use.attribute("keepdims", 1)))
        return y if after is None else after(use, y)

    return convert


def _log_sum_exp(use: Use) -> Tensor:
    """Log Σ exp(x − m) + m, m the largest, so that nothing overflows."""
    x = use.tensor()
    axes = _axes(use, x)
    if axes is None:
        return x
    top = reduced(use, x, "max", axes, keep=True)
    low = use.make(layers.Operation, use.make(layers.Subtract, x, top), mode="exp")
    total = use.make(layers.Operation, reduced(use, low, "sum", axes, keep=True), mode="log")
    y = use.make(layers.Add, total, top)
    if use.attribute("keepdims", 1):
        return y
    return in_shape(
        use, y, [[s for k, s in enumerate(y.dims(n)) if k not in axes] for n in BATCHES]
    )


def _global(mode: str) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        return reduced(use, x, mode, list(range(2, x.rank)), keep=True)

    return convert


def _global_lp(use: Use) -> Tensor:
    x = use.tensor()
    if use.attribute("p", 2) != 2:
        raise RefusedError("p=2", f"{use.attribute('p')}")
    total = reduced(use, _square(use, x), "sum", list(range(2, x.rank)), keep=True)
    return use.make(layers.Operation, total, mode="sqrt")


def _mean_variance(use: Use) -> Tensor:
    x = use.tensor()
    axes = list(use.attribute("axes", [0, 2, 3]))
    centred = use.make(layers.Subtract, x, reduced(use, x, "mean", axes, keep=True))
    spread = reduced(use, _square(use, centred), "mean", axes, keep=True)
    root = use.make(layers.Operation, scaled(use, spread, 1.0, 1e-9), mode="sqrt")
    return use.make(layers.Divide, centred, root)


def _lp_normalization(use: Use) -> Tensor:
    x, axes = use.tensor(), [use.attribute("axis", -1)]
    if use.attribute("p", 2) == 2:
        total = reduced(use, _square(use, x), "sum", axes, keep=True)
        norm = use.make(layers.Operation, total, mode="sqrt")
    else:
        positive = use.make(layers.Operation, x, mode="abs")
        norm = reduced(use, positive, "sum", axes, keep=True)
    # Zeros stay zeros.
    return use.make(layers.Divide, x, use.make(layers.Clip, norm, low=1e-12))


_ROOT, _LOG, _ABS = _operation("sqrt"), _operation("log"), _operation("abs")

REDUCING: Mapping[str, Converter] = {
    "ReduceSum": _reduction("sum"), "ReduceMean": _reduction("mean"),
    "ReduceMax": _reduction("max"), "ReduceMin": _reduction("min"),
    "ReduceL1": _reduction("sum", _ABS), "ReduceL2": _reduction("sum", _square, _ROOT),
    "ReduceSumSquare": _reduction("sum", _square), "ReduceLogSum": _reduction("sum", None, _LOG),
    "ReduceLogSumExp": _log_sum_exp,
    "GlobalAveragePool": _global("mean"), "GlobalMaxPool": _global("max"),
    "GlobalLpPool": _global_lp,
    "MeanVarianceNormalization": _mean_variance, "LpNormalization": _lp_normalization,
}  # fmt: skip
