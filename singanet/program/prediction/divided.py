"""Predictions whose samples are divided among threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.engine.backward import arrays_in
from singanet.errors import SingaNetError
from singanet.layers.batchwise import Rearrange
from singanet.ops.threads import one_thread
from singanet.ops.workers import cuts, do
from singanet.program.ir import map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.prediction.faster import Faster
from singanet.program.trace.foreign_code import is_own
from singanet.types import Array, Parts

if TYPE_CHECKING:
    from singanet.engine.plan import Plan
    from singanet.program.report import ProgramReport


class PredictionProgram(Protocol):
    """A recorded prediction: `compiled.Prediction`, or one that is divided."""

    @property
    def arena_bytes(self) -> int:
        """The bytes of its arena."""

    @property
    def has_holes(self) -> bool:
        """Whether much of the arena is never written."""

    @property
    def notes(self) -> list[str]:
        """Its Python steps, with reasons."""

    @property
    def memory(self) -> Callable[[int], Array]:
        """The function that allocates its arena."""

    @property
    def outside(self) -> list[Array]:
        """The constants that it reads."""

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""

    def run(self, arena: Array, x: Any, out: Any = None) -> Any:
        """The predictions for ``x``, a dict or the array of a single input; in ``out``, if any."""

    def report(self) -> ProgramReport:
        """Its report."""


class PredictionPart(PredictionProgram, Protocol):
    """A `PredictionProgram` that may be bound several times."""

    def again(self) -> PredictionPart:
        """The same program, to be bound to an arena of its own."""

    def put(self, found: Any, out: Any) -> Any:
        """``out``, with the outputs ``found`` in it."""


_MOST = 1.25
"""The longest time, relative to a thread's share of the whole, that pays."""

_LEAST = 5e-5
"""The least seconds to gain: Python needs as long to hand a part to a thread."""

_ROUNDS = 16
"""The most repetitions of a measurement."""

_ENOUGH = 0.02
"""Seconds after which a measurement is not repeated."""


class DividedPrediction:
    """A prediction in ``parts``, programs of one thread, each for some consecutive samples.

    Each thread computes a part. If threads shared each kernel, they would wait for each other after
    each; here they wait once. Samples do not depend on each other. Beside other programs one thread
    may take less time for all parts: see `Faster`. They took it ``seconds``, and a program of all
    samples made ``outputs``.
    """

    def __init__(
        self,
        parts: Sequence[PredictionPart],
        counts: Sequence[int],
        side_by_side: Callable[[Parts], None],
        by_layers: Callable[[Any], Any],
        outputs: Any,
        seconds: float,
    ) -> None:
        self._parts, self._by_layers = parts, by_layers
        ends = [sum(counts[: k + 1]) for k in range(len(counts))]
        self._rows = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        sizes = [-(-part.arena_bytes // ALIGNMENT) * ALIGNMENT for part in parts]
        self._places = [slice(sum(sizes[:k]), sum(sizes[: k + 1])) for k in range(len(sizes))]
        self.arena_bytes, self.memory = sum(sizes), parts[0].memory
        self.has_holes = any(part.has_holes for part in parts)
        self.notes: list[str] = []
        self._arena: Array | None = None
        self._arenas: list[Array] = []
        self._outputs = map_arrays(outputs, _without_memory)
        self._faster = Faster(partial(self._by, side_by_side), partial(self._by, in_turn), seconds)

    @property
    def outside(self) -> list[Array]:
        """The constants that it reads."""
        return [array for part in self._parts for array in part.outside]

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""
        self._arena, self._arenas = None, []
        for part in self._parts:
            part.forget()

    def run(self, arena: Array, x: Any, out: Any = None) -> Any:
        """The predictions for ``x``, a dict or the array of a single input; in ``out``, if any."""
        made = self._faster(arena, x)
        return made if out is None else self._parts[0].put(made, out)

    def _by(self, run: Callable[[Parts], None], arena: Array, x: Any) -> Any:
        if self._arena is not arena:
            self._arenas, self._arena = [arena[place] for place in self._places], arena
        made = map_arrays(self._outputs, lambda y: np.empty(y.shape, y.dtype))
        try:
            parts = range(len(self._parts))
            run([[partial(self._predict, k, x, made)] for k in parts])
        except SingaNetError:
            # The layers' error names positions in the whole batch.
            self._by_layers(x)
            raise
        return made

    def report(self) -> ProgramReport:
        """The report of the first part."""
        return self._parts[0].report()

    def _predict(self, k: int, x: Any, made: Any) -> None:
        rows = self._rows[k]
        given = {name: part[rows] for name, part in x.items()} if type(x) is dict else x[rows]
        with one_thread():
            self._parts[k].run(self._arenas[k], given, map_arrays(made, lambda y: y[rows]))


def in_turn(parts: Parts) -> None:
    """Run the parts one after the other."""
    for part in parts:
        do(part)


def is_divisible(plan: Plan, feed: Mapping[str, Any], threads: int) -> bool:
    """Whether each sample's outputs depend on that sample alone, and each thread gets samples."""
    arrays = list(feed.values())
    return (
        threads > 1
        and all(type(array) is np.ndarray for array in arrays)
        and len({len(array) for array in arrays}) == 1
        and len(arrays[0]) >= threads
        and all(is_own(step.layer) for step in plan.steps)
        and not any(_moves_samples(step.layer) for step in plan.steps)
    )


def _moves_samples(layer: Any) -> bool:
    return isinstance(layer, Rearrange) and layer.traits.samples == "own"


def divided(
    record: Callable[[Mapping[str, Any]], PredictionPart],
    by_layers: Callable[[Any], Any],
    feed: Mapping[str, Array],
    threads: int,
    side_by_side: Callable[[Parts], None],
) -> DividedPrediction | None:
    """The prediction in a part for each thread; None unless that pays and gives the same bits.

    ``record`` makes the program of a feed, ``by_layers`` raises the errors of inputs. Kernels may
    differ by the number of samples, and so in the order of their sums: parts are compared with one
    program of all samples, on random numbers. Parts do not pay if each takes almost as long as the
    whole, as with few samples and many constants, all of which each thread reads.
    """
    given = {name: drawn(array) for name, array in feed.items()}
    count = len(next(iter(given.values())))
    pieces = cuts(count, threads)
    counts = [end - start for start, end in pieces]
    with one_thread():
        whole = record(given)
        if whole.notes:
            return None
        wanted, seconds = timed(whole, given)
        programs: dict[int, PredictionPart] = {}
        longest = 0.0
        for start, end in pieces:
            part = {name: array[start:end] for name, array in given.items()}
            if end - start not in programs:
                programs[end - start] = record(part)
            made, taken = timed(programs[end - start], part)
            # Kernels may sum the last samples in another order than the first ones.
            if not all(map(is_same, arrays_in(made), (y[start:end] for y in arrays_in(wanted)))):
                return None
            longest = max(longest, taken)
    if longest > _MOST * seconds / threads or seconds - longest < _LEAST:
        return None
    parts = [programs[size].again() for size in counts]
    return DividedPrediction(parts, counts, side_by_side, by_layers, wanted, longest * threads)


def _without_memory(array: Array) -> Array:
    """An array of zeros, of one number."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def drawn(array: Array) -> Array:
    """Random numbers in the place of an array of floats."""
    if array.dtype.kind != "f":
        return array
    return np.random.default_rng(0).standard_normal(array.shape).astype(array.dtype)


def timed(program: PredictionProgram, x: Mapping[str, Array]) -> tuple[Any, float]:
    """The outputs for ``x``, and the least time in seconds: this thread's processor time."""
    arena = program.memory(program.arena_bytes)
    given = x if len(x) > 1 else next(iter(x.values()))
    # The first run binds the program and fills caches.
    made = program.run(arena, given)
    least, begin = np.inf, thread_time()
    for _ in range(_ROUNDS):
        start = thread_time()
        made = program.run(arena, given)
        least = min(least, thread_time() - start)
        if thread_time() - begin > _ENOUGH:
            break
    program.forget()
    return made, least


def is_same(one: Array, other: Array) -> bool:
    """Whether two arrays have the same bits."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
