"""Run oneDNN in one thread: engine, stream, scratch memory, and the cache of plans."""

from __future__ import annotations

import ctypes
from typing import Any

from singanet.ops.blas import stand_aside
from singanet.ops.casts import has_compiler
from singanet.ops.llvm.plans import JOINED, SHARED, Build, PlanRuntime, Runnable
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
from singanet.ops.onednn.builder import Builder, EngineStream, NotOfferedError
from singanet.ops.onednn.library import Library, Team, neighbours_of, region_of
from singanet.ops.workers import side_by_side


class Runtime(PlanRuntime):
    """The state of a thread that runs kernels of ``library``; each thread has its own.

    ``narrow`` lets kernels multiply bfloat16 if oneDNN has a kernel for it, see
    `singanet.ops.onednn.products`.
    """

    def __init__(self, library: Library, threads: int, narrow: bool = False) -> None:
        super().__init__(threads)
        self.library = library
        self._factors = (BF16, F32) if narrow else (F32,)
        engine = self._made("engine_create", CPU, 0)
        stream = self._made("stream_create", engine, DEFAULT_STREAM)
        self.team, shared, jobs = Team(None), side_by_side, None
        if library.runtime == "OpenMP":
            region = region_of(library.c) if threads > 1 else None
            near = None if region is None else neighbours_of(region)
            look = None if near is None else near.look
            self.team = Team(library.c.omp_set_num_threads, look)
            if region is not None:
                region.threads = max(region.threads, threads)
                shared = region.side_by_side
                jobs = region.jobs(threads, look) if has_compiler() else None
        if threads > 1:
            stand_aside()
        execute, briefly = (executing(library.c, brief) for brief in (False, True))
        execution = ctypes.cast(library.c.dnnl_primitive_execute, ctypes.c_void_p).value or 0
        self.jobs = jobs
        place = library.c, engine, stream, self.team.call, execute, briefly, shared, execution, jobs
        self._place = EngineStream(*place)
        self.side_by_side = shared
        # Scratch is passed by this runtime: counted, shared by all plans, and aligned.
        self._attributes = self._made("primitive_attr_create")
        set_mode = library.c.dnnl_primitive_attr_set_scratchpad_mode
        check(set_mode(self._attributes, SCRATCHPAD_USER), "giving scratch memory")
        if narrow:
            # For products with float32 operands, which are rounded block by block.
            allow = library.c.dnnl_primitive_attr_set_fpmath_mode
            check(allow(self._attributes, FPMATH_BF16), "allowing bfloat16")

    def _made(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = getattr(self.library.c, f"dnnl_{function}")(ctypes.byref(made), *arguments)
        check(status, function)
        return made

    def rounding(self, size: int) -> Runnable | None:
        """Return the plan that rounds ``size`` numbers of operand 0 to bfloat16 in operand 1."""
        return self.plan(_rounding, (size,), size)

    def built(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """Build a `plan` now, for the caller alone."""
        brief = work < SHARED
        threads = 1 if brief else self.threads
        workers = self.threads if self.jobs is not None and work >= JOINED else threads
        self.team.use(threads)
        place = self._place, self._attributes, threads
        for factors in self._factors:
            builder = Builder(*place, factors, brief, stored, workers)
            try:
                return build(builder, *key) or builder.plan()
            except NotOfferedError:
                continue
            finally:
                builder.close()
        return None

    def trim(self, prepared: bool = False) -> None:
        """Free memory like `PlanRuntime`, and also oneDNN's cache of primitives."""
        super().trim(prepared)
        if prepared:
            c, capacity = self.library.c, ctypes.c_int()
            c.dnnl_get_primitive_cache_capacity(ctypes.byref(capacity))
            c.dnnl_set_primitive_cache_capacity(0)
            c.dnnl_set_primitive_cache_capacity(capacity.value)


def _rounding(build: Builder, size: int) -> None:
    source, target = build.rows((size,)), build.rows((size,), BF16)
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))
