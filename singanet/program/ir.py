"""The intermediate representation: calls on numbered memory, and what planners see of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from singanet.program.array_tree import map_leaves
from singanet.types import Array, Shape

BufferKind = Literal["input", "parameter", "constant", "output", "temporary"]
Phase = Literal["forward", "loss", "recompute", "backward", "communication", "update"]
MarkName = Literal["feed", "outputs", "dy", "layer"]
"""Where a program meets its caller, who fills arrays or gets them."""


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
        """The array in ``memory``, in which the token begins at ``base``."""
        return np.ndarray(self.shape, self.dtype, memory, base + self.offset, self.strides)


@dataclass(slots=True, eq=False, repr=False)
class Token:
    """A piece of memory met while recording.

    ``held`` is an array from outside, or a constant, that the program goes on using; None for
    planned memory. ``fill`` is the value that a fresh array was filled with, ``poison`` tells why
    no kernel may read it. ``written`` are the bytes that kernels write, None for all of them.
    """

    nbytes: int
    held: Array | None = None
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

    ``partly`` are the ``writes`` that keep some of their contents. ``bind`` makes it ready to run
    if that takes more than handing arrays to ``function``. ``passes`` is how often it goes over its
    operands, or its computing time in units of such a pass. ``lane`` is the number of a group of
    lanes, and the number of the call's lane in it; ``parts`` is how many calls it is made of.
    ``once`` says that it must not be recomputed; ``planned`` is a `narrow.PlannedKernel` if
    operands may lie in bfloat16. ``plans`` are the backend's plans that it runs, without one whose
    method ``function`` is.
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
    map_leaves((call.arguments, call.keywords), Ref, found.append)
    return found


class Buffer(NamedTuple):
    """A piece of memory of ``nbytes`` bytes that kernels know by its place in a list.

    An ``input`` is filled before the first kernel, a ``parameter`` or ``constant`` lives outside
    the program, an ``output`` is wanted after the last kernel, a ``temporary`` by kernels alone.
    """

    nbytes: int
    kind: BufferKind = "temporary"
    label: str = ""

    @property
    def planned(self) -> bool:
        """Whether it lies in the program's arena."""
        return self.kind in ("input", "output", "temporary")


class Kernel(NamedTuple):
    """One call: the numbers of the buffers it reads and writes, for which layer, in which phase.

    A buffer that is changed in part is both read and written. ``in_place`` lists pairs (read,
    written) of buffers that may be the same memory. ``barrier`` kernels keep their place: nothing
    moves across them.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    layer: str = ""
    phase: Phase = "forward"
    in_place: tuple[tuple[int, int], ...] = ()
    barrier: bool = False
