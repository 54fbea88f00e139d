"""Loss and metrics of a pass, gathered exactly over its batches."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from singanet.errors import UnknownNameError, did_you_mean, one_of
from singanet.loss.loss import counted
from singanet.loss.multi_loss import MultiLoss
from singanet.metric import Metric
from singanet.types import Array


class Measures:
    """The loss of all batches so far as if they were one, and what the metrics make of them.

    A batch's loss weighs by what it was a mean over (`Loss.count`), for each output by itself.
    The metrics are the ones given, so that one whose result is no number (a confusion matrix)
    can be asked afterwards; `alone` works on copies instead.
    """

    def __init__(self, loss: Any, metrics: Mapping[str, Metric]) -> None:
        self.of = loss
        self.metrics = dict(metrics)
        self.start()

    @classmethod
    def alone(cls, loss: Any, metrics: Mapping[str, Metric]) -> Measures:
        """Measures that leave what ``metrics`` have gathered as it is."""
        return cls(loss, {name: copy(metric) for name, metric in metrics.items()})

    def start(self) -> None:
        """Forget every batch."""
        self.losses: dict[str, tuple[float, float]] = {}
        self.samples = 0
        self._counts: dict[str, float] = {}
        for metric in self.metrics.values():
            metric.reset()

    def add_loss(self, loss: float, samples: int) -> None:
        """Gather the mean ``loss`` of the batch of ``samples`` that `update` was shown."""
        counts, self._counts = self._counts, {}
        means = {"": loss}
        # A subclass may have made something else of its parts.
        if isinstance(self.of, MultiLoss) and type(self.of).forward is MultiLoss.forward:
            means = {
                name: float(part.mean()) * self.of.weights[name]
                for name, part in self.of.parts.items()
            }
        for name, mean in means.items():
            # A model that shows nothing has its batches weighed by samples.
            count = counts.get(name, samples)
            before, so_far = self.losses.get(name, (0.0, 0.0))
            # Of nothing there is no mean, whatever number stands for it.
            self.losses[name] = before + (mean * count if count else 0.0), so_far + count
        self.samples += samples

    def update(self, out: Any, y: Any) -> None:
        """Let every metric gather a batch; of several outputs each sees the one it is named after.

        Errors: a metric named after no output, and what the metrics refuse.
        """
        if self.of is not None:
            self._counts = counted(self.of, out, y)
        for name, metric in self.metrics.items():
            if isinstance(out, dict):
                metric.update(_part("outputs", out, name), _part("targets", y, name))
            else:
                metric.update(out, y)

    def loss(self) -> float:
        """The loss so far."""
        return sum(total / count for total, count in self.losses.values() if count)

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
