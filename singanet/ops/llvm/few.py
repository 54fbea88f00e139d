"""Run products, attention and arithmetic of few rows by functions compiled with LLVM.

Such are the steps of a decoder: time goes into reading weights and keys, and into calls. Arithmetic
of many rows goes into reading and writing arrays, which NumPy does for each operation.
"""

from __future__ import annotations

import weakref
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.heap import address
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import NativeCall, compiled_call
from singanet.ops.compiled.sizes import LANES, OUTPUTS, TOGETHER
from singanet.ops.kernel import Route
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import CompiledPlan, Crew
from singanet.ops.narrow import PANEL, NarrowMatrix
from singanet.ops.window import Attention
from singanet.ops.workers import cuts, shared
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_F32 = np.dtype(np.float32)


@lru_cache(maxsize=64)
def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


SCORES = 1 << 13
"""Scores from which a kernel of their softmax is faster than NumPy's calls."""
_FEW = 4
"""Rows up to which the time goes into reading the matrix."""
_SOME, _OF_LINES = 16, 8
"""Rows up to which reading takes as long as arithmetic, and up to which lines are added."""
_BLOCK = 1 << 17
"""Bytes of a matrix that stay in the second cache."""
_PARTS, _PART = (8, 4, 2, 1), 1 << 16
"""The most parts in which lines of a matrix are added, and the least bytes of one.

Sizes alone determine them, so that results do not depend on the number of threads.
"""
_READ_LEAST = 1 << 12
"""Elements of a matrix from which a compiled product is faster than NumPy's call."""
_LINE = 1 << 13
"""Products that stay in the nearest cache; BLAS reads longer lines well."""


def _few_fit(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None = None, out: Array | None = None
) -> bool:
    rest = [each for each in (bias, out) if each is not None]
    return (
        ops.few
        and not isinstance(weight, NarrowMatrix)
        and weight.size >= _READ_LEAST
        and x.ndim == weight.ndim == 2
        and 0 < len(x) <= _SOME
        and x.shape[1] == len(weight)
        and not ops.narrow
        and ops.serves(1, x, weight, *rest)
        and (out is None or (out.flags.c_contiguous and out.shape == (len(x), weight.shape[1])))
        and has_compiler()
        and _orders_fit(len(x), weight)
    )


def _orders_fit(rows: int, weight: Array) -> bool:
    (inputs, outputs), transposed = weight.shape, not weight.flags.c_contiguous
    if transposed and not weight.flags.f_contiguous:
        return False
    if _are_some(rows, inputs, outputs, transposed):
        return True
    return rows <= _FEW and (transposed or rows * outputs <= _LINE)


def _are_some(rows: int, inputs: int, outputs: int, transposed: bool) -> bool:
    """Whether sums of several rows stay in registers."""
    fits = inputs % LANES == 0 and outputs >= OUTPUTS if transposed else outputs % PANEL == 0
    return rows > 2 and fits


@cache
def _is_wide() -> bool:
    from singanet.ops.compiled import engine

    return engine.is_wide()


def _few(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None = None, out: Array | None = None
) -> Array | None:
    y: Array = ops.xp.empty((len(x), weight.shape[1]), np.float32) if out is None else out
    transposed = not weight.flags.c_contiguous
    given = weight.T if transposed else weight, y, ops.ordered(x)
    if not ops.runs(_few_product, (len(x), *weight.shape, transposed), *given):
        return None
    return y if bias is None else ops.add(y, bias, out=y)


def _few_product(
    crew: Crew, rows: int, inputs: int, outputs: int, transposed: bool
) -> CompiledPlan:
    """Operands: the matrix, the products, the rows."""
    if _are_some(rows, inputs, outputs, transposed):
        return _some_product(crew, rows, inputs, outputs, transposed)
    size = _F32.itemsize * inputs * outputs
    vectors, rest = divmod(outputs, LANES)
    numbers: tuple[int, ...] = inputs, outputs
    counts: tuple[int, ...] = (outputs if transposed else vectors + 1,)
    if transposed or rest:
        function, scratch = _rows_function("rows_product", rows, transposed), 0
    else:
        together = next(k for k in TOGETHER if vectors % k == 0)
        parts = next(k for k in _PARTS if k * _PART <= size or k == 1)
        numbers, counts = (inputs, outputs, parts), (parts, vectors // together)
        function = _rows_function("parts_product", rows, together)
        scratch = _F32.itemsize * parts * rows * outputs
    stages = shared(numbers, counts, crew.threads)
    return CompiledPlan(crew, function, stages, (0, 2), (1,), scratch, size, len(counts))


def _some_product(
    crew: Crew, rows: int, inputs: int, outputs: int, transposed: bool
) -> CompiledPlan:
    parts = -(-outputs // OUTPUTS) if transposed else outputs // PANEL
    numbers: tuple[int, ...] = inputs, outputs
    if transposed:
        function = _rows_function("transposed_product", rows, _is_wide())
    elif rows <= _OF_LINES and not _is_wide():
        function = _rows_function("lines_product", rows)
    else:
        function = _rows_function("panels_product", rows, _is_wide())
        numbers = *numbers, max(1, _BLOCK // (_F32.itemsize * outputs))
    stages = shared(numbers, (parts,), crew.threads)
    reads, writes, divides = (0, 2), (1,), _F32.itemsize * inputs * outputs
    return CompiledPlan(crew, function, stages, reads, writes, divides=divides)


@cache
def _rows_function(name: str, *case: int) -> CompiledFunction:
    from singanet.ops.compiled import engine
    from singanet.ops.compiled import rows as of_rows

    return engine.known(getattr(of_rows, name), *case)


_VECTORS = 16
"""Vectors of queries, and of sums, that stay in registers."""
_QUERIES = 8
"""Queries of a head up to which keys are not multiplied by blocks."""
_BRIEF = 1 << 14
"""Scores that take some tens of microseconds."""
_EVERY = 1 << 40
"""A window that hides no key."""


def _attend_few_fits(
    ops: PlannedOps, q: Array, k: Array, v: Array, case: Attention, first: Any, out: Array
) -> bool:
    size, width = q.shape[3], v.shape[3]
    rest = case.softcap, case.lengths, case.seen, case.added, case.segments
    return (
        q.shape[2] <= _QUERIES
        and k.shape[2] > 0
        and not (size % LANES or width % LANES)
        and max(size, width) <= _VECTORS * LANES
        and not case.dropout
        and (case.causal or case.window is None)
        and all(each is None for each in rest)
        and ops.serves(1, q, k, v, out)
        and all(array.strides[3] == _F32.itemsize for array in (q, k, v, out))
        and has_compiler()
    )


def _attend_few(
    ops: PlannedOps, q: Array, k: Array, v: Array, case: Attention, first: Any, out: Array
) -> bool:
    window = _EVERY if case.window is None else case.window
    given = k.shape[1], v.shape[3], case.causal, window, case.scale
    key = q.shape, q.strides, out.strides, *given
    plan: _FewQueries = ops.runtime().plan(_FewQueries, key, 0)
    positions = first if case.causal else k.shape[2] - 1
    if isinstance(positions, int):
        firsts = _firsts(len(q), positions)
    else:
        firsts = np.ascontiguousarray(positions, np.int64)
    plan.attend(q, k, v, firsts, out)
    return True


class _FewQueries:
    """The arguments of the function, of which keys, values and addresses change.

    With several threads, ``call`` has parts that they may run side by side.
    """

    def __init__(
        self,
        crew: Crew | None,
        shape: Shape,
        strides: Shape,
        out: Shape,
        groups: int,
        width: int,
        causal: bool,
        window: int,
        scale: float,
        threads: int = 1,
    ) -> None:
        n, heads, queries, size = shape
        shared, vectors = heads // groups, (size // LANES, width // LANES)
        most = max(1, min(4, _VECTORS // max(vectors)))
        self._heads = max(count for count in range(1, most + 1) if shared % count == 0)
        self._function = _attend_few_function(self._heads, *vectors)
        self._size, self._line, self._scores = n * heads * queries, 0, np.empty(0, np.float32)
        parts = cuts(n * groups, threads)
        ranges = [(0, n * groups), *(parts if len(parts) > 1 else [])]
        calls = [compiled_call(self._function, [0] * 28, False) for _ in ranges]
        self._givens = [call.given for call in calls]
        for given, part in zip(self._givens, ranges, strict=True):
            given[6:11] = [*part, groups, shared // self._heads, queries]
        self.give(12, [int(causal), window])
        self.give(15, [_bits(scale), *out[:3], *strides[:3]])
        self.call, *others = calls
        if others:
            self.call.stages = [[[part] for part in others]]

    def give(self, start: int, values: list[Any]) -> None:
        """Set arguments from ``start`` on."""
        for given in self._givens:
            given[start : start + len(values)] = values

    def attend(self, q: Array, k: Array, v: Array, firsts: Array, out: Array) -> None:
        """Write the outputs."""
        keys = k.shape[2]
        self.have(keys)
        self.give(0, [*map(address, (out, q, k, v, firsts))])
        self.give(22, [*k.strides[:3], *v.strides[:3]])
        # What takes long lets other threads of Python run.
        brief = self._size * keys < _BRIEF
        (self._function.briefly if brief else self._function.at_length)(self.call.given)

    def have(self, keys: int) -> None:
        """Set the number of keys, and provide memory for their scores."""
        if keys + 2 * LANES > self._line:
            self._line = 2 * (keys + LANES)
            self._scores = np.empty((len(self._givens), self._heads * self._line), np.float32)
            for given, scores in zip(self._givens, self._scores, strict=True):
                given[5], given[14] = address(scores), self._line
        self.give(11, [keys])


class FurtherAttention:
    """Attention of further steps to cached ones, bound to its arrays but those of the cache.

    `begin` tells where the cache is; then the compiled ``calls`` append the new keys and values, if
    there are any, and attend.
    """

    def __init__(
        self,
        q: Array,
        new: tuple[Array, Array] | None,
        groups: int,
        case: Attention,
        out: Array,
        threads: int,
    ) -> None:
        window = _EVERY if case.window is None else case.window
        given = groups, out.shape[3], case.causal, window, case.scale, threads
        self._few = _FewQueries(None, q.shape, q.strides, out.strides, *given)
        self._causal = case.causal
        self._firsts = np.zeros(len(q), np.int64)
        self._few.give(0, [address(out), address(q)])
        self._few.give(4, [address(self._firsts)])
        self.calls = [self._few.call]
        self._append: NativeCall | None = None
        if new is not None:
            places = [0, 0, *map(address, new), address(self._firsts)]
            sizes = [*new[0].shape[:3], new[0].shape[3], new[1].shape[3]]
            apart = [*[0] * 6, *new[0].strides[:3], *new[1].strides[:3]]
            self._append = compiled_call(_append_function(), [*places, *sizes, *apart], True)
            self.calls.insert(0, self._append)
        # Weak: the cache lives as long as its decoder.
        self._known: tuple[Any, Any, int] = (_nothing, _nothing, 0)

    def begin(self, keys: Array, values: Array, low: int, positions: int | Array, end: int) -> None:
        """Attend to the columns from ``low`` to ``end`` of ``keys`` and ``values``.

        The first new step is at ``positions`` of these columns, (N,) if samples differ.
        """
        of_keys, of_values, known = self._known
        if of_keys() is not keys or of_values() is not values or known != low:
            places: Any = [address(each) + low * each.strides[2] for each in (keys, values)]
            apart: Any = [*keys.strides[:3], *values.strides[:3]]
            self._few.give(2, places)
            self._few.give(22, apart)
            if self._append is not None:
                self._append.given[:2], self._append.given[10:16] = places, apart
            self._known = weakref.ref(keys), weakref.ref(values), low
        self._firsts[...] = positions if self._causal else end - low - 1
        self._few.have(end - low)


def _nothing() -> None:
    return None


def further_attention(
    ops: PlannedOps,
    q: Array,
    new: tuple[Array, Array] | None,
    groups: int,
    case: Attention,
    out: Array,
) -> FurtherAttention | None:
    """Return such attention, None if no function serves."""
    k, v = (q, out) if new is None else new
    fits = _attend_few_fits(ops, q, k, v, case, 0, out) and (case.causal or new is None)
    return FurtherAttention(q, new, groups, case, out, ops.threads) if fits else None


@cache
def _append_function() -> CompiledFunction:
    from singanet.ops.compiled import attend, engine

    return engine.known(attend.append_few)


@lru_cache(maxsize=4)
def _firsts(samples: int, first: int) -> Array:
    """Return ``first`` for each sample; all layers ask for the same."""
    return np.full(samples, first, np.int64)


@cache
def _attend_few_function(heads: int, size: int, width: int) -> CompiledFunction:
    from singanet.ops.compiled import attend, engine

    return engine.known(attend.attend_few, heads, size, width)


attend_few = Route("compiled", _attend_few, _attend_few_fits)

affine = Route("compiled", _few, _few_fit)
matmul = Route(
    "compiled",
    lambda ops, a, b, *, out=None: _few(ops, a, b, None, out),
    lambda ops, a, b, *, out=None: _few_fit(ops, a, b, None, out),
)


_ROWS = 16
"""Rows whose arithmetic takes less time than its calls."""
_NUMBERS_LEAST = 1 << 7
"""Numbers from which a call of NumPy's takes longer."""
_MANY = 1 << 16
"""Numbers from which compiling pays off within some hundred steps."""


def _is_served(ops: PlannedOps, x: Array, rows: int) -> bool:
    """Whether the rows are few, in a decoder, or have many numbers."""
    few = ops.few and 0 < rows <= _ROWS and x.size >= _NUMBERS_LEAST
    return (few or x.size >= _MANY) and not ops.narrow and ops.serves(1, x) and has_compiler()


def _of_rows(x: Array) -> int:
    return prod(x.shape[:-1])


def _unit(ops: PlannedOps, x: Array, epsilon: float) -> tuple[Array, Array] | None:
    y, inverse = ops.xp.empty_like(x), ops.xp.empty((*x.shape[:-1], 1), np.float32)
    made = ops.runs(_unit_rows, (_of_rows(x), x.shape[-1], epsilon), y, inverse, x)
    return (y, inverse) if made else None


def _unit_rows(crew: Crew, rows: int, size: int, epsilon: float) -> CompiledPlan:
    """Operands: the results, the inverse roots, the rows."""
    return _step(crew, "unit_rows", (size, _bits(epsilon)), rows, (2,), (0, 1))


l2_norm = Route(
    "compiled",
    _unit,
    lambda ops, x, epsilon: x.flags.c_contiguous and _is_served(ops, x, _of_rows(x)),
)


def _unit_backward(ops: PlannedOps, dy: Array, y: Array, inverse: Array) -> Array | None:
    dx: Array = ops.xp.empty_like(y)
    given = dx, ops.ordered(dy), y, inverse
    return dx if ops.runs(_unit_slopes, (_of_rows(y), y.shape[-1]), *given) else None


def _unit_slopes(crew: Crew, rows: int, size: int) -> CompiledPlan:
    """Operands: the results, the gradients, the rows of unit length, the inverse roots."""
    return _step(crew, "unit_slopes", (size,), rows, (1, 2, 3), (0,))


l2_norm_backward = Route(
    "compiled",
    _unit_backward,
    lambda ops, dy, y, inverse: (
        y.flags.c_contiguous
        and inverse.flags.c_contiguous
        and _is_served(ops, y, _of_rows(y))
        and ops.serves(1, dy, inverse)
    ),
)


def _silu(ops: PlannedOps, mode: str, x: Array, slope: float = 0.01) -> Array | None:
    y: Array = ops.xp.empty_like(x)
    return y if ops.runs(_silu_of, (x.size,), y, x) else None


def _silu_of(crew: Crew, size: int) -> CompiledPlan:
    """Operands: the results, the arguments."""
    return _step(crew, "silu", (size,), -(-size // LANES), (1,), (0,))


def _silu_backward(
    ops: PlannedOps, mode: str, dy: Array, x: Array, slope: float = 0.01
) -> Array | None:
    dx: Array = ops.xp.empty_like(x)
    return dx if ops.runs(_silu_slopes, (x.size,), dx, ops.ordered(dy), x) else None


def _silu_slopes(crew: Crew, size: int) -> CompiledPlan:
    """Operands: the results, the gradients, the arguments."""
    return _step(crew, "silu_slopes", (size,), -(-size // LANES), (1, 2), (0,))


silu = Route(
    "compiled",
    _silu,
    lambda ops, mode, x, slope=0.01: (
        mode == "silu" and x.flags.c_contiguous and _is_served(ops, x, _of_rows(x))
    ),
)

silu_backward = Route(
    "compiled",
    _silu_backward,
    lambda ops, mode, dy, x, slope=0.01: (
        mode == "silu"
        and x.flags.c_contiguous
        and _is_served(ops, x, _of_rows(x))
        and ops.serves(1, dy)
    ),
)


def _softmax(ops: PlannedOps, x: Array, axis: int = -1) -> Array | None:
    y: Array = ops.xp.empty(x.shape, np.float32)
    return y if ops.runs(_softmax_of, (_of_rows(x), x.shape[-1]), y, ops.ordered(x)) else None


def _softmax_of(crew: Crew, rows: int, size: int) -> CompiledPlan:
    """Operands: the results, the rows."""
    return _step(crew, "softmax_of", (size,), rows, (1,), (0,))


def _softmax_is_served(ops: PlannedOps, x: Array, axis: int = -1) -> bool:
    rows = axis in (-1, x.ndim - 1) and not ops.narrow and ops.serves(1, x)
    return rows and (ops.prepared is not None or x.size >= SCORES) and has_compiler()


softmax = Route("compiled", _softmax, _softmax_is_served)


def _softmax_log_sum(
    ops: PlannedOps, x: Array, out: Array | None = None
) -> tuple[Array, Array] | None:
    y: Array = ops.xp.empty(x.shape, np.float32) if out is None else out
    logs: Array = ops.xp.empty((len(x),), np.float32)
    return (y, logs) if ops.runs(_softmax_rows, x.shape, y, logs, x) else None


def _softmax_rows(crew: Crew, rows: int, size: int) -> CompiledPlan:
    """Operands: the results, the logarithms of sums, the rows."""
    return _step(crew, "softmax_rows", (size,), rows, (2,), (0, 1))


softmax_log_sum = Route(
    "compiled",
    _softmax_log_sum,
    lambda ops, x, out=None: (
        x.flags.c_contiguous
        and (out is None or out.flags.c_contiguous)
        and _is_served(ops, x, len(x))
    ),
)


def _rotate(ops: PlannedOps, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array | None:
    rows = ops.ordered(x.transpose(0, 2, 1, 3))
    y: Array = ops.xp.empty(rows.shape, np.float32)
    key = rows.shape, cos.shape
    done = ops.runs(_rotated, key, y, rows, ops.ordered(cos), ops.ordered(sin))
    return y.transpose(0, 2, 1, 3) if done else None


def _rotated(crew: Crew, shape: Shape, turns: Shape) -> CompiledPlan:
    """Operands: the results, the heads, cosines and sines."""
    n, steps, heads, size = shape
    # One angle a step, or a step of a sample.
    numbers = prod(turns[:-1]), heads, size, turns[-1]
    return _step(crew, "rotated", numbers, n * steps, (1, 2, 3), (0,))


def _rotate_fits(ops: PlannedOps, x: Array, cos: Array, sin: Array, interleaved: bool) -> bool:
    return (
        x.ndim == 4
        and not interleaved
        and not (x.shape[3] % LANES or cos.shape[-1] % LANES)
        and cos.dtype == sin.dtype == _F32
        and _is_served(ops, x, x.shape[0] * x.shape[2])
    )


rotate = Route("compiled", _rotate, _rotate_fits)


_ARITHMETIC = {np.add: "add", np.multiply: "multiply"}


def arithmetic(
    ops: PlannedOps, function: Any, shape: Shape, other: str, number: float = 0.0
) -> CompiledPlan | None:
    """Return a plan of a function of rows and an operand: "each", "row" or a "number"; or None.

    Operands: the results, the rows, the operand, which is not read if it is a number.
    """
    count = prod(shape[:-1])
    if function not in _ARITHMETIC or not 0 < count <= _ROWS or not has_compiler():
        return None
    numbers = count, shape[-1], _bits(number)
    key = _ARITHMETIC[function], other, numbers
    plan: CompiledPlan = ops.runtime().plan(_arithmetic, key, 0)
    return plan


def _arithmetic(crew: Crew, function: str, other: str, numbers: tuple[int, ...]) -> CompiledPlan:
    made = _arithmetic_function(function, other)
    return CompiledPlan(crew, made, [[numbers]], reads=(1, 2), writes=(0,))


@cache
def _arithmetic_function(function: str, other: str) -> CompiledFunction:
    from singanet.ops.compiled import engine, steps

    return engine.known(steps.arithmetic, function, other)


def _step(
    crew: Crew,
    name: str,
    numbers: tuple[int, ...],
    count: int,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
) -> CompiledPlan:
    """Return the plan of a function whose last two arguments are a range of ``count``."""
    return CompiledPlan(
        crew, _step_function(name), shared(numbers, (count,), crew.threads), reads, writes
    )


@cache
def _step_function(name: str) -> CompiledFunction:
    from singanet.ops.compiled import engine, steps

    return engine.known(getattr(steps, name))
