"""A simple recurrent layer in one direction, from its input to its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singanet.ops.numpy.elman import ElmanKernels
from singanet.ops.numpy.recurrent_gradients import RecurrentGradients, through_gates
from singanet.ops.numpy.sequences import befores
from singanet.types import Array


class ElmanLayers(ElmanKernels):
    """`ElmanKernels` with the products around them, so that a backend may do all at once."""

    affine: Callable[..., Array]
    matmul: Callable[..., Array]

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
        """States h (T + 1, N, H) around the steps of x (T, N, in), and notes for backward.

        ``weights`` are (in, H) and (H, H), ``start`` the first h or None for zero; without
        ``keep`` no backward will follow. NumPy's needs no notes.
        """
        steps, n, size = x.shape
        gates = self.affine(x.reshape(steps * n, size), weights[0], bias)
        gates = gates.reshape(steps, n, len(bias))
        return self.elman(gates, weights[1], start, counts, reverse, mode), ()

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
        """All gradients; those of both biases are one array.

        ``end`` is that of the final h (N, H), and on return of the first one.
        """
        dgates = self.elman_backward(dy, end, h, weights[1], counts, reverse, mode)
        return through_gates(self, dgates, dgates, x, befores(h, reverse), weights[0], needs_dx)
