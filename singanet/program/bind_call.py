"""Calls made ready: in the form that NumPy runs in the least time, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from singanet.program.array_tree import map_leaves
from singanet.program.ir import Call, Ref
from singanet.types import Array

Ready = Callable[[], object]

_OUT_BY_NAME = frozenset((np.maximum, np.minimum))
"""Functions that NumPy warns of where what they fill has no keyword."""

_REDUCING = ("axis", "dtype", "out", "keepdims")
_BY_DEFAULT = (0, None, None, False)


def ready_call(call: Call, array_of: Callable[[Ref], Array]) -> Ready:
    """``call`` on the arrays at its refs."""
    if call.bind is not None:
        return call.bind(array_of)
    assert call.function is not None
    given = map_leaves(call.arguments, Ref, array_of)
    return ready(call.function, given, map_leaves(call.keywords, Ref, array_of))


def ready(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Ready:
    """``function(*arguments, **keywords)``, to be made again and again with what lies there."""
    rest = dict(keywords)
    if isinstance(function, np.ufunc):
        return _element_wise(function, arguments, rest)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc) and function == owner.reduce and rest.keys() <= {*_REDUCING}:
        given = arguments[1:]
        named = zip(_REDUCING[len(given) :], _BY_DEFAULT[len(given) :], strict=True)
        return partial(function, *arguments, *(rest.get(key, usual) for key, usual in named))
    if function is np.argmax and rest.keys() == {"axis", "out"} and len(arguments) == 1:
        return partial(arguments[0].argmax, rest["axis"], rest["out"])
    if function is np.copyto and _fits(arguments[0], arguments[1], rest):
        return partial(arguments[0].__setitem__, ..., arguments[1])
    return partial(function, *arguments, **rest)


def _element_wise(function: np.ufunc, arguments: tuple[Any, ...], rest: dict[str, Any]) -> Ready:
    if rest.keys() != {"out"}:
        return partial(function, *arguments, **rest)
    outs = rest["out"] if isinstance(rest["out"], tuple) else (rest["out"],)
    if function is np.matmul:
        product = np.dot if _is_plain(*arguments, *outs) else function
        return partial(product, *arguments, *outs)
    operands = _with_arrays(function, arguments)
    if function in _OUT_BY_NAME:
        return partial(function, *operands, out=outs)
    return partial(function, *operands, *outs)


def _with_arrays(function: np.ufunc, operands: tuple[Any, ...]) -> list[Any]:
    """``operands`` with arrays in the place of numbers, which NumPy would convert in each call."""
    types = {value.dtype for value in operands if isinstance(value, np.ndarray)}
    kind = next(iter(types), np.dtype(object))
    # Some take an integer beside the floats.
    even = any(loop.startswith(kind.char * function.nin + "->") for loop in function.types)
    if len(types) != 1 or kind.kind != "f" or not even:
        return list(operands)
    return [
        np.asarray(value, kind) if type(value) in (int, float) and abs(value) < 1e4 else value
        for value in operands
    ]


def _is_plain(a: Array, b: Array, out: Array) -> bool:
    """Whether ``np.dot`` hands the product to the same function of BLAS, with less around it.

    What lies with gaps, or has an axis of one element, the two treat differently.
    """
    arrays = (a, b, out)
    return (
        a.ndim + b.ndim == out.ndim + 2
        and out.ndim in (1, 2)
        and all(1 not in array.shape and array.size for array in arrays)
        and all(array.dtype == out.dtype and array.dtype.char in "fd" for array in arrays)
        and all(array.flags.forc for array in (a, b))
        and out.flags.c_contiguous
    )


def _fits(target: Any, value: Any, rest: dict[str, Any]) -> bool:
    """Whether a copy is an assignment: no mask, and no type that NumPy would not copy into."""
    if rest.keys() - {"casting"}:
        return False
    if rest or type(value) in (int, float):
        return rest.get("casting", "unsafe") == "unsafe"
    return isinstance(value, np.ndarray) and np.can_cast(value.dtype, target.dtype, "same_kind")
