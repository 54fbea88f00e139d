"""Measured losses and metrics of a course."""

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
    """The loss of all batches so far as if they were one, and what the metrics make of them.

    A batch's loss weighs by what it was a mean over (`Loss.count`), for each output by itself.
    The metrics are the ones given, so that one whose result is no number (a confusion matrix)
    can be asked afterwards; `alone` works on copies instead. Of several outputs a metric sees
    the one that ``outputs`` names under its name. Those that are ``weighted`` get the samples'
    weights.
    """

    def __init__(
        self,
        loss: Any,
        metrics: Mapping[str, Metric],
        outputs: Mapping[str, str] = _NO_OUTPUTS,
        weighted: Collection[str] = (),
    ) -> None:
        self.of = loss
        # A subclass may have made something else of its parts.
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
        """Measures that leave what ``metrics`` have gathered as it is."""
        copies = {name: copy(metric) for name, metric in metrics.items()}
        return cls(loss, copies, outputs, weighted)

    @property
    def _weighs(self) -> bool:
        """Whether a step is to give it the samples' weights: see `Seen`."""
        return bool(self.weighted)

    @property
    def seers(self) -> Sequence[Any]:
        """The metrics and the losses, which are shown the outputs."""
        return (*self.metrics.values(), *self._losses)

    @property
    def shows(self) -> Collection[Any]:
        """The metrics that are shown outputs: without them their shape alone counts."""
        return self.metrics.values()

    def gather(self, found: Iterable[Array], out: Any, y: Any, weight: Any = None) -> None:
        """As a call with ``out``, for metrics that have ``found`` what they need by rows."""
        self.count(out, y)
        there = self.of._where_counted(out, y)
        for (name, metric), rows in zip(self.metrics.items(), found, strict=True):
            given = [weight] if weight is not None and name in self.weighted else []
            metric.gather(*counted_positions(rows, y, there, *given))

    def start(self) -> None:
        """Forget every batch."""
        self.losses: dict[str, tuple[float, ...]] = {}
        self.samples = 0
        self._counts: Mapping[str, float] = _NO_COUNTS
        self._parts: dict[str, float] = {}
        for metric in self.metrics.values():
            # A user's own that only judges single batches has nothing to forget.
            if isinstance(metric, Metric):
                metric.reset()

    def add_loss(self, loss: float, samples: int) -> None:
        """Gather the mean ``loss`` of the batch of ``samples`` that `update` was shown."""
        # A model that shows nothing has its batches weighed by samples.
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
            # Of nothing there is no mean, whatever number stands for it.
            self._add("", loss * count if count else 0.0, 1.0, count)
        self.samples += samples

    def _add(self, name: str, total: float, weight: float, count: float) -> None:
        weighted, unweighted, so_far = self.losses.get(name, _NONE_SO_FAR)
        self.losses[name] = weighted + total * weight, unweighted + total, so_far + count

    def __call__(self, out: Any, y: Any, weight: Any = None) -> None:
        """Let every metric gather a batch: what `shown` gives it.

        Errors: a metric named after no output, and what the metrics refuse.
        """
        self.count(out, y)
        for metric, *seen in self.shown(out, y, weight).values():
            metric.update(*seen)

    def count(self, out: Any, y: Any) -> None:
        """Note what the loss of a batch, found before, is a mean over; then `add_loss` is told."""
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
        """Every metric by name, with its outputs and targets, and weights if it takes any.

        A metric that is ``linked`` gets the outputs after the loss's link. Each gets the
        positions that have a loss (`Loss._unmasked`).
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
            # A user's own loss need not say which positions it has.
            counts = isinstance(loss, Loss)
            if mask is not None or (counts and loss._where_counted(own, targets) is not None):
                seen = loss._unmasked(own, targets, mask, *given)
            found[name] = metric, *seen
        return found

    def copied(self) -> Measures:
        """Measures that go on from here, and leave these as they are."""
        made = copy(self)
        made.metrics = {name: copy(metric) for name, metric in self.metrics.items()}
        return made

    def state(self) -> dict[str, Any]:
        """What was gathered, as plain data and arrays, for `merge`."""
        metrics = {name: metric.state() for name, metric in self.metrics.items()}
        return {"losses": self.losses, "samples": self.samples, "metrics": metrics}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Have gathered what these states tell of, in their order, and nothing else."""
        self.start()
        for state in states:
            for name, sums in state["losses"].items():
                before = self.losses.get(name, _NONE_SO_FAR)
                self.losses[name] = tuple(a + b for a, b in zip(before, sums, strict=True))
            self.samples += state["samples"]
            for name, metric in self.metrics.items():
                metric.merge(state["metrics"][name])

    def sums(self) -> Array:
        """The weighted sum and the count of each output's loss, (outputs, 2)."""
        names = list(self.of.losses) if self._has_parts else [""]
        return np.array([self.losses.get(name, _NONE_SO_FAR)[::2] for name in names])

    def loss(self) -> float:
        """The loss so far."""
        return sum(weighted / count for weighted, _, count in self.losses.values() if count)

    def result(self) -> dict[str, float]:
        """Loss, that of each output, and every metric that is a number, by name."""
        return {name: float(value) for name, value in self.results().items() if np.ndim(value) == 0}

    def results(self) -> dict[str, Any]:
        """`result`, with the metrics that are arrays."""
        found: dict[str, Any] = {**self.losses_by_name()}
        for name, metric in self.metrics.items():
            found[name] = metric.result() if metric.samples else float("nan")
        return found

    def losses_by_name(self) -> dict[str, float]:
        """The loss, and of several outputs that of each, before its weight."""
        found = {"loss": self.loss()}
        if self._has_parts:
            for name, (_, total, count) in self.losses.items():
                found[f"{name}_loss"] = total / count if count else float("nan")
        return found

    def names(self) -> list[str]:
        """What `result` will be called."""
        parts = [f"{name}_loss" for name in self.of.losses] if self._has_parts else []
        return ["loss", *parts, *self.metrics]


def _sum_of(losses: Array, count: float) -> float:
    """The sum of which the mean of ``losses`` over ``count`` is one."""
    return float(losses.mean()) * count if count else 0.0


def batch_length(data: Any) -> int:
    """Samples in a batch: of its array, or of the first of its arrays."""
    if isinstance(data, (list, tuple)):
        data = data[0]
    # Asking an array for an abstract class takes long.
    elif not hasattr(data, "shape") and isinstance(data, Mapping):
        data = next(iter(data.values()))
    return len(data)


def _part(what: str, given: Any, name: str, metric: str) -> Array:
    if not isinstance(given, Mapping) or name not in given:
        known = list(given) if isinstance(given, Mapping) else []
        raise UnknownNameError(
            f"metric {metric!r}",
            expected=f"{what} among which it finds its own",
            received=one_of(known) or f"a {type(given).__name__}",
            advice=did_you_mean(name, known, "name them: metrics={'output': [Accuracy()]}"),
        )
    return given[name]


def save_metrics(metrics: Mapping[str, Metric]) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays among the attributes of each metric, and the numbers, both by metric.

    A list of arrays becomes one: what metrics keep so, they join in the end.
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
    """Put back what `save_metrics` took; a metric that was not there then starts anew.

    Errors: `StateMismatchError` for what a metric has no place for, and what its result raises.
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
                # What is begun by the first sample cannot be there before it.
                now = own.get(key, 0)
                fits = array.shape == now.shape if hasattr(now, "shape") else bool(metric.samples)
                fits = fits and isinstance(now, list) == (kind == "list")
                if isinstance(now, (int, float)) or not fits:
                    raise mismatch(f"metric {name!r}", "its own arrays", repr(key)[:60])
                own[key] = [array.copy()] if kind == "list" else array.copy()
        if metric.samples:
            copy(metric).result()  # raises for arrays that do not fit together


def mismatch(where: str, expected: str, received: str) -> StateMismatchError:
    """The error for a saved state that is another training's."""
    return StateMismatchError(
        where,
        expected=expected,
        received=received,
        advice="resume with the net, optimizer and callbacks that were saved; nothing was changed",
    )
