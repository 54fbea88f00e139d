"""Simple recurrent layers by oneDNN: all steps of a direction with their products in one call."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.numpy.recurrent_gradients import RecurrentGradients
from singanet.ops.onednn.one_state import OneDnnOneState
from singanet.types import Array

_STEPS, _STATE = 20, 256
"""From how many steps, and up to how large a state of the batch, oneDNN is faster.

One call then saves more of Python than its kernels, slower than BLAS by up to a quarter, lose.
"""


class OneDnnElman(OneDnnOneState):
    """Many steps of small states with tanh; others, ragged batches and float64 are NumPy's.

    So is relu: oneDNN's makes zero of NaN, and a state that is none would be lost.
    """

    def elman_layer(
        self,
        x: Array,
        weights: tuple[Array, Array],
        bias: Array,
        start: Array | None,
        counts: Sequence[int],
        reverse: bool,
        mode: str,
        keep: bool,
    ) -> tuple[Array, tuple[Array, ...]]:
        """See `NumpyOps`."""
        pays = len(counts) >= _STEPS and x.shape[1] * len(bias) <= _STATE
        if (
            mode == "tanh"
            and pays
            and self.serves(1, x, *weights, bias)
            and min(counts) == x.shape[1]
        ):
            made = self._states("tanh", x, (*weights, bias), start, reverse, keep)
            if made is not None:
                return made
        return super().elman_layer(x, weights, bias, start, counts, reverse, mode, keep)

    def elman_layer_backward(
        self,
        dy: Array | None,
        end: Array,
        x: Array,
        weights: tuple[Array, Array],
        bias: Array,
        h: Array,
        notes: tuple[Array, ...],
        counts: Sequence[int],
        reverse: bool,
        mode: str,
        needs_dx: bool,
    ) -> RecurrentGradients:
        """See `NumpyOps`."""
        if not notes:
            return super().elman_layer_backward(
                dy, end, x, weights, bias, h, notes, counts, reverse, mode, needs_dx
            )
        given = (*weights, bias)
        dx, of_x, of_h, of_bias = self._slopes("tanh", dy, end, x, given, h, notes[0], reverse)
        return RecurrentGradients(dx if needs_dx else None, of_x, of_h, of_bias, of_bias)
