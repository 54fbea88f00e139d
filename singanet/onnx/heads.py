"""Attention that was written out, found again: the layers from a product with the outputs back.

Exporters shape and turn the heads in many ways. Here it is not asked how: the layers that only
move elements are run on numbers that count up, which shows where each column of a projection goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.context import Context
from singanet.layers.symbol import Symbol
from singanet.onnx.use import Use
from singanet.onnx.values import STEPS, Tensor
from singanet.ops import ops_for
from singanet.types import Array, Shape

_FAR = -1e4
_MOST = 1 << 20


@dataclass
class _Projection:
    """A dense layer along sequences: what it reads, and its columns for every head (h, d)."""

    source: Symbol
    weight: Array
    bias: Array | None
    columns: Array
    factor: float

    def arrays(self, scale: float = 1.0) -> tuple[Array, Array]:
        """Weight and bias of the columns, in the order of the heads."""
        order, factor = self.columns.reshape(-1), self.factor * scale
        bias = np.zeros(self.weight.shape[1]) if self.bias is None else self.bias
        return self.weight[:, order] * factor, bias[order] * factor


@dataclass
class _Scores:
    """Scores before the softmax: the product below, the factor, and the mask."""

    product: Symbol
    factor: float = 1.0
    causal: bool = False
    masks: list[tuple[str, Symbol]] = field(default_factory=list)


def attention(use: Use, x: Tensor, weight: Array, bias: Array | None) -> Tensor | None:
    """The `MultiHeadAttention` whose last projection is ``x`` times ``weight``, else None."""
    known = {id(param): array for param, array in use.sheet.fills}
    joined, _, movers = _moved(x.symbol)
    if not _is(joined, layers.MatMul) or len(joined.shape) != 3 or len(x.sample) != 2:
        return None
    product: Any = joined.call.layer
    if product.arguments.keys() & {"transpose_a", "transpose_b"}:
        return None
    heads, steps, size = _numbered(joined.shape)
    order = _through(movers, joined)
    if order is None or heads * steps * size != order.size:
        return None
    wanted = np.arange(order.size).reshape(heads, steps, size).transpose(1, 0, 2)
    if not np.array_equal(order.reshape(-1), wanted.reshape(-1)):
        return None
    scores = _scores(joined.call.inputs[0], known)
    if scores is None:
        return None
    q, k = scores.product.call.inputs
    projections = [
        _projection(symbol, turned, known)
        for symbol, turned in ((q, False), (k, True), (joined.call.inputs[1], False))
    ]
    if any(each is None for each in projections):
        return None
    query, key, value = (each for each in projections if each is not None)
    return _drawn(use, x, (query, key, value), scores, (weight, bias))


def _drawn(
    use: Use, x: Tensor, projections: Any, scores: _Scores, last: tuple[Array, Array | None]
) -> Tensor:
    query, key, value = projections
    heads, size = query.columns.shape
    biased = last[1] is not None or any(each.bias is not None for each in projections)
    name = use.name(1)
    if name.endswith(".out_proj"):
        name = use.sheet.names.take(name.removesuffix(".out_proj"))
        use.drawn.append(name)
    layer = layers.MultiHeadAttention(
        name, heads, size, value.columns.shape[1], use_bias=biased, causal=scores.causal,
        num_output=last[0].shape[1], mask=scores.masks[0][0] if scores.masks else None,
    )  # fmt: skip
    inputs = [query.source]
    if not query.source is value.source is key.source:
        inputs += [value.source] + [key.source] * (key.source is not value.source)
    inputs += [symbol for _, symbol in scores.masks]
    symbol = layer(*inputs)
    arrays = {}
    scale = scores.factor * np.sqrt(size)
    for kind, each, factor in (("query", query, scale), ("key", key, 1.0), ("value", value, 1.0)):
        arrays[f"{kind}_weight"], arrays[f"{kind}_bias"] = each.arrays(factor)
    arrays["output_weight"] = last[0]
    arrays["output_bias"] = np.zeros(last[0].shape[1]) if last[1] is None else last[1]
    use.fill(layer, {key: arrays[key] for key in layer.params})
    return x.like(symbol)


def _is(symbol: Symbol, kind: Any) -> bool:
    return isinstance(symbol.call.layer, kind)


def _moved(symbol: Symbol) -> tuple[Symbol, float, list[Symbol]]:
    """The first symbol behind layers that only move, the factor on the way, and the way back."""
    factor, movers = 1.0, []
    while symbol.call.inputs:
        layer: Any = symbol.call.layer
        if isinstance(layer, layers.Scale) and layer.factor is not None and not layer.offset:
            factor *= layer.factor
        elif getattr(layer, "moves_only", False) and len(symbol.call.inputs) == 1:
            movers.append(symbol)
        else:
            break
        symbol = symbol.call.inputs[0]
    return symbol, factor, movers[::-1]


def _numbered(shape: Shape) -> Shape:
    """``shape`` with a number for an axis of any extent, whichever."""
    return tuple(STEPS[0] if size == -1 else size for size in shape)


def _through(movers: list[Symbol], start: Symbol) -> Array | None:
    """Which element of a sample of ``start`` stands where behind the movers."""
    shape = _numbered(start.shape)
    count = int(np.prod(shape))
    if count > _MOST or (movers and isinstance(movers[0].call.layer, layers.TimeDistributed)):
        return None
    array: Any = np.arange(count, dtype=np.float64).reshape(1, *shape)
    for symbol in movers:
        layer: Any = symbol.call.layer
        ctx = Context(ops_for(array), np.random.default_rng(0), {}, False)
        made = layer.forward(ctx, array)
        array = made[symbol.index] if isinstance(made, (list, tuple)) else made
    return np.asarray(array[0]).astype(np.int64)


def _projection(symbol: Symbol, turned: bool, known: Mapping[int, Array]) -> _Projection | None:
    """The dense layer that heads (h, T, d), or turned ones (h, d, T), are columns of."""
    start, factor, movers = _moved(symbol)
    layer: Any = start.call.layer
    inner = getattr(layer, "layer", None)
    if not isinstance(layer, layers.TimeDistributed) or not isinstance(inner, layers.Dense):
        return None
    places = _through(movers, start)
    if places is None or places.ndim != 3 or len(start.shape) != 2:
        return None
    places = places.transpose(0, 2, 1) if turned else places
    steps, width = _numbered(start.shape)
    columns = places[:, 0]
    wanted = columns[:, None, :] + width * np.arange(steps)[None, :, None]
    weight = known.get(id(inner.params["weight"]))
    if places.shape[1] != steps or not np.array_equal(places, wanted) or weight is None:
        return None
    bias = known.get(id(inner.params["bias"])) if inner.use_bias else None
    return _Projection(start.call.inputs[0], weight, bias, columns, factor)


def _scores(symbol: Symbol, known: Mapping[int, Array]) -> _Scores | None:
    """What stands below a softmax, or below the zeros for queries that see nothing."""
    layer: Any = symbol.call.layer
    while isinstance(layer, layers.Where) and layer.b == 0.0:
        symbol = symbol.call.inputs[1]
        layer = symbol.call.layer
    if not isinstance(layer, layers.Softmax) or layer.axis not in (-1, 3):
        return None
    found, late = _Scores(symbol.call.inputs[0]), 1.0
    while True:
        symbol, layer = found.product, found.product.call.layer
        if isinstance(layer, layers.Scale) and layer.factor is not None and not layer.offset:
            if found.masks or found.causal:
                found.factor *= layer.factor
            elif layer.factor != 1.0:
                # Behind the masks it would have to be in them; there may be none yet.
                late *= layer.factor
            found.product = symbol.call.inputs[0]
        elif isinstance(layer, layers.Add) and len(symbol.call.inputs) == 2:
            mask = symbol.call.inputs[1]
            found.product = symbol.call.inputs[0]
            array = _constant(mask, known)
            # What is seen may be added to, too, as by a bias that falls with the distance.
            if array is not None and _is_causal(array >= _FAR) and not array[array >= _FAR].any():
                found.causal = True
            else:
                found.masks.append(("added", mask))
        elif isinstance(layer, layers.Where) and (layer.b or 0.0) < _FAR:
            seen, found.product = symbol.call.inputs
            array = _constant(seen, known)
            if array is not None and _is_causal(array != 0):
                found.causal = True
            else:
                found.masks.append(("boolean", seen))
        else:
            break
    good = isinstance(layer, layers.MatMul) and len(symbol.shape) == 3 and len(found.masks) < 2
    good = good and late > 0
    if late != 1.0:
        good = good and not found.masks
        found.factor *= late
    return found if good and not layer.arguments.keys() - {"name"} else None


def _constant(symbol: Symbol, known: Mapping[int, Array]) -> Array | None:
    """The array that a symbol is of every sample."""
    layer: Any = symbol.call.layer
    if isinstance(layer, layers.Compare) and layer.how == "!=" and layer.value == 0.0:
        return _constant(symbol.call.inputs[0], known)
    if isinstance(layer, layers.Weight):
        return known.get(id(layer.params["weight"]))
    return None


def _is_causal(seen: Array) -> bool:
    rows = seen.reshape(-1, *seen.shape[-2:])
    return len(rows) == 1 and bool(np.array_equal(rows[0], np.tri(*rows.shape[-2:], dtype=bool)))
