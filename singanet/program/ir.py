"""The program's calls and the arrays between them.

Each call fills given arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from singanet.engine.plan import Plan
from singanet.ops import Ops
from singanet.ops.narrow import HalvesMatrix, NarrowMatrix
from singanet.types import Array, Shape


def map_arrays(value: Any, change: Callable[[Array], Any]) -> Any:
    """``value`` with every array in it, also in tuples, lists and dicts, changed."""
    return map_leaves(value, np.ndarray, change, "__array_function__")


def map_leaves(
    value: Any, kind: type, change: Callable[[Any], Any], or_has: str | None = None
) -> Any:
    """``value`` with every instance of ``kind`` in it, also in tuples, lists and dicts, changed.

    Instances of classes with the attribute ``or_has`` are changed too.
    """
    if isinstance(value, kind):
        return change(value)
    own = type(value)
    if own is tuple:
        return tuple([map_leaves(part, kind, change, or_has) for part in value])
    if own is list:
        return [map_leaves(part, kind, change, or_has) for part in value]
    if own is dict:
        return {key: map_leaves(part, kind, change, or_has) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return own(*[map_leaves(part, kind, change, or_has) for part in value])
    if or_has is not None and hasattr(own, or_has):
        return change(value)
    return value


BufferKind = Literal["input", "parameter", "constant", "output", "temporary"]
Phase = Literal["forward", "loss", "recompute", "backward", "communication", "update"]
MarkName = Literal["feed", "outputs", "dy", "layer"]
"""A place in a program at which the caller fills or reads arrays."""


class NotRecordableError(Exception):
    """A call depends on values, so that a replay could not repeat it."""


class Ref(NamedTuple):
    """An array as a place in the memory ``token``: the bytes from ``offset`` on."""

    token: int
    offset: int
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]

    def array(self, memory: Any, base: int = 0) -> Array:
        """The array in ``memory``, in which the token starts at ``base``."""
        return np.ndarray(self.shape, self.dtype, memory, base + self.offset, self.strides)


@dataclass(slots=True, eq=False, repr=False)
class Token:
    """A piece of memory in a recording.

    ``held`` is an array from outside or a constant that the program uses, or the place where it is
    stored; None for planned memory. ``fill`` is the value of a new array of one value, ``poison``
    the reason why no kernel may read it. ``written`` are the bytes that kernels write, None for all
    of them.
    """

    nbytes: int
    held: Any = None
    constant: bool = False
    fill: Any = None
    writes: int = 0
    poison: str = ""
    written: tuple[tuple[int, int], ...] | None = None


Bind = Callable[[Callable[[Ref], Array]], Callable[[], object]]
"""A function that makes a call ready to run, given the arrays for its refs."""


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call with a `Ref` in the place of every array.

    ``partly`` are the ``writes`` that preserve some of their contents. ``bind`` makes it ready to
    run if that takes more than passing arrays to ``function``. ``passes`` is how often it goes over
    its operands, or its computing time in units of such a pass. ``lane`` is the number of a group
    of lanes, and of the call's lane in it; ``parts`` is the number of joined calls. ``once``: it
    must not be recomputed; ``planned`` is a `narrow.PlannedKernel` if operands may be in bfloat16.
    ``plans`` are the backend's plans that it runs, without a plan whose method ``function`` is.
    """

    function: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    partly: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    layer: str = ""
    phase: Phase = "forward"
    name: str = ""
    barrier: bool = False
    bind: Bind | None = None
    passes: int = 1
    lane: tuple[int, int] | None = None
    parts: int = 1
    once: bool = False
    planned: Any = None
    plans: tuple[Any, ...] = ()


def refs_of(call: Call) -> list[Ref]:
    """The places that the call's arguments name."""
    found: list[Ref] = []
    for value in (*call.arguments, *call.keywords.values()):
        if type(value) is Ref:
            found.append(value)
        elif isinstance(value, (tuple, list, dict)):
            map_leaves(value, Ref, found.append)
    return found


class Buffer(NamedTuple):
    """A piece of memory of ``nbytes`` bytes that kernels know by its place in a list.

    An ``input`` is filled before the first kernel, a ``parameter`` or ``constant`` is outside the
    program, an ``output`` is read after the last kernel, a ``temporary`` by kernels alone.
    """

    nbytes: int
    kind: BufferKind = "temporary"
    label: str = ""

    @property
    def planned(self) -> bool:
        """Whether it is in the program's arena."""
        return self.kind in ("input", "output", "temporary")


class Kernel(NamedTuple):
    """One call: the numbers of the buffers it reads and writes, its layer and phase.

    A buffer that is changed in part is both read and written. ``in_place`` lists pairs (read,
    written) of buffers that may be the same memory. No kernel moves across a ``barrier``.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    layer: str = ""
    phase: Phase = "forward"
    in_place: tuple[tuple[int, int], ...] = ()
    barrier: bool = False


def gather(array: Array, index: Any, out: Array) -> None:
    """Copy the elements ``index`` to ``out``."""
    out[...] = array[index]


def scatter(array: Array, index: Any, value: Any) -> None:
    """Assign ``value`` to the elements ``index``."""
    array[index] = value


def take_rows(table: Array, indices: Array, out: Array) -> None:
    """Copy the rows of ``table`` at ``indices``, which were checked."""
    table.take(indices, 0, out, "clip")


def store(out: Array, func: Any, args: Any, kwargs: Any) -> None:
    """Copy the result of ``func`` to ``out``; for functions that cannot fill an array."""
    np.copyto(out, func(*args, **kwargs))


def filled_by(function: Callable[..., None], ops: Ops, count: int, *arrays: Any) -> None:
    """Call ``function`` with ``count`` arrays to fill, working memory, and its inputs."""
    function(ops, arrays[count], *arrays[:count], *arrays[count + 1 :])


def multiplied(ops: Ops, x: Array, held: NarrowMatrix, out: Array) -> None:
    """The product of ``x`` and a narrow matrix."""
    ops.multiply_held(x, held, out=out)


def multiplied_halves(ops: Ops, transposed: bool, x: Array, values: Array, out: Array) -> None:
    """The product of ``x`` and the float16 ``values``, or their transpose."""
    held = HalvesMatrix(values)
    ops.multiply_held(x, held.T if transposed else held, out=out)


def picked(ops: Any, table: NarrowMatrix, indices: Array, out: Array) -> None:
    """Rows of a narrow table."""
    out[...] = ops.gather_rows(table, indices)


Order = tuple[int, ...] | None
"""The axes from the one with the longest strides on; None for C order."""


def order_of(array: Array) -> Order:
    """The order of an array's axes; for an array with gaps its strides, marked by -1."""
    if array.flags.c_contiguous:
        return None
    axes = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return axes if array.transpose(axes).flags.c_contiguous else (-1, *array.strides)


def is_dense(order: Order) -> bool:
    """Whether an array of this order has no gaps."""
    return order is None or -1 not in order


def zeros_in(order: Order, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Zeros in this order, or in C order for an order with gaps."""
    if order is None or not is_dense(order):
        return np.zeros(shape, dtype)
    made = np.zeros([shape[axis] for axis in order], dtype)
    return made.transpose(np.argsort(order))


def output_slots(plan: Plan) -> list[int]:
    """Return the slots of the plan's outputs with gradients: a mask has none."""
    steps = (plan.by_name[name] for name in plan.outputs)
    return [slot for step in steps if not step.gives_integers for slot in step.out_slots]


def without_unread(
    calls: Sequence[Call],
    tokens: Sequence[Token],
    moves: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> list[Call]:
    """``calls`` without the calls whose results are in planned memory and not read later.

    Layers in evaluation make arrays that only a backward would read. The tokens of ``moves`` are
    read in their new memory.
    """
    needed: set[int] = set()
    kept = []
    for call in reversed(calls):
        outside = any(tokens[token].held is not None for token in call.writes)
        writes = [*call.writes, *(moves[token][0] for token in call.writes if token in moves)]
        if call.function is None or call.barrier or outside or not needed.isdisjoint(writes):
            needed.update(call.reads)
            kept.append(call)
    return kept[::-1]
