"""One pass over the data, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from singanet.execution import LayerGradients
from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer


@dataclass(frozen=True)
class EpochResult:
    """Means over the samples of a pass; ``metric`` is None for a net without one."""

    loss: float
    metric: float | None
    samples: int


class _Mean:
    """The mean of per-batch means, weighted by the number of samples."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.metric = 0.0
        self.samples = 0

    def add(self, loss: float, metric: float | None, samples: int) -> None:
        self.loss += loss * samples
        self.metric += (metric or 0.0) * samples
        self.samples += samples

    def result(self, has_metric: bool) -> EpochResult:
        count = max(self.samples, 1)
        metric = self.metric / count if has_metric else None
        return EpochResult(self.loss / count, metric, self.samples)


def fit_epoch(
    net: FeedForwardNet,
    batches: Iterable[tuple[Any, Any]],
    optimizer: Optimizer,
    on_batch: Callable[[EpochResult], None] | None = None,
    on_layer: Callable[[LayerGradients], None] | None = None,
) -> EpochResult:
    """Train on every batch with the streaming backward.

    ``on_layer`` sees each layer's gradients before they are applied, ``on_batch`` the means so
    far after each batch.
    """
    mean = _Mean()
    has_metric = net.metric is not None
    for x, y in batches:
        loss, metric = net.step(x, y, optimizer, on_layer)
        mean.add(loss, metric, len(y))
        if on_batch is not None:
            on_batch(mean.result(has_metric))
    return mean.result(has_metric)


def evaluate(net: FeedForwardNet, batches: Iterable[tuple[Any, Any]]) -> EpochResult:
    """Loss and metric over all batches, without training."""
    mean = _Mean()
    for x, y in batches:
        loss, metric = net.evaluate(x, y)
        mean.add(loss or 0.0, metric, len(y))
    return mean.result(net.metric is not None)
