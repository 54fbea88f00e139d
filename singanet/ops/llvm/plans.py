"""Plan kernels: the work on their operands' addresses, and the thread that runs it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from singanet.base.heap import small_pages
from singanet.base.kinds import PAGE
from singanet.ops import workers
from singanet.ops.compiled.calls import NativeCall, compiled_call
from singanet.ops.threads import changes
from singanet.types import Array, Parts, Shape, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.calls import Jobs
    from singanet.ops.compiled.engine import CompiledFunction

SHARED = 1 << 19
"""Values to process from which threads share a kernel: some 200 to 500 microseconds.

Below, two threads gain less than waking one costs: 300 microseconds from a sleeping core, or a time
slice of milliseconds on a core with other work. A net with such steps would take a multiple of its
time.
"""

JOINED = 1 << 15
"""Values to process from which threads share compiled functions without Python: 10 microseconds.

Threads that have just run wait for the next kernel awake, and then start within a microsecond.
"""

_CAPACITY = 1024
_NONE: Mapping[str, int] = {}

Stages = Sequence[Sequence[tuple[int, ...]]]
"""The integer arguments of calls; a stage's calls run concurrently, stages in sequence."""

Stage = list[list[Work]]
"""The work of each worker, in sequence; all workers finish before the next stage."""


class Runnable(Protocol):
    """A plan of a runtime: stages of oneDNN, or Python calls of compiled functions."""

    threads: int
    scratch: int
    """The bytes of its workspace."""

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each operand with the library's own layout, 0 for the others."""

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the operands that it reads."""

    @property
    def writes(self) -> Sequence[int]:
        """The indices of the operands that it writes."""

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run on the operands at ``addresses``, with `scratch` bytes of workspace there."""

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        """Return a callable that does `run` on these addresses, bound once."""


Build = Callable[..., Runnable | None]
"""``build(crew, *key)`` makes a plan; oneDNN's may add stages to its builder and return None."""


class Crew(Protocol):
    """The threads of a plan; a ``brief`` plan does not release Python's lock."""

    @property
    def threads(self) -> int:
        """The number of threads."""

    @property
    def joined(self) -> int:
        """The number of threads of a predictor's kernel.

        OpenMP's team waits for all of its threads, so that short kernels of training steps, which
        may run for hours beside other processes, do without.
        """

    @property
    def brief(self) -> bool:
        """Whether the plan is too short to release Python's lock."""

    @property
    def side_by_side(self) -> Callable[[Parts], None]:
        """The function that runs parts on the threads."""

    @property
    def jobs(self) -> Jobs | None:
        """The maker of jobs, which threads share without Python; None if they cannot."""


class PythonCrew(NamedTuple):
    """Python threads."""

    threads: int
    brief: bool
    side_by_side: Callable[[Parts], None] = workers.side_by_side
    jobs: Jobs | None = None

    @property
    def joined(self) -> int:
        """The number of threads of any kernel: the pool waits for none that does not come."""
        return self.threads


class PlanRuntime:
    """The state of a thread that runs plans; each thread has its own.

    A cache has the plans by their key, and drops the least recently used beyond a thousand. Scratch
    memory is one buffer, which grows to the largest plan's size.
    """

    side_by_side: Callable[[Parts], None] = staticmethod(workers.side_by_side)

    def __init__(self, threads: int, jobs: Jobs | None = None) -> None:
        self.threads, self.jobs = threads, jobs
        self.changes = changes()
        self._plans: OrderedDict[Hashable, Runnable | None] = OrderedDict()
        self._buffer: Array = np.empty(0, np.uint8)
        self._base = 0
        self._working: dict[str, Array] = {}

    def plan(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """Return the plan of ``build(crew, *key)``, or None if the library offers none.

        ``stored`` are the operands in bfloat16, among the recipe's open ones. Little ``work`` runs
        on one thread, which does not release Python's lock: waking others takes longer, and much
        longer if other processes use their cores. A plan always runs with the thread count of its
        build.
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

    def built(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """Build a `plan` now, for the caller alone."""
        brief = work < SHARED
        shares = not brief or (self.jobs is not None and work >= JOINED)
        crew = PythonCrew(self.threads if shares else 1, brief, jobs=self.jobs)
        return build(crew, *key)

    def trim(self, prepared: bool = False) -> None:
        """Free the scratch memory; the next kernel that needs some allocates it again.

        ``prepared`` frees the plans too.
        """
        self._buffer = np.empty(0, np.uint8)
        self._working.clear()
        if prepared:
            self._plans.clear()

    def working(self, name: str, shape: Shape) -> Array:
        """Return float32 memory for results between plans, valid until the next request by name."""
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
            # The buffer is set last: an interrupt leaves none, rather than one with an old address.
            self._base = start + -start % PAGE
            self._buffer = buffer
        plan.run([array.__array_interface__["data"][0] for array in arrays], self._base)


class CompiledPlan:
    """A plan of calls of one function, of operands, scratch if any, and integers."""

    open, rounded = frozenset[int](), frozenset[int]()

    def __init__(
        self,
        crew: Crew,
        function: CompiledFunction,
        stages: Stages,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        scratch: int = 0,
        divides: int = 0,
        ranges: int = 1,
    ) -> None:
        # The bytes that calls read whose last arguments are ranges, and how many these are.
        self._divides = (divides if len(stages) == len(stages[0]) == 1 else 0), ranges
        self._function, self._brief = function, crew.brief
        self._stages, self._crew = stages, crew
        self.threads = max(map(len, stages))
        self.reads, self.writes, self.scratch = reads, writes, scratch
        self.sizes = (0,) * len({*reads, *writes})

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCalls:
        given = (*addresses, scratch) if self.scratch else tuple(addresses)
        stages: list[Stage] = [
            [[self._call((*given, *numbers))] for numbers in stage] for stage in self._stages
        ]
        return CompiledCalls(stages, self._crew)

    def _call(self, given: tuple[int, ...]) -> NativeCall:
        return compiled_call(self._function, given, self._brief, *self._divides)


class CompiledCalls:
    """The calls of stages; they do not change OpenMP's thread count."""

    threads = 0

    def __init__(self, stages: Sequence[Stage], crew: Crew) -> None:
        self._calls: list[Work] = []
        if max(map(len, stages)) > 1 and crew.jobs is not None:
            self._calls += crew.jobs.share(stages, crew.brief)
            return
        for stage in stages:
            # One worker needs no other.
            self._calls += stage[0] if len(stage) == 1 else [partial(crew.side_by_side, stage)]

    def __call__(self) -> None:
        """Make the calls."""
        workers.do(self._calls)

    def after(self, threads: int) -> list[Work]:
        """Return the calls; the counterpart of `singanet.ops.onednn.builder.Calls.after`."""
        return self._calls


class Area:
    """The operands' addresses, and named buffers in the workspace."""

    def __init__(
        self,
        addresses: Sequence[int],
        scratch: int,
        buffers: Mapping[str, int],
        shared: Area | None,
    ) -> None:
        self._addresses = addresses
        self._places: dict[str, int] = {} if shared is None else dict(shared._places)
        for name, size in buffers.items():
            self._places[name] = scratch
            scratch += rounded(size)

    @property
    def addresses(self) -> Sequence[int]:
        """The operands' addresses."""
        return self._addresses

    def place(self, name: str) -> int:
        """Return the address of a buffer."""
        return self._places[name]


class StagedPlan:
    """A plan of calls of compiled functions.

    ``lay`` turns one area for each worker into stages, which the ``crew`` runs. Each worker has its
    own ``buffers``; all have the ``shared`` ones.
    """

    def __init__(
        self,
        crew: Crew,
        lay: Callable[[list[Area]], list[Stage]],
        buffers: Mapping[str, int],
        operands: int,
        writes: tuple[int, ...],
        workers: int,
        shared: Mapping[str, int] = _NONE,
    ) -> None:
        self._crew, self._lay = crew, lay
        self._buffers, self._shared = buffers, shared
        self._each, self._common = (
            sum(map(rounded, given.values())) for given in (buffers, shared)
        )
        self.sizes = (0,) * operands
        self.writes = writes
        self.reads = tuple(k for k in range(operands) if k not in writes)
        self.scratch = self._common + workers * self._each
        self.threads = workers

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCalls:
        common, first = Area(addresses, scratch, self._shared, None), scratch + self._common
        places = [first + k * self._each for k in range(self.threads)]
        stages = self._lay([Area(addresses, place, self._buffers, common) for place in places])
        return CompiledCalls(stages, self._crew)


def rounded(size: int) -> int:
    """Round ``size`` up to whole pages, so that parts of the scratch do not share one."""
    return -(-size // PAGE) * PAGE
