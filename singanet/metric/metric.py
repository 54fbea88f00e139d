"""The base of metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.base.described import Configurable
from singanet.base.kinds import native
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers.symbol import Symbol
from singanet.ops import Ops, ops_for
from singanet.ops.kernel import widened
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


class MetricSymbol:
    """The value of ``metric`` for a batch of ``scores`` and ``targets``, both symbols.

    It is what a program of an `Executor` may be asked for; no layer reads it. Steps that the mask
    of the scores leaves out do not count.
    """

    __slots__ = ("mask", "metric", "scores", "targets")

    def __init__(self, metric: Any, scores: Symbol, targets: Symbol) -> None:
        for given in (scores, targets):
            if not isinstance(given, Symbol):
                raise ArgumentError(
                    f"{type(metric).__name__}, as a symbol",
                    expected="symbols of scores and targets",
                    received=type(given).__name__,
                    advice="draw them from Input; for arrays call metric.evaluate(x, y)",
                )
        self.metric, self.scores, self.targets = metric, scores, targets
        self.mask = scores.mask

    def __repr__(self) -> str:
        return f"MetricSymbol({self.metric!r}, {self.scores!r})"


_OF_ROWS = frozenset(("update", "evaluate", "values", "targets", "rows", "gather"))


def _first_with(kind: type, name: str) -> type:
    """The class that gives ``kind`` the attribute ``name``; `object` for none."""
    return next((base for base in kind.__mro__ if name in vars(base)), object)


class Metric(Configurable):
    """A measure of outputs against targets that can be gathered over batches.

    ``update`` each batch, ask ``result`` at the end: it is that of all samples together, not a
    mean of the batches' results. A subclass gives `reset`, `update` and `compute`, and holds
    what it has gathered in attributes that `reset` assigns anew. Where these are counts, sums, and
    lists, it names them in ``gathered``, so that several processes can measure together; what is
    neither is merged by a `merge` of its own.

    A sample of weight w counts as w samples would, one of weight 0 not at all. An `update` that
    takes no ``weight`` will do, but not for ``weighted_metrics`` of `FeedForwardNet.compile`.
    """

    gathered: ClassVar[tuple[str, ...]] = ()
    """The attributes that `merge` joins: everything that `reset` assigns."""

    better: ClassVar[str | None] = None
    """"max" where more is better, "min" where less is; None leaves it to who monitors it."""

    of_none: ClassVar[float] = 0.0
    """The result of `evaluate` for an empty batch."""

    linked: ClassVar[bool] = False
    """Whether a net shows it what the outputs mean, through the loss's `link`, in their place.

    So a metric with a threshold sees probabilities, whether the net ends in scores or in them.
    """

    by_rows: ClassVar[tuple[str, ...] | None] = None
    """The attributes that decide over `rows`, for a metric that needs no array of all scores.

    Its `update` is `gather` of what `rows` makes of some rows at a time, with the labels that
    `targets` gives. A subclass that overrides one of them and does not name them anew has None.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls._moving = ("samples", *cls.gathered)
        # An abstract class under construction answers issubclass as the one that it inherits from.
        known = _first_with(cls, "by_rows").__mro__
        if not all(_first_with(cls, name) in known for name in _OF_ROWS):
            cls.by_rows = None

    def __init__(self) -> None:
        self.samples = 0
        self.reset()

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> Any:
        """The `result` of this batch alone, ``of_none`` for an empty one."""
        alone = self.anew()
        alone.update(x, y, *(() if weight is None else (weight,)))
        return alone.number()

    def anew(self) -> Self:
        """One of the same settings that has seen no sample."""
        made = copy(self)
        made.reset()
        return made

    def number(self) -> Any:
        """`result`, as a float if it is one number; ``of_none`` if no sample has come."""
        if not self.samples:
            return self.of_none
        found = self.result()
        return float(found) if np.ndim(found) == 0 else found

    def __call__(self, scores: Any, y: Any) -> MetricSymbol:
        """The metric of each batch as a symbol, for an `Executor`. Errors: anything but symbols."""
        return MetricSymbol(self, scores, y)

    def result(self) -> Any:
        """The measure of everything gathered since `reset`: a float unless the class says more.

        Errors: `CallOrderError` where no sample has come.
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
        """Forget every sample."""

    @abstractmethod
    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch: outputs ``x`` (B, ...) and targets ``y``.

        ``weight`` is (B,), or has one for each of what the metric takes the mean over.
        """

    @abstractmethod
    def compute(self) -> Any:
        """The measure, of at least one sample."""

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        """The label of each row, (R,), of scores of the shape of ``x``, whose values are none."""
        raise NotImplementedError

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        """What some rows of scores (R, C) tell, (R,): of these arrays and ``by_rows`` alone.

        A recorded step has the kernels that it calls, and does not call it again.
        """
        raise NotImplementedError

    def gather(self, found: Array, y: Array, weight: Array | None = None) -> None:
        """`update` with the result of `rows`, (B, ...) of a batch or (N,) of positions."""
        raise NotImplementedError

    def _row_settings(self) -> Hashable:
        """What decides over `rows` beside arrays; None for a metric that needs all scores."""
        if self.by_rows is None or self.linked or vars(self).keys() & _OF_ROWS:
            return None
        # A list rather than a generator: every replayed step asks.
        return (type(self), *[getattr(self, name) for name in self.by_rows])

    def state(self) -> dict[str, Any]:
        """The state since `reset`, as plain data and arrays, for the `merge` of another metric."""
        return {name: getattr(self, name) for name in self.gathered}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Gather what a metric of the same settings has, whose `state` is given.

        Numbers and arrays are added, lists joined; None is nothing.
        """
        for name in self.gathered:
            own, other = getattr(self, name), state[name]
            if other is not None:
                setattr(self, name, other if own is None else own + other)

    @classmethod
    def _can_merge(cls) -> bool:
        """Whether `merge` knows all that is gathered; subclasses with a new `reset` say it anew."""
        says = next(kind for kind in cls.__mro__ if {"gathered", "merge"} & vars(kind).keys())
        resets = next(kind for kind in cls.__mro__ if "reset" in vars(kind))
        return says is not Metric and issubclass(says, resets)

    def _weights(self, ops: Ops, weight: Array | None, shape: Shape) -> Array | None:
        """``weight`` in float64, of ``shape`` or its first axes. Errors: it is not, or negative."""
        if weight is None:
            return None
        weight = ops.xp.asarray(weight)
        if not 0 < weight.ndim <= len(shape) or weight.shape != shape[: weight.ndim]:
            raise ShapeError(
                f"{type(self).__name__}, sample_weight",
                expected=f"one weight a sample, shape {shape[:1]}"
                + (f", or one a position, shape {shape}" if len(shape) > 1 else ""),
                received=f"shape {weight.shape}",
                advice="weigh whole samples, or each of what the metric takes the mean over",
            )
        if weight.dtype.kind not in "fiub" or not bool((weight >= 0).all()):
            raise DataError(
                f"{type(self).__name__}, sample_weight",
                expected="numbers from 0 on",
                received=f"others, of type {weight.dtype}",
                advice="a weight of 0 leaves a sample out",
            )
        return weight.astype("float64")

    def _each_weight(self, ops: Ops, weight: Array | None, shape: Shape) -> Array | None:
        """`_weights`, one for each of all elements of ``shape``, (N,)."""
        weights = self._weights(ops, weight, shape)
        if weights is None:
            return None
        wide = weights.reshape(weights.shape + (1,) * (len(shape) - weights.ndim))
        each: Array = ops.xp.broadcast_to(wide, shape).reshape(-1)
        return each

    def _outputs(self, x: Array, y: Array) -> tuple[Ops, Array, Array]:
        """The kernels for ``x``, and both arrays checked for a batch axis."""
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
    """The mean of `forward` over all samples gathered; a subclass gives `values`."""

    gathered = ("samples", "_sum", "_count")

    def forward(self, x: Array, y: Array) -> Array:
        """A value for every sample, shape (B,)."""
        ops, x, y = self._outputs(x, y)
        return mean_over(self.values(ops, x, y), 1)

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._sum = self._count = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch; with weights the mean is Σ w v / Σ w, as Keras has it."""
        ops, x, y = self._outputs(x, y)
        self.gather(self.values(ops, x, y), y, weight)

    def gather(self, found: Array, y: Array, weight: Array | None = None) -> None:
        """As `Metric.gather`: the `values`."""
        total, count = self._sums(found, weight)
        self._sum += total
        self._count += count
        self.samples += len(found)

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> float:
        """Mean of `forward`; 0 for an empty batch."""
        # Without the copy that other metrics make: small nets ask at each step.
        ops, x, y = self._outputs(x, y)
        total, count = self._sums(self.values(ops, x, y), weight)
        return self._of_mean(total / (count or 1.0))

    def _sums(self, values: Array, weight: Array | None) -> tuple[float, float]:
        """The weighted sum of the values, and that of the weights."""
        if weight is None:
            return float(mean_over(values, 1).sum()), len(values)
        weights: Any = self._weights(ops_for(values), weight, values.shape)
        return float((mean_over(values, weights.ndim) * weights).sum()), float(weights.sum())

    def compute(self) -> float:
        """The mean; 0 where all weights are."""
        return self._of_mean(self._sum / (self._count or 1.0))

    def _of_mean(self, mean: float) -> float:
        """The measure of the mean: itself."""
        return mean

    @abstractmethod
    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """A float64 value for every sample, or for each position of it: (B, ...)."""


def mean_over(values: Array, rank: int) -> Array:
    """``values`` with ``rank`` axes, the mean over the others."""
    return values if values.ndim == rank else values.mean(axis=tuple(range(rank, values.ndim)))
