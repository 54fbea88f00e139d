"""Predictions whose kernels threads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singanet.engine.backward import arrays_in
from singanet.ops.threads import one_thread
from singanet.program.ir import NotRecordableError
from singanet.program.prediction.divided import PredictionPart, drawn, is_same, timed
from singanet.program.prediction.faster import Faster
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.report import ProgramReport


class SharedPrediction:
    """A prediction by ``program``, whose kernels threads share.

    Beside other programs one thread may take less time: `Faster` chooses. Its program is recorded
    by ``record`` when the cores are busy for the first time, and serves if it gives the same bits,
    which is tried with random numbers. ``names`` are those of the inputs.
    """

    def __init__(
        self,
        program: PredictionPart,
        record: Callable[[Mapping[str, Any]], PredictionPart],
        names: Sequence[str],
        is_busy: Callable[[], bool],
    ) -> None:
        self._program, self._alone = program, program
        self._record, self._names, self._is_busy = record, names, is_busy
        self._run: Callable[..., Any] = program.run
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
        if not self._is_known and self._is_busy():
            self._is_known = True
            self._learn(x if type(x) is dict else dict.fromkeys(self._names, x))
        # The next call has a larger arena, if one thread needs it.
        run = self._run if len(arena) >= self.arena_bytes else self._program.run
        return run(arena, x, out)

    def report(self) -> ProgramReport:
        """The report of the shared program."""
        return self._program.report()

    def _learn(self, x: Mapping[str, Array]) -> None:
        """Record the program of one thread, for inputs like ``x``."""
        given = {name: drawn(array) for name, array in x.items()}
        try:
            with one_thread():
                alone = self._record(given)
                wanted, seconds = timed(alone, given)
        except NotRecordableError:
            return
        made, _ = timed(self._program, given)
        if all(map(is_same, arrays_in(made), arrays_in(wanted))):
            self._alone = alone
            self.arena_bytes = max(self.arena_bytes, alone.arena_bytes)
            self.has_holes |= alone.has_holes
            self._run = Faster(self._program.run, self._by_one, seconds)

    def _by_one(self, arena: Array, x: Any, out: Any) -> Any:
        with one_thread():
            return self._alone.run(arena, x, out)
