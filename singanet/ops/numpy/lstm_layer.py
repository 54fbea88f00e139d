"""A layer of long short-term memory in one direction, from its input to its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singanet.ops.numpy.lstm import LSTMKernels
from singanet.ops.numpy.sequences import befores
from singanet.types import Array

LSTMGradients = tuple[Array | None, Array, Array, Array]
"""Of x (None where nobody wants it), of both weights, and of the bias."""


class LSTMLayers(LSTMKernels):
    """`LSTMKernels` with the products around them, so that a backend may do all at once."""

    affine: Callable[..., Array]
    matmul: Callable[..., Array]

    def lstm_layer(
        self,
        x: Array,
        weights: tuple[Array, Array],
        bias: Array,
        starts: tuple[Array | None, Array | None],
        counts: Sequence[int],
        reverse: bool,
        keep: bool,
    ) -> tuple[Array, Array, tuple[Array, ...]]:
        """States h (T + 1, N, H) around the steps of x (T, N, in), cells, and notes for backward.

        The last of the cells, in reverse the first, is the final one. ``weights`` are (in, 4H)
        and (H, 4H), ``starts`` the first h and c or None for zero; without ``keep`` no backward
        will follow.
        """
        steps, n, size = x.shape
        gates = self.affine(x.reshape(steps * n, size), weights[0], bias)
        gates = gates.reshape(steps, n, len(bias))
        h, c = self.lstm(gates, weights[1], *starts, counts, reverse)
        return h, c, (gates, c) if keep else ()

    def lstm_layer_backward(
        self,
        dy: Array | None,
        ends: Sequence[Array],
        x: Array,
        weights: tuple[Array, Array],
        h: Array,
        notes: tuple[Array, ...],
        counts: Sequence[int],
        reverse: bool,
        needs_dx: bool,
    ) -> LSTMGradients:
        """Gradients of x, of both weights and of the bias.

        ``ends`` are the gradients (N, H) of the final h and c, and on return of the first ones.
        """
        gates, c = notes
        dgates = self.lstm_backward(dy, ends[0], ends[1], gates, c, weights[1], counts, reverse)
        rows, size = dgates.reshape(-1, dgates.shape[2]), h.shape[2]
        of_h = self.matmul(befores(h, reverse).reshape(-1, size).T, rows)
        of_x = self.matmul(x.reshape(-1, x.shape[2]).T, rows)
        # Summed over time and then over samples: two short sums lose less than one long one.
        of_bias = dgates.sum(axis=0).sum(axis=0)
        dx = self.matmul(rows, weights[0].T).reshape(x.shape) if needs_dx else None
        return dx, of_x, of_h, of_bias
