"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.activation import activated
from singanet.codecs.arithmetic import scaled
from singanet.codecs.arrays import Arrays, StoredArray, across, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import WHOLE, DescribedLayer, unknown
from singanet.codecs.moving import transposed
from singanet.codecs.onnx import Known, RefusedError, Tensor, Use, Value, WrittenGraph, over_last
from singanet.codecs.onnx.heads import attention
from singanet.codecs.orders import Uses, along
from singanet.types import Array


def _write_dense(g: WrittenGraph, layer: layers.Dense, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    if len(shape) > 1:
        return dense_of_steps(g, layer, xs[0])
    bias = g.optional(layer, "bias")
    inputs = [xs[0], g.param(layer, "weight"), *([] if bias is None else [bias])]
    return g.node("Gemm", *inputs, **({"transB": 1} if layer.W_transpose else {}))


def dense_of_steps(g: WrittenGraph, layer: layers.Dense, x: Value) -> Value:
    """The layer along the last axis of (N, ..., in)."""
    weight = g.param(layer, "weight")
    if layer.W_transpose:
        weight = g.transpose(weight, 1, 0)
    return weighted(g, x, weight, g.optional(layer, "bias"))


def weighted(g: WrittenGraph, x: Value, weight: Value, bias: Value | None) -> Value:
    """x W + b."""
    y = g.node("MatMul", x, weight)
    return y if bias is None else g.node("Add", y, bias)


def dense(
    use: Use, x: Tensor, weight: Array, bias: Array | None = None, named: int | None = 1
) -> Tensor:
    """``x`` times a constant matrix (in, out), along the last axis; behind attention, all of it."""
    whole = attention(use, x, weight, bias)
    if whole is not None:
        return whole
    layer = layers.Dense(use.name(named), weight.shape[1], use_bias=bias is not None)
    y = over_last(use, x, 1, layer)
    use.fill(layer, {"weight": weight, "bias": bias})
    return y


def _read_last_two(x: Tensor) -> list[int]:
    return [*range(x.rank - 2), x.rank - 1, x.rank - 2]


def product(use: Use, a: Tensor, b: Tensor) -> Tensor:
    """The product of two parts of the net; a vector is a row on the left, a column on the right."""
    if a.rank == 1 or b.rank == 1:
        row, column = a.rank == 1, b.rank == 1
        a = use.raised(a, 2) if row else a
        b = b.like(use.reshaped(b, (*b.sample, 1))) if column and b.axis is None else b
        y = product(use, a, b) if min(a.rank, b.rank) > 1 else None
        if y is None or y.axis is not None:
            raise RefusedError("matrices of each sample", "a vector of the samples")
        *rest, rows, columns = y.sample
        kept = [rows] * (not row) + [columns] * (not column)
        return y.like(use.reshaped(y, (*rest, *kept)))
    if min(a.rank, b.rank) < 2 or a.axis in (a.rank - 2, a.rank - 1):
        raise RefusedError("samples in front of two matrices", f"{a.rank} and {b.rank} axes")
    if b.axis in (b.rank - 2, b.rank - 1):
        raise RefusedError("samples in front of two matrices", f"along axis {b.axis}")
    rank = max(a.rank, b.rank)
    a, b = use.raised(a, rank), use.raised(b, rank)
    if (a.axis, a.before, a.after) != (b.axis, b.before, b.after):
        raise RefusedError("samples along one axis of both", f"{a.axis} and {b.axis}")
    lead = [max(m, n) for m, n in zip(a.sample[:-2], b.sample[:-2], strict=True)]
    spread = []
    for each in (a, b):
        sample = (*lead, *each.sample[-2:])
        if sample != each.sample:
            each = use.make(layers.Expand, each, shape=sample)
        spread.append(each)
    return use.make(layers.MatMul, *spread)


def _read_matmul(use: Use) -> Tensor:
    a, b = use.value(0), use.value(1)
    if isinstance(a, Tensor) and isinstance(b, Known):
        a, matrix = use.floats(a), b.array
        if matrix.ndim == 1 and a.rank > 1:
            y = dense(use, a, matrix[:, None])
            return y.like(use.reshaped(y, y.sample[:-1]))
        if matrix.ndim == 2:
            return dense(use, a, matrix)
        return product(use, a, use.weight(b, a))
    if isinstance(b, Tensor) and isinstance(a, Known):
        b, matrix = use.floats(b), a.array
        if matrix.ndim == 2 and b.rank > 1:
            turned = transposed(use, b, _read_last_two(b))
            return transposed(use, dense(use, turned, matrix.T, None, 0), _read_last_two(turned))
        return product(use, use.weight(a, b), b)
    return product(use, use.tensor(0), use.tensor(1))


def _read_gemm(use: Use) -> Tensor:
    alpha, beta = use.attribute("alpha", 1.0), use.attribute("beta", 1.0)
    x, b, c = use.tensor(), use.value(1), use.value(2)
    if use.attribute("transA", 0):
        x = transposed(use, x, [1, 0])
    if x.rank != 2:
        raise RefusedError("a matrix", f"{x.rank} axes")
    if isinstance(b, Known):
        matrix = b.array.T if use.attribute("transB", 0) else b.array
        matrix = matrix if alpha == 1.0 else matrix * np.asarray(alpha, matrix.dtype)
        bias = None
        if isinstance(c, Known) and c.array.shape[:-1] in ((), (1,)):
            bias = np.broadcast_to(c.array.reshape(-1), matrix.shape[1:])
            bias = bias if beta == 1.0 else bias * np.asarray(beta, bias.dtype)
        y = dense(use, x, matrix, bias)
        if c is None or bias is not None:
            return y
    else:
        other = use.tensor(1)
        other = transposed(use, other, [1, 0]) if use.attribute("transB", 0) else other
        y = scaled(use, product(use, x, other), alpha)
        if c is None:
            return y
    offset = use.weight(c, y) if isinstance(c, Known) else use.raised(use.tensor(2), 2)
    return use.make(layers.Add, y, scaled(use, offset, beta))


QUANTIZED = {"lora_rank": None, "quantization_config": None}


def _expect_rows(d: DescribedLayer) -> dict[str, Any]:
    if len(d.shapes[0]) > 2:
        raise unknown(d.where, "rows or sequences", f"samples of {len(d.shapes[0])} axes")
    return {}


def _kernel(layer: layers.Dense, uses: Uses) -> list[Variable]:
    """kernel (in, units), bias (units), both in the order that other layers of Keras want."""
    turned = layer.W_transpose
    ours = layer.params["weight"].shape
    (rows, rows_back), (units, units_back) = along(uses.read), along(uses.made)

    def there(w: Array) -> Array:
        return units(rows(w.T if turned else w).T).T

    def back(w: Array) -> tuple[Array]:
        made = rows_back(units_back(w.T).T)
        return (made.T if turned else made,)

    shape = ours[::-1] if turned else ours
    found = [Variable("vars/0", "kernel", shape, ("weight",), there, back)]
    if layer.use_bias:
        width = layer.params["bias"].shape
        split = lambda b: (units_back(b),)  # noqa: E731
        found.append(Variable("vars/1", "bias", width, ("bias",), units, split))
    return found


def _order(layer: layers.Dense, rank: int) -> Sequence[int]:
    """PyTorch has (out, in)."""
    return (0, 1) if layer.W_transpose else (1, 0)


_IN_TORCH = stored(
    StoredArray("weight", "", "weight", order=_order), StoredArray("bias", "", "bias")
)

_PARTS = ("gate", "up", "down")


def _write_gated(g: WrittenGraph, layer: layers.GatedUnit, xs: list[Value]) -> Value:
    def by(part: str, x: Value) -> Value:
        bias = g.optional(layer, f"{part}_bias")
        return weighted(g, x, g.param(layer, f"{part}_weight"), bias)

    y = g.node("Mul", activated(g, layer.mode, by("gate", xs[0])), by("up", xs[0]))
    return y if layer.num_output is None else by("down", y)


_GATED = stored(
    *(StoredArray(f"{part}_weight", "", f"{part}_proj.weight", order=across) for part in _PARTS),
    *(StoredArray(f"{part}_bias", "", f"{part}_proj.bias") for part in _PARTS),
)
"""As in published decoders."""

DENSE = (
    LayerCodec(
        layers.Dense,
        Arrays(_kernel, _IN_TORCH.torch),
        KerasClass(
            {"units": ("num_output", None), "use_bias": bool},
            {"W_specs": ("kernel", {(0,): 0}), "b_specs": ("bias", WHOLE)},
            QUANTIZED,
            _expect_rows,
            DescribedLayer.activated,
            masked=True,
        ),
        onnx=_write_dense,
        operators={"MatMul": _read_matmul, "Gemm": _read_gemm},
        elements="units",
    ),
    LayerCodec(layers.GatedUnit, Arrays(torch=_GATED.torch), onnx=_write_gated),
)
