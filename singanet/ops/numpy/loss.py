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
        losses: Array = log_sum - x[self.xp.arange(len(x)), labels]
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
        p[self.xp.arange(len(p)), labels] -= 1.0 - smoothing
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
        xp = self.xp
        top = x.max(axis=1, keepdims=True)
        p: Array = xp.subtract(x, top)
        xp.exp(p, out=p)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        log_sum: Array = xp.log(total, out=total)
        log_sum += top
        return p, log_sum[:, 0]
