"""Expressions on arrays, recorded on a tape and replayed on others."""

import numpy as np

from singanet.ops import numpy_ops
from singanet.program.compile import compile_tape
from singanet.program.ir import map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.replay.replay import Bound
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.layers import own
from singanet.program.trace.tape import Tape


class Expression:
    """``function(xp, *arrays)`` recorded on ``arrays``; calling it replays it on others."""

    def __init__(self, function, arrays):
        self.tape = Tape()
        self.tape.ops = recording_kernels(numpy_ops, self.tape)
        with np.errstate(all="ignore"), self.tape:
            given = own(self.tape, list(arrays))
            self._mark("feed", given, (), given)
            result = function(self.tape.ops.xp, *given)
            self.result = result
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            self._mark("outputs", results, (results,), [])
        self.recording = compile_tape(self.tape)
        self._arena = np.empty(self.recording.layout.nbytes + ALIGNMENT, np.uint8)

    def _mark(self, name, payload, read, filled):
        call = self.tape.add(lambda: None, (read,), {}, filled, "hidden", name=name)
        call.function, call.barrier = None, True
        call.arguments = map_arrays(payload, self.tape.ref)

    def __call__(self, *arrays):
        # What nobody wrote shows.
        self._arena[...] = 0xA5
        bound = Bound(self.recording, self._arena)
        for place, array in zip(bound.feed.arrays, arrays, strict=True):
            place[...] = array
        with np.errstate(all="ignore"):
            for call in bound.feed.calls:
                call()
        return [array.copy() for array in bound.outputs.arrays]


def expect_replays(function, *batches):
    """Recorded on the first of ``batches``, it gives on each what NumPy does, to the bit."""
    replay = Expression(function, batches[0])
    for batch in (*batches[1:], batches[0]):
        with np.errstate(all="ignore"):
            expected = function(np, *(array.copy("K") for array in batch))
        wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
        found = replay(*batch)
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            two = np.asarray(two)
            assert (one.shape, one.dtype) == (two.shape, two.dtype)
            np.testing.assert_array_equal(one, two)
            assert one.tobytes() == two.tobytes()
