"""A prepared kernel call: primitives with their memory objects, run again on other arrays."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from singanet.base.heap import LARGE, large_arrays_apart
from singanet.base.written import PAGE
from singanet.ops.onednn.binding import ExecArg, check
from singanet.types import Parts

Memory = int
"""The address of a oneDNN memory object."""


class Primitive:
    """A oneDNN primitive, which lives as long as anything refers to it."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, c: Any, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, c.dnnl_primitive_destroy, handle).atexit = False


class KernelStage(NamedTuple):
    """A primitive, and the memory of each of its arguments."""

    primitive: Primitive
    memories: Mapping[int, Memory]


class KernelRecipe(NamedTuple):
    """The work and the arrays of a primitive.

    A memory belongs to an operand by its number, or lies in scratch at an offset. ``sizes`` are
    the bytes of the operands, ``reads`` and ``writes`` numbers of operands; an operand that is
    changed in part is in both. ``products`` says that the library's own matrix products run
    inside; these ask malloc for ``packing`` bytes. ``open`` operands may lie in bfloat16,
    ``rounded`` operands are rounded to it. ``wide`` code is for registers of 512 bits.
    """

    stages: Sequence[KernelStage]
    operands: Sequence[Memory]
    sizes: tuple[int, ...]
    inside: Sequence[tuple[Memory, int]]
    scratch: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    products: bool = False
    packing: int = 0
    open: frozenset[int] = frozenset()
    rounded: frozenset[int] = frozenset()
    wide: bool = False


class EngineStream(NamedTuple):
    """Where plans run: the library's functions, an engine and a stream, its threads.

    ``execute`` runs a primitive, ``execute_briefly`` one that is done before another thread of
    Python could do much. ``side_by_side`` has parts made of Python done by its threads.
    """

    c: Any
    engine: Any
    stream: Any
    use_threads: Callable[[int], None]
    execute: Callable[..., None]
    execute_briefly: Callable[..., None]
    side_by_side: Callable[[Parts], None]


class Calls:
    """The executions of stages on memory objects that point where they should.

    It owns the memory objects, not what they point at. It belongs to the thread that made it,
    and costs an execution a stage.
    """

    __slots__ = ("__weakref__", "_primitives", "_use", "parts", "threads")

    def __init__(
        self,
        place: EngineStream,
        stages: Sequence[KernelStage],
        threads: int,
        brief: bool,
        of: Mapping[Memory, Memory],
        packing: int = 0,
    ) -> None:
        """``of`` tells the memory object to take for each that the stages name."""
        weakref.finalize(self, release, place.c, tuple(of.values())).atexit = False
        self._use, self.threads = partial(place.use_threads, threads), threads
        self._primitives = [stage.primitive for stage in stages]
        execute = place.execute_briefly if brief else place.execute
        self.parts: list[Callable[[], None]] = []
        for stage in stages:
            pairs = [ExecArg(arg, of[memory]) for arg, memory in stage.memories.items()]
            given = (ExecArg * len(pairs))(*pairs)
            handle, count = ctypes.c_void_p(stage.primitive.handle), ctypes.c_int(len(pairs))
            self.parts.append(partial(execute, handle, place.stream, count, given))
        if packing >= LARGE:
            # Else each leaves a hole in the heap, which glibc has no use for at the next.
            self.parts = [partial(_apart, self.parts)]

    def __call__(self) -> None:
        """Run the stages."""
        self._use()
        for call in self.parts:
            call()

    def after(self, threads: int) -> list[Callable[[], None]]:
        """What running comes down to, where the last kernel used so many ``threads``; 0: any."""
        return self.parts if threads == self.threads else [self._use, *self.parts]


def _apart(parts: Sequence[Callable[[], None]]) -> None:
    with large_arrays_apart():
        for call in parts:
            call()


class Runnable(Protocol):
    """What a runtime runs: stages of oneDNN, or NumPy's steps around products of oneDNN."""

    threads: int
    scratch: int
    """The bytes of working memory that it needs."""

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each operand that only oneDNN reads, 0 of the others."""

    @property
    def reads(self) -> Sequence[int]:
        """The numbers of the operands that it reads."""

    @property
    def writes(self) -> Sequence[int]:
        """The numbers of the operands that it writes."""

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run on the operands at ``addresses``, with `scratch` bytes to use at ``scratch``."""

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        """What does `run` on these addresses when called, pointed at them once and for all."""


class KernelPlan:
    """Stages that run one after the other on the operands' addresses.

    A plan belongs to the thread that made it, since its memories are pointed at the operands of
    one call. It needs ``scratch`` bytes of working memory, and uses ``threads``. A ``brief`` one
    lets no other thread of Python run meanwhile.
    """

    def __init__(
        self, place: EngineStream, recipe: KernelRecipe, threads: int, brief: bool = False
    ) -> None:
        self.place = place
        self.recipe = recipe
        self.threads, self.brief = threads, brief
        self.scratch, self.sizes = recipe.scratch, recipe.sizes
        self.reads, self.writes = recipe.reads, recipe.writes
        self.open, self.rounded = recipe.open, recipe.rounded
        self._point: Callable[..., int] = place.c.dnnl_memory_set_data_handle
        self._base = 0
        own = [*recipe.operands, *(memory for memory, _ in recipe.inside)]
        self._calls = Calls(
            place, recipe.stages, threads, brief, {each: each for each in own}, recipe.packing
        )

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run on the operands at ``addresses``, with `scratch` bytes to use at ``scratch``."""
        for memory, address in zip(self.recipe.operands, addresses, strict=True):
            self._point(memory, address)
        if scratch != self._base:
            # An interrupt on the way leaves some at the old address.
            self._base = 0
            for memory, offset in self.recipe.inside:
                self._point(memory, scratch + offset)
            self._base = scratch
        self._calls()

    def bound(self, addresses: Sequence[int], scratch: int) -> Calls:
        """What does `run` on these addresses when called, pointed at them once and for all."""
        recipe = self.recipe
        places = list(zip(recipe.operands, addresses, strict=True))
        places += [(memory, scratch + offset) for memory, offset in recipe.inside]
        copies = {memory: self._copied(memory, at) for memory, at in places}
        given = self.place, recipe.stages, self.threads, self.brief
        return Calls(*given, copies, recipe.packing)

    def _copied(self, memory: Memory, address: int) -> Memory:
        """Another memory object of the same layout, at ``address``."""
        c, layout, made = self.place.c, ctypes.c_void_p(), ctypes.c_void_p()
        check(c.dnnl_memory_get_memory_desc(memory, ctypes.byref(layout)), "telling a layout")
        status = c.dnnl_memory_create(ctypes.byref(made), layout, self.place.engine, address)
        check(status, "making a memory object")
        return int(made.value or 0)


def release(c: Any, memories: Sequence[Memory]) -> None:
    """Give memory objects back to oneDNN."""
    for memory in memories:
        c.dnnl_memory_destroy(memory)


def rounded(size: int) -> int:
    """``size`` up to whole pages, so that parts of the scratch do not share one."""
    return -(-size // PAGE) * PAGE
