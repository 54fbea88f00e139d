"""The simple recurrent layer, all steps of one direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.ops.numpy.sequences import Sequences, afters, around, walk
from singanet.types import Array


class ElmanKernels(Sequences):
    """h = f(x W_x + h W_h + b) with f tanh or relu (Elman 1990)."""

    xp: Any

    def elman(
        self,
        gates: Array,
        weight: Array,
        h0: Array | None,
        counts: Sequence[int],
        reverse: bool,
        mode: str,
    ) -> Array:
        """States h around the steps, (T + 1, N, H).

        ``gates`` (T, N, H) holds what the input and the biases add, and is overwritten;
        ``weight`` is (H, H). Rows past ``counts[t]`` keep their state.
        """
        xp = self.xp
        steps, n, size = gates.shape
        h = self.state_buffer((steps + 1, n, size), h0, gates, reverse)
        for t in walk(steps, reverse):
            b = counts[t]
            before, after = around(t, reverse)
            hb = h[after, :b]
            xp.matmul(h[before, :b], weight, out=hb)
            xp.add(hb, gates[t, :b], out=hb)
            if mode == "relu":
                xp.maximum(hb, 0, out=hb)
            else:
                xp.tanh(hb, out=hb)
            if b < n:
                h[after, b:] = h[before, b:]
        return h

    def elman_backward(
        self,
        dy: Array | None,
        dh: Array,
        h: Array,
        weight: Array,
        counts: Sequence[int],
        reverse: bool,
        mode: str,
    ) -> Array:
        """Gradient of what went into f, (T, N, H).

        ``dy`` (T, N, H) is the gradient of each h, or None; ``dh`` (N, H) is that of the last
        state, and on return of the first one.
        """
        xp = self.xp
        after = afters(h, reverse)
        dgates: Array = xp.empty(after.shape, h.dtype)
        if mode == "relu":
            xp.sign(after, out=dgates)
        else:
            xp.multiply(after, after, out=dgates)
            xp.subtract(1, dgates, out=dgates)
        # Copied once, the product of each step reads it in longer runs.
        across = xp.ascontiguousarray(weight.T)
        for t in walk(len(after), not reverse):
            b = counts[t]
            dhb, d = dh[:b], dgates[t, :b]
            if dy is not None:
                xp.add(dhb, dy[t, :b], out=dhb)
            xp.multiply(d, dhb, out=d)
            xp.matmul(d, across, out=dhb)
        self.clear_past(dgates, counts)
        return dgates
