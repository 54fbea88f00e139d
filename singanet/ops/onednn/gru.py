"""Gated recurrent units by oneDNN: all steps of a direction, the products with them, in one call.

Its "linear before reset" variant is the formula of `NumpyOps`; its gates stand as z, r, n.
"""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.numpy.recurrent_gradients import RecurrentGradients
from singanet.ops.onednn.one_state import OneDnnOneState, Parameters
from singanet.types import Array

_WIDE = 192
"""Units from which a single sequence is NumPy's: oneDNN rearranges the weights in each call."""


class OneDnnGRU(OneDnnOneState):
    """Single sequences of many units, ragged batches and float64 stay with NumPy."""

    def gru_layer(
        self,
        x: Array,
        weights: tuple[Array, Array],
        biases: tuple[Array, Array],
        start: Array | None,
        counts: Sequence[int],
        reverse: bool,
        keep: bool,
    ) -> tuple[Array, tuple[Array, ...]]:
        """See `NumpyOps`."""
        several = x.shape[1] > 1 or len(weights[1]) < _WIDE
        if several and self.serves(1, x, *weights, *biases) and min(counts) == x.shape[1]:
            made = self._states("gru", x, self._given(weights, biases), start, reverse, keep)
            if made is not None:
                return made
        return super().gru_layer(x, weights, biases, start, counts, reverse, keep)

    def gru_layer_backward(
        self,
        dy: Array | None,
        end: Array,
        x: Array,
        weights: tuple[Array, Array],
        biases: tuple[Array, Array],
        h: Array,
        notes: tuple[Array, ...],
        counts: Sequence[int],
        reverse: bool,
        needs_dx: bool,
    ) -> RecurrentGradients:
        """See `NumpyOps`."""
        if len(notes) != 1:
            return super().gru_layer_backward(
                dy, end, x, weights, biases, h, notes, counts, reverse, needs_dx
            )
        given = self._given(weights, biases)
        dx, weight_x, weight_h, bias = self._slopes("gru", dy, end, x, given, h, notes[0], reverse)
        width = h.shape[2]
        bias_x = self._turned(bias[: 3 * width])
        bias_h = self.xp.concatenate([bias_x[: 2 * width], bias[3 * width :]])
        made = self._turned(weight_x), self._turned(weight_h)
        return RecurrentGradients(dx if needs_dx else None, *made, bias_x, bias_h)

    def _given(self, weights: tuple[Array, Array], biases: tuple[Array, Array]) -> Parameters:
        """As oneDNN has them."""
        of_x, of_h = weights
        return self._turned(of_x), self._turned(of_h), self._joined(*biases)

    def _turned(self, blocks: Array) -> Array:
        """r, z, n as z, r, n, and the reverse."""
        width = blocks.shape[-1] // 3
        parts = [blocks[..., k * width : (k + 1) * width] for k in (1, 0, 2)]
        turned: Array = self.xp.concatenate(parts, axis=-1)
        return turned

    def _joined(self, bias_x: Array, bias_h: Array) -> Array:
        """z, r, n of the input, and n of the state."""
        split = 2 * (len(bias_x) // 3)
        both = self.xp.add(bias_x[:split], bias_h[:split])
        turned = [both[split // 2 :], both[: split // 2]]
        joined: Array = self.xp.concatenate([*turned, bias_x[split:], bias_h[split:]])
        return joined
