"""A trial of a user's recorded layer against the layer itself, on other values.

Python may take a value from an array in ways that no array notices; what was recorded then holds
that value for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.engine.memory import arrays_in
from singanet.program.array_tree import map_arrays
from singanet.program.ir import Call, NotRecordableError, Ref
from singanet.program.trace.tape import Tape
from singanet.types import Array


class TrialMemory:
    """Memory for a few calls: by chance what they only read, as on the tape what lies outside."""

    def __init__(self, tape: Tape, calls: Sequence[Call]) -> None:
        self._tape = tape
        self._calls = calls
        self._memory: dict[int, Array] = {}
        self._rng = np.random.default_rng(1)

    def given(self, values: Any) -> Any:
        """Copies of what the arrays in ``values`` hold in this trial."""
        return map_arrays(values, lambda array: self._array(self._tape.ref(array)).copy(order="K"))

    def expect_same(self, wanted: Any, made: Any) -> None:
        """Run the calls and compare. Raises `NotRecordableError`."""
        for call in self._calls:
            self._tape.lowering.once(call, self._array)
        theirs, ours = arrays_in(wanted), self.given(arrays_in(made))
        if len(theirs) != len(ours) or not all(map(_same, theirs, ours)):
            raise NotRecordableError("its recorded kernels do not make what it makes")

    def _array(self, ref: Ref) -> Array:
        token, lowering = self._tape.tokens[ref.token], self._tape.lowering
        if token.held is not None:
            return lowering.outside({ref: self._tape.outside[ref]})[ref]
        if ref.token not in self._memory:
            made = self._memory[ref.token] = lowering.memory(token.nbytes)
            lowering.fill(made, self._drawn(token.nbytes, ref.dtype).view(np.uint8)[: token.nbytes])
        return lowering.array(ref, self._memory[ref.token], 0)

    def _drawn(self, nbytes: int, dtype: np.dtype[Any]) -> Array:
        count = -(-nbytes // dtype.itemsize)
        if dtype.kind == "f":
            return self._rng.standard_normal(count).astype(dtype)
        return self._rng.integers(0, 2, count).astype(dtype)


def _same(one: Array, other: Array) -> bool:
    same = (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
    return same and one.tobytes() == other.tobytes()
