"""Codecs of dense layers and products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.layer_arrays import Variable
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.saving.codecs.activation import activated
from singanet.saving.codecs.arithmetic import of_integers, scaled
from singanet.saving.codecs.arrays import Arrays, StoredArray, across, moved, stored
from singanet.saving.codecs.choosing import reduced
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.described import (
    WHOLE,
    DescribedLayer,
    LayerGraph,
    WeightGroup,
    activation,
    unknown,
)
from singanet.saving.codecs.moving import transposed
from singanet.saving.codecs.onnx import (
    BATCHES,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    in_shape,
    norm_axis,
    over_last,
)
from singanet.saving.codecs.onnx.heads import attention
from singanet.saving.codecs.orders import Uses, along
from singanet.types import Array


def _write_dense(g: WrittenGraph, layer: layers.Dense, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    if len(shape) > 1:
        return dense_of_steps(g, layer, xs[0])
    bias = g.optional(layer, "bias")
    inputs = [xs[0], g.param(layer, "weight"), *([] if bias is None else [bias])]
    return g.node("Gemm", *inputs, **({"transB": 1} if layer.W_transpose else {}))


def dense_of_steps(g: WrittenGraph, layer: layers.Dense, x: Value) -> Value:
    """Add the layer along the last axis of (N, ..., in)."""
    weight = g.param(layer, "weight")
    if layer.W_transpose:
        weight = g.transpose(weight, 1, 0)
    return weighted(g, x, weight, g.optional(layer, "bias"))


def weighted(g: WrittenGraph, x: Value, weight: Value, bias: Value | None) -> Value:
    """Add x W + b."""
    y = g.node("MatMul", x, weight)
    return y if bias is None else g.node("Add", y, bias)


def dense(
    use: Use, x: Tensor, weight: Array, bias: Array | None = None, named: int | None = 1
) -> Tensor:
    """Convert ``x`` times a constant matrix (in, out), or the attention that ends with it."""
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
    """Return a product of two tensors; a vector is a row on the left and a column on the right."""
    if a.rank == 1 or b.rank == 1:
        row, column = a.rank == 1, b.rank == 1
        a = use.raised(a, 2) if row else a
        b = b.like(use.reshaped(b, (*b.sample, 1))) if column and b.axis is None else b
        y = product(use, a, b) if min(a.rank, b.rank) > 1 else None
        if y is None or y.axis is not None:
            raise RefusedError("a matrix for each sample", "a vector over the samples")
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
        raise RefusedError("samples along the same axis", f"{a.axis} and {b.axis}")
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


def _of_last(d: DescribedLayer, layer: Layer) -> list[Layer]:
    """Return ``layer`` along Keras' last axis, and its activation."""
    made = d.permuted((*range(2, len(d.shapes[0]) + 1), 1), layer) if d.is_image else [layer]
    return [*made, *d.activated(layer)[1:]]


def _kernel(layer: layers.Dense, uses: Uses) -> list[Variable]:
    """Return kernel (in, units) and bias (units), in the order of Keras' other layers."""
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
    """Return the axes for PyTorch's (out, in)."""
    return (0, 1) if layer.W_transpose else (1, 0)


def _write_weight(g: WrittenGraph, layer: layers.Weight, xs: list[Value]) -> Value:
    return g.of_every_sample(xs[0], layer, "weight")


def _einsum_letters(d: DescribedLayer) -> tuple[str, str, str]:
    """Return the letters of the input, the kernel and the output; dots become other letters."""
    text = str(d.config["equation"]).replace(" ", "")
    x, by, out = text.replace("->", ",").split(",")
    more = len(d.shapes[0]) + 1 - len(x.replace("...", ""))
    spare = "".join([each for each in ascii_letters if each not in text][: max(more, 0)])
    x, out = x.replace("...", spare), out.replace("...", spare)
    once = all(term.isalpha() and len(set(term)) == len(term) for term in (x, by, out))
    known = set(out) == set(x) ^ set(by) and len(x) == len(d.shapes[0]) + 1
    if not once or not known or x[0] != out[0]:
        expected = "each letter once, and the output's in the input or the kernel alone"
        raise unknown(d.where, expected, text[:60])
    return x, by, out


def _einsum_dense(d: DescribedLayer) -> Sequence[Layer | LayerGraph]:
    """Convert to a `Dense` along the summed letters, between permutations and reshapes."""
    d.expect(**QUANTIZED)
    x, by, out = _einsum_letters(d)
    theirs = (*d.shapes[0][1:], d.shapes[0][0]) if d.is_image else d.shapes[0]
    sizes = dict(zip(x[1:], theirs, strict=True))
    given: Any = d.config["output_shape"]
    given = given if isinstance(given, list) else [given]
    declared = [each for each in out[1:] if each in d.config["equation"]]
    sizes |= {e: n for e, n in zip(declared, given, strict=True) if e not in sizes}
    summed, made = ([e for e in by if (e in out) == left] for left in (False, True))
    rows = [each for each in x[1:] if each in out]
    between, shape = [*rows, *made], [sizes[e] for e in out[1:]]
    matrix = layers.Dense(
        d.name, prod(sizes[e] for e in made), use_bias=False, W_specs=d.specs("kernel", {})
    )
    order = [[*summed, *made].index(each) for each in by]
    d.marks[d.name] = WeightGroup("", lambda layer, uses: [
        moved("vars/0", "kernel", "weight", layer.params["weight"].shape,
              tuple(sizes[e] for e in [*summed, *made]), order)
    ])  # fmt: skip
    parts: list[Layer] = [matrix]
    axes = d.config["bias_axes"]
    if axes:
        first = min(out.index(each) for each in axes)
        wide = tuple(sizes[each] if each in axes else 1 for each in out[first:])
        ours = (*[1] * (first - 1), *wide)
        table = layers.Weight(f"{d.name}_bias", ours, W_specs=d.specs("bias", {}))
        d.marks[table.name] = WeightGroup("", lambda layer, uses: [
            moved("vars/1", "bias", "weight", ours, wide, range(len(wide)))
        ])  # fmt: skip
        parts.append(table)

    def apply(sources: Sequence[Symbol]) -> list[Symbol]:
        y = d.theirs(sources[0])
        y = layers.Permute(None, [x.index(each) for each in [*rows, *summed]])(y)
        y = layers.Reshape(None, [*(sizes[e] for e in rows), -1])(y)
        y = layers.Reshape(None, [sizes[e] for e in between])(matrix(y))
        y = layers.Permute(None, [between.index(each) + 1 for each in out[1:]])(y)
        y = layers.Add()(y, table(sources[0])) if axes else y
        return [d.back(y)]

    last = len(shape) >= 3 and d.data_format == "channels_last"
    made_shape = (shape[-1], *shape[:-1]) if last else tuple(shape)
    mode = d.config.get("activation") or "linear"
    inner = replace(d, shapes=[made_shape])
    return [LayerGraph(parts, apply), *activation(inner, mode, f"{d.name}_activation")]


_IN_TORCH = stored(
    StoredArray("weight", "", "weight", order=_order), StoredArray("bias", "", "bias")
)

_PARTS = ("gate", "up", "down")


def _write_gated(g: WrittenGraph, layer: layers.GatedUnit, xs: list[Value]) -> Value:
    def by(part: str, x: Value) -> Value:
        bias = g.optional(layer, f"{part}_bias")
        return weighted(g, x, g.param(layer, f"{part}_weight"), bias)

    y = g.node("Mul", activated(g, layer.mode, by("gate", xs[0])), by("up", xs[0]))
    return y if layer.output_dim is None else by("down", y)


_GATED = stored(
    *(StoredArray(f"{part}_weight", "", f"{part}_proj.weight", order=across) for part in _PARTS),
    *(StoredArray(f"{part}_bias", "", f"{part}_proj.bias") for part in _PARTS),
)
"""The names in published decoders."""

DENSE = (
    LayerCodec(
        layers.Dense,
        Arrays(_kernel, _IN_TORCH.torch),
        KerasClass(
            {"units": ("units", None), "use_bias": bool},
            {"W_specs": ("kernel", {(0,): 0}), "b_specs": ("bias", WHOLE)},
            QUANTIZED,
            around=_of_last,
            masked=True,
        ),
        onnx=_write_dense,
        operators={
            "MatMul": _read_matmul,
            "Gemm": _read_gemm,
            "MatMulInteger": of_integers(_read_matmul),
        },
        elements="units",
    ),
    LayerCodec(
        layers.Weight,
        keras=KerasClass(draw=_einsum_dense),
        keras_name="EinsumDense",
        onnx=_write_weight,
    ),
    LayerCodec(layers.GatedUnit, Arrays(torch=_GATED.torch), onnx=_write_gated),
)


def _write_matmul(g: WrittenGraph, layer: layers.MatMul, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    rank = len(shapes[0]) + 1
    order = (*range(rank - 2), rank - 1, rank - 2)
    turns = (layer.transpose_a, layer.transpose_b)
    factors = [g.transpose(x, *order) if turn else x for x, turn in zip(xs, turns, strict=True)]
    return g.node("MatMul", *factors)


def letters(use: Use) -> tuple[list[str], str]:
    """Return the letters of the inputs and of the output; dots become letters, from the right.

    Errors: repeated letters.
    """
    text = use.attribute("equation", b"")
    text = (text.decode() if isinstance(text, bytes) else str(text)).replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if not arrow:
        joined = "".join(terms).replace("...", "")
        out = "".join(sorted(each for each in set(joined) if joined.count(each) == 1))
        out = "..." * ("..." in left) + out
    spare = "".join(each for each in ascii_letters if each not in text)
    most = 0
    for k, (term, value) in enumerate(zip(terms, use.values, strict=False)):
        rank = value.rank if isinstance(value, Tensor) else value.at[0].ndim if value else 0
        more = rank - len(term.replace("...", ""))
        if "..." in term and 0 <= more < len(spare):
            terms[k], most = term.replace("...", spare[len(spare) - more :]), max(most, more)
    dots = "..." in out or not most
    out = out.replace("...", spare[len(spare) - most :])
    once = all(term.isalpha() and len(set(term)) == len(term) for term in terms)
    known = len(set(out)) == len(out) and set(out) <= set("".join(terms))
    if not once or not known or not dots or len(terms) != len(use.values) or len(terms) > 2:
        raise RefusedError("one or two inputs with each letter once", f"{text[:60]!r}")
    return terms, out


def _read_ordered(use: Use, x: Tensor, term: str, wanted: Sequence[str]) -> Tensor:
    """Permute the axes to ``wanted`` and merge the letters of each of its strings."""
    x = transposed(use, x, [term.index(each) for each in "".join(wanted)])
    shapes = []
    for batch in BATCHES:
        sizes = iter(x.dims(batch))
        shapes.append([prod(next(sizes) for _ in group) for group in wanted])
    return in_shape(use, x, shapes)


def _read_split(use: Use, y: Tensor, kept: int, sizes: Sequence[Sequence[int]]) -> Tensor:
    """Split the axes after the first ``kept`` ones into these sizes, for each of `BATCHES`."""
    shapes = [[*y.dims(n)[:kept], *more] for n, more in zip(BATCHES, sizes, strict=True)]
    return in_shape(use, y, shapes)


def by_matrix(
    use: Use, x: Tensor, term: str, weight: Array, by: str, out: str, bias: Array | None = None
) -> Tensor:
    """Convert the sum over letters of ``x`` and a constant that the output lacks."""
    summed = [each for each in by if each not in out]
    made = [each for each in by if each in out]
    kept = [each for each in term if each not in summed]
    if set(made) & set(term) or not set(summed) <= set(term):
        raise RefusedError("a constant with separate letters", f"{term},{by}->{out}")
    array = weight.transpose([by.index(each) for each in summed + made])
    sizes = array.shape[len(summed) :]
    matrix = array.reshape(-1, prod(sizes))
    row = None if bias is None else np.broadcast_to(bias, sizes).reshape(-1)
    flat = _read_ordered(use, x, term, [*kept, "".join(summed)])
    y = _read_split(use, dense(use, flat, matrix, row), len(kept), [sizes] * 2)
    return transposed(use, y, [(kept + made).index(each) for each in out])


def _read_own(use: Use, k: int, term: str, shared: str) -> tuple[Tensor, str]:
    """Sum input ``k`` over its own letters; return it with the shared letters."""
    x = use.tensor(k)
    if x.rank != len(term):
        raise RefusedError(f"{len(term)} axes", f"{x.rank}")
    alone = [axis for axis, each in enumerate(term) if each not in shared]
    return reduced(use, x, "sum", alone, keep=False), "".join(e for e in term if e in shared)


def _read_einsum(use: Use) -> Tensor:
    terms, out = letters(use)
    if len(terms) == 1:
        x, a = _read_own(use, 0, terms[0], out)
        return transposed(use, x, [a.index(each) for each in out])
    for k in (0, 1):
        given, by = use.value(k), terms[1 - k]
        array = use.value(1 - k)
        if isinstance(given, Tensor) and isinstance(array, Known) and array.constant:
            x, term = _read_own(use, k, terms[k], out + by)
            if array.array.ndim == len(by) and not set(by) & set(out) & set(term):
                return by_matrix(use, x, term, array.array, by, out)
    x, a = _read_own(use, 0, terms[0], out + terms[1])
    y, b = _read_own(use, 1, terms[1], out + terms[0])
    both = [each for each in a if each in b and each in out]
    summed = "".join(each for each in a if each in b and each not in out)
    rows = "".join(each for each in a if each not in b)
    columns = "".join(each for each in b if each not in a)
    found = [dict(zip(a + b, x.dims(n) + y.dims(n), strict=True)) for n in BATCHES]
    sizes = [[extents[each] for each in rows + columns] for extents in found]
    x = _read_ordered(use, x, a, [*both, rows, summed])
    y = _read_ordered(use, y, b, [*both, summed, columns])
    z = _read_split(use, product(use, x, y), len(both), sizes)
    return transposed(use, z, [[*both, *rows, *columns].index(each) for each in out])


def _write_einsum(g: WrittenGraph, layer: layers.Einsum, xs: list[Value]) -> Value:
    return g.node("Einsum", *xs, equation=layer.equation)


def _read_cumulative(use: Use) -> Tensor:
    """Convert sums of all elements before each one to a product with a triangular matrix."""
    x, (axis,) = use.tensor(), use.needed(1).reshape(-1).tolist()
    axis = norm_axis(int(axis), x.rank)
    n = x.sample[x.place(axis) - 1]
    if not 1 <= n <= 1 << 11:
        raise RefusedError("a known size of at most 2048", f"{n}")
    seen = np.tri(n, k=-1 if use.attribute("exclusive", 0) else 0, dtype=np.float32)
    seen = seen if use.attribute("reverse", 0) else seen.T
    order = [*(k for k in range(x.rank) if k != axis), axis]
    y = transposed(use, x, order)
    flat = y if y.rank > 1 else use.raised(y, 2)
    made = product(use, flat, use.weight(Known((seen, seen)), flat))
    made = replace(made, symbol=use.reshaped(made, y.sample), axis=y.axis)
    return transposed(use, made, [order.index(k) for k in range(x.rank)])


_SUMS = {"Einsum": _read_einsum, "CumSum": _read_cumulative}
MATMUL = (
    LayerCodec(layers.MatMul, onnx=_write_matmul, operators=_SUMS),
    LayerCodec(layers.Einsum, onnx=_write_einsum),
)
