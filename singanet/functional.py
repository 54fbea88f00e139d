"""Functions of symbols and arrays, with NumPy's names, axes and broadcasting.

Each takes symbols, numbers and NumPy arrays. If one of them is a symbol, the result is a symbol,
whose layers the function draws; otherwise it is an array. Axis 0 of a symbol is the batch, as in
the arrays that it stands for. Arrays beside symbols are constants, equal for all samples.
"""

from __future__ import annotations

import builtins
import string
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet import layers
from singanet.base.arguments import is_int, is_number
from singanet.base.elsewhere import names_of
from singanet.errors import ArgumentError, GraphError, ShapeError, brief
from singanet.layers.symbol import BATCH, Symbol, Unnamed, apply, shape_text
from singanet.ops import ops_for
from singanet.types import Array, Shape

__all__ = [
    "abs",
    "clip",
    "concatenate",
    "einsum",
    "equal",
    "exp",
    "expand_dims",
    "log",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "sum",
    "take",
    "tanh",
    "transpose",
    "var",
    "where",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


# -- how symbols are stored ----------------------------------------------------------------------

# The array of a symbol whose first axis is the batch has the axes of `Symbol.full`. Any other array
# is one sample: an axis of extent 1, then the axes of `full`.


def compares_samples(outputs: Sequence[Symbol]) -> str | None:
    """Return the name of a layer by which samples of ``outputs`` depend on others, or None."""
    seen: set[int] = set()
    stack = [symbol.call for symbol in outputs]
    while stack:
        call = stack.pop()
        layer: Any = call.layer
        if isinstance(layer, layers.Rearrange) and layer.order[0] != 0:
            return str(layer.name)
        # A constant reads no values.
        if call.born not in seen and not isinstance(layer, layers.Weight):
            seen.add(call.born)
            stack += [symbol.call for symbol in call.inputs]
    return None


def expect_own_samples(outputs: Sequence[Symbol]) -> None:
    """Errors: `GraphError` for outputs of a net in which samples depend on each other."""
    name = compares_samples(outputs)
    if name is not None:
        raise GraphError(
            "net, outputs",
            expected="samples that do not depend on the others of their batch, since batches are"
            " cut",
            received=f"layer {name!r}, which moves the batch axis",
            advice="draw a loss of a whole batch in an Executor, or pass its function to"
            " loss.from_function",
        )


def _leads(full: Shape) -> bool:
    """Whether the first axis is the batch."""
    return bool(full) and full[0] <= BATCH


def _draw(kind: str, name: str, full: Shape, *inputs: Symbol, **arguments: Any) -> Symbol:
    """Return the symbol of a layer of the class ``kind``, whose name the net numbers."""
    layer = getattr(layers, kind)(Unnamed(name), **arguments)
    made = apply(layer, inputs, inner=True)
    assert isinstance(made, Symbol)
    made.full = full
    return made


def _floats(x: Symbol) -> Symbol:
    return cast(x, "float") if x.kind == "integers" else x


def _as_sample(x: Symbol) -> Symbol:
    """Return ``x`` as one sample. Its ``full`` remains, so only layers may read it."""
    if not _leads(x.full):
        return x
    return _draw("Rearrange", "rearranged", x.full, x, order=(None, *range(len(x.full))))


def _stored(sample: Symbol, full: Shape) -> Symbol:
    """Return the symbol of ``full`` whose array is that of ``sample``, one sample."""
    if not _leads(full):
        sample.full = full
        return sample
    order = tuple(range(1, len(full) + 1))
    return _draw("Rearrange", "rearranged", full, sample, order=order)


def _rearranged(x: Symbol, picks: Sequence[int | None]) -> Symbol:
    """Return the axes ``picks`` of ``x``, None for a new axis; omitted ones have extent 1."""
    if [*picks] == [*range(len(x.full))]:
        return x
    full = tuple(1 if k is None else x.full[k] for k in picks)
    kept = [k for k in picks[1:] if k is not None]
    if _leads(x.full) and picks and picks[0] == 0:
        if len(kept) == len(picks) - 1 == len(x.full) - 1:
            return _draw("Permute", "transposed", full, x, dims=tuple(kept))
        if kept == sorted(kept) and builtins.sum(size < 0 for size in full[1:]) < 2:
            shape = tuple(-1 if size < 0 else size for size in full[1:])
            return _draw("Reshape", "reshaped", full, x, shape=shape)
    ahead = 0 if _leads(x.full) else 1
    order = [None if k is None else k + ahead for k in picks]
    if not _leads(full):
        order = [0 if ahead else None, *order]
    return _draw("Rearrange", "rearranged", full, x, order=tuple(order))


def _aligned(where: str, *given: Any, exact: bool = False) -> tuple[list[Symbol], Shape]:
    """Return symbols with the arrays of ``given`` that broadcast as stored, and the result's shape.

    Whole numbers become floats unless ``exact``. Errors: `ShapeError` if they do not broadcast.
    """
    operands = [
        (each if exact else _floats(each)) if isinstance(each, Symbol) else _constant(where, each)
        for each in given
    ]
    full = _broadcast(where, [_shape(each) for each in operands])
    rank, leads = len(full), _leads(full)
    made: list[Any] = [
        _placed(each, rank, leads)
        if isinstance(each, Symbol)
        else each.reshape((1,) * (rank - each.ndim) + each.shape)
        for each in operands
    ]
    like = next(each for each in made if isinstance(each, Symbol))
    for k, each in enumerate(made):
        if not isinstance(each, Symbol):
            made[k] = _weight(each[0] if leads else each, like)
    return made, full


def _placed(x: Symbol, rank: int, leads: bool) -> Symbol:
    """Return ``x`` stored with the axes of a result of ``rank``, new ones in front.

    ``leads`` is whether the first one is the batch. If it is not the first of ``x``, the array has
    one sample.
    """
    own = len(x.full)
    stored = [*range(own)] if _leads(x.full) else [*range(1, own + 1)]
    order: list[int | None] = [*[None] * (rank + (not leads) - own), *stored]
    if not _leads(x.full) and order[0] is None:
        order[0] = 0
    if order == [*range(own + (not _leads(x.full)))]:
        return x
    return _draw("Rearrange", "rearranged", x.full, x, order=tuple(order))


def _shape(x: Any) -> Shape:
    return x.full if isinstance(x, Symbol) else tuple(x.shape)


def _constant(where: str, given: Any) -> Array:
    """Return ``given`` as an array. Errors: no numbers."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise ArgumentError(
            where,
            expected="symbols, numbers and arrays of numbers",
            received=brief(given)[:60],
            advice="draw data that differ from batch to batch as an Input",
        )
    return array


def _weight(array: Array, like: Symbol) -> Symbol:
    """Return the symbol of a constant for each sample of ``like``."""
    # Without its mask: it reads no values.
    like = Symbol(like.call, like.index, like.shape)
    made = _draw("Weight", "constant", array.shape, like, shape=array.shape)
    return _with_constant(made, array)


def _with_constant(made: Symbol, array: Array) -> Symbol:
    """Return ``made``, whose layer has the parameter ``weight``, fixed to ``array``."""
    layer: Any = made.call.layer
    layer.params["weight"].value = np.array(array, np.float32)
    layer.trainable = False
    return made


def _broadcast(where: str, shapes: Sequence[Shape]) -> Shape:
    """Return NumPy's broadcast of ``shapes``. Errors: extents that differ, such as the batch's."""
    rank = builtins.max(map(len, shapes))
    found: list[int] = []
    for axis in range(rank):
        extents = {
            shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0
        } - {1}
        known = extents - {-1}
        if len(known) > 1 or (-1 in extents and any(size <= BATCH for size in known)):
            raise ShapeError(
                where,
                expected="shapes that broadcast as in NumPy, from the last axis",
                received=" and ".join(map(shape_text, shapes)),
                advice="put axes of extent 1 between by expand_dims or reshape; axis 0 of a symbol"
                " is the batch",
            )
        found.append(next(iter(known or extents), 1))
    return tuple(found)


def _axes(where: str, full: Shape, axis: Any) -> list[int]:
    """Return ``axis``, one or several or None for all, as ascending numbers from 0."""
    rank = len(full)
    given = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else [axis]
    if not all(is_int(k, -rank) and k < rank for k in given):
        raise ArgumentError(
            where,
            expected=f"axes of an array of shape {shape_text(full)}",
            received=f"axis={axis!r}",
            advice="axis 0 of a symbol is the batch",
        )
    found = sorted({int(k) % rank for k in given})
    if len(found) < len(given):
        raise ArgumentError(
            where,
            expected="each axis once",
            received=f"axis={axis!r}",
            advice="remove the repeated axis",
        )
    return found


def _axis(where: str, full: Shape, axis: Any) -> int:
    """Return ``axis``, one of ``full``, as a number from 0."""
    return _axes(where, full, [axis])[0]


def _listed(where: str, arrays: Any) -> list[Any]:
    """Return ``arrays`` as a list. Errors: one array, or none."""
    if isinstance(arrays, Symbol) or not len(arrays):
        raise ArgumentError(
            where,
            expected="several symbols, or several arrays",
            received="one symbol" if isinstance(arrays, Symbol) else "none",
            advice="pass a list of them",
        )
    return [*arrays]


def _array(x: Any) -> Any:
    """Return ``x`` as an array of NumPy or CuPy."""
    return x if hasattr(x, "dtype") and hasattr(x, "ndim") else np.asarray(x)


def _floating(x: Any) -> Any:
    array = _array(x)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _module(*given: Any) -> Any:
    """Return the module of the first array, numpy or cupy."""
    arrays = [each for each in given if isinstance(getattr(each, "shape", None), tuple)]
    return ops_for(arrays[0]).xp if arrays and not isinstance(arrays[0], np.generic) else np


# -- functions of each element -------------------------------------------------------------------


def _operation(mode: str, x: Any, name: str = "") -> Any:
    if isinstance(x, Symbol):
        x = _floats(x)
        return _draw("Operation", name or mode, x.full, x, mode=mode)
    return getattr(_module(x), mode)(x)


def exp(x: Any) -> Any:
    """Return e to the power of ``x``.

    Args:
        x: Symbol, array or number.
    """
    return _operation("exp", x)


def log(x: Any) -> Any:
    """Return the natural logarithm of ``x``.

    Args:
        x: Symbol, array or number.
    """
    return _operation("log", x)


def sqrt(x: Any) -> Any:
    """Return the square root of ``x``.

    Args:
        x: Symbol, array or number.
    """
    return _operation("sqrt", x)


def abs(x: Any) -> Any:
    """Return the absolute value of ``x``.

    Args:
        x: Symbol, array or number.
    """
    return _operation("abs", x)


def square(x: Any) -> Any:
    """Return the square of ``x``.

    Args:
        x: Symbol, array or number.
    """
    if isinstance(x, Symbol):
        x = _floats(x)
        return _draw("Power", "square", x.full, x, exponent=2.0)
    return _module(x).square(x)


def _activation(mode: str, x: Any) -> Any:
    if isinstance(x, Symbol):
        x = _floats(x)
        return _draw("Activation", mode, x.full, x, mode=mode)
    x = _floating(x)
    return ops_for(x).activation(mode, x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of ``x``.

    Args:
        x: Symbol, array or number.
    """
    return _activation("tanh", x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)).

    Args:
        x: Symbol, array or number.
    """
    return _activation("sigmoid", x)


def relu(x: Any) -> Any:
    """Return ``x`` where it is positive, otherwise 0.

    Args:
        x: Symbol, array or number.
    """
    return _activation("relu", x)


def _along(kind: str, name: str, x: Any, axis: int) -> Any:
    if not isinstance(x, Symbol):
        x = _floating(x)
        return getattr(ops_for(x), name)(x, axis)
    x = _floats(x)
    k = _axis(f"functional.{name}", x.full, axis)
    if _leads(x.full) and k:
        return _draw(kind, name, x.full, x, axis=k)
    return _stored(_draw(kind, name, x.full, _as_sample(x), axis=k + 1), x.full)


def softmax(x: Any, axis: int = -1) -> Any:
    """Return exp(x) / sum(exp(x)) along ``axis``.

    Args:
        x: Symbol or array.
        axis: Int; axis 0 of a symbol is the batch.
    """
    return _along("Softmax", "softmax", x, axis)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Return the logarithm of `softmax`, finite even if the softmax is 0.

    Args:
        x: Symbol or array.
        axis: Int; axis 0 of a symbol is the batch.
    """
    return _along("LogSoftmax", "log_softmax", x, axis)


def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    """Return ``x`` limited to [``low``, ``high``].

    Args:
        x: Symbol, array or number.
        low: Number or array, or None for no limit.
        high: The same.
    """
    if not any(isinstance(each, Symbol) for each in (x, low, high)):
        return _module(x).clip(x, low, high)
    plain = all(each is None or is_number(each) for each in (low, high))
    if isinstance(x, Symbol) and plain:
        x = _floats(x)
        return _draw("Clip", "clip", x.full, x, low=low, high=high)
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


# -- functions of several arrays -----------------------------------------------------------------

_COMPARED = {
    "<": ("less", ">"),
    "<=": ("at_most", ">="),
    ">": ("greater", "<"),
    ">=": ("at_least", "<="),
    "==": ("equal", "=="),
    "!=": ("differs", "!="),
}
"""By operator: a name for its layers, and the operator for exchanged operands."""
_ARITHMETIC = {
    "+": ("Add", "plus"),
    "-": ("Subtract", "minus"),
    "*": ("Multiply", "times"),
    "/": ("Divide", "over"),
    "**": ("Operation", "power"),
}


def computed(how: str, a: Any, b: Any, name: str = "") -> Symbol:
    """Return ``a`` ``how`` ``b``, one of them a symbol, for an operator such as "+"."""
    if how in _COMPARED:
        return _compared(how, a, b)
    kind, word = _ARITHMETIC[how]
    name = name or word
    a, b = (float(each) if _is_scalar(each) else each for each in (a, b))
    if is_number(b):
        if how == "/" and not b:
            raise ArgumentError(
                "operator /",
                expected="symbols, arrays and numbers but 0",
                received="0 as divisor",
                advice="divide by functional.maximum(x, 1e-12) if x may be 0",
            )
        a = _floats(a)
        if how == "**":
            return _draw("Power", name, a.full, a, exponent=b)
        factor, offset = {"+": (1.0, b), "-": (1.0, -b), "*": (b, 0.0)}.get(how) or (1.0 / b, 0.0)
        return _draw("Scale", name, a.full, a, factor=factor, offset=offset)
    if is_number(a):
        b = _floats(b)
        if how == "/":
            return computed("*", _draw("Power", "power", b.full, b, exponent=-1.0), a)
        if how != "**":
            factor, offset = {"+": (1.0, a), "-": (-1.0, a), "*": (a, 0.0)}[how]
            return _draw("Scale", name, b.full, b, factor=factor, offset=offset)
    (a, b), full = _aligned(f"operator {how}", a, b)
    arguments = {"mode": "power"} if how == "**" else {}
    return _draw(kind, name, full, a, b, **arguments)


def _is_scalar(x: Any) -> bool:
    return is_number(x) or (isinstance(x, np.ndarray) and x.ndim == 0 and is_number(x.item()))


def _compared(how: str, a: Any, b: Any) -> Symbol:
    name, exchanged = _COMPARED[how]
    if not isinstance(a, Symbol):
        return _compared(exchanged, b, a)
    if _is_scalar(b):
        a = _floats(a)
        return _draw("Compare", name, a.full, a, how=how, value=float(b))
    (a, b), full = _aligned(f"operator {how}", a, b)
    return _draw("Compare", name, full, a, b, how=how)


def equal(a: Any, b: Any) -> Any:
    """Return whether elements of ``a`` and ``b`` are equal, as booleans.

    Args:
        a: Symbol, array or number.
        b: The same.
    """
    if isinstance(a, Symbol) or isinstance(b, Symbol):
        return _compared("==", a, b)
    return _module(a, b).equal(a, b)


def _extreme(kind: str, a: Any, b: Any) -> Any:
    name = kind.lower()
    if not isinstance(a, Symbol) and not isinstance(b, Symbol):
        return getattr(_module(a, b), name)(a, b)
    if not isinstance(a, Symbol):
        a, b = b, a
    if _is_scalar(b):
        return clip(a, **{"low" if kind == "Maximum" else "high": float(b)})
    (a, b), full = _aligned(f"functional.{name}", a, b)
    return _draw(kind, name, full, a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of ``a`` and ``b`` for each element.

    Args:
        a: Symbol, array or number.
        b: The same.
    """
    return _extreme("Maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of ``a`` and ``b`` for each element.

    Args:
        a: Symbol, array or number.
        b: The same.
    """
    return _extreme("Minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where ``condition`` is true, otherwise ``b``.

    Args:
        condition: Symbol or array, booleans or numbers.
        a: Symbol, array or number.
        b: The same.
    """
    if not any(isinstance(each, Symbol) for each in (condition, a, b)):
        return _module(condition, a, b).where(condition, a, b)
    if not isinstance(condition, Symbol):
        condition = _constant("functional.where", condition)
        like = a if isinstance(a, Symbol) else b
        (constant, _), full = _aligned("functional.where", condition, like)
        ones = (1,) * (len(full) - condition.ndim) + condition.shape
        constant.full = (*full[: _leads(full)], *ones[_leads(full) :])
        condition = _compared("!=", constant, 0.0)
    elif condition.kind == "floats":
        condition = _compared("!=", condition, 0.0)
    if _is_scalar(a) and _is_scalar(b):
        return cast(condition, "float") * (float(a) - float(b)) + float(b)
    numbers = {k: float(v) for k, v in (("a", a), ("b", b)) if _is_scalar(v)}
    parts = [_floats(v) if isinstance(v, Symbol) else v for v in (a, b) if not _is_scalar(v)]
    (condition, *parts), full = _aligned("functional.where", condition, *parts, exact=True)
    return _draw("Where", "where", full, condition, *parts, **numbers)


def cast(x: Symbol, dtype: str) -> Symbol:
    """Return ``x`` as "float", the net's type, as "bool" or as an integer type."""
    return _draw("Cast", "cast", x.full, x, dtype=dtype)


# -- reductions ----------------------------------------------------------------------------------


def _reduced(mode: str, x: Any, axis: Any, keepdims: bool) -> Any:
    where, name = f"functional.{mode}", mode
    if not isinstance(x, Symbol):
        x = _array(x)
        given = tuple(axis) if isinstance(axis, list) else axis
        return getattr(_module(x), mode)(x, axis=given, keepdims=keepdims)
    x = _floats(x)
    axes = _axes(where, x.full, axis)
    if not axes:
        return x
    kept = [(k, size) for k, size in enumerate(x.full) if keepdims or k not in axes]
    full = tuple(1 if k in axes else size for k, size in kept)
    if _leads(x.full) and axes[0]:
        return _draw("Reduce", name, full, x, mode=mode, axis=axes, keepdims=keepdims)
    over = [k + 1 for k in axes]
    made = _draw("Reduce", name, full, _as_sample(x), mode=mode, axis=over, keepdims=keepdims)
    return _stored(made, full)


def sum(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return the sum of ``x`` over ``axis``.

    Args:
        x: Symbol or array.
        axis: One axis or several, 0 for the batch of a symbol; None for all, the batch included.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    return _reduced("sum", x, axis, keepdims)


def mean(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return the mean of ``x`` over ``axis``.

    Args:
        x: Symbol or array.
        axis: As for `sum`.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    return _reduced("mean", x, axis, keepdims)


def max(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return the largest element of ``x`` over ``axis``; equal ones share the gradient.

    Args:
        x: Symbol or array.
        axis: As for `sum`.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    return _reduced("max", x, axis, keepdims)


def min(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return the smallest element of ``x`` over ``axis``; equal ones share the gradient.

    Args:
        x: Symbol or array.
        axis: As for `sum`.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    return _reduced("min", x, axis, keepdims)


def var(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return the mean squared deviation of ``x`` from its mean over ``axis``.

    Args:
        x: Symbol or array.
        axis: As for `sum`.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    if not isinstance(x, Symbol):
        return _reduced("var", x, axis, keepdims)
    return mean(square(x - mean(x, axis, True)), axis, keepdims)


def logsumexp(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """Return log(sum(exp(x))) over ``axis``, without overflow.

    Args:
        x: Symbol or array.
        axis: As for `sum`.
        keepdims: Whether reduced axes stay, with extent 1.
    """
    if isinstance(x, Symbol):
        return _reduced("logsumexp", x, axis, keepdims)
    x = _floating(x)
    xp, axes = _module(x), tuple(axis) if isinstance(axis, list) else axis
    top = x.max(axis=axes, keepdims=True)
    total = xp.exp(x - xp.where(xp.isfinite(top), top, 0)).sum(axis=axes, keepdims=True)
    # The sum is at least 1, unless all elements are -inf, and then the result is.
    found = xp.log(xp.maximum(total, 1)) + top
    if keepdims:
        return found
    return found.squeeze(axes) if axes is not None else found.reshape(())[()]


# -- products ------------------------------------------------------------------------------------


def matmul(a: Any, b: Any) -> Any:
    """Return the product of matrices, over the last two axes, or of vectors.

    Args:
        a: Symbol or array.
        b: The same.
    """
    if not isinstance(a, Symbol) and not isinstance(b, Symbol):
        return _module(a, b).matmul(a, b)
    a, b = (
        _floats(each) if isinstance(each, Symbol) else _constant("functional.matmul", each)
        for each in (a, b)
    )
    of_a, of_b = _shape(a), _shape(b)
    plain = isinstance(a, Symbol) and isinstance(b, Symbol) and _leads(of_a) and _leads(of_b)
    if plain and len(of_a) > 2 and of_a[:-2] == of_b[:-2] and of_a[-1] == of_b[-2]:
        return _draw("MatMul", "product", (*of_a[:-1], of_b[-1]), a, b)
    matrix = not isinstance(b, Symbol) and len(of_b) == 2 and of_a[1:] and of_a[-1] == of_b[0]
    if matrix and _leads(of_a):
        made = _draw("Dense", "product", (*of_a[:-1], of_b[1]), a, units=of_b[1], use_bias=False)
        return _with_constant(made, b)
    if not of_a or not of_b:
        raise _unfit(of_a, of_b)
    letters = string.ascii_lowercase[3:]
    rank = builtins.max([len(of_a), len(of_b), 2]) - 2
    before = letters[:rank]
    left = before[rank - len(of_a) + 2 :] + "ac" if len(of_a) > 1 else "c"
    right = before[rank - len(of_b) + 2 :] + "cb" if len(of_b) > 1 else "c"
    out = before + "a" * (len(of_a) > 1) + "b" * (len(of_b) > 1)
    try:
        return einsum(f"{left},{right}->{out}", a, b)
    except ShapeError:
        raise _unfit(of_a, of_b) from None


def _unfit(a: Shape, b: Shape) -> ShapeError:
    return ShapeError(
        "functional.matmul",
        expected="shapes (..., M, K) and (..., K, P), as numpy.matmul",
        received=f"{shape_text(a)} and {shape_text(b)}",
        advice="transpose one of them; axis 0 of a symbol is the batch",
    )


def einsum(equation: str, *operands: Any) -> Any:
    """Return sums of products, as `numpy.einsum`.

    A letter stands once in each operand of a symbol's equation.

    Args:
        equation: String such as "nd,md->nm".
        operands: A symbol or array for each term.
    """
    if not any(isinstance(each, Symbol) for each in operands):
        return _module(*operands).einsum(equation, *operands)
    terms, out = _terms(equation, [_shape(x) for x in map(_given, operands)])
    parts = [
        _floats(each) if isinstance(each, Symbol) else _constant("functional.einsum", each)
        for each in operands
    ]
    while len(parts) > 2:
        rest = set("".join(terms[2:]) + out)
        kept = "".join(c for c in dict.fromkeys(terms[0] + terms[1]) if c in rest)
        parts[:2] = [_sums(terms[:2], kept, parts[:2])]
        terms[:2] = [kept]
    return _sums(terms, out, parts)


def _given(x: Any) -> Any:
    return x if isinstance(x, Symbol) else _constant("functional.einsum", x)


def _terms(equation: Any, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """Return the letters of the terms and of the output, without dots. Errors: no such equation."""
    plain = equation.replace(" ", "") if isinstance(equation, str) else ""
    sources, arrow, out = plain.partition("->")
    terms = sources.split(",")
    free = [c for c in string.ascii_letters if c not in plain]
    rank = builtins.max(
        [len(s) - len(t) + 3 for s, t in zip(shapes, terms, strict=False) if "..." in t], default=0
    )
    dots = "".join(free[: builtins.max([rank, 0])])
    whole = [
        t.replace("...", dots[rank - (len(s) - len(t) + 3) :])
        for s, t in zip(shapes, terms, strict=False)
    ]
    if not arrow:
        joined = "".join(terms)
        single = sorted(c for c in set(joined) - {"."} if joined.count(c) == 1)
        out = ("..." if "..." in joined else "") + "".join(single)
    out = out.replace("...", dots)
    if (
        len(terms) != len(shapes)
        or not all(len(t) == len(s) == len(set(t)) for t, s in zip(whole, shapes, strict=True))
        or not all(c.isalpha() for c in "".join(whole) + out)
        or len(set(out)) < len(out)
        or not set(out) <= set("".join(whole))
    ):
        raise ArgumentError(
            "functional.einsum",
            expected="a term for each operand, with a letter once for each of its axes, and an"
            " output of these letters",
            received=f"{brief(equation)} for shapes {', '.join(map(shape_text, shapes))}",
            advice="for traces and diagonals multiply by numpy.eye and sum",
        )
    return whole, out


def _sums(terms: Sequence[str], out: str, operands: Sequence[Any]) -> Symbol:
    """Return the sums of products of one or two operands."""
    extents: dict[str, int] = {}
    shapes = [_shape(each) for each in operands]
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            one = extents.get(letter, 1)
            extents[letter] = _broadcast("functional.einsum", [(one,), (size,)])[0]
    full = tuple(extents[c] for c in out)
    free = iter(c for c in string.ascii_letters if c not in "".join(terms))
    whole = next(free)
    # An axis of extent 1 that broadcasts has a letter of its own.
    told = [
        "".join(
            next(free) if size == 1 != extents[c] else c
            for c, size in zip(term, shape, strict=True)
        )
        for term, shape in zip(terms, shapes, strict=True)
    ]
    like = next(each for each in operands if isinstance(each, Symbol))
    parts: list[Symbol] = []
    for k, (each, shape) in enumerate(zip(operands, shapes, strict=True)):
        if isinstance(each, Symbol) and _leads(shape) and _leads(full) and told[k][0] == out[0]:
            parts.append(each)
            continue
        told[k] = whole + told[k]
        if not isinstance(each, Symbol):
            each = _weight(each, _as_sample(like))
        parts.append(_as_sample(each))
    equation = ",".join(told) + "->" + (out if _leads(full) else whole + out)
    return _draw("Einsum", "einsum", full, *parts, equation=equation)


# -- axes ----------------------------------------------------------------------------------------


def reshape(x: Any, shape: int | Sequence[int]) -> Any:
    """Return ``x`` in another shape, in row-major order.

    Args:
        x: Symbol or array.
        shape: Int or ints, one of them -1 for the remaining elements. For a symbol -1 is its batch,
            and stays first.
    """
    wanted = (shape,) if is_int(shape, -1) else tuple(shape)  # type: ignore[arg-type]
    if not isinstance(x, Symbol):
        return _array(x).reshape(wanted)
    full = x.full
    if [k for k in full if k != 1] == [BATCH if k == -1 else k for k in wanted if k != 1]:
        axes = iter([k for k, size in enumerate(full) if size != 1])
        return _rearranged(x, [None if size == 1 else next(axes) for size in wanted])
    whole = not any(size <= BATCH for size in full)
    leads = _leads(full) and wanted[:1] == (-1,) and not any(k <= BATCH for k in full[1:])
    rest, own = (wanted[1:], full[1:]) if leads else (wanted, full)
    fits = -1 in own or -1 in rest or prod(rest) == prod(own)
    if not (whole or leads) or rest.count(-1) > 1 or not fits:
        raise ShapeError(
            "functional.reshape",
            expected="-1 for the batch, in its place, and other extents with as many elements as a"
            " sample",
            received=f"shape {wanted} for {shape_text(full)}",
            advice="write reshape(x, (-1, ...)); transpose moves the batch axis",
        )
    if -1 in rest and -1 not in own:
        left = prod(own) // builtins.max([1, prod(size for size in rest if size != -1)])
        rest = tuple(left if size == -1 else size for size in rest)
    return _draw("Reshape", "reshaped", (*full[:leads], *rest), x, shape=rest)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Return ``x`` with the axes in another order.

    Args:
        x: Symbol or array.
        axes: The axes in their new order, 0 for the batch of a symbol; None reverses them.
    """
    if not isinstance(x, Symbol):
        return _array(x).transpose(axes)
    rank = len(x.full)
    order = [*range(rank)][::-1] if axes is None else [*axes] if not is_int(axes, -99) else [axes]
    if _axes("functional.transpose", x.full, order) != [*range(rank)]:
        raise ArgumentError(
            "functional.transpose",
            expected=f"each of the axes 0 to {rank - 1} once",
            received=f"axes={axes!r}",
            advice="axis 0 of a symbol is the batch",
        )
    return _rearranged(x, [int(k) % rank for k in order])


def expand_dims(x: Any, axis: int | Sequence[int]) -> Any:
    """Return ``x`` with new axes of extent 1 at ``axis``.

    Args:
        x: Symbol or array.
        axis: Int or ints, the places of the new axes in the result.
    """
    if not isinstance(x, Symbol):
        array = _array(x)
        return _module(array).expand_dims(array, axis if is_int(axis, -99) else tuple(axis))  # type: ignore[arg-type]
    new = [axis] if is_int(axis, -99) else [*axis]  # type: ignore[misc]
    rank = len(x.full) + len(new)
    places = _axes("functional.expand_dims", (1,) * rank, new)
    axes = iter(range(len(x.full)))
    return _rearranged(x, [None if k in places else next(axes) for k in range(rank)])


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Return ``x`` without axes of extent 1.

    Args:
        x: Symbol or array.
        axis: The axes to remove; None for all of known extent 1.
    """
    if not isinstance(x, Symbol):
        return _array(x).squeeze(tuple(axis) if isinstance(axis, list) else axis)
    ones = [k for k, size in enumerate(x.full) if size == 1]
    gone = ones if axis is None else _axes("functional.squeeze", x.full, axis)
    if not set(gone) <= set(ones):
        raise ShapeError(
            "functional.squeeze",
            expected="axes of extent 1",
            received=f"axis={axis!r} for {shape_text(x.full)}",
            advice="the batch is an axis of any extent",
        )
    return _rearranged(x, [k for k in range(len(x.full)) if k not in gone])


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return the arrays joined along ``axis``.

    Args:
        arrays: Symbols, or arrays.
        axis: Int; with 0 the batches of symbols are joined.
    """
    parts = _listed("functional.concatenate", arrays)
    if not any(isinstance(each, Symbol) for each in parts):
        return _module(*parts).concatenate(parts, axis)
    for each in parts:
        if not isinstance(each, Symbol):
            raise ArgumentError(
                "functional.concatenate",
                expected="symbols alone, or arrays alone",
                received=f"a {type(each).__name__} beside symbols",
                advice="add the array to zeros of the batch: 0 * x[:, :1] + array",
            )
    if len({each.kind for each in parts}) > 1:
        parts = [_floats(each) for each in parts]
    first = parts[0].full
    k = _axis("functional.concatenate", first, axis)
    fulls = [each.full for each in parts]
    if len({(*full[:k], len(full), *full[k + 1 :]) for full in fulls}) > 1:
        raise ShapeError(
            "functional.concatenate",
            expected=f"shapes that agree along all axes but {axis}",
            received=", ".join(map(shape_text, fulls)),
            advice="use stack to make a new axis",
        )
    sizes = [full[k] for full in fulls]
    joined = -1
    if all(size <= BATCH for size in sizes):
        joined = -1 - builtins.sum(-1 - size for size in sizes)
    elif all(size >= 0 for size in sizes):
        joined = builtins.sum(sizes)
    full = (*first[:k], joined, *first[k + 1 :])
    if len(parts) == 1:
        return parts[0]
    if _leads(first) and (k or all(_leads(each) for each in fulls)):
        return _draw("Concat", "concatenated", full, *parts, axis=k)
    made = _draw("Concat", "concatenated", full, *map(_as_sample, parts), axis=k + 1)
    return _stored(made, full)


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return the arrays joined along a new ``axis``.

    Args:
        arrays: Symbols, or arrays.
        axis: Int, the place of the new axis in the result.
    """
    parts = _listed("functional.stack", arrays)
    if not any(isinstance(each, Symbol) for each in parts):
        return _module(*parts).stack(parts, axis)
    return concatenate([expand_dims(each, axis) for each in parts], axis)


def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> Any:
    """Return a list of the parts of ``x`` along ``axis``.

    Args:
        x: Symbol or array.
        indices_or_sections: Int, the number of equal parts; or ints, the indices of the cuts.
        axis: Int, for a symbol an axis of known extent, not the batch.
    """
    if not isinstance(x, Symbol):
        x = _array(x)
        return _module(x).split(x, indices_or_sections, axis)
    k = _axis("functional.split", x.full, axis)
    size, cuts = x.full[k], indices_or_sections
    if isinstance(cuts, int):
        fits = size > 0 and cuts > 0 and size % cuts == 0
        points = [size // cuts * (n + 1) for n in range(cuts - 1)] if fits else []
    else:
        points = [*cuts] if all(is_int(point, -size) for point in cuts) else []
        inside = points and 0 < points[0] <= points[-1] < size
        fits = size > 0 and bool(inside) and points == sorted(set(points))
    if not fits:
        raise ShapeError(
            "functional.split",
            expected="cuts inside an axis of known extent, or a divisor of it",
            received=f"{cuts!r} along axis {axis} of {shape_text(x.full)}",
            advice="axis 0 of a symbol is the batch, whose extent is not known",
        )
    if not points:
        return [x]
    ends = [0, *points, size]
    leads = _leads(x.full)
    layer = layers.Slice(Unnamed("parts"), k + (not leads), points)
    found = apply(layer, (x,), inner=True)
    for n, part_ in enumerate(found):
        part_.full = (*x.full[:k], ends[n + 1] - ends[n], *x.full[k + 1 :])
    return [*found]


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Return the elements of ``x`` at ``indices`` along ``axis``.

    Args:
        x: Symbol or array.
        indices: Int or array of ints, the same for all samples.
        axis: Int, for a symbol not the batch; None, for arrays alone, flattens ``x``.
    """
    if not isinstance(x, Symbol) and not isinstance(indices, Symbol):
        array = _array(x)
        return _module(array).take(array, indices, axis)
    if not isinstance(x, Symbol) or isinstance(indices, Symbol) or axis is None:
        raise ArgumentError(
            "functional.take",
            expected="a symbol, an axis of its samples, and indices that are no symbol",
            received=f"indices={type(indices).__name__}, axis={axis!r}",
            advice="Gather(axis)(x, indices) takes elements of each sample, Embedding rows of a"
            " table",
        )
    k = _axis("functional.take", x.full, axis)
    listed = np.asarray(indices)
    if listed.dtype.kind not in "iu" or not listed.size or x.full[k] < 0:
        raise ArgumentError(
            "functional.take",
            expected="whole numbers, along an axis of known extent",
            received=f"{brief(indices)[:60]} along axis {axis} of {shape_text(x.full)}",
            advice="axis 0 of a symbol is the batch; reduce it by sum or max",
        )
    at = k + (not _leads(x.full))
    full = (*x.full[:k], listed.size, *x.full[k + 1 :])
    flat = [int(each) for each in listed.reshape(-1)]
    made = _draw("Gather", "picked", full, x, axis=at, indices=flat)
    if listed.ndim == 1:
        return made
    full = (*x.full[:k], *listed.shape, *x.full[k + 1 :])
    shape = tuple(-1 if size < 0 else size for size in full[_leads(full) :])
    return _draw("Reshape", "reshaped", full, made, shape=shape)


def part(x: Symbol, index: Any) -> Symbol:
    """Return ``x[index]``, of a symbol."""
    given = index if isinstance(index, tuple) else (index,)
    dots = [k for k, place in enumerate(given) if place is Ellipsis]
    named = [place for place in given if place is not None and place is not Ellipsis]
    missing = len(x.full) - len(named)
    if dots and missing >= 0:
        given = (*given[: dots[0]], *(slice(None),) * missing, *given[dots[0] + 1 :])
    places = [place for place in given if place is not None]
    leads = _leads(x.full)
    known = (int, np.integer, slice, list)
    sample = places[1:] if leads else places
    if (
        len(dots) > 1
        or missing < 0
        or (leads and places and places[0] != slice(None))
        or not all(isinstance(k, known) and not isinstance(k, bool) for k in sample)
    ):
        raise ArgumentError(
            "the part of a symbol",
            expected="a colon for the batch, then ints, ranges, lists: a[:, 0], a[:, 1:, [4]]",
            received=brief(index),
            advice="use functional.take, Slice or Permute for other parts",
        )
    for axis, place in enumerate(places):
        if isinstance(place, list):
            x = take(x, place, axis)
    plain = [
        (None, None, None)
        if isinstance(k, list)
        else (k.start, k.stop, k.step)
        if isinstance(k, slice)
        else int(k)
        for k in sample
    ]
    full = [*x.full[: int(leads)]]
    for size, place in zip(x.full[leads:], plain, strict=False):
        if isinstance(place, tuple):
            full.append(len(range(*slice(*place).indices(size))) if size >= 0 else size)
    full += x.full[int(leads) + len(plain) :]
    if any(place != (None, None, None) for place in plain):
        x = _draw("Index", "part", tuple(full), x, index=plain)
    left = [place for place in given if place is None or isinstance(place, (slice, list))]
    new = [k for k, place in enumerate(left) if place is None]
    return expand_dims(x, new) if new else x
