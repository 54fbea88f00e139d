"""oneDNN in one thread: engine, stream, scratch memory, and the cache of plans."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import numpy as np

from singanet.base.heap import small_pages
from singanet.base.kinds import PAGE
from singanet.ops.blas import stand_aside
from singanet.ops.onednn.binding import (
    BF16,
    CPU,
    DEFAULT_STREAM,
    F32,
    FPMATH_BF16,
    SCRATCHPAD_USER,
    check,
    executing,
)
from singanet.ops.onednn.builder import Builder, EngineStream, NotOfferedError, Runnable
from singanet.ops.onednn.library import Library, Team, neighbours_of, region_of
from singanet.ops.threads import changes
from singanet.ops.workers import side_by_side
from singanet.types import Array, Shape

Build = Callable[..., Runnable | None]
"""``build(builder, *key)`` adds the stages of a plan to the builder, or returns one of its own."""

_CAPACITY = 1024
SHARED = 1 << 19
"""Values to go over from which a kernel is shared by the threads: some 200 to 500 microseconds.

Below, two threads gain less than waking one costs, which is 300 microseconds where the core had
gone to sleep, and a turn of the other process, of milliseconds, where it has other work: a net
whose steps are made of such kernels would take a multiple of its time.
"""


class Runtime:
    """The state with which a thread runs kernels; another thread makes one of its own.

    Plans are kept by what determines them, the least recently used dropped beyond a thousand.
    Scratch memory is one buffer that grows to what the hungriest plan needs. ``narrow`` lets
    kernels multiply bfloat16 where oneDNN has a kernel for it, see `singanet.ops.onednn.products`.
    """

    def __init__(self, library: Library, threads: int, narrow: bool = False) -> None:
        self.library = library
        self._factors = (BF16, F32) if narrow else (F32,)
        self.threads = threads
        self.changes = changes()
        engine = self._made("engine_create", CPU, 0)
        stream = self._made("stream_create", engine, DEFAULT_STREAM)
        self.team, shared = Team(None), side_by_side
        if library.runtime == "OpenMP":
            region = region_of(library.c) if threads > 1 else None
            near = None if region is None else neighbours_of(region)
            self.team = Team(library.c.omp_set_num_threads, None if near is None else near.look)
            shared = side_by_side if region is None else region.side_by_side
        if threads > 1:
            stand_aside()
        execute, briefly = (executing(library.c, brief) for brief in (False, True))
        use = self.team.use
        self._place = EngineStream(library.c, engine, stream, use, execute, briefly, shared)
        self.side_by_side = shared
        # Scratch is ours to give, so that it is counted, shared by all plans, and kept aligned.
        self._attributes = self._made("primitive_attr_create")
        set_mode = library.c.dnnl_primitive_attr_set_scratchpad_mode
        check(set_mode(self._attributes, SCRATCHPAD_USER), "giving scratch memory")
        if narrow:
            # For products whose operands stay float32: they are rounded block by block.
            allow = library.c.dnnl_primitive_attr_set_fpmath_mode
            check(allow(self._attributes, FPMATH_BF16), "allowing bfloat16")
        self._plans: OrderedDict[Hashable, Runnable | None] = OrderedDict()
        self._buffer: Array = np.empty(0, np.uint8)
        self._base = 0
        self._working: dict[str, Array] = {}

    def _made(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = getattr(self.library.c, f"dnnl_{function}")(ctypes.byref(made), *arguments)
        check(status, function)
        return made

    def plan(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """The plan that ``build(builder, *key)`` makes, or None if oneDNN offers none.

        ``stored`` are the operands that lie in bfloat16, among the open ones of the recipe. Little
        ``work`` is done by one thread, which keeps Python's lock: waking the others takes longer,
        and much longer while other processes have their cores. A plan always runs with the number
        of threads that it was made for.
        """
        full = (build, key, stored)
        try:
            plan = self._plans[full]
        except KeyError:
            plan = self._plans[full] = self.built(build, key, work, stored)
            if len(self._plans) > _CAPACITY:
                self._plans.popitem(last=False)
            return plan
        self._plans.move_to_end(full)
        return plan

    def rounding(self, size: int) -> Runnable | None:
        """The plan that rounds ``size`` numbers of its operand 0 to bfloat16 in operand 1."""
        return self.plan(_rounding, (size,), size)

    def built(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """As `plan`, made now and kept by the caller alone."""
        brief = work < SHARED
        threads = 1 if brief else self.threads
        self.team.use(threads)
        for factors in self._factors:
            builder = Builder(self._place, self._attributes, threads, factors, brief, stored)
            try:
                return build(builder, *key) or builder.plan()
            except NotOfferedError:
                continue
            finally:
                builder.close()
        return None

    def trim(self, prepared: bool = False) -> None:
        """Let the scratch memory go; the next kernel that needs some makes it again.

        With ``prepared`` the plans too, and the primitives that oneDNN keeps for others like them.
        """
        self._buffer = np.empty(0, np.uint8)
        self._working.clear()
        if prepared:
            self._plans.clear()
            c, capacity = self.library.c, ctypes.c_int()
            c.dnnl_get_primitive_cache_capacity(ctypes.byref(capacity))
            c.dnnl_set_primitive_cache_capacity(0)
            c.dnnl_set_primitive_cache_capacity(capacity.value)

    def working(self, name: str, shape: Shape) -> Array:
        """float32 memory for what kernels make between plans, until somebody asks for it again."""
        size = prod(shape)
        found = self._working.get(name)
        if found is None or found.size < size:
            found = self._working[name] = np.empty(size, np.float32)
        return found[:size].reshape(shape)

    def run(self, plan: Runnable, arrays: tuple[Array, ...]) -> None:
        """Run ``plan`` on the memory of ``arrays``."""
        if plan.scratch > len(self._buffer) - PAGE:
            self._buffer = np.empty(0, np.uint8)
            with small_pages():
                buffer = np.empty(plan.scratch + PAGE, np.uint8)
            start = buffer.ctypes.data
            # Last the buffer: an interrupt on the way leaves none, not one with an old address.
            self._base = start + -start % PAGE
            self._buffer = buffer
        plan.run([array.__array_interface__["data"][0] for array in arrays], self._base)


def _rounding(build: Builder, size: int) -> None:
    source, target = build.rows((size,)), build.rows((size,), BF16)
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))
