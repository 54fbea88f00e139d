"""What every metric is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

from singanet.base.described import Configurable
from singanet.errors import CallOrderError, DataError
from singanet.metric.symbol import MetricSymbol
from singanet.ops import Ops, ops_for
from singanet.types import Array


class Metric(Configurable):
    """A measure of outputs against targets that can be gathered over batches.

    ``update`` each batch, ask ``result`` at the end: it is that of all samples together, not a
    mean of the batches' results. A subclass gives `reset`, `update` and `compute`, and holds
    what it has gathered in attributes that `reset` assigns anew. Where these are counts, sums, and
    lists, it names them in ``gathered``, so that several processes can measure together; what is
    neither is merged by a `merge` of its own.
    """

    gathered: ClassVar[tuple[str, ...]] = ()
    """The attributes that `merge` joins: everything that `reset` assigns."""

    of_none: ClassVar[float] = 0.0
    """What `evaluate` says of an empty batch."""

    linked: ClassVar[bool] = False
    """Whether a net shows it what the outputs mean, through the loss's `link`, in their place.

    So a metric with a threshold sees probabilities, whether the net ends in scores or in them.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.reset()

    def evaluate(self, x: Array, y: Array) -> float:
        """The result of this batch alone, ``of_none`` for an empty one."""
        alone = copy(self)
        alone.reset()
        alone.update(x, y)
        return float(alone.result()) if alone.samples else self.of_none

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
    def update(self, x: Array, y: Array) -> None:
        """Gather a batch: outputs ``x`` (B, ...) and targets ``y``."""

    @abstractmethod
    def compute(self) -> Any:
        """The measure, of at least one sample."""

    def state(self) -> dict[str, Any]:
        """What was gathered since `reset`, as plain data and arrays, for the `merge` of another."""
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
    def can_merge(cls) -> bool:
        """Whether `merge` knows all that is gathered; subclasses with a new `reset` say it anew."""
        says = next(kind for kind in cls.__mro__ if {"gathered", "merge"} & vars(kind).keys())
        resets = next(kind for kind in cls.__mro__ if "reset" in vars(kind))
        return says is not Metric and issubclass(says, resets)

    def _outputs(self, x: Array, y: Array) -> tuple[Ops, Array, Array]:
        """The kernels for ``x``, and both arrays checked for a batch axis."""
        if x.ndim == 0 or x.dtype.kind not in "fiu":
            raise DataError(
                type(self).__name__,
                expected="outputs that are numbers with a batch axis",
                received=f"outputs of type {x.dtype} and shape {x.shape}",
                advice="pass the net's output for a batch",
            )
        return ops_for(x), x, y


class MeanMetric(Metric):
    """The mean of `forward` over all samples gathered; a subclass gives `values`."""

    gathered = ("samples", "_sum")

    def forward(self, x: Array, y: Array) -> Array:
        """A value for every sample, shape (B,)."""
        ops, x, y = self._outputs(x, y)
        return self.values(ops, x, y)

    def evaluate(self, x: Array, y: Array) -> float:
        """Mean of `forward`; 0 for an empty batch."""
        values = self.forward(x, y)
        return float(values.mean()) if values.size else 0.0

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._sum = 0.0

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        values = self.forward(x, y)
        self._sum += float(values.sum())
        self.samples += len(values)

    def compute(self) -> float:
        """The mean."""
        return self._sum / self.samples

    @abstractmethod
    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """A float64 value for every sample."""
