"""Products of matrices, and sums of products by letters: with a constant a `Dense` layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.codec import LayerCodec
from singanet.codecs.dense import dense, product
from singanet.codecs.moving import transposed
from singanet.codecs.onnx import (
    BATCHES,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    in_shape,
)
from singanet.codecs.reducing import reduced
from singanet.types import Array


def _write_matmul(g: WrittenGraph, layer: layers.MatMul, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    rank = len(shapes[0]) + 1
    order = (*range(rank - 2), rank - 1, rank - 2)
    turns = (layer.transpose_a, layer.transpose_b)
    factors = [g.transpose(x, *order) if turn else x for x, turn in zip(xs, turns, strict=True)]
    return g.node("MatMul", *factors)


def letters(use: Use) -> tuple[list[str], str]:
    """The letters of each of the inputs and of the output. Errors: dots, letters twice in one."""
    text = use.attribute("equation", b"")
    text = (text.decode() if isinstance(text, bytes) else str(text)).replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if not arrow:
        joined = "".join(terms)
        out = "".join(sorted(each for each in set(joined) if joined.count(each) == 1))
    once = all(term.isalpha() and len(set(term)) == len(term) for term in terms)
    known = len(set(out)) == len(out) and set(out) <= set("".join(terms))
    if not once or not known or len(terms) != len(use.values) or len(terms) > 2:
        raise RefusedError("one or two inputs with each letter once", f"{text[:60]!r}")
    return terms, out


def _read_ordered(use: Use, x: Tensor, term: str, wanted: Sequence[str]) -> Tensor:
    """The axes in the order of ``wanted``, the letters of each of its texts as one axis."""
    x = transposed(use, x, [term.index(each) for each in "".join(wanted)])
    shapes = []
    for batch in BATCHES:
        sizes = iter(x.dims(batch))
        shapes.append([prod(next(sizes) for _ in group) for group in wanted])
    return in_shape(use, x, shapes)


def _read_split(use: Use, y: Tensor, kept: int, sizes: Sequence[Sequence[int]]) -> Tensor:
    """The axes behind the first ``kept`` ones with these extents, for each of `BATCHES`."""
    shapes = [[*y.dims(n)[:kept], *more] for n, more in zip(BATCHES, sizes, strict=True)]
    return in_shape(use, y, shapes)


def by_matrix(
    use: Use, x: Tensor, term: str, weight: Array, by: str, out: str, bias: Array | None = None
) -> Tensor:
    """The sum over the letters that ``x`` and a constant have and the output has not."""
    summed = [each for each in by if each not in out]
    made = [each for each in by if each in out]
    kept = [each for each in term if each not in summed]
    if set(made) & set(term) or not set(summed) <= set(term):
        raise RefusedError("a constant with letters of its own", f"{term},{by}->{out}")
    array = weight.transpose([by.index(each) for each in summed + made])
    sizes = array.shape[len(summed) :]
    matrix = array.reshape(-1, prod(sizes))
    row = None if bias is None else np.broadcast_to(bias, sizes).reshape(-1)
    flat = _read_ordered(use, x, term, [*kept, "".join(summed)])
    y = _read_split(use, dense(use, flat, matrix, row), len(kept), [sizes] * 2)
    return transposed(use, y, [(kept + made).index(each) for each in out])


def _read_own(use: Use, k: int, term: str, shared: str) -> tuple[Tensor, str]:
    """The input ``k``, summed over the letters that nothing else has, and the others."""
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


MATMUL = (LayerCodec(layers.MatMul, onnx=_write_matmul, operators={"Einsum": _read_einsum}),)
