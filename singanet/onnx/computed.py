"""What operators make of constants alone: the layers that stand for them are drawn and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.base.budget import Budget
from singanet.codecs.onnx.sheet import Sheet
from singanet.codecs.onnx.symbol_values import SymbolValues
from singanet.codecs.onnx.use import Use
from singanet.codecs.onnx.values import BATCHES, FileNode, Known, RefusedError, Tensor, Value
from singanet.codecs.table import ELEMENT_BY_ELEMENT, MEASURED, operators
from singanet.onnx.fold import MOST, pay_view
from singanet.summary.multiply_adds import multiply_adds
from singanet.types import Array

OF_CONSTANTS = operators(MEASURED)
"""Operators whose layers run while a file is read.

What these take, in time and memory, the shapes tell of what goes in and comes out, and the products
in them; of others a hostile file could ask for windows, steps and scores without end.
"""

_SPREADING = operators(ELEMENT_BY_ELEMENT)

_EXACT = 1 << 53
"""Whole numbers up to this are floats of 64 bits, too."""

_LAST = np.iinfo(np.int64).max
"""What stands for the end of an axis, and goes through floats as the largest there is."""


def computed(node: FileNode, values: Sequence[Value | None], sheet: Sheet) -> list[Known | None]:
    """The outputs of ``node``, one of `OF_CONSTANTS` of which all inputs are known, by its layers.

    Errors: what converter and layers refuse, what takes more than the budget has, and whole
    numbers that floats do not tell from their neighbours.
    """
    known = dict(zip(node.inputs, values, strict=True))
    given = {name: value for name, value in known.items() if isinstance(value, Known)}
    once = all(value.constant for value in given.values())
    runs = [
        _outputs(node, {name: value.at[k] for name, value in given.items()}, sheet)
        for k in range(1 if once else len(BATCHES))
    ]
    pairs = zip(runs[0], runs[-1], strict=True)
    return [None if a is None or b is None else Known.of(a, b) for a, b in pairs]


def _outputs(node: FileNode, given: Mapping[str, Array], sheet: Sheet) -> list[Array | None]:
    for array in given.values():
        if array.dtype.kind not in "biuf":
            raise RefusedError("arrays of numbers", f"type {array.dtype}")
        pay_view(array, sheet.budget, 8)
        sheet.budget.spend(array.size // 8)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
            _expect_exact(array)
    if all(array.size for array in given.values()) or node.op not in _SPREADING:
        return _run(node, given, sheet)
    # Layers know no arrays without elements, which spread over others of one.
    some = {name: np.ones([size or 1 for size in a.shape], a.dtype) for name, a in given.items()}
    shapes = [np.broadcast_shapes(*(a.shape for a in arrays.values())) for arrays in (some, given)]
    made = _run(node, some, sheet)
    if any(each is None or each.shape != shapes[0] for each in made):
        raise RefusedError("arrays with elements", "one without any")
    return [np.empty(shapes[1], each.dtype) for each in made if each is not None]


def _run(node: FileNode, given: Mapping[str, Array], sheet: Sheet) -> list[Array | None]:
    """What the layers make: the first input is that of a net, its whole array one sample."""
    (name, first), *_ = given.items()
    whole = first.dtype.kind in "iub"
    # Floats of 32 bits have all whole numbers of 16.
    most = {"f": 4, "i": 2, "u": 2, "b": 1}
    wide = any(a.dtype.itemsize > most[a.dtype.kind] for a in given.values())
    dtype = np.dtype("f8" if wide else "f4")
    drawn = Sheet(sheet.budget, readers=sheet.readers)
    start = layers.Input(drawn.names.take("x"), first.shape, first.dtype.name if whole else None)
    drawn.inputs.append(start)
    drawn.values.update({each: Known((array, array)) for each, array in given.items()})
    drawn.values[name] = Tensor(start, first.dtype, None, whole=whole)
    made = OF_CONSTANTS[node.op](Use(drawn, node))
    several = list(made) if isinstance(made, (list, tuple)) else [made]
    _pay([each for each in several if isinstance(each, Tensor)], dtype.itemsize, sheet.budget)
    values = SymbolValues({id(param): array for param, array in drawn.fills}, dtype)
    values.put(start, (first if whole else first.astype(dtype, copy=False))[None])
    return [
        _typed(values.of(each.symbol)[0], each.dtype) if isinstance(each, Tensor)
        else each.array if isinstance(each, Known) else None
        for each in several
    ]  # fmt: skip


def _pay(made: Sequence[Tensor], itemsize: int, budget: Budget) -> None:
    """Pay for what is made, for what is let go with the layers, and for the time of products."""
    seen: set[int] = set()
    stack = [each.symbol.call for each in made]
    total = 0
    while stack:
        call = stack.pop()
        if call.born in seen or not call.inputs:
            continue
        seen.add(call.born)
        layer: Any = call.layer
        shapes = [each.shape for each in call.inputs]
        outs = layer.out_shapes if isinstance(layer.out_shapes, list) else [layer.out_shapes]
        count = sum(map(prod, outs))
        if count > MOST:
            raise RefusedError(f"constants of at most {MOST} elements", f"shapes {outs}"[:80])
        total += itemsize * count
        budget.spend((multiply_adds(layer, shapes, outs) or 0) // 32)
        stack += [symbol.call for symbol in call.inputs]
    if not budget.has(total):
        budget.spend(total)
    for each in made:
        budget.spend(each.dtype.itemsize * prod(each.sample))


def _expect_exact(array: Array) -> None:
    size = np.abs(array)
    if bool(((size > _EXACT) & (size != _LAST)).any()):
        raise RefusedError(f"whole numbers of at most {_EXACT}", f"{size.max()}")


def _typed(array: Array, dtype: np.dtype[Any]) -> Array:
    """``array`` in the graph's type. Errors: no whole numbers where these are wanted."""
    if dtype.kind not in "iu" or array.dtype.kind != "f":
        return array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        raise RefusedError("whole numbers", "what is no number, such as by a divisor of zero")
    _expect_exact(array.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return np.where(array >= _LAST, _LAST, array.astype(np.int64)).astype(dtype)
