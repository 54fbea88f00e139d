"""Plans: the work of a kernel on the addresses of its operands, and the thread that runs them."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from singanet.base.heap import small_pages
from singanet.base.kinds import PAGE
from singanet.ops import workers
from singanet.ops.threads import changes
from singanet.types import Array, Parts, Shape, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

SHARED = 1 << 19
"""Values to go over from which a kernel is shared by the threads: some 200 to 500 microseconds.

Below, two threads gain less than waking one costs, which is 300 microseconds where the core had
gone to sleep, and a turn of the other process, of milliseconds, where it has other work: a net
whose steps are made of such kernels would take a multiple of its time.
"""

_CAPACITY = 1024
_NONE: Mapping[str, int] = {}

Stages = Sequence[Sequence[tuple[int, ...]]]
"""The numbers of calls: those of a stage are made side by side, one stage after the other."""

Stage = list[list[Work]]
"""What each worker does, one after the other; all of them are done before the next stage."""


class Runnable(Protocol):
    """What a runtime runs: stages of oneDNN, or calls of Python with compiled functions in them."""

    threads: int
    scratch: int
    """The bytes of working memory that it needs."""

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each operand that only the library reads, 0 of the others."""

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


Build = Callable[..., Runnable | None]
"""``build(crew, *key)`` makes a plan; oneDNN's may add stages to its builder and return None."""


class Crew(Protocol):
    """Those who do a plan: so many threads; one that is ``brief`` keeps Python's lock."""

    @property
    def threads(self) -> int:
        """How many."""

    @property
    def brief(self) -> bool:
        """Whether it is done before another thread of Python could do much."""

    @property
    def side_by_side(self) -> Callable[[Parts], None]:
        """Has the threads do a part each."""


class PythonCrew(NamedTuple):
    """Threads of Python."""

    threads: int
    brief: bool
    side_by_side: Callable[[Parts], None] = workers.side_by_side


class PlanRuntime:
    """The state with which a thread runs plans; another thread makes one of its own.

    Plans are kept by what determines them, the least recently used dropped beyond a thousand.
    Scratch memory is one buffer that grows to what the hungriest plan needs.
    """

    side_by_side: Callable[[Parts], None] = staticmethod(workers.side_by_side)

    def __init__(self, threads: int) -> None:
        self.threads = threads
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
        """The plan that ``build(crew, *key)`` makes, or None if the library offers none.

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

    def built(
        self,
        build: Build,
        key: tuple[Any, ...],
        work: int,
        stored: frozenset[int] = frozenset(),
    ) -> Runnable | None:
        """As `plan`, made now and kept by the caller alone."""
        brief = work < SHARED
        return build(PythonCrew(1 if brief else self.threads, brief), *key)

    def trim(self, prepared: bool = False) -> None:
        """Let the scratch memory go; the next kernel that needs some makes it again.

        With ``prepared`` the plans too.
        """
        self._buffer = np.empty(0, np.uint8)
        self._working.clear()
        if prepared:
            self._plans.clear()

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


def shared(numbers: tuple[int, ...], counts: Sequence[int], threads: int) -> Stages:
    """Calls with ``numbers`` and after them a range for each stage, of so many parts.

    One call is of all stages; of several threads each has the parts of one.
    """
    if threads == 1:
        return [[(*numbers, *chain.from_iterable((0, count) for count in counts))]]
    stages = []
    for stage, count in enumerate(counts):
        before, after = (0, 0) * stage, (0, 0) * (len(counts) - stage - 1)
        calls = [(*numbers, *before, *cut, *after) for cut in workers.cuts(count, threads)]
        stages += [calls] * bool(calls)
    return stages


class CompiledPlan:
    """A plan of calls of a function of operands, of scratch if any, and numbers."""

    open, rounded = frozenset[int](), frozenset[int]()

    def __init__(
        self,
        crew: Crew,
        function: CompiledFunction,
        stages: Stages,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        scratch: int = 0,
    ) -> None:
        self._call = function.briefly if crew.brief else function.at_length
        self._stages, self._side_by_side = stages, crew.side_by_side
        self.threads = max(map(len, stages))
        self.reads, self.writes, self.scratch = reads, writes, scratch
        self.sizes = (0,) * len({*reads, *writes})

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCalls:
        given = (*addresses, scratch) if self.scratch else tuple(addresses)
        stages = [
            [CompiledCall(self._call, (*given, *numbers)) for numbers in stage]
            for stage in self._stages
        ]
        return CompiledCalls(stages, self._side_by_side)


class CompiledCall:
    """A call with arguments that stay."""

    def __init__(self, function: Callable[[object], None], given: tuple[int, ...]) -> None:
        self.given = (ctypes.c_int64 * len(given))(*given)
        self.call = partial(function, ctypes.c_void_p(ctypes.addressof(self.given)))


class CompiledCalls:
    """The calls of stages; they leave OpenMP's threads as they are."""

    threads = 0

    def __init__(
        self, stages: list[list[CompiledCall]], side_by_side: Callable[[Parts], None]
    ) -> None:
        self.stages = stages
        self._parts: list[Work] = []
        for stage in stages:
            parts = [[each.call] for each in stage]
            self._parts.append(parts[0][0] if len(parts) == 1 else partial(side_by_side, parts))

    def __call__(self) -> None:
        """Make them."""
        for part in self._parts:
            part()

    def after(self, threads: int) -> list[Work]:
        """See `singanet.ops.onednn.builder.Calls`."""
        return self._parts


class Area:
    """Operands at their addresses, and working memory for buffers that are known by name."""

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
        """Of the operands."""
        return self._addresses

    def place(self, name: str) -> int:
        """The address of a buffer."""
        return self._places[name]


class StagedPlan:
    """A plan of calls of compiled functions.

    ``lay`` turns an area for each worker into stages, which ``side_by_side`` has them do. Each has
    ``buffers`` of its own, and all have the ``shared`` ones.
    """

    def __init__(
        self,
        side_by_side: Callable[[Parts], None],
        lay: Callable[[list[Area]], list[Stage]],
        buffers: Mapping[str, int],
        operands: int,
        writes: int,
        workers: int,
        shared: Mapping[str, int] = _NONE,
    ) -> None:
        self._side_by_side, self._lay = side_by_side, lay
        self._buffers, self._shared = buffers, shared
        self._each, self._common = (
            sum(map(rounded, given.values())) for given in (buffers, shared)
        )
        self.sizes = (0,) * operands
        self.writes = (writes,)
        self.reads = tuple(k for k in range(operands) if k != writes)
        self.scratch = self._common + workers * self._each
        self.threads = workers

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        common, first = Area(addresses, scratch, self._shared, None), scratch + self._common
        places = [first + k * self._each for k in range(self.threads)]
        stages = self._lay([Area(addresses, place, self._buffers, common) for place in places])
        shared = self._side_by_side

        def run() -> None:
            for stage in stages:
                shared(stage)

        return run


def rounded(size: int) -> int:
    """``size`` up to whole pages, so that parts of the scratch do not share one."""
    return -(-size // PAGE) * PAGE
