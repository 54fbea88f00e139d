"""What `compile` leaves with a net."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.errors import ArgumentError, CallOrderError, one_of
from singanet.loss import Loss
from singanet.metric import Metric
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.mixed_precision import ScaledUpdates, as_precision
from singanet.training.half_kernels import half_device
from singanet.training.steps import wrapped


_SCALED = 8
"""Optimizers whose precision is remembered, with the programs that are known by it."""


class Compiled:
    """The optimizer, the metrics by name, and how many epochs `fit` has begun.

    The count goes on from one `fit` to the next, so that ten fits of one epoch see the orders
    that one fit of ten epochs sees.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        metrics: dict[str, Metric],
        precision: MixedPrecision | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.precision = precision
        self.metrics = metrics
        self.epochs = 0
        self._wrapped: dict[tuple[Any, ...], Optimizer | Wrapper] = {}
        self._scaled: list[ScaledUpdates] = []

    def clipped(self, clip: float | None, clip_by: str, accumulate: int) -> Optimizer | Wrapper:
        """The optimizer behind these wrappers; asked again, the same, with what it gathered."""
        key = (clip, clip_by, accumulate)
        if key not in self._wrapped:
            self._wrapped[key] = wrapped(self.optimizer, clip, clip_by, accumulate)
        return self._wrapped[key]

    def scaled(self, optimizer: Optimizer | Wrapper) -> Optimizer | Wrapper:
        """``optimizer`` as the precision has it; asked again, the same."""
        if self.precision is None:
            return optimizer
        found = next((each for each in self._scaled if each.optimizer is optimizer), None)
        if found is None:
            found = ScaledUpdates(optimizer, self.precision)
            # Averages of many fits, say, need not stay.
            self._scaled = [*self._scaled[1 - _SCALED :], found]
        return found

    @property
    def around(self) -> dict[tuple[Any, ...], Optimizer | Wrapper]:
        """What `fit` put around the optimizer, by the arguments of `clipped`."""
        found = self._wrapped.items()
        return {key: wrapper for key, wrapper in found if wrapper is not self.optimizer}


def compile_net(
    net: Model,
    optimizer: Optimizer | Wrapper,
    loss: Loss | None = None,
    metrics: Metric | Sequence[Metric] | Mapping[str, Metric] | None = None,
    mixed_precision: MixedPrecision | str | None = None,
) -> None:
    """`FeedForwardNet.compile`."""
    if not isinstance(optimizer, (Optimizer, Wrapper)):
        raise _not_one("optimizer", "an optimizer", optimizer, "SGD(lr=0.1)")
    if loss is not None and not all(hasattr(loss, do) for do in ("forward", "backward", "link")):
        raise _not_one("loss", "a loss", loss, "SoftmaxCrossEntropy()")
    named = {} if metrics is None else _named(metrics)
    for metric in named.values():
        if not isinstance(metric, Metric):
            raise _not_one("metrics", "metrics", metric, "[Accuracy()]")
    if loss is None and net.loss is None:
        raise _not_one("loss", "a loss, since the net has none", loss, "SoftmaxCrossEntropy()")
    precision = as_precision(mixed_precision)
    if precision is not None and not isinstance(net, Net):
        raise ArgumentError(
            "net.compile, mixed_precision",
            expected="a FeedForwardNet",
            received=f"a {type(net).__name__}",
            advice="leave it out: this kind of net computes in float32",
        )
    net.loss = net.loss if loss is None else loss
    if metrics is None:
        named = _named(() if net.metric is None else net.metric)
    else:
        # Metrics of single outputs are not the net's as a whole.
        of_outputs = (
            isinstance(metrics, Mapping)
            and isinstance(net, Net)
            and all(name in net for name in named)
        )
        net.metric = None if of_outputs else next(iter(named.values()), None)
    net.compiled = Compiled(optimizer, named, precision)
    if precision is not None and isinstance(net, Net):
        # The masters begin as what is there now, not as what is left of it after rounding.
        for param in net.params():
            if param.trainable:
                precision.master(param.name, param.value)
        net.as_type(precision.dtype)
        net.to_device(half_device(net.device))


def expect_compiled(net: Model, where: str) -> Compiled:
    """What the net was compiled with. Errors: it was not."""
    if not isinstance(net.compiled, Compiled):
        raise CallOrderError(
            where,
            expected="a net that was compiled",
            received="one that was not",
            advice="call net.compile(optimizer, loss, metrics) first",
        )
    return net.compiled


def _named(metrics: Metric | Sequence[Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics by their keys, or by their classes: ``accuracy``, ``accuracy_2``."""
    if isinstance(metrics, Mapping):
        named = {str(name): metric for name, metric in metrics.items()}
    else:
        named = {}
        listed: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
        for metric in listed:
            base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
            count = sum(re.fullmatch(rf"{base}(_\d+)?", name) is not None for name in named)
            named[base if not count else f"{base}_{count + 1}"] = metric
    reserved = [name for name in named if name == "loss" or name.startswith("val_")]
    if reserved or len({id(metric) for metric in named.values()}) != len(named):
        raise ArgumentError(
            "net.compile, metrics",
            expected="metrics that differ, under names other than 'loss' and 'val_...'",
            received=one_of(reserved) or "one object more than once",
            advice="rename them, and construct one metric for each name",
        )
    return named


def _not_one(argument: str, expected: str, given: Any, example: str) -> ArgumentError:
    return ArgumentError(
        f"net.compile, {argument}",
        expected=expected,
        received="None" if given is None else f"a {type(given).__name__}",
        advice=f"pass {argument}={example}",
    )
