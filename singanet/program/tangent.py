"""Tangents of a program's calls.

A rule gives the tangent of a function's result: the sum over its array operands of the partial
derivative times the operand's tangent. Comparisons and functions without float results have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from singanet.program.ir import (
    Call,
    NotRecordableError,
    Ref,
    gather,
    map_arrays,
    map_leaves,
    refs_of,
    scatter,
    store,
    take_rows,
)
from singanet.program.trace.tape import Tape
from singanet.types import Array

__all__: list[str] = []


Rule: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[Any], Any]], Any]
"""``rule(function, arguments, keywords, tangent)``, the function in the form of the arrays' module.

``tangent`` gives zeros for a constant, and an array that is none of floats as it is."""

Partial: TypeAlias = Callable[..., Any]


def _side(x: Any) -> Any:
    """1 from zero on, -1 below: the derivative of |x| to the right.

    With `np.maximum`, whose first operand counts, kernels that meet at zero without a kink, such as
    max(x, 0) + log(1 + exp(-|x|)), have their derivative there.
    """
    side = np.where(x >= 0, 1.0, -1.0)
    return side.astype(x.dtype, copy=False) if moves(x) else side


_PARTIALS: dict[Any, Sequence[Partial]] = {
    np.add: (lambda x, y: 1.0, lambda x, y: 1.0),
    np.subtract: (lambda x, y: 1.0, lambda x, y: -1.0),
    np.multiply: (lambda x, y: y, lambda x, y: x),
    np.divide: (lambda x, y: 1.0 / y, lambda x, y: -x / np.square(y)),
    np.power: (lambda x, y: y * np.power(x, y - 1.0), lambda x, y: np.log(x) * np.power(x, y)),
    # As in backward, the first of equal operands counts.
    np.maximum: (lambda x, y: x >= y, lambda x, y: x < y),
    np.minimum: (lambda x, y: x <= y, lambda x, y: x > y),
    np.fmax: (lambda x, y: x >= y, lambda x, y: x < y),
    np.fmin: (lambda x, y: x <= y, lambda x, y: x > y),
    np.arctan2: (lambda x, y: y / (x * x + y * y), lambda x, y: -x / (x * x + y * y)),
    np.hypot: (lambda x, y: x / np.hypot(x, y), lambda x, y: y / np.hypot(x, y)),
    np.logaddexp: (
        lambda x, y: np.exp(x - np.logaddexp(x, y)),
        lambda x, y: np.exp(y - np.logaddexp(x, y)),
    ),
    np.copysign: (lambda x, y: _side(x) * _side(y), lambda x, y: 0.0),
    np.negative: (lambda x: -1.0,),
    np.positive: (lambda x: 1.0,),
    np.absolute: (lambda x: _side(x),),
    np.square: (lambda x: 2.0 * x,),
    np.sqrt: (lambda x: 0.5 / np.sqrt(x),),
    np.cbrt: (lambda x: 1.0 / (3.0 * np.square(np.cbrt(x))),),
    np.reciprocal: (lambda x: -1.0 / np.square(x),),
    np.exp: (np.exp,),
    np.exp2: (lambda x: np.log(2.0) * np.exp2(x),),
    np.expm1: (np.exp,),
    np.log: (lambda x: 1.0 / x,),
    np.log2: (lambda x: 1.0 / (np.log(2.0) * x),),
    np.log10: (lambda x: 1.0 / (np.log(10.0) * x),),
    np.log1p: (lambda x: 1.0 / (1.0 + x),),
    np.tanh: (lambda x: 1.0 - np.square(np.tanh(x)),),
    np.sinh: (np.cosh,),
    np.cosh: (np.sinh,),
    np.sin: (np.cos,),
    np.cos: (lambda x: -np.sin(x),),
    np.arctan: (lambda x: 1.0 / (1.0 + np.square(x)),),
}
"""The partial derivatives of functions of single elements, by operand."""

_STEPS = frozenset((np.sign, np.floor, np.ceil, np.rint, np.trunc, np.heaviside))
"""Functions that are constant wherever they have a derivative."""


def moves(operand: Any) -> bool:
    """Whether it is an array of floats: masks and indices have no tangents."""
    dtype = getattr(operand, "dtype", None)
    return dtype is not None and dtype.kind == "f" and not isinstance(operand, np.generic)


def _by_partials(partials: Sequence[Partial]) -> Rule:
    def rule(function: Any, arguments: Any, keywords: Any, tangent: Any) -> Any:
        total: Any = 0.0
        for operand, derivative in zip(arguments, partials, strict=True):
            if moves(operand):
                total = total + derivative(*arguments) * tangent(operand)
        return total

    return rule


def _linear(function: Any, arguments: Any, keywords: Any, tangent: Any) -> Any:
    """Functions that are linear in all their floats together."""
    return function(*map_arrays(arguments, tangent), **keywords)


def _multilinear(function: Any, arguments: Any, keywords: Any, tangent: Any) -> Any:
    """Products, linear in each operand: one operand at a time gives way to its tangent."""
    total: Any = 0.0
    for k, operand in enumerate(arguments):
        if moves(operand):
            replaced = (*arguments[:k], tangent(operand), *arguments[k + 1 :])
            total = total + function(*replaced, **keywords)
    return total


def _extreme(function: Any, arguments: Any, keywords: Any, tangent: Any) -> Any:
    """The largest or smallest: the tangent at its position, the mean over several positions."""
    x, *rest = arguments
    axis = rest[0] if rest else keywords.get("axis", 0)
    where = x == function(x, axis, keepdims=True)
    total = np.where(where, tangent(x), 0.0).sum(axis) / where.sum(axis)
    return total.reshape(function(*arguments, **keywords).shape)


def _clipped(function: Any, arguments: Any, keywords: Any, tangent: Any) -> Any:
    x, low, high = arguments
    inside = np.ones_like(x, bool)
    for bound, beyond in ((low, np.less), (high, np.greater)):
        if bound is not None:
            inside &= ~beyond(x, bound)
    return np.where(inside, tangent(x), 0.0)


_LINEAR = (
    np.concatenate, np.stack, np.sum, np.mean, np.repeat, np.take, np.cumsum, np.tile, np.roll,
    np.flip, np.add.reduce, np.add.accumulate, np.add.reduceat, np.take_along_axis, np.tril,
    np.triu, np.diff, np.trace, np.diagonal, np.broadcast_to, np.ascontiguousarray,
)  # fmt: skip
_PRODUCTS = (np.matmul, np.dot, np.einsum, np.tensordot, np.outer, np.inner, np.vdot)
_EXTREMES = (np.maximum.reduce, np.minimum.reduce)

_RULES: list[tuple[Any, Rule]] = [
    *((function, _by_partials(partials)) for function, partials in _PARTIALS.items()),
    *((function, _linear) for function in _LINEAR),
    *((function, _multilinear) for function in _PRODUCTS),
    *((function, _extreme) for function in _EXTREMES),
    (np.clip, _clipped),
]


def rule_of(function: Any) -> Rule | None:
    """The rule of ``function``, if there is one."""
    # Methods of universal functions are made anew at each look, and equal.
    return next((rule for known, rule in _RULES if known == function), None)


def is_constant(function: Any) -> bool:
    """Whether the derivative of ``function`` is zero wherever it exists."""
    return function in _STEPS


class TangentRun:
    """Runs the calls of ``tape`` in order; tangents start at the arrays of ``seeds``.

    Arrays that no seed has reached have no tangent. The result of a call is freed after its last
    reader.
    """

    def __init__(self, tape: Tape, seeds: Iterable[tuple[Array, Array]]) -> None:
        self.tape = tape
        self._xp: Any = tape.backend.xp
        self._memory: dict[int, Array] = {}
        self._tangents: dict[int, Array] = {}
        self._last: dict[int, int] = {}
        for at, call in enumerate(tape.calls):
            self._last.update(dict.fromkeys((*call.reads, *call.writes), at))
        for array, vector in seeds:
            self._tangent_at(tape.ref(array))[...] = vector

    def run(self) -> Iterator[Call]:
        """Run the calls; yield each mark after the calls before it."""
        frees: dict[int, list[int]] = {}
        for token, at in self._last.items():
            frees.setdefault(at, []).append(token)
        for at, call in enumerate(self.tape.calls):
            if call.function is None:
                yield call
            else:
                self._make(call)
            for token in frees.get(at, ()):
                self._memory.pop(token, None)
                self._tangents.pop(token, None)

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        if self.tape.tokens[ref.token].held is not None:
            return self.tape.lowering.outside({ref: self.tape.outside[ref]})[ref]
        return self._lies(ref, self._memory)

    def tangent(self, ref: Ref) -> Array:
        """The tangent of the array at ``ref``; zeros if there is none."""
        if ref.token in self._tangents:
            return self._tangent_at(ref)
        zeros: Array = self._xp.zeros(ref.shape, ref.dtype)
        return zeros

    def _tangent_at(self, ref: Ref) -> Array:
        return self._lies(ref, self._tangents)

    def _lies(self, ref: Ref, memory: dict[int, Array]) -> Array:
        """The array at ``ref``, whose token is in ``memory`` from its first use on."""
        token = ref.token
        if token not in memory:
            memory[token] = self._xp.zeros(self.tape.tokens[token].nbytes, np.uint8)
        return self.tape.lowering.array(ref, memory[token], 0)

    def _make(self, call: Call) -> None:
        """Run ``call`` after computing its tangent, as it may overwrite its inputs."""
        moved = any(ref.token in self._tangents for ref in refs_of(call))
        if call.name == "sum rows":
            # Its only output is its source, from which only tangents are read.
            indices, rows = call.arguments
            call.function(self.array(indices), self.tangent(rows))  # type: ignore[misc]
            return
        changes = self._changes(call) if moved and call.writes else []
        with np.errstate(all="ignore"):
            self.tape.lowering.once(call, self.array)
        for ref, value, where in changes:
            if where is True:
                self._tangent_at(ref)[...] = value
            else:
                self._xp.copyto(self._tangent_at(ref), value, where=where)

    def _filled(self, value: Any, change: Any) -> Any:
        return map_leaves(value, Ref, change)

    def _changes(self, call: Call) -> list[tuple[Ref, Any, Any]]:
        """The places that ``call`` fills, each with its tangent and the mask of elements."""
        outs = _out_of(call)
        if outs is None:
            raise _no_rule(call)
        outs = [ref for ref in outs if ref.dtype.kind == "f"]
        if not outs:
            return []
        function, arguments, keywords = call.function, call.arguments, dict(call.keywords)
        if len(outs) > 1:
            raise _no_rule(call)
        (out,) = outs
        where: Any = True
        if function is np.copyto:
            (source,) = arguments[1:]
            where = self._filled(keywords.get("where", True), self.array)
            value = self.tangent(source).copy() if isinstance(source, Ref) else 0.0
            return [(out, value, where)]
        if function is scatter:
            _, index, value = arguments
            whole = self.tangent(out).copy()
            given = self.tangent(value) if isinstance(value, Ref) else 0.0
            whole[self._filled(index, self.array)] = given
            return [(out, whole, True)]
        if function is gather:
            array, index, _ = arguments
            return [(out, self.tangent(array)[self._filled(index, self.array)], True)]
        if function is take_rows:
            table, indices, _ = arguments
            return [(out, self.tangent(table)[self.array(indices)], True)]
        if function is store:
            _, function, arguments, keywords = arguments
        keywords.pop("out", None)
        where = self._filled(keywords.pop("where", True), self.array)
        return [(out, self._by_rule(call, function, arguments, keywords), where)]

    def _by_rule(self, call: Call, function: Any, arguments: Any, keywords: Any) -> Any:
        if is_constant(function):
            return 0.0
        rule = rule_of(function)
        if rule is None:
            raise _no_rule(call)
        tangents: dict[int, Ref] = {}

        def filled(ref: Ref) -> Array:
            # A separate array object for each place identifies its tangent.
            array = self.array(ref).view()
            tangents[id(array)] = ref
            return array

        arguments, keywords = self._filled((arguments, keywords), filled)

        def tangent(array: Array) -> Array:
            ref = tangents.get(id(array))
            return self.tangent(ref) if ref is not None and moves(array) else array

        function, keywords = self.tape.lowering.returning(function, keywords)
        with np.errstate(all="ignore"):
            return rule(function, arguments, keywords, tangent)


def _no_rule(call: Call) -> NotRecordableError:
    return NotRecordableError(f"{call.name!r} in {call.layer!r}, which has no known derivative")


def _out_of(call: Call) -> list[Ref] | None:
    """The places that ``call`` fills; None if they are not known among its arguments."""
    out = call.keywords.get("out")
    if call.function in (np.copyto, scatter, store):
        out = call.arguments[0]
    elif call.function in (gather, take_rows):
        out = call.arguments[-1]
    return None if out is None else list(out) if type(out) is tuple else [out]
