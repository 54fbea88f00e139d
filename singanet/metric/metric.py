"""The base classes of metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.base.described import Configurable, shown
from singanet.base.kinds import native
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers.symbol import Symbol
from singanet.loss.loss import counted_positions
from singanet.ops import Ops, ops_for
from singanet.ops.kernel import widened
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


class MetricSymbol:
    """The value of ``metric`` for a batch of ``scores`` and ``targets``, both symbols.

    A program of an `Executor` can return it; no layer reads it. Masked steps of the scores do not
    count.
    """

    __slots__ = ("mask", "metric", "scores", "targets")

    def __init__(self, metric: Any, scores: Symbol, targets: Symbol) -> None:
        for given in (scores, targets):
            if not isinstance(given, Symbol):
                raise ArgumentError(
                    f"{type(metric).__name__}, as a symbol",
                    expected="symbols of scores and targets",
                    received=type(given).__name__,
                    advice="build them from Input; for arrays call metric.evaluate(x, y)",
                )
        self.metric, self.scores, self.targets = metric, scores, targets
        self.mask = scores.mask

    def __repr__(self) -> str:
        settings = {"metric": self.metric, "scores": self.scores}
        return shown("MetricSymbol", settings, bare=("metric", "scores"))


_OF_ROWS = frozenset(("update", "evaluate", "values", "targets", "rows", "gather"))


def _first_with(kind: type, name: str) -> type:
    """Return the class that gives ``kind`` the attribute ``name``; `object` for none."""
    return next((base for base in kind.__mro__ if name in vars(base)), object)


class Metric(Configurable):
    """A measure of outputs against targets that accumulates over batches.

    Call ``update`` for each batch and ``result`` at the end: it is the measure of all samples
    together, not a mean of the batches' results. A subclass defines `reset`, `update` and
    `compute`, and stores its state in attributes that `reset` assigns. If these are counts, sums
    and lists, ``gathered`` names them, so that several processes can measure together; other state
    needs its own `merge`.

    A sample of weight w counts as w samples, and of weight 0 not at all. An `update` without
    ``weight`` is allowed, except for ``weighted_metrics`` of `FeedForwardNet.compile`.
    """

    gathered: ClassVar[tuple[str, ...]] = ()
    """The attributes that `merge` joins: all that `reset` assigns."""

    better: ClassVar[str | None] = None
    """"max" if more is better, "min" if less is; None requires the ``mode`` of a monitor."""

    of_none: ClassVar[float] = 0.0
    """The result of `evaluate` for an empty batch."""

    linked: ClassVar[bool] = False
    """Whether it gets a net's outputs after the loss's `link`.

    So a metric with a threshold gets probabilities, whether the net ends in scores or in them.
    """

    by_rows: ClassVar[tuple[str, ...] | None] = None
    """The attributes that `rows` depends on, for a metric that needs no array of all scores.

    Its `update` is `gather` of `rows`, for some rows at a time, with the labels of `targets`. A
    subclass that overrides one of them without a new `by_rows` has None.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls._moving = ("samples", *cls.gathered)
        # issubclass of an abstract class under construction answers for its base class.
        known = _first_with(cls, "by_rows").__mro__
        if not all(_first_with(cls, name) in known for name in _OF_ROWS):
            cls.by_rows = None

    def __init__(self) -> None:
        self.samples = 0
        self.reset()

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> Any:
        """Return the `result` of this batch alone, ``of_none`` for an empty one.

        ``x``, ``y`` and ``weight`` are as for `update`.
        """
        alone = self.anew()
        alone.update(x, y, *(() if weight is None else (weight,)))
        return alone.number()

    def anew(self) -> Self:
        """Return a metric with the same settings and no samples."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.reset()
        return made

    def __copy__(self) -> Self:
        """Return a metric with state of its own, which `update` may change in place."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        for name in self.gathered:
            setattr(made, name, copy(getattr(self, name)))
        return made

    def number(self) -> Any:
        """Return `result`, as a float if it is one number; ``of_none`` without samples."""
        if not self.samples:
            return self.of_none
        found = self.result()
        return float(found) if np.ndim(found) == 0 else found

    def __call__(self, scores: Any, y: Any) -> MetricSymbol:
        """Return the metric of each batch as a symbol, for an `Executor`. Errors: not symbols."""
        return MetricSymbol(self, scores, y)

    def result(self) -> Any:
        """Return the measure of all samples since `reset`, a float unless the class says otherwise.

        Errors: `CallOrderError` without any sample.
        """
        if not self.samples:
            raise CallOrderError(
                f"{type(self).__name__}.result",
                expected="at least one sample",
                received="none since the last reset",
                advice="call update(x, y) first",
            )
        return self.compute()

    @abstractmethod
    def reset(self) -> None:
        """Reset the state."""

    @abstractmethod
    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch: outputs ``x`` (B, ...) and targets ``y``.

        ``weight`` is (B,), or has a weight for each element of the metric's mean.
        """

    @abstractmethod
    def compute(self) -> Any:
        """Return the measure of at least one sample."""

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return the label of each row, (R,), of scores in the shape of ``x``; reads no scores.

        ``y`` are the targets of the batch; ``ops`` are the kernels.
        """
        raise NotImplementedError

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        """Return a value for each row of scores ``x`` (R, C), (R,), from these and ``by_rows``.

        ``labels`` (R,) are from `targets`; ``ops`` are the kernels. A recorded step replays its
        kernels without calling it.
        """
        raise NotImplementedError

    def gather(self, found: Array, y: Array, weight: Array | None = None) -> None:
        """`update` with ``found``, the result of `rows`: (B, ...), or (N,) for positions.

        ``y`` and ``weight`` are as for `update`.
        """
        raise NotImplementedError

    def _row_settings(self) -> Hashable:
        """Return the settings of `rows`; None for a metric that needs all scores."""
        if self.by_rows is None or self.linked or vars(self).keys() & _OF_ROWS:
            return None
        # A list is faster than a generator; every replayed step calls this.
        return (type(self), *[getattr(self, name) for name in self.by_rows])

    def state(self) -> dict[str, Any]:
        """Return the state since `reset`, as plain data and arrays, for `merge`."""
        return {name: getattr(self, name) for name in self.gathered}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add ``state``, the `state` of another metric with the same settings.

        Numbers and arrays are added, lists joined; None is skipped.
        """
        for name in self.gathered:
            own, other = getattr(self, name), state[name]
            if other is not None:
                setattr(self, name, copy(other) if own is None else own + other)

    @classmethod
    def _can_merge(cls) -> bool:
        """Return whether `merge` covers all state; a subclass with a new `reset` redefines it."""
        says = next(kind for kind in cls.__mro__ if {"gathered", "merge"} & vars(kind).keys())
        resets = next(kind for kind in cls.__mro__ if "reset" in vars(kind))
        return says is not Metric and issubclass(says, resets)

    def _weights(self, ops: Ops, weight: Array | None, shape: Shape) -> Array | None:
        """Return float64 ``weight`` of ``shape`` or its first axes. Errors: other, or negative."""
        if weight is None:
            return None
        weight = ops.xp.asarray(weight)
        if not 0 < weight.ndim <= len(shape) or weight.shape != shape[: weight.ndim]:
            raise ShapeError(
                f"{type(self).__name__}, sample_weight",
                expected=f"one weight a sample, shape {shape[:1]}"
                + (f", or one a position, shape {shape}" if len(shape) > 1 else ""),
                received=f"shape {weight.shape}",
                advice="weigh whole samples, or each element of the metric's mean",
            )
        if weight.dtype.kind not in "fiub" or not bool((weight >= 0).all()):
            raise DataError(
                f"{type(self).__name__}, sample_weight",
                expected="numbers from 0 on",
                received=f"others, of type {weight.dtype}",
                advice="a weight of 0 excludes a sample",
            )
        return weight.astype("float64")

    def _each_weight(self, ops: Ops, weight: Array | None, shape: Shape) -> Array | None:
        """Return `_weights` for each element of ``shape``, (N,)."""
        weights = self._weights(ops, weight, shape)
        if weights is None:
            return None
        wide = weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim))
        each: Array = ops.xp.broadcast_to(wide, shape).reshape(-1)
        return each

    def _outputs(self, x: Array, y: Array) -> tuple[Ops, Array, Array]:
        """Return the kernels for ``x``, and both arrays after a check for a batch axis."""
        if x.ndim == 0 or x.dtype.kind not in "fiu":
            raise DataError(
                type(self).__name__,
                expected="outputs that are numbers with a batch axis",
                received=f"outputs of type {x.dtype} and shape {x.shape}",
                advice="pass the net's output for a batch",
            )
        ops = ops_for(x)
        return ops, widened(x), widened(native(y, ops.xp))


class MeanMetric(Metric):
    """The mean of `forward` over all samples; a subclass defines `values`."""

    gathered = ("samples", "_sum", "_count")

    def forward(self, x: Array, y: Array) -> Array:
        """Return a value for every sample of outputs ``x`` and targets ``y``, shape (B,)."""
        ops, x, y = self._outputs(x, y)
        found = self.values(ops, x, y)
        there = self._where_counted(found, y)
        if there is None:
            return mean_over(found, 1)
        axes = tuple(range(1, found.ndim))
        return (found * there).sum(axis=axes) / ops.maximum(there.sum(axis=axes), 1)

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self._sum = self._count = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch; with weights the mean is Σ w v / Σ w, as in Keras."""
        ops, x, y = self._outputs(x, y)
        self.gather(self.values(ops, x, y), y, weight)

    def gather(self, found: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch of `values`."""
        total, count = self._sums(found, y, weight)
        self._sum += total
        self._count += count
        self.samples += len(found)

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> float:
        """Return the mean of `forward`; 0 for an empty batch."""
        # Unlike in other metrics, without a copy: small nets call this at each step.
        ops, x, y = self._outputs(x, y)
        total, count = self._sums(self.values(ops, x, y), y, weight)
        return self._of_mean(total / (count or 1.0))

    def _where_counted(self, found: Array, y: Array) -> Array | None:
        """Return True for each of the values ``found`` that counts, None if all do."""
        return None

    def _sums(self, values: Array, y: Array, weight: Array | None) -> tuple[float, float]:
        """Return the weighted sum of the values, and the sum of the weights."""
        weights = self._weights(ops_for(values), weight, values.shape)
        there = self._where_counted(values, y)
        if there is not None:
            given = [] if weights is None else [weights]
            values, _, *given = counted_positions(values, values, there, *given)
            weights = given[0] if given else None
        if weights is None:
            return float(mean_over(values, 1).sum()), len(values)
        return float((mean_over(values, weights.ndim) * weights).sum()), float(weights.sum())

    def compute(self) -> float:
        """Return the mean; 0 if all weights are 0."""
        return self._of_mean(self._sum / (self._count or 1.0))

    def _of_mean(self, mean: float) -> float:
        """Return the measure for a mean: by default the mean."""
        return mean

    @abstractmethod
    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return a float64 value for every sample, or for each position of it: (B, ...).

        ``x`` are outputs, ``y`` targets; ``ops`` are the kernels.
        """


def mean_over(values: Array, rank: int) -> Array:
    """Return ``values`` with ``rank`` axes, the mean over the others."""
    return values if values.ndim == rank else values.mean(axis=tuple(range(rank, values.ndim)))
