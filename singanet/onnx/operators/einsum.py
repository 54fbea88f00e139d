"""Sums of products by letters: with a constant a `Dense` layer, of two parts their `MatMul`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from singanet.onnx.operators.dense import dense, product
from singanet.onnx.operators.moving import transposed
from singanet.onnx.operators.reducing import reduced
from singanet.onnx.shaping import in_shape
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, Known, RefusedError, Tensor
from singanet.types import Array


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


def _ordered(use: Use, x: Tensor, term: str, wanted: Sequence[str]) -> Tensor:
    """The axes in the order of ``wanted``, the letters of each of its texts as one axis."""
    x = transposed(use, x, [term.index(each) for each in "".join(wanted)])
    shapes = []
    for batch in BATCHES:
        sizes = iter(x.dims(batch))
        shapes.append([prod(next(sizes) for _ in group) for group in wanted])
    return in_shape(use, x, shapes)


def _split(use: Use, y: Tensor, kept: int, sizes: Sequence[Sequence[int]]) -> Tensor:
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
    flat = _ordered(use, x, term, [*kept, "".join(summed)])
    y = _split(use, dense(use, flat, matrix, row), len(kept), [sizes] * 2)
    return transposed(use, y, [(kept + made).index(each) for each in out])


def _own(use: Use, k: int, term: str, shared: str) -> tuple[Tensor, str]:
    """The input ``k``, summed over the letters that nothing else has, and the others."""
    x = use.tensor(k)
    if x.rank != len(term):
        raise RefusedError(f"{len(term)} axes", f"{x.rank}")
    alone = [axis for axis, each in enumerate(term) if each not in shared]
    return reduced(use, x, "sum", alone, keep=False), "".join(e for e in term if e in shared)


def _einsum(use: Use) -> Tensor:
    terms, out = letters(use)
    if len(terms) == 1:
        x, a = _own(use, 0, terms[0], out)
        return transposed(use, x, [a.index(each) for each in out])
    for k in (0, 1):
        given, by = use.value(k), terms[1 - k]
        array = use.value(1 - k)
        if isinstance(given, Tensor) and isinstance(array, Known) and array.constant:
            x, term = _own(use, k, terms[k], out + by)
            if array.array.ndim == len(by) and not set(by) & set(out) & set(term):
                return by_matrix(use, x, term, array.array, by, out)
    x, a = _own(use, 0, terms[0], out + terms[1])
    y, b = _own(use, 1, terms[1], out + terms[0])
    both = [each for each in a if each in b and each in out]
    summed = "".join(each for each in a if each in b and each not in out)
    rows = "".join(each for each in a if each not in b)
    columns = "".join(each for each in b if each not in a)
    found = [dict(zip(a + b, x.dims(n) + y.dims(n), strict=True)) for n in BATCHES]
    sizes = [[extents[each] for each in rows + columns] for extents in found]
    x = _ordered(use, x, a, [*both, rows, summed])
    y = _ordered(use, y, b, [*both, summed, columns])
    z = _split(use, product(use, x, y), len(both), sizes)
    return transposed(use, z, [[*both, *rows, *columns].index(each) for each in out])


EINSUM: Mapping[str, Converter] = {"Einsum": _einsum}
