"""NumPy's functions on traced arrays: which make views, which fill an array, which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.program.ir import NotRecordableError
from singanet.program.places import map_arrays
from singanet.program.recording.tape import Tape
from singanet.types import Array

_TELL_SHAPES = frozenset(
    (np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.min_scalar_type,
     np.shares_memory, np.may_share_memory, np.iscomplexobj, np.isrealobj, np.common_type)
)  # fmt: skip
_LIKE: dict[Any, int | None] = {np.empty_like: None, np.zeros_like: 0, np.ones_like: 1}
_TAKE_OUT = frozenset(
    (np.concatenate, np.stack, np.dot, np.clip, np.cumsum, np.cumprod, np.argmax, np.argmin,
     np.mean, np.var, np.std, np.round, np.einsum)
)  # fmt: skip
_REDUCTIONS: dict[Any, np.ufunc] = {
    np.sum: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.amax: np.maximum,
    np.min: np.minimum,
    np.amin: np.minimum,
    np.any: np.logical_or,
    np.all: np.logical_and,
}
_SIZED_BY_VALUES = frozenset(
    (np.unique, np.nonzero, np.flatnonzero, np.argwhere, np.extract, np.compress, np.bincount)
)


def record_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` and write down what fills the arrays that it returns."""
    from singanet.program.recording.traced import plain, recording

    tape = recording()
    given, named = map_arrays(args, plain), map_arrays(kwargs, plain)
    if func in _TELL_SHAPES:
        return func(*given, **named)
    if func in _SIZED_BY_VALUES or (func is np.where and len(args) == 1):
        raise NotRecordableError(f"{func.__name__}, whose result is as long as the values say")
    if func is np.copyto:
        tape.does.run(func, *given, **named)
        tape.add(func, args[1:], kwargs, args[:1], "first", changes="where" in kwargs)
        return None
    if func in _REDUCTIONS and not {"initial", "where", "out"} & kwargs.keys():
        # What these come down to, without their Python.
        axis = args[1] if len(args) > 1 else kwargs.get("axis")
        rest = {key: value for key, value in kwargs.items() if key not in ("a", "axis")}
        array = args[0] if args else kwargs["a"]
        return _REDUCTIONS[func].reduce(array, axis, **rest)
    out = kwargs.get("out")
    if out is not None:
        tape.does.run(func, *given, **named)
        tape.add(func, args, {k: v for k, v in kwargs.items() if k != "out"}, (out,))
        return out
    if func in _LIKE:
        return filled(tape, func(*given, **named), _LIKE[func])
    return _wrapped(tape, func, func(*given, **named), args, kwargs)


def filled(tape: Tape, array: Array, value: Any) -> Any:
    """The new ``array`` of equal values, traced; None for values that nobody reads."""
    from singanet.program.recording.traced import Traced

    tape.adopt(array, fill=value)
    if value is not None:
        tape.add(np.copyto, (value,), {}, (array,), "first", name="fill")
        tape.tokens[-1].writes = 0
    return array.view(Traced)


def _wrapped(
    tape: Tape, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from singanet.program.recording.traced import Traced

    if isinstance(result, np.generic):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        if tape.knows(result):
            return result.view(Traced)
        if not result.flags.owndata:
            result = result.copy(order="K")
        tape.adopt(result)
        if func is np.where:
            chosen, yes, no = args
            tape.add(np.copyto, (no,), {}, (result,), "first", name="where")
            rest = {"where": chosen}
            tape.add(np.copyto, (yes,), rest, (result,), "first", changes=True, name="where")
        elif func in _TAKE_OUT:
            tape.add(func, args, kwargs, (result,), "out")
        else:
            tape.add(_store, (func, args, kwargs), {}, (result,), "first", name=func.__name__)
        return result.view(Traced)
    several = isinstance(result, (list, tuple))
    if several and all(isinstance(part, np.ndarray) and tape.knows(part) for part in result):
        return type(result)(part.view(Traced) for part in result)
    raise NotRecordableError(f"{getattr(func, '__name__', func)}, which looks at values")


def _store(out: Array, func: Any, args: Any, kwargs: Any) -> None:
    """Keep what ``func`` returns; for functions that cannot fill an array."""
    np.copyto(out, func(*args, **kwargs))
