"""Loss and metrics of a pass, gathered exactly over its batches."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from singanet.errors import UnknownNameError, did_you_mean, one_of
from singanet.metric import Metric
from singanet.types import Array


class Measures:
    """The mean loss over the samples so far, and what the metrics make of them together.

    The metrics are the ones given, so that one whose result is no number (a confusion matrix)
    can be asked afterwards; `alone` works on copies instead.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = dict(metrics)
        self.start()

    @classmethod
    def alone(cls, metrics: Mapping[str, Metric]) -> Measures:
        """Measures that leave what ``metrics`` have gathered as it is."""
        return cls({name: copy(metric) for name, metric in metrics.items()})

    def start(self) -> None:
        """Forget every batch."""
        self.loss_sum = 0.0
        self.samples = 0
        for metric in self.metrics.values():
            metric.reset()

    def add_loss(self, loss: float, samples: int) -> None:
        """Gather the mean ``loss`` of a batch of ``samples``."""
        self.loss_sum += loss * samples
        self.samples += samples

    def update(self, out: Any, y: Any) -> None:
        """Let every metric gather a batch; of several outputs each sees the one it is named after.

        Errors: a metric named after no output, and what the metrics refuse.
        """
        for name, metric in self.metrics.items():
            if isinstance(out, dict):
                metric.update(_part("outputs", out, name), _part("targets", y, name))
            else:
                metric.update(out, y)

    def loss(self) -> float:
        """The mean loss so far."""
        return self.loss_sum / max(self.samples, 1)

    def result(self) -> dict[str, float]:
        """Loss and every metric that is a number, by name."""
        found = {"loss": self.loss()}
        for name, metric in self.metrics.items():
            value = metric.result() if metric.samples else float("nan")
            if np.ndim(value) == 0:
                found[name] = float(value)
        return found

    def names(self) -> list[str]:
        """What `result` will be called."""
        return ["loss", *self.metrics]


def batch_length(data: Any) -> int:
    """Samples in a batch: of its array, or of the first of its arrays."""
    if isinstance(data, Mapping):
        data = next(iter(data.values()))
    elif isinstance(data, (list, tuple)):
        data = data[0]
    return len(data)


def _part(what: str, given: Any, name: str) -> Array:
    if not isinstance(given, Mapping) or name not in given:
        known = list(given) if isinstance(given, Mapping) else []
        raise UnknownNameError(
            f"metric {name!r}",
            expected=f"{what} among which it finds its own",
            received=one_of(known) or f"a {type(given).__name__}",
            advice=did_you_mean(name, known, "name metrics after output layers in net.compile"),
        )
    return given[name]
