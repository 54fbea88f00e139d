"""Predictions whose kernels threads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.engine.backward import arrays_in
from singanet.ops.threads import one_thread
from singanet.program.ir import NotRecordableError
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.report import ProgramReport


class PredictionProgram(Protocol):
    """A recorded prediction: `compiled.Prediction` or `SharedPrediction`."""

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
    def memory(self) -> Callable[[int, bool], Array]:
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


class SharedPrediction:
    """A prediction by ``program``, whose kernels threads share.

    While other programs use the cores, one thread takes less time. Its program is recorded by
    ``record`` when the cores are busy for the first time, and serves if it gives the same bits,
    which is tried with random numbers. ``names`` are those of the inputs.
    """

    def __init__(
        self,
        program: PredictionProgram,
        record: Callable[[Mapping[str, Any]], PredictionProgram],
        names: Sequence[str],
        is_busy: Callable[[], bool],
    ) -> None:
        self._program, self._alone = program, program
        self._record, self._names, self._is_busy = record, names, is_busy
        self._is_known = False
        # Properties of properties took a tenth of a small net's prediction.
        self.memory, self.has_holes = program.memory, program.has_holes
        self.arena_bytes = program.arena_bytes

    @property
    def notes(self) -> list[str]:
        """The Python steps."""
        return self._program.notes

    @property
    def outside(self) -> list[Array]:
        """The constants that it reads."""
        return [*self._program.outside, *self._alone.outside]

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""
        self._program.forget()
        self._alone.forget()

    def run(self, arena: Array, x: Any, out: Any = None) -> Any:
        """The predictions for ``x``, a dict or the array of a single input; in ``out``, if any."""
        if not self._is_busy():
            return self._program.run(arena, x, out)
        if not self._is_known:
            self._is_known = True
            self._learn(x if type(x) is dict else dict.fromkeys(self._names, x))
        # The next call has a larger arena, if one thread needs it.
        if self._alone is self._program or len(arena) < self.arena_bytes:
            return self._program.run(arena, x, out)
        with one_thread():
            return self._alone.run(arena, x, out)

    def report(self) -> ProgramReport:
        """The report of the shared program."""
        return self._program.report()

    def _learn(self, x: Mapping[str, Array]) -> None:
        """Record the program of one thread, for inputs like ``x``."""
        given = {name: _drawn(array) for name, array in x.items()}
        try:
            with one_thread():
                alone = self._record(given)
                wanted = _outputs(alone, given)
        except NotRecordableError:
            return
        if all(map(_is_same, arrays_in(_outputs(self._program, given)), arrays_in(wanted))):
            self._alone = alone
            self.arena_bytes = max(self.arena_bytes, alone.arena_bytes)
            self.has_holes |= alone.has_holes


def _drawn(array: Array) -> Array:
    """Random numbers in the place of an array of floats."""
    if array.dtype.kind != "f":
        return array
    return np.random.default_rng(0).standard_normal(array.shape).astype(array.dtype)


def _outputs(program: PredictionProgram, x: Mapping[str, Array]) -> Any:
    """The outputs for ``x``, in memory of their own."""
    made = program.run(program.memory(program.arena_bytes, program.has_holes), x)
    program.forget()
    return made


def _is_same(one: Array, other: Array) -> bool:
    """Whether two arrays have the same bits."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
