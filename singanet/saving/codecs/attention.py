"""Codecs of attention layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from singanet import functional, layers
from singanet.checkpoint.layer_arrays import Variable
from singanet.errors import ArgumentError, brief
from singanet.layers.relative import slopes
from singanet.layers.symbol import Symbol
from singanet.saving.codecs.arithmetic import compared, scaled
from singanet.saving.codecs.arrays import Arrays, StoredArray, across, joined, keras_arrays, moved
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.dense import product, weighted
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, WeightGroup, unknown
from singanet.saving.codecs.moving import transposed
from singanet.saving.codecs.normalisation import write_rms
from singanet.saving.codecs.onnx import (
    Known,
    NoFormError,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
)
from singanet.saving.codecs.orders import Uses
from singanet.saving.codecs.recurrent import waves
from singanet.types import Shape

_PARTS = ("query", "key", "value")


def _rows(layer: layers.MultiHeadAttention) -> Iterator[StoredArray]:
    """Yield query, key and value (d, heads, size), biases (heads, size), output (heads, size, d).

    Keras' class for grouped heads has the same arrays, with an underscore before their names.
    """
    heads, groups = layer.num_heads, layer.num_kv_heads or layer.num_heads
    line = "_" if layer.num_kv_heads else ""
    for part in (*_PARTS, "output"):
        count = heads if part in ("query", "output") else groups
        group = f"{line}{part}_dense/"

        def in_heads(layer: Any, shape: Any, count: int = count) -> Any:
            return (*shape[:-1], count, shape[-1] // count)

        def of_heads(layer: Any, shape: Any) -> Any:
            return (layer.num_heads, shape[0] // layer.num_heads, *shape[1:])

        weight, bias = f"{part}_weight", f"{part}_bias"
        if part == "output":
            yield StoredArray(weight, weight, view=of_heads, group=group)
            yield StoredArray(bias, bias, group=group)
        else:
            yield StoredArray(weight, weight, view=in_heads, group=group)
            yield StoredArray(bias, bias, view=in_heads, group=group)


def _keras(layer: layers.MultiHeadAttention) -> list[StoredArray]:
    if _adds(layer) or _bias_count(layer) not in (0, 4):
        raise ArgumentError(
            f"layer {layer.name!r}, as an attention of Keras",
            expected="all biases or none, without a norm and relative positions",
            received=brief(layer),
            advice="save in another format: safetensors, hdf5, npz",
        )
    return [*_rows(layer)]


def _torch(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """Return the arrays of PyTorch's MultiheadAttention if possible, otherwise of modules.

    If query, key and value have one number of inputs, they are joined in in_proj_weight. Modules
    have the names of published decoders: q_proj, k_proj, v_proj, o_proj, q_norm, k_norm.
    """
    weights, biases = ([f"{part}_{what}" for part in _PARTS] for what in ("weight", "bias"))
    shapes = [layer.params[suffix].shape for suffix in weights]
    size = layer.params["output_weight"].shape[1]
    apart = {each.label: each for each in _apart(layer, uses)}
    plain = all(out == size for _, out in shapes) and shapes[0][0] == size
    biased = _bias_count(layer)
    if not plain or biased not in (0, 4) or _adds(layer):
        return [replace(each, path=_in_modules(name)) for name, each in apart.items()]
    if len(set(shapes)) == 1:
        found = [joined("in_proj_weight", (3 * size, size), weights, turns=True)]
    else:
        found = [replace(apart[name], path=f"{name[0]}_proj_weight") for name in weights]
    if biased:
        found.append(joined("in_proj_bias", (3 * size,), biases, turns=False))
    ends = [apart[name] for name in ("output_weight", "output_bias") if name in apart]
    return [*found, *(replace(e, path=f"out_proj.{e.label.removeprefix('output_')}") for e in ends)]


def _adds(layer: layers.MultiHeadAttention) -> bool:
    """Return whether it has parameters that neither Keras' nor PyTorch's attention has."""
    return layer.norm is not None or layer.relative is not None


def _bias_count(layer: layers.MultiHeadAttention) -> int:
    return sum(name.endswith("_bias") for name in layer.params)


def _in_modules(suffix: str) -> str:
    """Return the name of the parameter ``suffix`` in a module of its own."""
    part, _, what = suffix.partition("_")
    if part == "relative":
        return "relative_attention_bias.weight"
    return f"{part[0]}_norm.weight" if what == "gamma" else f"{part[0]}_proj.{what}"


def _apart(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """Return each array separately."""
    found = []
    for name in layer.params:
        row = StoredArray(name) if name == "relative_weight" else StoredArray(name, order=across)
        found.append(row.variable(layer, name, name))
    return found


HEADS = Arrays(keras_arrays(_keras), _torch, _apart)


def _write_attention(
    g: WrittenGraph, layer: layers.MultiHeadAttention, xs: list[Value]
) -> Value | list[Value]:
    given = xs[: layer.given]
    query, value, key = (given + [given[-1]] * 2)[:3]
    q, v, k = (
        _write_heads(g, layer, part, x)
        for part, x in (("query", query), ("value", value), ("key", key))
    )
    scale = g.constant(layer.scale or layer.dims["key"] ** -0.5, "scale")
    scores = g.node("Mul", g.node("MatMul", q, k), scale)
    if layer.softcap is not None:
        bounded = g.node("Tanh", g.node("Mul", scores, g.constant(1.0 / layer.softcap, "cap")))
        scores = g.node("Mul", bounded, g.constant(layer.softcap, "cap"))
    if layer.relative is not None:
        scores = g.node("Add", scores, _write_relative(g, layer, key))
    if layer.mask == "added":
        scores = g.node("Add", scores, g.cast(_write_mask(g, layer, xs[-1]), g.dtype))
        scores = g.node("Max", scores, _write_lowest(g))
    seen = [_write_position(g, layer, query, key)] if layer.causal or layer.window else []
    if layer.has_lengths:
        seen.append(_write_lengths(g, key, xs[layer.given]))
    if layer.segments:
        first = layer.given + layer.has_lengths
        seen.append(_write_segments(g, xs[first], xs[first + (layer.given > 1)]))
    if layer.mask == "boolean":
        seen.append(g.cast(_write_mask(g, layer, xs[-1]), bool))
    for each in seen:
        scores = g.node("Where", each, scores, _write_lowest(g), dtype=g.dtype)
    weights = g.node("Softmax", scores, axis=-1)
    if layer.has_lengths or layer.mask or layer.segments:
        # A query may have no unmasked key.
        any_seen = g.node("Greater", scores, _write_lowest(g), dtype=bool)
        weights = g.node("Where", any_seen, weights, g.constant(0.0, "none"), dtype=g.dtype)
    merged = g.transpose(g.node("MatMul", weights, v), 0, 2, 1, 3)
    width = layer.num_heads * layer.dims["value"]
    y = _write_projected(g, layer, "output", g.reshape(merged, (0, 0, width)))
    return [y, weights] if layer.return_weights else y


def _write_relative(g: WrittenGraph, layer: layers.MultiHeadAttention, key: Value) -> Value:
    """Add the relative position bias, (1, heads, queries or 1, keys)."""
    shapes: Any = layer.in_shapes if isinstance(layer.in_shapes, list) else [layer.in_shapes]
    queries, keys = shapes[0][0], shapes[layer.given - 1][0]
    if isinstance(layer.relative, layers.Alibi):
        # Relative to the first key, as a free number of steps allows.
        slope = g.constant(slopes(layer.num_heads)[None, :, None, None], "slopes")
        return g.node("Mul", slope, g.cast(g.count(key, 1), g.dtype))
    if -1 in (queries, keys):
        raise NoFormError("relative positions with a free number of steps")
    assert layer.relative is not None
    distance = np.arange(keys) - np.arange(queries)[:, None]
    buckets = g.constant(layer.relative._buckets_of(distance), "buckets", np.int64)
    rows = g.node("Gather", g.param(layer, "relative_weight"), buckets)
    return g.unsqueeze(g.transpose(rows, 2, 0, 1), 0)


def _write_by_distance(g: WrittenGraph, layer: layers.ByDistance, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    heads, length, count = shape
    if length == -1:
        raise NoFormError("scores by distance with a free number of steps")
    at = np.arange(length)
    of = at if layer.of_keys else at[:, None]
    row = of * count + layer._of(at[:, None] - at)
    flat = g.reshape(xs[0], (0, heads, length * count))
    picked = g.node("Gather", flat, g.constant(row.reshape(-1), "distances", np.int64), axis=2)
    return g.reshape(picked, (0, heads, length, length))


def _write_heads(g: WrittenGraph, layer: layers.MultiHeadAttention, part: str, x: Value) -> Value:
    """Add heads: (N, heads, T, size) of queries and values, (N, heads, size, T) of keys."""
    size, groups = layer.dims[part], layer.num_kv_heads or layer.num_heads
    count = layer.num_heads if part == "query" else groups
    rows, norm = _write_projected(g, layer, part, x), layer.norm
    if norm is not None and norm.joint and part != "value":
        rows = write_rms(g, layer, f"{part}_gamma", rows, norm)
    rows = g.reshape(rows, (0, 0, count, size))
    if norm is not None and not norm.joint and part != "value":
        rows = write_rms(g, layer, f"{part}_gamma", rows, norm)
    if part == "value" or layer.rotary is None:
        heads = g.transpose(rows, *((0, 2, 3, 1) if part == "key" else (0, 2, 1, 3)))
    else:
        heads = _write_rotated(g, layer, g.transpose(rows, 0, 2, 1, 3), x)
        heads = g.transpose(heads, 0, 1, 3, 2) if part == "key" else heads
    if count == layer.num_heads:
        return heads
    # Each key and value head serves several adjacent query heads.
    several = g.ints([1, 1, layer.num_heads // count, 1, 1], "each")
    spread = g.node("Expand", g.unsqueeze(heads, 2), several)
    rest = (size, -1) if part == "key" else (-1, size)
    return g.reshape(spread, (0, layer.num_heads, *rest))


def _write_rotated(
    g: WrittenGraph, layer: layers.MultiHeadAttention, heads: Value, x: Value
) -> Value:
    """Rotate the heads (N, heads, T, size) by their positions in ``x``."""
    rotary, size = layer.rotary, layer.dims["key"]
    assert rotary is not None
    shape: Any = layer.in_shapes
    steps = (shape[0] if isinstance(shape, list) else shape)[0]
    if steps == -1 and rotary.longest is not None:
        raise NoFormError("angles that depend on a free number of steps")
    if rotary.era(steps) and (layer.segments or layer.mask or layer.has_lengths):
        raise NoFormError("angles that depend on the length of each packed text")
    speed, gain = rotary.speeds(size, steps)
    half = len(speed)
    cos, sin = (waves(g, x, speed, phase) for phase in (np.pi / 2, 0.0))
    if gain != 1.0:
        longer = g.constant(gain, "gain")
        cos, sin = (g.node("Mul", each, longer) for each in (cos, sin))
    rest: list[Value] = []
    if 2 * half < size:
        ends = g.ints([2 * half, size - 2 * half], "turned")
        heads, *rest = g.nodes_of("Split", 2, heads, ends, axis=3)
    if rotary.interleaved:
        heads = g.transpose(g.reshape(heads, (0, 0, 0, half, 2)), 0, 1, 2, 4, 3)
        heads = g.reshape(heads, (0, 0, 0, 2 * half))
    a, b = g.nodes_of("Split", 2, heads, g.ints([half, half], "halves"), axis=3)
    first = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    second = g.node("Add", g.node("Mul", b, cos), g.node("Mul", a, sin))
    # Scores are sums over pairs, whose order does not matter.
    return g.node("Concat", first, second, *rest, axis=3)


def _write_mask(g: WrittenGraph, layer: layers.MultiHeadAttention, mask: Value) -> Value:
    """Return the mask with the axes samples, heads, queries and keys."""
    shapes: Any = layer.in_shapes
    missing = 3 - len(shapes[-1])
    return g.unsqueeze(mask, *range(1, 1 + missing)) if missing else mask


def _write_projected(g: WrittenGraph, layer: layers.Layer, part: str, x: Value) -> Value:
    weight, bias = g.param(layer, f"{part}_weight"), g.optional(layer, f"{part}_bias")
    return weighted(g, x, weight, bias)


def _write_lowest(g: WrittenGraph) -> Value:
    """Return the score of masked keys; -inf alone would make the softmax NaN."""
    return g.constant(float(np.finfo(g.dtype).min), "lowest")


def _write_position(
    g: WrittenGraph, layer: layers.MultiHeadAttention, query: Value, key: Value
) -> Value:
    """Return the mask of the causal order and the window, (queries, keys)."""
    shapes: Any = layer.in_shapes if isinstance(layer.in_shapes, list) else [layer.in_shapes]
    queries, keys = shapes[0][0], shapes[layer.given - 1][0]
    later = 0 if layer.causal or layer.window is None else layer.window - 1
    if -1 not in (queries, keys):
        seen = np.tri(queries, keys, later)
        if layer.window is not None:
            seen -= np.tri(queries, keys, -layer.window)
        return g.constant(seen, "causal", bool)
    last = g.unsqueeze(g.count(query, 1), 1)
    end = g.node("Add", last, g.ints([later], "later"), dtype=np.int64) if later else last
    before = g.node("LessOrEqual", g.count(key, 1), end, dtype=bool)
    if layer.window is None:
        return before
    first = g.node("Sub", last, g.ints([layer.window], "window"), dtype=np.int64)
    after = g.node("Greater", g.count(key, 1), first, dtype=bool)
    return g.node("And", before, after, dtype=bool)


def _write_segments(g: WrittenGraph, of_queries: Value, of_keys: Value) -> Value:
    """Return the mask of queries and keys in one segment, (N, 1, queries, keys)."""
    pair = g.unsqueeze(of_queries, 1, 3), g.unsqueeze(of_keys, 1, 2)
    return g.node("Equal", *pair, dtype=bool)


def _write_lengths(g: WrittenGraph, key: Value, lengths: Value) -> Value:
    """Return the mask of the keys of each sample by its length, (N, 1, 1, keys)."""
    ends = g.cast(g.reshape(lengths, (-1, 1, 1, 1)), np.int64)
    return g.node("Less", g.count(key, 1), ends, dtype=bool)


_LOWEST = float(np.finfo(np.float32).min)


def _read_heads(use: Use, x: Tensor, number: int | None) -> Tensor:
    """Return (N, h, T, d), also from (N, T, h d)."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not number or x.sample[-1] % number:
        raise RefusedError("3 axes with a number of heads, or 4", f"{x.rank} axes, {number} heads")
    apart = by_dims(use, x, lambda d: [*d[:2], number, d[2] // number])
    return transposed(use, apart, [0, 2, 1, 3])


def _read_repeated(use: Use, x: Tensor, times: int) -> Tensor:
    """Repeat each head ``times`` times."""
    if times == 1:
        return x
    *lead, heads, steps, size = x.sample
    one = x.like(use.reshaped(x, (*lead, heads, 1, steps, size)))
    more = use.draw(layers.Expand(use.name(), (*lead, heads, times, steps, size)), one)
    return x.like(use.reshaped(x.like(more), (*lead, heads * times, steps, size)))


def _read_with_past(use: Use, x: Tensor, k: int) -> Tensor:
    """Append ``x`` to the past steps in input ``k``, if any."""
    if use.value(k) is None:
        return x
    past = use.tensor(k)
    if -1 in (*x.sample, *past.sample):
        raise RefusedError("known numbers of steps, with past keys and values", "free ones")
    return x.like(use.draw(layers.Concat(use.name(), x.place(2)), past, x))


def _read_masked(use: Use, scores: Tensor) -> tuple[Tensor, Tensor | None]:
    """Apply the mask, input 3: return the scores, and the keys of a boolean mask."""
    mask = use.value(3)
    if mask is None:
        return scores, None
    if isinstance(mask, Known):
        array, missing = mask.array, scores.sample[-1] - mask.array.shape[-1]
        ends = [(0, 0)] * (array.ndim - 1) + [(0, max(missing, 0))]
        truth = array.dtype.kind == "b"
        array = np.pad(array, ends, constant_values=False if truth else -np.inf)
        if not truth:
            return use.make(layers.Add, scores, use.weight(Known((array, array)), scores)), None
        mask = use.weight(Known((array, array)), scores)
        mask = compared(use, mask, "!=", 0.0)
    elif mask.dtype.kind == "b":
        mask = use.raised(mask if mask.whole else compared(use, mask, "!=", 0.0), scores.rank)
    else:
        mask = use.raised(use.floats(mask), scores.rank)
        missing = scores.sample[-1] - mask.sample[-1]
        if missing:
            ends = [(0, 0)] * (len(mask.sample) - 1) + [(0, missing)]
            mask = use.make(layers.Pad, mask, padding=tuple(ends), value=-np.inf)
        return use.make(layers.Add, scores, mask), None
    if mask.sample[-1] not in (1, scores.sample[-1]):
        raise RefusedError("a mask for every key", f"{mask.sample}")
    return _read_where(use, mask, scores, _LOWEST), mask


def _read_where(use: Use, seen: Tensor, x: Tensor, other: float) -> Tensor:
    return x.like(use.draw(layers.Where(use.name(), b=other), seen, x))


def _read_window(use: Use, scores: Tensor, past: int) -> Tensor | None:
    """Return the mask of the attributes for causal and windowed attention."""
    rows, columns = scores.sample[-2:]
    bounds = use.attribute("left_window_size", -1), use.attribute("right_window_size", -1)
    if -1 in (rows, columns) and (use.attribute("is_causal", 0) or max(bounds) >= 0):
        raise RefusedError("a known number of steps, for is_causal and windows", "a free one")
    distance = np.arange(columns) - np.arange(rows)[:, None] - past
    left, right = bounds
    seen = distance >= -left if left >= 0 else np.ones_like(distance, bool)
    if right >= 0:
        seen &= distance <= right
    if use.attribute("is_causal", 0):
        seen &= distance <= 0
    if seen.all():
        return None
    return compared(use, use.weight(Known((seen, seen)), scores), "!=", 0.0)


def _read_attention(use: Use) -> list[Any]:
    q, k, v = use.tensor(0), use.tensor(1), use.tensor(2)
    flat = q.rank == 3
    q = _read_heads(use, q, use.attribute("q_num_heads"))
    k, v = (_read_heads(use, each, use.attribute("kv_num_heads")) for each in (k, v))
    if use.value(6) is not None or q.axis not in (0, None):
        raise RefusedError("samples in front, without nonpad_kv_seqlen", "another input")
    past = 0 if use.value(4) is None else use.tensor(4).sample[-2]
    k, v = _read_with_past(use, k, 4), _read_with_past(use, v, 5)
    present = [k, v]
    times = q.sample[-3] // max(k.sample[-3], 1)
    k, v = _read_repeated(use, k, times), _read_repeated(use, v, times)
    scale = use.attribute("scale") or q.sample[-1] ** -0.5
    scores = scaled(use, product(use, q, transposed(use, k, [0, 1, 3, 2])), scale)
    shown = [scores]
    cap = use.attribute("softcap", 0.0)
    if cap:
        bounded = scaled(use, scores, 1.0 / cap)
        bounded = use.make(layers.Activation, bounded, mode="tanh")
        scores = scaled(use, bounded, cap)
    shown.append(scores)
    scores, mask = _read_masked(use, scores)
    window = _read_window(use, scores, past)
    if use.attribute("qk_matmul_output_mode", 0) == 2 and (mask or window):
        raise RefusedError("scores with additive masks alone as an output", "other masks")
    if window is not None:
        scores = _read_where(use, window, scores, _LOWEST)
    shown.append(scores)
    weights = scores.like(use.draw(layers.Softmax(use.name(), -1), scores))
    for seen in (mask, window):
        if seen is not None:
            # A query without an unmasked key gets zeros.
            weights = _read_where(use, seen, weights, 0.0)
    shown.append(weights)
    y = product(use, weights, v)
    if flat:
        y = transposed(use, y, [0, 2, 1, 3])
        y = by_dims(use, y, lambda d: [*d[:2], d[2] * d[3]])
    return [y, *present, shown[use.attribute("qk_matmul_output_mode", 0)]]


def _expect_plain(d: DescribedLayer) -> dict[str, Any]:
    """Check that query, value and key have our order."""
    if d.config.get("attention_axes") != [1]:
        d.expect(attention_axes=None)
    return {
        "causal": bool(d.call.get("use_causal_mask", False)),
        "mask": "boolean" if d.masked else None,
    }


def _factor(path: str, label: str, view: Shape, layer: Any, uses: Uses) -> list[Variable]:
    """Return the weight of a `Weight` layer, without its leading axes of extent 1."""
    return [moved(path, label, "weight", layer.shape, view, range(len(view)))]


def _scored(d: DescribedLayer) -> list[LayerGraph]:
    """Convert Attention and AdditiveAttention: scores of products or of sums, without heads."""
    additive = "score_mode" not in d.config
    joins = additive or d.config["score_mode"] == "concat"
    if not joins:
        d.expect(score_mode="dot")
    if any(len(shape) != 2 for shape in d.shapes):
        raise unknown(d.where, "sequences", f"samples {d.shapes}"[:60])
    if d.call.get("use_causal_mask") or d.call.get("return_attention_scores"):
        raise unknown(d.where, "all keys seen, and no scores returned", str({**d.call})[:60])
    sizes = (1, 1, d.shapes[0][-1]) if additive else (1, 1)
    both = (("scale", d.config["use_scale"]), ("concat_score_weight", joins and not additive))
    parts = []
    for name in (name for name, there in both if there):
        parts.append(layers.Weight(f"{d.name}_{name}", sizes))
        lay = partial(_factor, f"vars/{len(parts) - 1}", name, sizes[2:])
        d.marks[f"{d.name}_{name}"] = WeightGroup("", lay)
    rate = float(d.config["dropout"])

    def apply(sources: Sequence[Symbol]) -> list[Symbol]:
        if any(each.mask is not None for each in sources):
            raise unknown(d.where, "inputs without masks", "a mask")
        q, v, *rest = sources
        k = rest[0] if rest else v
        given = {part.name: part(q) for part in parts}
        scale = given.get(f"{d.name}_scale")
        factor = given.get(f"{d.name}_concat_score_weight")
        if not joins:
            y = functional.matmul(q, functional.transpose(k, (0, 2, 1)))
            y = y if scale is None else y * scale
        else:
            y = functional.expand_dims(q, 2) + functional.expand_dims(k, 1)
            y = y if scale is None or additive else y * functional.expand_dims(scale, 3)
            y = functional.tanh(y)
            y = y * scale if additive and scale is not None else y
            y = functional.sum(y, axis=-1)
            y = y if factor is None else y * factor
        y = functional.softmax(y)
        y = layers.Dropout(None, rate)(y) if rate else y
        return [functional.matmul(y, v)]

    return [LayerGraph(parts, apply)]


ATTENTION = (
    LayerCodec(layers.ByDistance, onnx=_write_by_distance),
    LayerCodec(
        layers.MultiHeadAttention,
        HEADS,
        {
            "MultiHeadAttention": KerasClass(
                {
                    "num_heads": None,
                    "key_dim": None,
                    "value_dim": None,
                    "dropout": float,
                    "use_bias": bool,
                },
                {"W_specs": ("kernel", {}), "b_specs": ("bias", {})},
                {"output_shape": None, "use_gate": False},
                _expect_plain,
                masked=True,
                fills=True,
            ),
            "Attention": KerasClass(draw=_scored, masked=True),
            "AdditiveAttention": KerasClass(draw=_scored, masked=True),
        },
        lambda layer: "GroupedQueryAttention" if layer.num_kv_heads else "MultiHeadAttention",
        _write_attention,
        {"Attention": _read_attention},
    ),
)
