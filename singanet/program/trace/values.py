"""The values of a step that is being recorded, for Python code that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops import draws, transfers
from singanet.program.ir import Call, NotRecordableError, Ref, map_arrays
from singanet.program.loads import LoadedArray
from singanet.program.trace.abstract import CallWriter
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net

_FILL = frozenset(("uniform", "look up"))
"""The barrier calls that only fill arrays."""


class Values:
    """Arrays of a tape, computed by its calls on demand.

    Memory from outside that calls write to is copied, so that nothing is changed. Updates and
    communication are not run.
    """

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._done = 0

    def go_back(self, mark: int) -> None:
        """Note that all calls from ``mark`` on were deleted."""
        self._done = min(self._done, mark)

    def of(self, tape: CallWriter, values: Any) -> Any:
        """Return ``values`` with copies in the place of the arrays of ``tape``."""
        calls, self._done = tape.calls[self._done :], len(tape.calls)
        last = {token: at for at, call in enumerate(calls) for token in (*call.reads, *call.writes)}
        for at, call in enumerate(calls):
            self._make(tape, call)
            for token in tape.gone.intersection((*call.reads, *call.writes)):
                if last[token] == at:
                    self._memory.pop(token, None)
        return map_arrays(values, lambda place: self.array(tape, tape.ref(place)).copy(order="K"))

    def _make(self, tape: CallWriter, call: Call) -> None:
        if call.function is None or call.phase in ("update", "communication"):
            return
        if not call.barrier or call.name in _FILL:
            with np.errstate(all="ignore"):
                tape.lowering.once(call, lambda ref: self.array(tape, ref))

    def array(self, tape: CallWriter, ref: Ref) -> Any:
        """Return the array at ``ref``."""
        token, lowering = tape.tokens[ref.token], tape.lowering
        if type(token.held) is LoadedArray:
            return lowering.view(token.held.now(), ref)
        if token.held is not None and not token.writes:
            return lowering.outside({ref: tape.outside[ref]})[ref]
        if ref.token not in self._memory:
            made = self._memory[ref.token] = lowering.memory(token.nbytes)
            if token.held is not None:
                whole = Ref(ref.token, 0, (token.nbytes,), (1,), np.dtype(np.uint8))
                lowering.fill(made, lowering.view(token.held, whole))
        return lowering.array(ref, self._memory[ref.token], 0)


class Draws:
    """Draws through the kernels from whatever generator the net has then; others are refused."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def fill(self, *outs: Array) -> None:
        """Fill ``outs``, one after the other, with float32 numbers from 0 to below 1."""
        if not all(type(out) is np.ndarray for out in outs):
            transfers.fill(self._net.rng, self._net.device.ops.xp, *outs)
            return
        for out in outs:
            draws.fill(self._net.rng, out, *self._net.device.ops.team())

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(f"a draw by the layer itself, rng.{name}")
