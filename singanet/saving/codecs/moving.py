"""Codecs of layers that reshape, permute, join, split and broadcast."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.layer import Layer
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.described import DescribedLayer
from singanet.saving.codecs.onnx import (
    BATCHES,
    STEPS,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
    in_shape,
    norm_axis,
)
from singanet.saving.codecs.onnx.values import resolved, slices, split_sizes
from singanet.saving.codecs.onnx.written import FAR, PAD_MODES


def _write_reshape(g: WrittenGraph, layer: layers.Reshape, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.reshape(xs[0], (0, *shape))


def _write_flatten(g: WrittenGraph, layer: layers.Flatten, xs: list[Value]) -> Value:
    y = g.node("Flatten", xs[0], axis=layer.axis)
    if layer.axis > 1:
        y.rows = f"{g.scope}_rows"
    return y


def _write_permute(g: WrittenGraph, layer: layers.Permute, xs: list[Value]) -> Value:
    return g.transpose(xs[0], 0, *layer.dims)


def _write_rearrange(g: WrittenGraph, layer: layers.Rearrange, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    gone = [k for k in range(len(shape) + 1) if k not in layer.order]
    y = g.squeeze(xs[0], *gone) if gone else xs[0]
    axes = [k for k in layer.order if k is not None]
    y = g.transpose(y, *(sorted(axes).index(k) for k in axes))
    new = [k for k, axis in enumerate(layer.order) if axis is None]
    return g.unsqueeze(y, *new) if new else y


def _write_concat(g: WrittenGraph, layer: layers.Concat, xs: list[Value]) -> Value:
    y = g.node("Concat", *xs, axis=layer.axis)
    if layer.axis == 0:
        y.rows = f"{g.scope}_rows"
    return y


def _write_slice(g: WrittenGraph, layer: layers.Slice, xs: list[Value]) -> list[Value]:
    shape: Any = layer.in_shapes
    bounds = [0, *layer.slice_point, shape[layer.axis - 1]]
    sizes = [end - first for first, end in pairwise(bounds)]
    return g.nodes_of("Split", len(sizes), xs[0], g.ints(sizes, "sizes"), axis=layer.axis)


def _write_index(g: WrittenGraph, layer: layers.Index, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    ranges, gone = [], []
    for k, (place, size) in enumerate(zip(layer.index, shape, strict=False), 1):
        if isinstance(place, int):
            at = place if size == -1 else place % size
            ranges.append((k, at, -(FAR + 1) if at == -1 else at + 1, 1))
            gone.append(k)
        elif size == -1 and place[2] == -1:
            ranges.append((k, -1, FAR, -1))
        elif size != -1 and place != (None, None, None):
            start, stop, step = slice(*place).indices(size)
            ranges.append((k, start, FAR if stop < 0 else stop, step))
    y = xs[0]
    if ranges:
        y = g.slice(y, *map(list, zip(*ranges, strict=True)))
    return g.squeeze(y, *gone) if gone else y


def _write_pad(g: WrittenGraph, layer: layers.Pad, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    return g.pad(xs[0], [(0, 0), *layer._by_axis(len(shape))], layer.mode, layer.value)


def _write_cropping(g: WrittenGraph, layer: layers.Cropping, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    inside = [
        (axis, before, size - after)
        for axis, ((before, after), size) in enumerate(
            zip(layer._pad._by_axis(len(shape)), shape, strict=True), 1
        )
        if before or after
    ]
    return g.slice(xs[0], *map(list, zip(*inside, strict=True))) if inside else xs[0]


def _write_expand(g: WrittenGraph, layer: layers.Expand, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.node("Expand", xs[0], g.ints([1, *shape], "shape"))


def _write_repeat(g: WrittenGraph, layer: layers.RepeatVector, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.node("Expand", g.unsqueeze(xs[0], 1), g.ints([1, *shape], "shape"))


def moved(use: Use) -> Tensor:
    """Return the input unchanged, integers included."""
    value = use.value(0)
    if not isinstance(value, Tensor):
        raise RefusedError("an input of the net", "a constant")
    return value


def _read_reshape(use: Use) -> Tensor:
    x, shape = moved(use), use.value(1)
    if "shape" in use.node.attributes:
        targets = [use.attribute("shape")] * 2
    elif isinstance(shape, Known):
        targets = [array.tolist() for array in shape.at]
    else:
        raise RefusedError("a known shape", "an array that depends on an input of the net")
    zeros = bool(use.attribute("allowzero", 0)) and 0 in targets[0]
    fixed = use.sheet.fixed_batch
    if fixed is not None and x.axis is not None and targets[0] == targets[1]:
        targets = _of_any_batch(x, targets[0], zeros, fixed)
    return in_shape(
        use,
        x,
        [resolved(t, x.dims(n), zeros) for t, n in zip(targets, BATCHES, strict=True)],
    )


def _of_any_batch(x: Tensor, target: list[int], zeros: bool, fixed: int) -> list[list[int]]:
    """Return ``target``, exported for ``fixed`` samples, for each of `BATCHES`.

    The samples move to the axis with the fewest other axes merged, preferably not the last.
    """
    dims = x.dims(fixed)
    sizes = resolved(target, dims, zeros)
    in_front = prod(dims[: x.axis]) * x.before
    found = []
    for k, size in enumerate(sizes):
        before, more = divmod(in_front, prod(sizes[:k]))
        times, part = divmod(size, fixed)
        if not (more or part or times % before):
            stays = sizes == dims and k == x.axis
            found.append((not stays, 0 < k == len(sizes) - 1, before, times, k != x.axis, k))
    at = min(found)[-1] if found else 0
    if not found or target[at] < 1:
        return [target] * len(BATCHES)
    return [[*target[:at], target[at] // fixed * n, *target[at + 1 :]] for n in BATCHES]


def _read_flatten(use: Use) -> Tensor:
    x = moved(use)
    axis = use.attribute("axis", 1)
    axis += x.rank if axis < 0 else 0
    if axis == 1 and x.axis == 0 and not x.folds and len(x.sample) > 1:
        return replace(x, symbol=use.draw(layers.Flatten(use.name()), x))
    return by_dims(use, x, lambda d: [prod(d[:axis]), prod(d[axis:])])


def _read_squeeze(use: Use) -> Tensor:
    x = moved(use)
    given = use.setting("axes", 1)
    ones = [k for k, size in enumerate(x.dims(BATCHES[0])) if size == 1 and k != x.axis]
    axes = ones if given is None else [norm_axis(k, x.rank) for k in np.atleast_1d(given).tolist()]
    if not set(axes) <= set(ones):
        raise RefusedError(f"axes of size 1 among {ones}", f"{axes}")
    return without(use, x, axes)


def _read_unsqueeze(use: Use) -> Tensor:
    x = moved(use)
    given = np.atleast_1d(use.setting("axes", 1)).tolist()
    axes = {norm_axis(k, x.rank + len(given)) for k in given}
    if len(axes) < len(given):
        raise RefusedError("distinct axes", f"{given}"[:80])
    shapes = []
    for n in BATCHES:
        sizes = iter(x.dims(n))
        shapes.append([1 if k in axes else next(sizes) for k in range(x.rank + len(given))])
    return in_shape(use, x, shapes)


def without(use: Use, x: Tensor, axes: Collection[int]) -> Tensor:
    """Remove these axes of the graph, which have size 1."""
    return by_dims(use, x, lambda d: [size for k, size in enumerate(d) if k not in axes])


def transposed(use: Use, x: Tensor, perm: Sequence[int]) -> Tensor:
    """Permute the axes of the graph's array by ``perm``."""
    if sorted(perm) != list(range(x.rank)):
        raise RefusedError(f"each of {x.rank} axes once", f"{list(perm)}")
    order: list[int] = []
    for axis in perm:
        if axis == x.axis:
            order += [x.axis + 1 + k for k in range(len(x.folds))]
        else:
            order.append(x.place(axis))
    symbol = x.symbol
    if order != sorted(order):
        symbol = use.draw(layers.Permute(use.name(), order), x)
    return replace(x, symbol=symbol, axis=None if x.axis is None else list(perm).index(x.axis))


def _read_transpose(use: Use) -> Tensor:
    x = moved(use)
    return transposed(use, x, use.attribute("perm") or list(range(x.rank))[::-1])


def part(use: Use, x: Tensor, ranges: Sequence[slice | int]) -> Tensor:
    """Slice or index the axes of the graph's array."""
    places: list[Any] = [(None, None, None)] * len(x.sample)
    gone = 0
    for axis, chosen in enumerate(ranges):
        if chosen == slice(None):
            continue
        if axis == x.axis:
            raise RefusedError("all samples", f"{chosen} along their axis")
        k = x.place(axis) - 1
        size = x.sample[k]
        if isinstance(chosen, slice):
            if size == -1 or range(*chosen.indices(size)) != range(size):
                places[k] = (chosen.start, chosen.stop, chosen.step)
        else:
            places[k] = int(chosen)
            gone += x.axis is not None and axis < x.axis
    if all(place == (None, None, None) for place in places):
        return x
    symbol = use.draw(layers.Index(use.name(), places), x)
    return replace(x, symbol=symbol, axis=None if x.axis is None else x.axis - gone)


def _read_slice(use: Use) -> Tensor:
    x = moved(use)
    found = []
    for k, n in enumerate(BATCHES):
        given = []
        for j, name in enumerate(("starts", "ends", "axes", "steps"), 1):
            value = use.value(j)
            if isinstance(value, Tensor):
                raise RefusedError("known ranges", "an array that depends on an input of the net")
            given.append(
                use.attribute(name) if value is None else np.atleast_1d(value.at[k]).tolist()
            )
        found.append(slices(x.dims(n), *given))
    chosen: list[slice | int] = []
    for axis, pair in enumerate(zip(*found, strict=True)):
        sizes = [x.dims(n)[axis] for n in BATCHES]
        taken = [range(*s.indices(size)) for s, size in zip(pair, sizes, strict=True)]
        if taken == [range(size) for size in sizes]:
            chosen.append(slice(None))
        elif axis == x.axis:
            raise RefusedError("all samples", "a part of them")
        elif sizes[0] != sizes[1] and taken == [range(size)[::-1] for size in sizes]:
            chosen.append(slice(None, None, -1))
        elif pair[0] != pair[1]:
            raise RefusedError("known ranges", f"{pair}")
        else:
            chosen.append(pair[0])
    return part(use, x, chosen)


def _read_concat(use: Use) -> Tensor:
    axis = use.attribute("axis", 1)
    # An array of size 0 along the axis adds nothing.
    some = [
        k
        for k, value in enumerate(use.values)
        if not (isinstance(value, Known) and value.at[0].shape[axis] == 0)
    ]
    tensors = use.together(*some)
    place = tensors[0].place(axis)
    if len(tensors) == 1:
        return tensors[0]
    if any(each.sample[place - 1] == -1 for each in tensors):
        raise RefusedError("an unchanged number of steps if it is free", "more steps")
    return tensors[0].like(use.draw(layers.Concat(use.name(), place), *tensors))


def _read_split(use: Use) -> list[Tensor]:
    x = moved(use)
    place = x.place(use.attribute("axis", 0))
    sizes = split_sizes(x.sample[place - 1], use.setting("split", 1), len(use.node.outputs))
    if len(sizes) == 1:
        return [x]
    points = np.cumsum(sizes)[:-1].tolist()
    found = use.draw(layers.Slice(use.name(), place, points), x)
    return [replace(x, symbol=symbol) for symbol in found]


def _read_expand(use: Use) -> Tensor:
    x, shape = use.tensor(), use.value(1)
    if not isinstance(shape, Known):
        raise RefusedError("a known shape", "an array that depends on an input of the net")
    x = use.raised(x, len(shape.at[0]))
    wanted = [
        np.broadcast_shapes(tuple(x.dims(n)), (1,) * (x.rank - len(a)) + tuple(a.tolist()))
        for n, a in zip(BATCHES, shape.at, strict=True)
    ]
    sample = list(x.sample)
    for axis in range(x.rank):
        sizes = {w[axis] for w in wanted}
        if axis == x.axis:
            if [w[axis] for w in wanted] != [x.dims(n)[axis] for n in BATCHES]:
                raise RefusedError("an unchanged number of samples", f"{wanted[0]}")
        elif sizes == set(STEPS) and x.sample[x.place(axis) - 1] == -1:
            sample[x.place(axis) - 1] = -1
        elif len(sizes) > 1:
            raise RefusedError("a known shape", f"{wanted[0]}")
        else:
            sample[x.place(axis) - 1] = wanted[0][axis]
    if tuple(sample) == x.sample:
        return x
    return x.like(use.draw(layers.Expand(use.name(), sample), x))


def _read_tile(use: Use) -> Tensor:
    x, repeats = use.tensor(), use.needed(1).tolist()
    for axis, count in enumerate(repeats):
        if count == 1:
            continue
        place = x.place(axis)
        if not 1 <= count <= 1000 or x.sample[place - 1] == -1:
            raise RefusedError("from 1 to 1000 repeats of a known size", f"{count}")
        x = x.like(use.draw(layers.Concat(use.name(), place), *[x] * count))
    return x


def _read_pad(use: Use) -> Tensor:
    x = use.tensor()
    pads = use.setting("pads", 1) or use.attribute("paddings")
    axes = use.array(3)
    value = use.setting("value", 2, 0.0)
    value = value if isinstance(value, (int, float)) else value[0]
    over = range(x.rank) if axes is None else [norm_axis(k, x.rank) for k in axes.tolist()]
    mode = PAD_MODES[use.attribute("mode", "constant")]
    ends = [(0, 0)] * len(x.sample)
    cut: list[slice | int] = [slice(None)] * x.rank
    half = len(pads) // 2
    for k, axis in enumerate(over):
        before, after = int(pads[k]), int(pads[half + k])
        if (before, after) == (0, 0):
            continue
        ends[x.place(axis) - 1] = max(before, 0), max(after, 0)
        if min(before, after) < 0:
            cut[axis] = slice(-min(before, 0), min(after, 0) or None)
    x = part(use, x, cut)
    if not any(map(any, ends)):
        return x
    return use.make(layers.Pad, x, padding=tuple(ends), value=float(value), mode=mode)


def _read_depth_to_space(use: Use) -> Tensor:
    x, size = use.tensor(), use.attribute("blocksize")
    c, h, w = x.sample[-3:]
    if x.rank != 4 or c % (size * size):
        raise RefusedError(f"images of a multiple of {size}² channels", f"{x.sample}")
    if use.attribute("mode", "DCR") == "DCR":
        inner, order = (size, size, c // size**2, h, w), (3, 4, 1, 5, 2)
    else:
        inner, order = (c // size**2, size, size, h, w), (1, 4, 2, 5, 3)
    return _read_blocks(use, x, inner, order, (c // size**2, h * size, w * size))


def _read_space_to_depth(use: Use) -> Tensor:
    x, size = use.tensor(), use.attribute("blocksize")
    c, h, w = x.sample[-3:]
    if x.rank != 4 or h % size or w % size:
        raise RefusedError(f"images of multiples of {size} pixels", f"{x.sample}")
    inner = (c, h // size, size, w // size, size)
    order = (3, 5, 1, 2, 4) if use.attribute("mode", "DCR") == "DCR" else (1, 3, 5, 2, 4)
    return _read_blocks(use, x, inner, order, (c * size**2, h // size, w // size))


def _read_blocks(use: Use, x: Tensor, inner: Any, order: Any, shape: Any) -> Tensor:
    lead = x.sample[:-3]
    moved = use.reshaped(x, (*lead, *inner))
    axes = (*range(1, len(lead) + 1), *(k + len(lead) for k in order))
    turned = x.like(use.draw(layers.Permute(use.name(), axes), x.like(moved)))
    return x.like(use.reshaped(turned, (*lead, *shape)))


def _read_triangle(use: Use) -> Tensor:
    x, shift = use.tensor(), use.array(1)
    for axis in (x.rank - 1, x.rank - 2):
        x.place(axis)
    rows, columns = x.sample[-2:]
    diagonal = int(shift or 0) - int(use.attribute("upper", 1))
    seen = np.tri(rows, columns, diagonal, dtype=bool)
    seen = ~seen if use.attribute("upper", 1) else seen
    mask = use.weight(Known((seen, seen)), x)
    condition = replace(mask, symbol=use.draw(layers.Compare(use.name(), "!=", 0.0), mask))
    return x.like(use.draw(layers.Where(use.name(), b=0.0), condition, x))


def _reshape(d: DescribedLayer) -> list[Layer]:
    """Reshape in Keras' element order (H, W, C)."""
    target = tuple(int(axis) for axis in d.config["target_shape"])
    made: list[Layer] = [layers.Reshape(d.name, target)]
    if d.is_image:
        rest = range(2, len(d.shapes[0]) + 1)
        made.insert(0, layers.Permute(f"{d.name}_channels_last", (*rest, 1)))
    if len(target) >= 3 and d.data_format == "channels_last":
        order = (len(target), *range(1, len(target)))
        made.append(layers.Permute(f"{d.name}_channels_first", order))
    return made


def _permute(d: DescribedLayer) -> dict[str, Any]:
    axes = tuple(int(axis) for axis in d.config["dims"])
    if d.is_image:
        # Keras' last axis is our first.
        ours = [d.ours(axis) for axis in axes]
        axes = (ours[-1], *ours[:-1])
    return {"dims": axes}


def _flatten(d: DescribedLayer) -> list[Layer]:
    """Flatten with the channels last, so that rows equal Keras'."""
    axes = len(d.shapes[0])
    if axes < 2 or (axes == 2 and d.data_format != "channels_first"):
        return [layers.Flatten(d.name)]
    last = layers.Permute(f"{d.name}_channels_last", (*range(2, axes + 1), 1))
    return [last, layers.Flatten(d.name)]


def _ends(key: str, axes: int) -> KerasClass:
    def more(d: DescribedLayer) -> dict[str, Any]:
        given = d.config[key] if axes > 1 else [d.config[key]]
        ends = [(int(before), int(after)) for before, after in given]
        return {key: ends, **d.lying(axes)}

    return KerasClass(more=more)


MOVING = (
    LayerCodec(
        layers.Reshape,
        keras=KerasClass(draw=_reshape),
        onnx=_write_reshape,
        operators={
            "Reshape": _read_reshape, "Squeeze": _read_squeeze, "Unsqueeze": _read_unsqueeze,
            "DepthToSpace": _read_depth_to_space, "SpaceToDepth": _read_space_to_depth,
        },
        elements="moved",
    ),
    LayerCodec(layers.Rearrange, onnx=_write_rearrange),
    LayerCodec(
        layers.Permute,
        keras=KerasClass(more=_permute),
        onnx=_write_permute,
        operators={"Transpose": _read_transpose},
        elements="moved",
    ),
    LayerCodec(
        layers.Flatten,
        keras=KerasClass(draw=_flatten),
        onnx=_write_flatten,
        operators={"Flatten": _read_flatten},
        elements="moved",
    ),
    LayerCodec(
        layers.Concat,
        keras=KerasClass(more=lambda d: {"axis": d.axis()}, masked=True),
        keras_name="Concatenate",
        onnx=_write_concat,
        operators={"Concat": _read_concat, "Tile": _read_tile},
        elements="in a row",
    ),
    LayerCodec(
        layers.Slice, onnx=_write_slice, operators={"Split": _read_split}, elements="cut"
    ),
    LayerCodec(layers.Index, onnx=_write_index, operators={"Slice": _read_slice}),
    LayerCodec(
        layers.Expand,
        onnx=_write_expand,
        operators={"Expand": _read_expand, "Trilu": _read_triangle},
    ),
    LayerCodec(
        layers.RepeatVector,
        keras=KerasClass({"n": int}),
        onnx=_write_repeat,
    ),
    LayerCodec(
        layers.Pad,
        keras={f"ZeroPadding{n}D": _ends("padding", n) for n in (1, 2, 3)},
        onnx=_write_pad,
        operators={"Pad": _read_pad},
    ),
    LayerCodec(layers.EndPadding, onnx=_write_pad),
    LayerCodec(
        layers.Cropping,
        keras={f"Cropping{n}D": _ends("cropping", n) for n in (1, 2, 3)},
        onnx=_write_cropping,
    ),
)  # fmt: skip
