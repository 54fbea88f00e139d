"""Attention and shape operators in an ONNX graph.

Exporters reshape and permute heads in many ways. To recognise all of them, the layers that only
move elements run on an array of consecutive numbers, which shows the destination of each column of
a projection. No element may be lost. Parameters keep the values of the file, so a factor that does
not belong to attention leaves the operators as written. Before it replaces the operators, the layer
is compared with them on random numbers and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, prod, sqrt
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.ops import ops_for
from singanet.saving.codecs.onnx.use import Use
from singanet.saving.codecs.onnx.values import (
    BATCHES,
    STEPS,
    RefusedError,
    Tensor,
    TrialValues,
    agree,
    extents,
    numbers_in,
)
from singanet.types import Array

_FAR = -1e4
_MOST = 1 << 20
_ALIVE = 8 * 6
"""The bytes of a trial for each element of inputs, scores and output: six float64 arrays."""


@dataclass
class _Projection:
    """A dense layer over sequences: its input, and its columns for every head (h, d)."""

    source: Symbol
    product: Symbol
    weight: Array
    bias: Array | None
    columns: Array
    factor: float

    def arrays(self) -> tuple[Array, Array | None]:
        """Return weight and bias with the columns in the order of the heads."""
        order = self.columns.reshape(-1)
        return self.weight[:, order], None if self.bias is None else self.bias[order]


@dataclass
class _Scores:
    """Scores before the softmax: the product, the factor and the masks.

    ``hides`` are the masks of zeros after the softmax.
    """

    product: Symbol
    factor: float = 1.0
    causal: bool = False
    masks: list[tuple[str, Symbol]] = field(default_factory=list)
    hides: list[Symbol] = field(default_factory=list)


def attention(use: Use, x: Tensor, weight: Array, bias: Array | None) -> Tensor | None:
    """Return the `MultiHeadAttention` with the last projection ``x`` times ``weight``, or None."""
    if use.node.outputs[0] in use.sheet.written_out:
        return None
    known = {id(param): array for param, array in use.sheet.fills}
    joined, factor, movers = _moved(x.symbol)
    if (
        factor != 1.0
        or not _is(joined, layers.MatMul)
        or len(joined.shape) != 3
        or len(x.sample) != 2
    ):
        return None
    product: Any = joined.call.layer
    if product.arguments.keys() & {"transpose_a", "transpose_b"}:
        return None
    heads, steps, size = extents(joined.shape)
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
    found = [each for each in projections if each is not None]
    if len(found) < 3 or not _is_scaled_as_the_layer(found, scores):
        return None
    return _drawn(use, x, found, scores, (weight, bias))


def _is_scaled_as_the_layer(projections: list[_Projection], scores: _Scores) -> bool:
    """Return whether scores are divided by √d, without other factors."""
    query, key, value = projections
    factor = scores.factor * query.factor * key.factor * sqrt(query.columns.shape[1])
    return isclose(factor, 1.0, rel_tol=1e-6) and value.factor == 1.0


def _drawn(
    use: Use,
    x: Tensor,
    projections: list[_Projection],
    scores: _Scores,
    last: tuple[Array, Array | None],
) -> Tensor | None:
    query, key, value = projections
    heads, size = query.columns.shape
    arrays: dict[str, Array | None] = {}
    for kind, each in (("query", query), ("key", key), ("value", value)):
        arrays[f"{kind}_weight"], arrays[f"{kind}_bias"] = each.arrays()
    arrays["output_weight"], arrays["output_bias"] = last
    biased = any(arrays[f"{kind}_bias"] is not None for kind in ("query", "key", "value", "output"))
    before = len(use.drawn)
    name = use.name(1)
    if name.endswith(".out_proj"):
        name = use.sheet.names.take(name.removesuffix(".out_proj"))
        use.drawn.append(name)
    layer = layers.MultiHeadAttention(
        name, heads, size, value.columns.shape[1], use_bias=biased, causal=scores.causal,
        output_dim=last[0].shape[1], mask=scores.masks[0][0] if scores.masks else None,
    )  # fmt: skip
    inputs = [query.source]
    if not query.source is value.source is key.source:
        inputs += [value.source] + [key.source] * (key.source is not value.source)
    inputs += [symbol for _, symbol in scores.masks]
    symbol = layer(*inputs)
    # Biases that the file lacks stay zero.
    whole = {
        suffix: np.zeros(layer.params[suffix].shape) if array is None else array
        for suffix, array in arrays.items()
        if suffix in layer.params
    }
    if not _stands_for(use, x.symbol, symbol, inputs, scores, whole, last):
        use.sheet.names.free(use.drawn[before:])
        del use.drawn[before:]
        return None
    use.fill(layer, whole)
    use.sheet.fixed += [layer.params[k] for k in whole if arrays[k] is None]
    parts = [each.product for each in projections]
    use.sheet.wholes.append((use.node.outputs[0], parts))
    return x.like(symbol)


def _stands_for(
    use: Use,
    before: Symbol,
    whole: Symbol,
    inputs: list[Symbol],
    scores: _Scores,
    arrays: Mapping[str, Array],
    last: tuple[Array, Array | None],
) -> bool:
    """Return whether ``whole`` equals ``before`` followed by the ``last`` projection."""
    layer: Any = whole.call.layer
    if not use.sheet.budget.has(_ALIVE * numbers_in([*inputs, scores.product, before])):
        return False
    known = {id(param): array for param, array in use.sheet.fills}
    known |= {id(layer.params[suffix]): array for suffix, array in arrays.items()}
    hides = [each for each in scores.hides if _constant(each, known) is None]
    boolean = [each for kind, each in scores.masks if kind == "boolean"]
    starts = [*inputs, *(each for each in hides if not any(each is one for one in inputs))]
    trial = TrialValues(starts, [*boolean, *hides], known)
    weight, bias = last
    expected = trial.of(before) @ np.asarray(weight, np.float64)
    return agree(expected if bias is None else expected + bias, trial.of(whole))


def _is(symbol: Symbol, kind: Any) -> bool:
    return isinstance(symbol.call.layer, kind)


def _moved(symbol: Symbol) -> tuple[Symbol, float, list[Symbol]]:
    """Skip layers that only move elements: return their input, the factor, and the layers."""
    factor, movers = 1.0, []
    while symbol.call.inputs:
        layer: Any = symbol.call.layer
        if isinstance(layer, layers.Scale) and layer.factor is not None and not layer.offset:
            factor *= layer.factor
        elif layer.traits.moves_only and not _joins_or_repeats(symbol):
            movers.append(symbol)
        else:
            break
        symbol = symbol.call.inputs[0]
    return symbol, factor, movers[::-1]


def _joins_or_repeats(symbol: Symbol) -> bool:
    inputs = symbol.call.inputs
    return len(inputs) != 1 or prod(extents(symbol.shape)) > prod(extents(inputs[0].shape))


def _through(movers: list[Symbol], start: Symbol) -> Array | None:
    """Return the element of a sample of ``start`` at each position after the movers."""
    shape = extents(start.shape)
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
    """Return the dense layer whose columns form heads (h, T, d), or transposed ones (h, d, T)."""
    start, factor, movers = _moved(symbol)
    layer: Any = start.call.layer
    inner = getattr(layer, "layer", None)
    if not isinstance(layer, layers.TimeDistributed) or not isinstance(inner, layers.Dense):
        return None
    places = _through(movers, start)
    if places is None or places.ndim != 3 or len(start.shape) != 2:
        return None
    places = places.transpose(0, 2, 1) if turned else places
    steps, width = extents(start.shape)
    columns = places[:, 0]
    wanted = columns[:, None, :] + width * np.arange(steps)[None, :, None]
    weight = known.get(id(inner.params["weight"]))
    if places.shape[1] != steps or not np.array_equal(places, wanted) or weight is None:
        return None
    bias = known.get(id(inner.params["bias"])) if inner.use_bias else None
    return _Projection(start.call.inputs[0], start, weight, bias, columns, factor)


def _scores(symbol: Symbol, known: Mapping[int, Array]) -> _Scores | None:
    """Return the scores below a softmax, or below the zeros for queries without keys."""
    layer: Any = symbol.call.layer
    hides: list[Symbol] = []
    while isinstance(layer, layers.Where) and layer.b == 0.0:
        seen, symbol = symbol.call.inputs
        hides.append(seen)
        layer = symbol.call.layer
    if not isinstance(layer, layers.Softmax) or layer.axis not in (-1, 3):
        return None
    found, late = _Scores(symbol.call.inputs[0], hides=hides), 1.0
    while True:
        symbol, layer = found.product, found.product.call.layer
        if isinstance(layer, layers.Scale) and layer.factor is not None and not layer.offset:
            if found.masks or found.causal:
                found.factor *= layer.factor
            elif layer.factor != 1.0:
                # A factor after the masks would scale them too; there may be none yet.
                late *= layer.factor
            found.product = symbol.call.inputs[0]
        elif isinstance(layer, layers.Add) and len(symbol.call.inputs) == 2:
            mask = symbol.call.inputs[1]
            found.product = symbol.call.inputs[0]
            array = _constant(mask, known)
            # Unmasked scores may also get a bias, for example to penalise the distance.
            near = None if array is None else array * late >= _FAR
            if array is not None and _is_causal(near) and not array[near].any():
                found.causal = True
            else:
                found.masks.append(("added", mask))
        elif isinstance(layer, layers.Where) and _fill(symbol, known) * late < _FAR:
            seen, found.product, *_ = symbol.call.inputs
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


def _fill(symbol: Symbol, known: Mapping[int, Array]) -> float:
    """Return the number that a `Where` writes to masked scores, 0 for other arrays."""
    layer: Any = symbol.call.layer
    if layer.a is not None or layer.b is not None:
        return layer.b or 0.0
    array = _constant(symbol.call.inputs[2], known)
    return 0.0 if array is None or array.size != 1 else float(array.reshape(()))


def _constant(symbol: Symbol, known: Mapping[int, Array]) -> Array | None:
    """Return the array of a symbol that is equal for every sample."""
    layer: Any = symbol.call.layer
    if isinstance(layer, layers.Compare) and layer.how == "!=" and layer.value == 0.0:
        return _constant(symbol.call.inputs[0], known)
    if isinstance(layer, layers.Weight):
        return known.get(id(layer.params["weight"]))
    return None


def _is_causal(seen: Any) -> bool:
    rows = seen.reshape(-1, *seen.shape[-2:])
    return len(rows) == 1 and bool(np.array_equal(rows[0], np.tri(*rows.shape[-2:], dtype=bool)))


def by_dims(use: Use, x: Tensor, shape: Callable[[list[int]], Sequence[int]]) -> Tensor:
    """Reshape ``x`` to ``shape`` of its graph shape, as `in_shape`."""
    return in_shape(use, x, [shape(x.dims(n)) for n in BATCHES])


def in_shape(use: Use, x: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Reshape ``x`` to the graph's shape, given for each of `BATCHES`.

    The axis of the samples may be merged with adjacent axes, and never split or mixed; an axis of
    free size may not.
    """
    first, second = (list(shape) for shape in shapes)
    both = list(zip(first, second, strict=True))
    sizes = [-1 if pair == STEPS else pair[0] for pair in both]
    moving = [k for k, pair in enumerate(both) if pair[0] != pair[1] and sizes[k] != -1]
    if x.axis is None:
        if moving:
            raise RefusedError("a known shape", f"{first}")
        return replace(x, symbol=use.reshaped(x, sizes))
    times = 0
    if len(moving) == 1:
        times = first[moving[0]] // BATCHES[0]
        shown = [first[moving[0]], second[moving[0]]]
        times = times if shown == [times * n for n in BATCHES] else 0
    in_front = prod(x.dims(BATCHES[0])[: x.axis]) * x.before
    left = prod(first[: moving[0]]) if moving else 0
    if not times or in_front % left or times % (in_front // left):
        raise RefusedError("a shape that does not mix samples", f"{x.dims(BATCHES[0])} as {first}")
    at, before = moving[0], in_front // left
    made = replace(x, axis=at, before=before, after=times // before)
    sample = (*sizes[:at], *made.folds, *sizes[at + 1 :])
    return replace(made, symbol=use.reshaped(x, sample))


def over_last(use: Use, x: Tensor, last: int, layer: Layer) -> Tensor:
    """Apply ``layer`` to the last axes of the graph's array, for any axes before them."""
    tail = len(x.sample) - last
    if tail < 0 or (x.axis is not None and x.axis >= x.rank - last):
        raise RefusedError(
            f"samples in front of the last {last} axes", f"axis {x.axis} of {x.rank}"
        )
    lead = x.sample[:tail]
    if not lead:
        return x.like(use.draw(layer, x))
    wrapped = layers.TimeDistributed(use.sheet.names.take(f"{layer.name}.steps"), layer)
    use.drawn.append(wrapped.name)
    flat = use.reshaped(x, (-1 if -1 in lead else prod(lead), *x.sample[tail:]))
    made = x.like(wrapped(flat))
    return made.like(use.reshaped(made, (*lead, *made.sample[1:])))
