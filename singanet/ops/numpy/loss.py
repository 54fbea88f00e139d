"""Losses fused with their gradients."""

from __future__ import annotations

from typing import Any

from singanet.types import Array


class Losses:
    """Kernels of losses: values per position, and what the gradient needs."""

    xp: Any

    def softmax_cross_entropy(
        self, x: Array, labels: Array, smoothing: float = 0.0
    ) -> tuple[Array, Array]:
        """Log Σ_j exp(x_j) − x_label for x (N, C), labels (N,); returns (N,) and softmax(x)."""
        p, log_sum = self._softmax_with_log_sum(x)
        losses: Array = log_sum - x.reshape(-1)[self._places(labels, x)]
        if smoothing:
            losses *= 1.0 - smoothing
            losses += smoothing * (log_sum - x.mean(axis=1))
        return losses, p

    def softmax_cross_entropy_backward(
        self, p: Array, labels: Array, smoothing: float = 0.0
    ) -> Array:
        """softmax(x) − target, written over ``p`` (N, C)."""
        if smoothing:
            p -= smoothing / p.shape[1]
        flat, places = p.reshape(-1), self._places(labels, p)
        flat[places] = flat[places] - (1.0 - smoothing)
        return p

    def softmax_cross_entropy_soft(self, x: Array, target: Array) -> tuple[Array, Array]:
        """−Σ_j t_j log softmax(x)_j for x, t (N, C), Σ_j t_j = 1; returns (N,) and softmax(x)."""
        p, log_sum = self._softmax_with_log_sum(x)
        losses: Array = log_sum - self.xp.multiply(target, x).sum(axis=1)
        return losses, p

    def sigmoid_cross_entropy(self, x: Array, y: Array) -> Array:
        """−y log σ(x) − (1 − y) log(1 − σ(x)), element by element, for any finite x."""
        xp = self.xp
        losses: Array = xp.abs(x)
        xp.negative(losses, out=losses)
        xp.exp(losses, out=losses)
        xp.log1p(losses, out=losses)
        losses += xp.maximum(x, 0)
        losses -= x * y
        return losses

    def _softmax_with_log_sum(self, x: Array) -> tuple[Array, Array]:
        """softmax(x) in C order, and log Σ_j exp(x_j)."""
        xp = self.xp
        # NumPy finds where the largest of a short row is in less time than what it is.
        top = x.reshape(-1)[self._places(x.argmax(axis=1), x)]
        p: Array = xp.empty(x.shape, x.dtype)
        xp.subtract(x, top[:, None], out=p)
        xp.exp(p, out=p)
        total = xp.matmul(p, xp.ones(x.shape[1], x.dtype))
        xp.divide(p, total[:, None], out=p)
        log_sum: Array = xp.log(total, out=total)
        log_sum += top
        return p, log_sum

    def _places(self, columns: Array, x: Array) -> Array:
        """Where the elements of ``columns`` (N,), one in each row, are in the flat ``x`` (N, C)."""
        starts = self.xp.arange(0, x.size, x.shape[1])
        # As signed, since unsigned 64 bits and signed ones make a float.
        return self.xp.add(columns.astype(starts.dtype, copy=False), starts)
