"""Arrays, numbers and functions that write down on the tape what is done with them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np

from singanet.program.ir import NotRecordableError, gather, map_arrays, scatter, store
from singanet.program.trace.tape import Tape, current_tape
from singanet.types import Array


class StepScalar:
    """A number whose arithmetic is remembered, so that each replay works it out anew.

    It is no float: what would take its value for good, ``math.sqrt`` or ``if``, is refused and
    so makes the update a Python step. It differs from every number, 1.0 and 0.0 too, so that a
    shortcut for these is not recorded.
    """

    __slots__ = ("_arrays", "compute", "late", "value")

    def __init__(self, compute: Callable[[], float], late: bool = False) -> None:
        self.compute = compute
        # Whether it is known in the middle of a replay only, and not before.
        self.late = late
        self.value = compute()
        self._arrays: dict[np.dtype[Any], Array] = {}

    def array(self, dtype: np.dtype[Any]) -> Array:
        """The array without axes that kernels read it from."""
        if dtype not in self._arrays:
            self._arrays[dtype] = np.asarray(self.value, dtype)
        return self._arrays[dtype]

    @property
    def arrays(self) -> list[Array]:
        """Those that kernels read it from, one for each type."""
        return [*self._arrays.values()]

    def refresh(self) -> None:
        """Work the number out anew, for the kernels of the next replay."""
        value = self.compute()
        for array in self._arrays.values():
            array[()] = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Recorded as for an array that is traced."""
        return record_ufunc(ufunc, method, inputs, keywords)

    def __neg__(self) -> StepScalar:
        return StepScalar(lambda: -self.compute(), self.late)

    def __abs__(self) -> StepScalar:
        return StepScalar(lambda: abs(self.compute()), self.late)


def _operation(function: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def method(self: StepScalar, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        theirs = other.compute if isinstance(other, StepScalar) else lambda: other
        late = self.late or getattr(other, "late", False)
        if swapped:
            return StepScalar(lambda: function(theirs(), self.compute()), late)
        return StepScalar(lambda: function(self.compute(), theirs()), late)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _arithmetic = getattr(operator, _name)
    setattr(StepScalar, f"__{_name}__", _operation(_arithmetic, swapped=False))
    setattr(StepScalar, f"__r{_name}__", _operation(_arithmetic, swapped=True))


def _refused_number(name: str) -> Any:
    def method(self: StepScalar, *_: Any) -> Any:
        raise NotRecordableError(f"{name} of a number that changes from step to step")

    return method


_NUMBER_LOOKS = """
    bool float int complex index round trunc floor ceil lt le gt ge floordiv rfloordiv mod rmod
    divmod rdivmod format
"""
for _name in _NUMBER_LOOKS.split():
    setattr(StepScalar, f"__{_name}__", _refused_number(_name))


def number_now(value: Any) -> float:
    """The number of a `StepScalar`, an array without axes or a number, at the replay under way."""
    return float(value.compute() if isinstance(value, StepScalar) else value)


class Traced(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array whose kernels are recorded while a tape is running.

    Kernels run as they would by themselves; what looks at values on the host, such as ``float``
    or ``if``, raises `NotRecordableError`.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Run and record a universal function."""
        return record_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run and record a function of NumPy's."""
        return record_function(func, args, kwargs)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, **named: Any) -> Any:
        """As NumPy's, which makes means of float16 by that type's constructor: nobody sees it."""
        if dtype is not None or out is not None or self.dtype != np.float16:
            return super().mean(axis, dtype, out, **named)
        return super().mean(axis, np.float32, None, **named).astype(np.float16)

    @staticmethod
    def kernels() -> Any:
        """The ops that serve these arrays: those of the recording."""
        return recording().ops

    # -- what is a copy, or may be ----------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """A view for plain indices, for others a recorded copy."""
        own, key = plain(self), map_arrays(index, plain)
        if _is_basic(key):
            # An ellipsis makes a view of what would be a number.
            key = key if isinstance(key, tuple) else (key,)
            return own[key if Ellipsis in key else (*key, Ellipsis)].view(Traced)
        _expect_no_mask(key)
        result = recording().evaluator.gathered(own, key)
        return new(result, gather, (self, index), "last", "take")

    def __setitem__(self, index: Any, value: Any) -> None:
        """Recorded as a copy into that part."""
        tape = recording()
        value = tape.near(value)
        own, key = plain(self), map_arrays(index, plain)
        if not _is_basic(key):
            if np.ndim(plain(value)):
                _expect_no_mask(key)
            tape.evaluator.run(scatter, own, key, plain(value))
            tape.add(scatter, (index, value), {}, (self,), "first", changes=True, name="put")
            return
        key = key if isinstance(key, tuple) else (key,)
        part = own[key if Ellipsis in key else (*key, Ellipsis)]
        if isinstance(value, np.ndarray) and tape.ref(part) == tape.ref(value):
            # What an operation in place on a part leaves to do.
            return
        tape.evaluator.run(np.copyto, part, plain(value), casting="unsafe")
        tape.add(np.copyto, (value,), {"casting": "unsafe"}, (part,), "first")

    def astype(  # type: ignore[override]
        self,
        dtype: Any,
        order: Any = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        """As NumPy's."""
        if not copy and self.dtype == dtype and order == "K":
            return self
        return self._copied(dtype, order, "copy")

    def copy(self, order: Any = "C") -> Any:
        """As NumPy's."""
        return self._copied(self.dtype, order, "copy")

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """As NumPy's in C order: a view, or a recorded copy."""
        if kwargs.get("order", "C") != "C":
            raise NotRecordableError(f"reshape in order {kwargs['order']}")
        try:
            return plain(self).reshape(*shape, copy=False).view(Traced)
        except ValueError:
            # As NumPy has it for a shape that does not fit, too.
            return plain(self._copied(self.dtype, "C", "reshape")).reshape(*shape).view(Traced)

    def _copied(self, dtype: Any, order: Any, name: str) -> Traced:
        tape = recording()
        result = tape.evaluator.copied(plain(self), dtype, order)
        tape.adopt(result)
        tape.add(
            np.copyto,
            (self,),
            {"casting": "unsafe"},
            (result,),
            "first",
            elementwise=True,
            name=name,
        )
        return result.view(Traced)

    def ravel(self, order: Any = "C") -> Any:
        """As NumPy's, in C order."""
        if order != "C":
            raise NotRecordableError(f"ravel in order {order}")
        return self.reshape(-1)

    def flatten(self, order: Any = "C") -> Any:
        """As NumPy's, in C order."""
        return self.copy().ravel(order)

    def fill(self, value: Any) -> None:
        """As NumPy's."""
        self[...] = value

    def __iter__(self) -> Any:
        """Views of the first axis."""
        return (self[k] for k in range(len(self)))


def _by_function(name: str) -> Any:
    def method(self: Traced, *args: Any, **kwargs: Any) -> Any:
        return record_function(getattr(np, name), (self, *args), kwargs)

    method.__doc__ = "As NumPy's."
    return method


def _refused(name: str) -> Any:
    def method(self: Traced, *args: Any, **kwargs: Any) -> Any:
        raise NotRecordableError(f"{name}, which looks at values")

    method.__doc__ = "Refused: no replay would look again."
    return method


for _name in ("take", "repeat", "argmax", "argmin", "argsort", "cumsum", "dot", "clip", "round"):
    setattr(Traced, _name, _by_function(_name))
_LOOKS = """
    item tolist tobytes tofile dump dumps nonzero compress sort partition argpartition put choose
    searchsorted byteswap resize __bool__ __int__ __float__ __complex__ __index__ __contains__
    __format__ __reduce__ __reduce_ex__ __deepcopy__
"""
for _name in _LOOKS.split():
    setattr(Traced, _name, _refused(_name))


def plain(value: Any) -> Any:
    """``value`` without tracing; other values as they are."""
    if isinstance(value, Traced):
        return value.view(np.ndarray)
    if isinstance(value, StepScalar):
        return value.value
    return value


def traced(tape: Tape, array: Any) -> Traced:
    """``array``, or what stands for it where it is a device's, with its kernels on ``tape``."""
    return tape.near(array).view(Traced)


def recording() -> Tape:
    """The running tape. Raises `NotRecordableError` for an array that outlived its recording."""
    tape = current_tape()
    if tape is None:
        raise NotRecordableError("an array of a recording that has ended")
    return tape


def new(
    result: Array, function: Any, arguments: tuple[Any, ...], place: Any = "out", name: str = ""
) -> Traced:
    """``result``, which a call has just made, as a traced array, and the call on the tape."""
    tape = recording()
    tape.adopt(result)
    tape.add(function, arguments, {}, (result,), place, name=name)
    return result.view(Traced)


def record_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], keywords: Any) -> Any:
    """Run a universal function and write it down with the array to fill."""
    tape = recording()
    outs = keywords.pop("out", ())
    outs = outs if isinstance(outs, tuple) else (outs,)
    operands = _scalars_among(tape, inputs if tape.far is None else tuple(map(tape.near, inputs)))
    if method == "at":
        run = ufunc.at
        tape.evaluator.run(run, *operands)
        tape.add(run, operands[1:], keywords, operands[:1], "first", changes=True)
        return None
    made = tape.evaluator.ufunc(ufunc, method, operands, outs, keywords)
    several = isinstance(made, tuple)
    pairs = zip_longest(made if several else (made,), outs)
    results = [_adopted(tape, result) if out is None else out for result, out in pairs]
    calls = method == "__call__"
    tape.add(
        ufunc if calls else getattr(ufunc, method),
        operands,
        keywords,
        results,
        "out",
        changes=outs != () and "where" in keywords,
        elementwise=calls and ufunc.signature is None,
        name=ufunc.__name__ if calls else f"{ufunc.__name__}.{method}",
    )
    return tuple(results) if several else results[0]


def _adopted(tape: Tape, result: Any) -> Traced:
    array = np.asarray(result)
    tape.adopt(array)
    return array.view(Traced)


def _is_basic(index: Any) -> bool:
    """Whether the index gives a view: integers, slices, None and an ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, slice)
        or (isinstance(part, (int, np.integer)) and not isinstance(part, bool))
        for part in parts
    )


def _expect_no_mask(index: Any) -> None:
    """Refuse a selection by truth values, which is as long as they say."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, (bool, np.bool_)) or np.asarray(part).dtype == bool:
            raise NotRecordableError("a selection by truth values")


def _scalars_among(tape: Tape, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """``operands`` with arrays in the place of numbers that change from step to step."""
    if StepScalar not in map(type, operands):
        return operands
    types = [value.dtype for value in operands if isinstance(value, np.ndarray)]
    if not types or types[0].kind != "f":
        raise NotRecordableError("a number of the step without an array of floats")
    given: list[Any] = []
    for value in operands:
        if isinstance(value, StepScalar):
            if value not in tape.scalars:
                tape.scalars.append(value)
            value = value.array(types[0])
        given.append(value)
    return tuple(given)


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
    tape = recording()
    if func in _SIZED_BY_VALUES or (func is np.where and len(args) == 1):
        raise NotRecordableError(f"{func.__name__}, whose result is as long as the values say")
    if func is np.copyto:
        tape.evaluator.run(func, *args, **kwargs)
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
        tape.evaluator.run(func, *args, **kwargs)
        tape.add(func, args, {k: v for k, v in kwargs.items() if k != "out"}, (out,))
        return out
    if tape.far is not None:
        args, kwargs = map_arrays((args, kwargs), tape.near)
    given, named = map_arrays(args, plain), map_arrays(kwargs, plain)
    if func in _TELL_SHAPES:
        return func(*given, **named)
    if func in _LIKE:
        return filled(tape, func(*given, **named), _LIKE[func])
    return _wrapped(tape, func, tape.evaluator.called(func, given, named), args, kwargs)


def filled(tape: Tape, array: Array, value: Any) -> Any:
    """The new ``array`` of equal values, traced; None for values that nobody reads."""
    tape.adopt(array, fill=value)
    if value is not None:
        tape.add(np.copyto, (value,), {}, (array,), "first", name="fill")
        tape.tokens[-1].writes = 0
    return array.view(Traced)


def _wrapped(
    tape: Tape, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
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
            tape.add(store, (func, args, kwargs), {}, (result,), "first", name=func.__name__)
        return result.view(Traced)
    several = isinstance(result, (list, tuple))
    if several and all(isinstance(part, np.ndarray) and tape.knows(part) for part in result):
        return type(result)(part.view(Traced) for part in result)
    raise NotRecordableError(f"{getattr(func, '__name__', func)}, which looks at values")
