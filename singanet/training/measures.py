"""Losses and metrics, accumulated over the batches of an epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from singanet.errors import StateMismatchError, UnknownNameError, did_you_mean, one_of
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import Loss, counted, counted_positions, losses_of
from singanet.metric import Metric
from singanet.types import Array

_NO_OUTPUTS: Mapping[str, str] = {}
_NO_COUNTS: Mapping[str, float] = {}
_NONE_SO_FAR = 0.0, 0.0, 0.0


class Measures:
    """The mean loss over all batches so far, as if they were one, and their metrics.

    A batch's loss is weighted by its count (`Loss.count`), for each output separately. The metrics
    are the given objects, so a user can read a result that is not a number (a confusion matrix)
    afterwards; `alone` works on copies. ``outputs`` maps a metric to its output, by default the
    output of its name. Metrics in ``weighted`` get the samples' weights.
    """

    def __init__(
        self,
        loss: Any,
        metrics: Mapping[str, Metric],
        outputs: Mapping[str, str] = _NO_OUTPUTS,
        weighted: Collection[str] = (),
    ) -> None:
        self.of = loss
        # A subclass may combine its parts in another way.
        self._has_parts = isinstance(loss, MultiLoss) and type(loss).forward is MultiLoss.forward
        self._losses = losses_of(loss)
        self.metrics = dict(metrics)
        self.outputs = outputs
        self.weighted = weighted
        self.start()

    @classmethod
    def alone(
        cls,
        loss: Any,
        metrics: Mapping[str, Metric],
        outputs: Mapping[str, str] = _NO_OUTPUTS,
        weighted: Collection[str] = (),
    ) -> Measures:
        """Return measures that work on copies of ``metrics``."""
        copies = {name: copy(metric) for name, metric in metrics.items()}
        return cls(loss, copies, outputs, weighted)

    @property
    def _weighs(self) -> bool:
        """Whether a step passes the samples' weights: see `StepMetrics`."""
        return bool(self.weighted)

    @property
    def seers(self) -> Sequence[Any]:
        """The metrics and the losses, which read the outputs."""
        return (*self.metrics.values(), *self._losses)

    @property
    def shows(self) -> Collection[Any]:
        """The metrics that read outputs; without metrics only the outputs' shape matters."""
        return self.metrics.values()

    def gather(self, found: Iterable[Array], out: Any, y: Any, weight: Any = None) -> None:
        """Add a batch, for metrics that have ``found`` their numbers by rows."""
        self.count(out, y)
        there = self.of._where_counted(out, y)
        for (name, metric), rows in zip(self.metrics.items(), found, strict=True):
            given = [weight] if weight is not None and name in self.weighted else []
            metric.gather(*counted_positions(rows, y, there, *given))

    def start(self) -> None:
        """Reset all measures."""
        self.losses: dict[str, tuple[float, ...]] = {}
        self.samples = 0
        self._counts: Mapping[str, float] = _NO_COUNTS
        self._parts: dict[str, float] = {}
        for metric in self.metrics.values():
            # A custom metric that only judges single batches has no state.
            if isinstance(metric, Metric):
                metric.reset()

    def add_loss(self, loss: float, samples: int) -> None:
        """Add the mean ``loss`` of the batch of ``samples`` that was passed to `update`."""
        # Without a count, a batch weighs by its samples.
        counts, self._counts = self._counts, _NO_COUNTS
        sums, self._parts = self._parts, {}
        if not samples:
            return
        if self._has_parts:
            for name, part in self.of.parts.items():
                count = counts.get(name, samples)
                total = sums[name] if name in sums else _sum_of(part, count)
                self._add(name, total, self.of.weights[name], count)
        else:
            count = counts.get("", samples)
            # With a count of 0 the mean is undefined, and its number is ignored.
            self._add("", loss * count if count else 0.0, 1.0, count)
        self.samples += samples

    def _add(self, name: str, total: float, weight: float, count: float) -> None:
        weighted, unweighted, so_far = self.losses.get(name, _NONE_SO_FAR)
        self.losses[name] = weighted + total * weight, unweighted + total, so_far + count

    def __call__(self, out: Any, y: Any, weight: Any = None) -> None:
        """Update every metric with a batch, as `shown` selects it.

        Errors: a metric named after no output; the errors of the metrics.
        """
        self.count(out, y)
        for metric, *seen in self.shown(out, y, weight).values():
            metric.update(*seen)

    def count(self, out: Any, y: Any) -> None:
        """Store the counts of a batch's loss for the next `add_loss`."""
        if self.of is not None:
            counts, before = counted(self.of, out, y), self._counts
            if self._has_parts:
                for name, part in self.of.parts.items():
                    self._parts[name] = self._parts.get(name, 0.0) + _sum_of(part, counts[name])
            # A batch may come in parts.
            if before:
                counts = {name: before[name] + count for name, count in counts.items()}
            self._counts = counts

    def shown(self, out: Any, y: Any, weight: Any = None) -> dict[str, tuple[Any, ...]]:
        """Return every metric by name, with its outputs and targets, and weights if it uses them.

        A metric that is ``linked`` gets the outputs after the loss's link. Each gets the positions
        that have a loss (`Loss._unmasked`).
        """
        found = {}
        meant = None
        for name, metric in self.metrics.items():
            own, targets, loss, mask = out, y, self.of, None
            given = [weight] if weight is not None and name in self.weighted else []
            if getattr(metric, "linked", False) and self.of is not None:
                own = meant = self.of.link(out) if meant is None else meant
            if isinstance(out, dict):
                output = self.outputs.get(name, name)
                own = _part("outputs", own, output, name)
                targets = _part("targets", y, output, name)
                loss = getattr(self.of, "losses", {}).get(output)
                if output in getattr(self.of, "masks", ()):
                    mask = out[self.of.masks[output]] != 0
            seen = own, targets, *given
            # A custom loss need not define the positions that count.
            counts = isinstance(loss, Loss)
            if mask is not None or (counts and loss._where_counted(own, targets) is not None):
                seen = loss._unmasked(own, targets, mask, *given)
            found[name] = metric, *seen
        return found

    def copied(self) -> Measures:
        """Return a copy that can continue without changing the original."""
        made = copy(self)
        made.metrics = {name: copy(metric) for name, metric in self.metrics.items()}
        return made

    def state(self) -> dict[str, Any]:
        """Return the accumulated state, as plain data and arrays, for `merge`."""
        metrics = {name: metric.state() for name, metric in self.metrics.items()}
        return {"losses": self.losses, "samples": self.samples, "metrics": metrics}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Replace the accumulated state with the sum of ``states``, in their order."""
        self.start()
        for state in states:
            for name, sums in state["losses"].items():
                before = self.losses.get(name, _NONE_SO_FAR)
                self.losses[name] = tuple(a + b for a, b in zip(before, sums, strict=True))
            self.samples += state["samples"]
            for name, metric in self.metrics.items():
                metric.merge(state["metrics"][name])

    def sums(self) -> Array:
        """Return the weighted sum and the count of each output's loss, (outputs, 2)."""
        names = list(self.of.losses) if self._has_parts else [""]
        return np.array([self.losses.get(name, _NONE_SO_FAR)[::2] for name in names])

    def loss(self) -> float:
        """Return the mean loss so far."""
        return sum(weighted / count for weighted, _, count in self.losses.values() if count)

    def result(self) -> dict[str, float]:
        """Return the loss, each output's loss, and every metric that is a number, by name."""
        return {name: float(value) for name, value in self.results().items() if np.ndim(value) == 0}

    def results(self) -> dict[str, Any]:
        """Return `result` including the metrics that are arrays."""
        found: dict[str, Any] = {**self.losses_by_name()}
        for name, metric in self.metrics.items():
            found[name] = metric.result() if metric.samples else float("nan")
        return found

    def losses_by_name(self) -> dict[str, float]:
        """Return the loss, and with several outputs each one's unweighted loss."""
        found = {"loss": self.loss()}
        if self._has_parts:
            for name, (_, total, count) in self.losses.items():
                found[f"{name}_loss"] = total / count if count else float("nan")
        return found

    def names(self) -> list[str]:
        """Return the names of the numbers in `result`."""
        parts = [f"{name}_loss" for name in self.of.losses] if self._has_parts else []
        return ["loss", *parts, *self.metrics]


def _sum_of(losses: Array, count: float) -> float:
    """Return the sum of ``losses`` whose mean is over ``count``."""
    return float(losses.mean()) * count if count else 0.0


def batch_length(data: Any) -> int:
    """Return the number of samples in a batch: of its array, or of the first of its arrays."""
    if isinstance(data, (list, tuple)):
        data = data[0]
    # isinstance with an abstract class is slow for arrays.
    elif not hasattr(data, "shape") and isinstance(data, Mapping):
        data = next(iter(data.values()))
    return len(data)


def _part(what: str, given: Any, name: str, metric: str) -> Array:
    if not isinstance(given, Mapping) or name not in given:
        known = list(given) if isinstance(given, Mapping) else []
        raise UnknownNameError(
            f"metric {metric!r}",
            expected=f"{what} with the key {name!r}",
            received=one_of(known) or f"a {type(given).__name__}",
            advice=did_you_mean(name, known, "name them: metrics={'output': [Accuracy()]}"),
        )
    return given[name]


def save_metrics(metrics: Mapping[str, Metric]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the numbers among the attributes of each metric, by metric.

    A list of arrays is saved as one concatenated array.
    """
    arrays: dict[str, Array] = {}
    numbers: dict[str, Any] = {}
    for name, metric in metrics.items():
        numbers[name] = {}
        for key, value in vars(metric).items():
            if isinstance(value, (int, float)):
                numbers[name][key] = value
            elif hasattr(value, "dtype") and hasattr(value, "shape"):
                arrays[f"{name}/array/{key}"] = value
            elif isinstance(value, list) and value and all(hasattr(v, "dtype") for v in value):
                arrays[f"{name}/list/{key}"] = np.concatenate(value)
    return arrays, numbers


def load_metrics(
    metrics: Mapping[str, Metric], numbers: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Restore metrics from `save_metrics`; a metric that was not saved starts anew.

    Errors: `StateMismatchError` for a number or array that the metric does not have; the errors of
    its result.
    """
    for name, metric in metrics.items():
        own = vars(metric)
        for key, value in numbers.get(name, {}).items():
            if not isinstance(own.get(key), (int, float)):
                raise mismatch(f"metric {name!r}", "its own numbers", repr(key)[:60])
            own[key] = type(own[key])(value)
        for path, array in arrays.items():
            owner, kind, key = path.rsplit("/", 2)
            if owner == name:
                # An array that the first sample creates does not exist before it.
                now = own.get(key, 0)
                fits = array.shape == now.shape if hasattr(now, "shape") else bool(metric.samples)
                fits = fits and isinstance(now, list) == (kind == "list")
                if isinstance(now, (int, float)) or not fits:
                    raise mismatch(f"metric {name!r}", "its own arrays", repr(key)[:60])
                own[key] = [array.copy()] if kind == "list" else array.copy()
        if metric.samples:
            copy(metric).result()  # raises for arrays that do not fit together


def mismatch(where: str, expected: str, received: str) -> StateMismatchError:
    """Make the error for a saved state that belongs to another training."""
    return StateMismatchError(
        where,
        expected=expected,
        received=received,
        advice="resume with the net, optimizer and callbacks that were saved; nothing was changed",
    )
