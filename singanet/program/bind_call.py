"""Calls made ready: in the form that NumPy runs in the least time, to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from singanet.program.array_tree import map_leaves
from singanet.program.ir import Call, Ref
from singanet.types import Array

Ready = Callable[[], object]

_OUT_BY_NAME = frozenset((np.maximum, np.minimum))
"""Functions that NumPy warns of where what they fill has no keyword."""

_OF_NUMPY = (np.ufunc, BuiltinFunctionType)

_REDUCING = ("axis", "dtype", "out", "keepdims")
_BY_DEFAULT = (0, None, None, False)


def ready_call(call: Call, array_of: Callable[[Ref], Array]) -> Ready:
    """``call`` on the arrays at its refs."""
    if call.bind is not None:
        return call.bind(array_of)
    assert call.function is not None
    given = tuple([_filled(value, array_of) for value in call.arguments])
    named = {key: _filled(value, array_of) for key, value in call.keywords.items()}
    return ready(call.function, given, named)


def chained(calls: Iterable[Ready]) -> list[Ready]:
    """The functions that ``calls`` consist of, in order and without calls that do nothing.

    Keep the calls as long as these functions, which use memory objects of theirs.
    """
    made: list[Ready] = []
    threads = 0
    for call in calls:
        after = getattr(call, "after", None)
        if after is not None:
            made += after(threads)
            # One without threads leaves them as they are.
            threads = call.threads or threads  # type: ignore[attr-defined]
        elif call is not _nothing:
            made.append(call)
            # What is not NumPy's may run kernels of its own.
            of_numpy = isinstance(call, partial) and isinstance(call.func, _OF_NUMPY)
            threads = threads if of_numpy else 0
    return made


def _filled(value: Any, array_of: Callable[[Ref], Array]) -> Any:
    return array_of(value) if type(value) is Ref else map_leaves(value, Ref, array_of)


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
    if function is np.positive and _is_same(arguments[0], outs[0]):
        return _nothing
    operands = _with_arrays(function, arguments)
    if function in _OUT_BY_NAME:
        return partial(function, *operands, out=outs)
    return partial(function, *operands, *outs)


def _nothing() -> None:
    """A copy of what lies there already."""


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays are the same elements in memory."""
    return a.__array_interface__ == b.__array_interface__


def _with_arrays(function: np.ufunc, operands: tuple[Any, ...]) -> list[Any]:
    """``operands`` with arrays in the place of numbers, which NumPy would convert in each call."""
    types = [value.dtype for value in operands if isinstance(value, np.ndarray)]
    if len(types) in (0, len(operands)) or any(each != types[0] for each in types):
        return list(operands)
    kind = types[0]
    if kind.kind != "f" or not _takes_alike(function, kind.char):
        return list(operands)
    return [
        np.asarray(value, kind) if type(value) in (int, float) and abs(value) < 1e4 else value
        for value in operands
    ]


@cache
def _takes_alike(function: np.ufunc, char: str) -> bool:
    """Whether all operands may be of that type: some take an integer beside the floats."""
    return any(loop.startswith(char * function.nin + "->") for loop in function.types)


def _is_plain(a: Array, b: Array, out: Array) -> bool:
    """Whether ``np.dot`` hands the product to the same function of BLAS, with less around it.

    What lies with gaps, or has an axis of one element, the two treat differently.
    """
    return (
        a.ndim + b.ndim == out.ndim + 2
        and out.ndim in (1, 2)
        and {0, 1}.isdisjoint((*a.shape, *b.shape, *out.shape))
        and out.dtype.char in "fd"
        and a.dtype == b.dtype == out.dtype
        and a.flags.forc
        and b.flags.forc
        and out.flags.c_contiguous
    )


def _fits(target: Any, value: Any, rest: dict[str, Any]) -> bool:
    """Whether a copy is an assignment: no mask, and no type that NumPy would not copy into."""
    if rest.keys() - {"casting"}:
        return False
    if rest or type(value) in (int, float):
        return rest.get("casting", "unsafe") == "unsafe"
    return isinstance(value, np.ndarray) and np.can_cast(value.dtype, target.dtype, "same_kind")
