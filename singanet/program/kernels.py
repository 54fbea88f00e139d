"""The kernels of a net, as they are while a tape is running."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.ops import NumpyOps
from singanet.program.module import TracingModule
from singanet.program.tape import NotRecordableError, Tape
from singanet.program.traced import Traced, plain, recording
from singanet.types import Array, Shape


class RecordingKernels(NumpyOps):
    """What has to be written down by itself, since it is no function of arrays."""

    def uniform(self, rng: Any, shape: Shape) -> Array:
        """Draws, again at each replay, from the generator that the net has then."""
        tape = recording()
        draws: Array = np.empty(shape, np.float32)
        rng.fill(draws)
        tape.adopt(draws)
        tape.add(rng.fill, (), {}, (draws,), "first", name="uniform").barrier = True
        return draws.view(Traced)

    def host(self, array: Array) -> Array:
        """Refused, since a replay would not look again."""
        raise NotRecordableError("a look at values on the host")

    def check(self, function: Callable[[Array], None], array: Array) -> None:
        """Look at the values now and at each replay."""
        function(plain(array))
        recording().add(function, (array,), {}, (), "hidden", name="check").barrier = True


def recording_kernels(ops: NumpyOps, tape: Tape) -> NumpyOps:
    """The kernels ``ops``, which write what they do on ``tape``."""
    made = copy.copy(ops)
    made.__class__ = _recording_class(f"Recording{type(ops).__name__}", type(ops))
    made.xp = TracingModule(tape)
    return made


def _recording_class(name: str, kind: Any) -> Any:
    if name not in _classes:
        _classes[name] = type(name, (RecordingKernels, kind), {})
    return _classes[name]


_classes: dict[str, Any] = {}
