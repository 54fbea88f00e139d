"""The optimizer, loss and metrics that `compile` sets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any, TypeAlias

from singanet.base.elsewhere import is_library
from singanet.base.kinds import snake_case
from singanet.base.terms import KEPT, LAYERS, Terms, expect_met
from singanet.engine.model import placed_by
from singanet.engine.net import Net
from singanet.engine.step import expect_scores
from singanet.errors import ArgumentError, CallOrderError, GraphError, one_of
from singanet.loss import Loss, MultiLoss
from singanet.metric import Metric
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain, without_reductions
from singanet.optimizer.mixed_precision import FACTORS, ScaledUpdates, as_precision
from singanet.training.measures import Measures
from singanet.training.named_outputs import as_loss, as_metric, as_optimizer
from singanet.training.steps import wrapped

Given: TypeAlias = "Metric | str | Sequence[Metric | str] | Mapping[str, Any]"
"""Metrics for `compile`: one, several, or a dict by name, or by output for several outputs."""


_SCALED = 8
BFLOAT16 = Terms(takes=(KEPT,))
"""The terms of products of bfloat16, whose results programs keep in it."""
"""The number of cached optimizers with loss scaling; recorded programs belong to them."""


class Compiled:
    """The optimizer, the metrics by name, and the number of epochs that `fit` has begun.

    ``outputs`` maps a metric to its output, if `compile` got metrics by output. ``weighted``
    metrics also get the weights of samples. The count continues from one `fit` to the next, so ten
    fits of one epoch see the same orders as one fit of ten epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        metrics: dict[str, Metric],
        precision: MixedPrecision | None = None,
        outputs: Mapping[str, str] | None = None,
        weighted: Collection[str] = (),
    ) -> None:
        # `trained_by` is the last fit's wrapped optimizer: its reducers know the net.
        self.optimizer = self.trained_by = optimizer
        self.weighted = frozenset(weighted)
        self.precision = precision
        self.metrics = metrics
        self.outputs = dict(outputs or {})
        self.epochs = 0
        self._wrapped: dict[tuple[Any, ...], Optimizer | Wrapper] = {}
        self._scaled: list[ScaledUpdates] = []

    def clipped(self, clip: float | None, clip_by: str, accumulate: int) -> Optimizer | Wrapper:
        """Return the optimizer in these wrappers; a second call returns the same object."""
        key = (clip, clip_by, accumulate)
        if key not in self._wrapped:
            self._wrapped[key] = wrapped(self.optimizer, clip, clip_by, accumulate)
        self.trained_by = self._wrapped[key]
        return self.trained_by

    def measures(self, loss: Any, alone: bool = False) -> Measures:
        """Return the measures of ``loss`` and metrics; ``alone`` works on copies of the metrics."""
        make = Measures.alone if alone else Measures
        return make(loss, self.metrics, self.outputs, self.weighted)

    def exchange(self, optimizer: Optimizer | Wrapper) -> None:
        """Train with ``optimizer`` from now on; accumulated gradients stay in the last one."""
        self.optimizer = self.trained_by = optimizer
        self._wrapped.clear()

    def scaled(self, optimizer: Optimizer | Wrapper) -> Optimizer | Wrapper:
        """Return ``optimizer`` with loss scaling if any; a second call returns the same object."""
        if self.precision is None:
            return optimizer
        found = next((each for each in self._scaled if each.optimizer is optimizer), None)
        if found is None:
            found = ScaledUpdates(optimizer, self.precision)
            # A bound: every fit may bring another optimizer, such as one with averages.
            self._scaled = [*self._scaled[1 - _SCALED :], found]
        return found

    def turn(self, net: Net) -> None:
        """Bind optimizer and precision to the state of ``net``; another net may have trained."""
        UpdateChain(self.scaled(self.trained_by)).turn(net)

    @property
    def around(self) -> dict[tuple[Any, ...], Optimizer | Wrapper]:
        """The wrappers that `fit` put around the optimizer, by the arguments of `clipped`."""
        found = self._wrapped.items()
        return {key: wrapper for key, wrapper in found if wrapper is not self.optimizer}


def compile_net(
    net: Net,
    optimizer: Optimizer | Wrapper | str,
    loss: Loss | MultiLoss | str | None = None,
    metrics: Given | None = None,
    mixed_precision: MixedPrecision | str | None = None,
    weighted_metrics: Given | None = None,
) -> None:
    """Implement `FeedForwardNet.compile`."""
    optimizer = as_optimizer(optimizer)
    loss = net.loss if loss is None else as_loss(loss)
    if loss is None:
        raise ArgumentError(
            "net.compile, loss",
            expected="a loss, since the net has none",
            received="None",
            advice="pass loss=SoftmaxCrossEntropy()",
        )
    named, outputs = _by_output(net, net.metric if metrics is None else metrics, loss)
    weighted, of_weighted = _by_output(net, weighted_metrics, loss, named)
    for metric in weighted.values():
        expect_weighing(metric)
    named, outputs = named | weighted, outputs | of_weighted
    _expect_distinct(named, loss)
    precision = as_precision(mixed_precision)
    if mixed_precision is not None and placed_by(net) is not None:
        where, advice = "net.compile, mixed_precision", "compile it before parallel.Pipeline(net)"
        expect_met(where, (LAYERS,), net.executor.can.terms, advice, ArgumentError)
    narrow = _narrow_type(net, mixed_precision)
    # An unfinished net is checked when it trains.
    with suppress(GraphError, CallOrderError):
        _expect_one_output(net, loss)
        expect_scores(net.planned(), loss)
    net.loss = loss
    if metrics is not None or weighted:
        # A metric of a single output is not a metric of the net.
        net.metric = None if outputs else next(iter(named.values()), None)
    net.compiled = Compiled(optimizer, named, precision, outputs, weighted)
    _turn(net, precision, narrow)


def _expect_one_output(net: Net, loss: Any) -> None:
    """Refuse a single loss of singanet's for a net that has several outputs."""
    plan, kind = net.planned(), type(loss).__name__
    of_one = is_library(type(loss))
    if len(plan.outputs) > 1 and of_one and not isinstance(loss, MultiLoss):
        masks = [name for name in plan.outputs if plan.by_name[name].layer.traits.begins_mask]
        outputs = [name for name in plan.outputs if name not in masks]
        advice = f"pass MultiLoss({{{(outputs or masks)[0]!r}: {kind}(), ...}})"
        if len(outputs) == len(masks) == 1:
            advice = (
                f"pass MultiLoss({{{outputs[0]!r}: {kind}()}}, masks={{{outputs[0]!r}:"
                f" {masks[0]!r}}}), and targets {{{outputs[0]!r}: y}}"
            )
        raise ArgumentError(
            "net.compile, loss",
            expected=f"a loss for each of the outputs {one_of(outputs)}",
            received=f"one {kind}",
            advice=advice,
        )


def _turn(net: Net, precision: MixedPrecision | None, narrow: str | None) -> None:
    if narrow is not None:
        if not net.executor.can.holds:
            net.as_type("float32_fast")
        device = net.device._narrowed("net.compile", stores=narrow == "bfloat16")
        net._run_on(device, net.dtype)
    if precision is not None:
        # Masters copy the parameters before rounding.
        for param in net.params():
            if param.trainable:
                precision.master(param.name, param.value)
        net.as_type(precision.dtype)


def _narrow_type(net: Net, mixed_precision: Any) -> str | None:
    """Return the type of `FACTORS` that products round operands to; None if not requested.

    Errors: bfloat16 is requested by name, and the device lacks such products.
    """
    if mixed_precision is None or mixed_precision not in FACTORS:
        return None
    if mixed_precision == "auto":
        return "bfloat16" if net.device._narrow_pays() else None
    net.device._narrowed("net.compile, mixed_precision")
    return str(mixed_precision)


def alone(net: Net, optimizer: Optimizer | Wrapper | None) -> Optimizer | Wrapper | None:
    """Return ``optimizer``, or the compiled one without its reductions over processes."""
    if optimizer is not None or net.compiled is None:
        return optimizer
    return without_reductions(expect_compiled(net, "net").optimizer)


def expect_compiled(net: Net, where: str) -> Compiled:
    """Return the compiled settings of the net. Errors: the net is not compiled."""
    if not isinstance(net.compiled, Compiled):
        raise CallOrderError(
            where,
            expected="a compiled net",
            received="a net that is not compiled",
            advice="call net.compile(optimizer, loss, metrics) first",
        )
    return net.compiled


def _by_output(
    net: Net, given: Any, loss: Any, taken: Collection[str] = ()
) -> tuple[dict[str, Metric], dict[str, str]]:
    """Return metrics by name, and the output of each if they are given by outputs.

    A name in ``taken`` gets the prefix ``weighted_``: weighted_accuracy, as in Keras.
    """
    if given is None:
        return {}, {}
    by_output: Mapping[str, Any] = {"": given}
    if isinstance(given, Mapping) and all(k in net for k in given):
        by_output = given
    found, outputs = {}, {}
    for output, each in by_output.items():
        own = loss.losses.get(output) if isinstance(loss, MultiLoss) and output else loss
        before = f"{output}_" if output else ""
        for base, metric in _named(each, own).items():
            name = before + base if before + base not in taken else f"{before}weighted_{base}"
            found[name] = metric
            if output:
                outputs[name] = output
    return found, outputs


def expect_weighing(metric: Metric) -> None:
    """Refuse a metric whose `update` does not accept weights."""
    try:
        signature(metric.update).bind(None, None, None)
    except TypeError:
        raise ArgumentError(
            "net.compile, weighted_metrics",
            expected="metrics whose update takes (x, y, weight)",
            received=f"{type(metric).__name__}, whose update takes {signature(metric.update)}",
            advice="let update take weight=None, or pass it in metrics, which get no weights",
        ) from None


def _named(given: Any, loss: Any) -> dict[str, Metric]:
    """Return metrics by key, or by class name: ``accuracy``, ``accuracy_2``.

    A metric given as a string has that name.
    """
    if isinstance(given, Mapping):
        return {str(name): as_metric(metric, loss) for name, metric in given.items()}
    named: dict[str, Metric] = {}
    for metric in given if isinstance(given, (list, tuple)) else [given]:
        made = as_metric(metric, loss)
        base = snake_case(metric if isinstance(metric, str) else type(made).__name__)
        count = sum(re.fullmatch(rf"{re.escape(base)}(_\d+)?", name) is not None for name in named)
        named[base if not count else f"{base}_{count + 1}"] = made
    return named


def _expect_distinct(named: Mapping[str, Metric], loss: Any) -> None:
    """Refuse one metric under two names, and reserved names."""
    parts = [f"{name}_loss" for name in loss.losses] if isinstance(loss, MultiLoss) else []
    reserved = [name for name in named if name in ("loss", *parts) or name.startswith("val_")]
    if reserved or len({id(metric) for metric in named.values()}) != len(named):
        raise ArgumentError(
            "net.compile, metrics",
            expected="different metrics, with names other than 'loss' and 'val_...'",
            received=one_of(reserved) or "one object more than once",
            advice="rename them, and construct one metric for each name",
        )
