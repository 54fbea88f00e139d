"""Functions of a device, and calls fused into one.

Each element goes through all calls in registers, without reads of intermediate arrays. The bits are
the same as for single calls, since every product is rounded before it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singanet.base.heap import address
from singanet.program.ir import NotRecordableError, gather, scatter, store, take_rows
from singanet.types import Array, Shape

_REDUCTIONS = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "amax",
    np.minimum: "amin",
    np.logical_or: "any",
    np.logical_and: "all",
}
_FILL_NOTHING = frozenset((np.einsum,))
"""Functions that return a new array and cannot fill one."""

_TAKEN = {
    "copyto": {"casting", "where"},
    "sum": {"axis", "dtype", "out", "keepdims"},
    "prod": {"axis", "dtype", "out", "keepdims"},
    "amax": {"axis", "out", "keepdims"},
    "amin": {"axis", "out", "keepdims"},
    "any": {"axis", "out", "keepdims"},
    "all": {"axis", "out", "keepdims"},
}
"""The supported keywords of functions; element-wise functions support ``out`` alone."""


_USUAL = ("where", True), ("subok", False), ("keepdims", False), ("dtype", None), ("initial", None)

Lowered = tuple[Callable[..., Any], dict[str, Any]]
"""A function of the device's module, and its keyword arguments."""


def on_device(xp: Any, function: Any, named: Mapping[str, Any]) -> Lowered | None:
    """The form of NumPy's ``function``, given ``named``, over ``xp``; None for any other function.

    Raises `NotRecordableError` if the module lacks it.
    """
    given = {key: value for key, value in named.items() if not _is_usual(key, value)}
    if function in (gather, scatter):
        return function, given
    if function is store:
        return _storing(xp), given
    if function is take_rows:
        return _taking(xp), given
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc):
        return _method(xp, owner, function, given)
    if isinstance(function, np.ufunc):
        return _found(xp, function.__name__, given, {"out", "dtype", "casting"}), given
    if function in _FILL_NOTHING:
        return _filling(getattr(xp, function.__name__)), given
    if getattr(function, "__module__", "").partition(".")[0] == "numpy":
        return _found(xp, function.__name__, given, _TAKEN.get(function.__name__)), given
    return None


def returning(xp: Any, function: Any, named: Mapping[str, Any]) -> Lowered:
    """The form of `on_device` that returns its result.

    Raises `NotRecordableError` if the module lacks it.
    """
    given = {key: value for key, value in named.items() if not _is_usual(key, value)}
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, np.ufunc):
        return _found(xp, function.__name__, given, None), given
    if function.__name__ != "reduce" or owner not in _REDUCTIONS:
        raise NotRecordableError(f"{owner.__name__}.{function.__name__} on a device")
    return partial(_reduced, _found(xp, _REDUCTIONS[owner], given, None)), given


def _reduced(function: Callable[..., Any], array: Array, axis: Any = 0, **named: Any) -> Any:
    return function(array, axis, **named)


def _is_usual(key: str, value: Any) -> bool:
    """Whether it is as if the argument were not given."""
    return any(key == name and value is usual for name, usual in _USUAL)


def _method(xp: Any, owner: np.ufunc, method: Any, given: dict[str, Any]) -> Lowered:
    name = method.__name__
    if name == "reduce" and owner in _REDUCTIONS:
        reduced = _REDUCTIONS[owner]
        if reduced in ("any", "all") and np.dtype(given.get("dtype", bool)) == np.bool_:
            # They return no other type.
            given.pop("dtype", None)
        return _reducing(_found(xp, reduced, given, _TAKEN[reduced])), given
    if name == "at":
        return getattr(xp, owner.__name__).at, given
    raise NotRecordableError(f"{owner.__name__}.{name} on a device")


def _found(
    xp: Any, name: str, given: Mapping[str, Any], taken: set[str] | None
) -> Callable[..., object]:
    found: Callable[..., object] | None = getattr(xp, name, None)
    if found is None or (taken is not None and not given.keys() <= taken):
        raise NotRecordableError(f"{name} with {', '.join(given)} on a device")
    return found


def _reducing(function: Callable[..., object]) -> Callable[..., object]:
    """A reduction with the defaults of NumPy's methods: along the first axis."""

    def reduce(array: Array, axis: Any = 0, dtype: Any = None, **named: Any) -> None:
        function(array, axis, **named) if dtype is None else function(array, axis, dtype, **named)

    return reduce


def _filling(function: Callable[..., Any]) -> Callable[..., object]:
    def fill(*given: Any, out: Array, **named: Any) -> None:
        out[...] = function(*given, **named)

    return fill


def _storing(xp: Any) -> Callable[..., object]:
    def keep(out: Array, function: Any, given: Any, named: Any) -> None:
        out[...] = getattr(xp, function.__name__)(*given, **named)

    return keep


def _taking(xp: Any) -> Callable[..., object]:
    def take(table: Array, indices: Array, out: Array) -> None:
        xp.take(table, indices, 0, out)

    return take


_MOST = 24
"""The maximum calls of a kernel, and arrays that it reads and writes."""

_FLOAT, _TRUTH = np.dtype(np.float32), np.dtype(bool)
_TYPES = {_FLOAT: "float", _TRUTH: "bool"}

_OF_ONE = {
    np.positive: "{0}",
    np.negative: "-{0}",
    np.absolute: "fabsf({0})",
    np.square: "{0} * {0}",
    np.sqrt: "sqrtf({0})",
    np.exp: "expf({0})",
    np.log: "logf({0})",
    np.log1p: "log1pf({0})",
    np.tanh: "tanhf({0})",
    np.reciprocal: "1.0f / {0}",
}
_OF_TWO = {
    np.add: "{0} + {1}",
    np.subtract: "{0} - {1}",
    np.multiply: "{0} * {1}",
    np.divide: "{0} / {1}",
    # A NaN stays NaN.
    np.maximum: "{0} > {1} || isnan({0}) ? {0} : {1}",
    np.minimum: "{0} < {1} || isnan({0}) ? {0} : {1}",
}
_COMPARING = {
    np.greater: "{0} > {1}",
    np.greater_equal: "{0} >= {1}",
    np.less: "{0} < {1}",
    np.less_equal: "{0} <= {1}",
    np.equal: "{0} == {1}",
    np.not_equal: "{0} != {1}",
}
_OF_TRUTHS = {
    np.logical_and: "{0} && {1}",
    np.logical_or: "{0} || {1}",
    np.logical_not: "!{0}",
}


class Element(NamedTuple):
    """A call of an element-wise ``function``, or of `np.copyto`, that fills ``out``.

    With ``where``, a boolean array, other elements of ``out`` do not change.
    """

    function: Any
    operands: tuple[Any, ...]
    out: Any
    where: Any = None


class Register(NamedTuple):
    """An element: the numbers of the values that it is computed from, and whether it is boolean."""

    function: Any
    code: str
    values: tuple[int, ...]
    truth: bool


class Stretch(NamedTuple):
    """The address and layout of an array."""

    at: int
    shape: Shape
    strides: Shape
    dtype: str

    @property
    def end(self) -> int:
        """The byte after its last element."""
        reach = sum(s * (n - 1) for n, s in zip(self.shape, self.strides, strict=True))
        return self.at + (reach + np.dtype(self.dtype).itemsize if prod(self.shape) else 0)

    def meets(self, other: Stretch) -> bool:
        """Whether the two may have bytes in common."""
        return self.at < other.end and other.at < self.end


class Fused:
    """Consecutive calls that fill arrays of one shape and can run as one."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.given: list[Any] = []
        # Values: the inputs, then the results of steps; and the present value of each place.
        self.steps: list[Register] = []
        self._truths: list[bool] = []
        self._known: dict[Stretch, int] = {}
        self._written: dict[Stretch, Any] = {}

    def take(self, call: Element) -> bool:
        """Add the call, if it can run together with the calls so far."""
        made = self._fitted(call)
        if made is None:
            return False
        place, step, more = made
        self.given += [value for _, value, _ in more]
        # Steps are numbered after the inputs, whose number may still grow.
        self._add_inputs(more)
        self.steps.append(step)
        self._written[place] = call.out
        self._known[place] = -len(self.steps)
        return True

    def _add_inputs(self, more: Iterable[tuple[Stretch | None, Any, bool]]) -> None:
        for place, _, truth in more:
            if place is not None:
                self._known[place] = len(self._truths)
            self._truths.append(truth)

    def _fitted(
        self, call: Element
    ) -> tuple[Stretch, Register, list[tuple[Stretch | None, Any, bool]]] | None:
        """The output's place, the step, and the further inputs: place, value, whether boolean."""
        out = _place(call.out)
        if out is None or call.out.shape != self.shape or len(self.steps) == _MOST:
            return None
        operands = call.operands if call.where is None else (*call.operands, call.where, call.out)
        more: list[tuple[Stretch | None, Any, bool]] = []
        values, truths = [], []
        for operand in operands:
            found = self._value(operand, more)
            if found is None:
                return None
            value, truth = found
            values.append(value)
            truths.append(truth)
        if len(self.given) + len(more) + len(self._written) >= _MOST:
            return None
        read = [place for place, _, _ in more if place is not None]
        known = [*self._known, *read]
        if any(out.meets(place) and out != place for place in known):
            return None
        if any(place.meets(other) for place in read for other in self._written):
            return None
        code = _code(call, truths, call.out.dtype == _TRUTH)
        if code is None:
            return None
        return out, Register(call.function, code, tuple(values), call.out.dtype == _TRUTH), more

    def _value(
        self, operand: Any, more: list[tuple[Stretch | None, Any, bool]]
    ) -> tuple[int, bool] | None:
        """The number of the value, and whether it is boolean."""
        count = len(self._truths)
        if type(operand) in (int, float, np.float32):
            more.append((None, np.float32(operand), False))
            return count + len(more) - 1, False
        place = _place(operand)
        if place is None or len(place.shape) > len(self.shape):
            return None
        if place in self._known:
            value = self._known[place]
            return value, self._truths[value] if value >= 0 else self.steps[-value - 1].truth
        for number, (other, _, truth) in enumerate(more):
            if other == place:
                return count + number, truth
        more.append((place, operand, operand.dtype == _TRUTH))
        return count + len(more) - 1, operand.dtype == _TRUTH

    @property
    def outs(self) -> list[Any]:
        """The arrays that are filled, each once."""
        return list(self._written.values())

    def source(self) -> tuple[str, str, str]:
        """The inputs, outputs and operation of an `ElementwiseKernel`."""
        given = [f"{'bool' if t else 'float32'} a{k}" for k, t in enumerate(self._truths)]
        last = [(-self._known[place] - 1, out) for place, out in self._written.items()]
        filled = [f"{'bool' if self.steps[n].truth else 'float32'} b{k}" for k, (n, _) in
                  enumerate(last)]  # fmt: skip
        # All inputs are read before any output is written: they may be the same arrays.
        lines = [f"{'bool' if t else 'float'} x{k} = a{k};" for k, t in enumerate(self._truths)]
        for number, step in enumerate(self.steps):
            names = [f"x{v}" if v >= 0 else f"y{-v - 1}" for v in step.values]
            kind = "bool" if step.truth else "float"
            lines.append(f"{kind} y{number} = {step.code.format(*names)};")
        lines += [f"b{k} = y{number};" for k, (number, _) in enumerate(last)]
        return ", ".join(given), ", ".join(filled), "\n".join(lines)

    def by_functions(self, xp: Any) -> Callable[[], None]:
        """The same by the functions of ``xp``, for arrays without CUDA."""
        last = [(-self._known[place] - 1, out) for place, out in self._written.items()]

        def run() -> None:
            made: list[Any] = []
            for step in self.steps:
                values = [self.given[v] if v >= 0 else made[-v - 1] for v in step.values]
                if step.function is np.copyto:
                    value = (
                        values[0] if len(values) == 1 else xp.where(values[1], values[0], values[2])
                    )
                else:
                    value = getattr(xp, step.function.__name__)(*values)
                full = xp.empty(self.shape, _TRUTH if step.truth else _FLOAT)
                full[...] = value
                made.append(full)
            for number, out in last:
                out[...] = made[number]

        return run

    def by_cuda(self, cupy: Any) -> Callable[[], None]:
        """One kernel of CUDA's."""
        kernel, arrays = _kernel(cupy, *self.source()), (*self.given, *self.outs)
        return lambda: kernel(*arrays)


def fused(
    calls: Sequence[tuple[Element | None, Callable[[], object]]],
    together: Callable[[Fused], Callable[[], object]],
) -> Iterator[Callable[[], object]]:
    """The calls, with groups of element-wise calls joined by ``together``."""
    group: Fused | None = None
    members: list[Callable[[], object]] = []

    def ended() -> Iterator[Callable[[], object]]:
        if group is not None and len(members) > 1:
            yield together(group)
        else:
            yield from members

    for element, call in calls:
        if element is not None and group is not None and group.take(element):
            members.append(call)
            continue
        yield from ended()
        group, members = None, []
        if element is not None:
            group = Fused(element.out.shape)
            if group.take(element):
                members = [call]
                continue
            group = None
        yield call
    yield from ended()


def _code(call: Element, truths: Sequence[bool], truth: bool) -> str | None:
    """The expression of a call whose values are boolean as in ``truths``; None if unsupported."""
    function = call.function
    if function is np.copyto:
        if truth and not truths[0]:
            return None
        return "{0}" if call.where is None else "{1} ? {0} : {2}"
    if function in _OF_TRUTHS:
        return _OF_TRUTHS[function] if truth and all(truths) else None
    if function in _COMPARING:
        return _COMPARING[function] if truth and not any(truths) else None
    if truth or all(truths):
        return None
    if function in _OF_ONE:
        return _OF_ONE[function]
    return _OF_TWO.get(function)


def _place(array: Any) -> Stretch | None:
    """The place of an array that a kernel may read; None for any other value."""
    if getattr(array, "dtype", None) not in _TYPES or not hasattr(array, "strides"):
        return None
    if isinstance(array, np.generic) or any(stride < 0 for stride in array.strides):
        return None
    return Stretch(address(array), array.shape, array.strides, array.dtype.str)


@cache
def _kernel(cupy: Any, given: str, filled: str, operation: str) -> Any:
    return cupy.ElementwiseKernel(
        given, filled, operation, "fused", options=("--fmad=false",), no_return=True
    )
