"""A layer of gated recurrent units in one direction, from its input to its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singanet.ops.numpy.gru import GRUKernels
from singanet.ops.numpy.recurrent_gradients import RecurrentGradients, through_gates
from singanet.ops.numpy.sequences import befores
from singanet.types import Array


class GRULayers(GRUKernels):
    """`GRUKernels` with the products around them, so that a backend may do all at once."""

    affine: Callable[..., Array]
    matmul: Callable[..., Array]

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
        """States h (T + 1, N, H) around the steps of x (T, N, in), and notes for backward.

        ``weights`` are (in, 3H) and (H, 3H), ``biases`` (3H,) what is added with each, ``start``
        the first h or None for zero; without ``keep`` no backward will follow.
        """
        (steps, n, size), split = x.shape, 2 * len(weights[1])
        of_x, of_h = biases
        both = self.xp.add(of_x[:split], of_h[:split])
        bias = self.xp.concatenate([both, of_x[split:]])
        gates = self.affine(x.reshape(steps * n, size), weights[0], bias)
        gates = gates.reshape(steps, n, len(bias))
        h, linear = self.gru(gates, weights[1], of_h[split:], start, counts, reverse)
        return h, (gates, linear) if keep else ()

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
        """All gradients.

        ``end`` is that of the final h (N, H), and on return of the first one.
        """
        gates, linear = notes
        of_x, of_h = self.gru_backward(dy, end, gates, linear, h, weights[1], counts, reverse)
        before = befores(h, reverse)
        return through_gates(self, of_x, of_h, x, before, weights[0], needs_dx)
