"""Evaluation, prediction and quantization in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.progress import progress
from singanet.device import Device
from singanet.engine.executor import plan_of_step
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import start_of
from singanet.engine.holding import hold_blocks, is_watched, unwatch, watch
from singanet.engine.model import StepRequest, makes_passes_together, placed_by
from singanet.engine.net import Net
from singanet.engine.step import of_output, weights_for
from singanet.errors import ArgumentError, CallOrderError, DataError, SingaNetError
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric.metric import Metric
from singanet.ops.kernel import widened
from singanet.training.batches import (
    USUAL_BATCH,
    WeightedBatch,
    by_name,
    fed,
    joined_weight,
    output_names,
    sample_count,
)
from singanet.training.compiled import Compiled, expect_compiled
from singanet.training.feeding import array_batches, holds_arrays, iterated, refuse_with_batches
from singanet.training.measures import Measures, batch_length
from singanet.training.ranks import ProcessGroup, ranks_of
from singanet.training.steps import stepper
from singanet.types import Array

Taking: TypeAlias = Callable[[str, Any], Any]
"""``take(where, x)`` converts samples to arrays for the inputs of a net."""


def gather(net: Net, batches: Iterable[WeightedBatch], measures: Measures) -> None:
    """Add all ``batches`` to ``measures``, in evaluation mode."""
    together = makes_passes_together(net)
    for x, y, weight in batches:
        if not batch_length(y):
            if together:
                # Other ranks have samples.
                net.forward(False, x)
            continue
        y, weight = on_device(net.device, y), on_device(net.device, weight)
        if not together and _gathered_by_rows(net, x, y, weight, measures):
            continue
        out = widened(net.forward(False, x))
        try:
            loss = 0.0
            if net.loss is not None:
                loss = net.loss.evaluate(False, out, y, *weights_for(weight))
            measures(out, y, weight)
            measures.add_loss(loss, batch_length(y))
        except SingaNetError as error:
            raise of_output(error, output_names(net)) from None
        x = y = weight = out = None


def _gathered_by_rows(net: Net, x: Any, y: Any, weight: Any, measures: Measures) -> bool:
    """Add one batch to ``measures`` by blocks of rows, as in a step; False if scores are needed.

    Errors: the errors of the loss and of the inputs.
    """
    request = StepRequest(x, y, None, weight, measures)
    plan = plan_of_step(net, request) if net._passes_are_its_own and not placed_by(net) else None
    if plan is None:
        return False
    feed = check_feed(net._execution_plan(), x, net.device, net.dtype)
    # An evaluation ignores the gradient of the losses.
    beside = y, start_of(len(y), net.device.ops, net.dtype, None), weight
    feed = {**feed, **dict(zip(plan.of_loss, beside, strict=False))}
    executor: Any = net.executor
    ((losses, *found),) = executor.evaluate(net, feed, (), plan).values()
    measures.gather(found, plan.head.scores(y), y, weight)
    measures.add_loss(float(losses.mean()), batch_length(y))
    return True


class Evaluation(tuple[float | Any, Any]):
    """The result of `FeedForwardNet.evaluate`, a tuple ``(loss, metric)``.

    Each is None if the net lacks it. ``logs`` has all measures by the names of `History`: the loss,
    the loss of each of several outputs (``<output>_loss``), and every metric.
    """

    logs: dict[str, Any]

    def __new__(cls, loss: float | None, metric: Any, logs: Mapping[str, Any]) -> Evaluation:
        """Make it from the loss, the metric's result, and all measures by name."""
        made = super().__new__(cls, (loss, metric))
        made.logs = dict(logs)
        return made

    def __getnewargs__(self) -> tuple[float | None, Any, dict[str, Any]]:
        return self.loss, self.metric, self.logs

    @property
    def loss(self) -> float | Any:
        """The loss of all samples; None if the net has no loss."""
        return self[0]

    @property
    def metric(self) -> Any:
        """The net's metric, or its first compiled metric: usually a float."""
        return self[1]

    def __repr__(self) -> str:
        parts = (
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in self.logs.items()
        )
        return f"Evaluation({', '.join(parts)})"


def evaluate(
    net: Net, x: Any, y: Any, batch_size: int | None, sample_weight: Any = None
) -> Evaluation:
    """Implement `FeedForwardNet.evaluate`.

    If the optimizer reduces over several ranks, all ranks call it, and each evaluates its part.
    Errors: a net with neither loss nor metric; a metric that cannot be merged over processes.
    """
    measures, first = _measures(net)
    compiled = net.compiled
    ranks = ranks_of(net, compiled.trained_by) if isinstance(compiled, Compiled) else ProcessGroup()
    if net.loss is None and not measures.metrics:
        raise CallOrderError(
            "net.evaluate",
            expected="a net with a loss or a metric",
            received="neither",
            advice="call net.compile(optimizer, loss, metrics) first",
        )
    ranks.expect_mergeable("net.evaluate", measures.metrics)
    ranks.unify(net)
    if y is not None:
        y = by_name("net.evaluate, y", y, output_names(net), all_of_them=False)
    if batch_size is not None:
        batch_size = checked_count("net.evaluate", "batch_size", batch_size, 1)
    # A custom metric may only judge single batches.
    judges = not all(isinstance(metric, Metric) for metric in measures.metrics.values())
    if y is not None and ranks.size == 1 and (judges or _at_once(net, x, y, batch_size)):
        return _in_one_go(net, x, y, sample_weight, measures, first)
    if y is None and not holds_arrays(x):
        refuse_with_batches("net.evaluate", sample_weight=sample_weight)
        batches = iterated(net, x, None, None, ranks, where="net.evaluate")
    else:
        size = batch_size or USUAL_BATCH
        batches = array_batches(net, x, y, sample_weight, size, ranks, "net.evaluate")
    shown = progress(batches.epoch(), "evaluate", batches.expected)
    gather(net, ranks.evaluated(net, shown), measures)
    ranks.merge(measures)
    logs = measures.results()
    if net.loss is None:
        del logs["loss"]
    return Evaluation(logs.get("loss"), logs.get(first), logs)


def _at_once(net: Net, x: Any, counted: Any, size: int | None) -> bool:
    """Return whether ``x`` is one batch: the ``counted`` arrays have at most ``size`` samples.

    A size of None has no bound; lists of arrays for one input layer are never split.
    """
    if size is None or (holds_arrays(x) and _takes_lists(net)):
        return True
    first = next(iter(counted.values()), ()) if isinstance(counted, Mapping) else counted
    return isinstance(first, np.ndarray) and first.ndim > 0 and len(first) <= size


def _takes_lists(net: Net) -> bool:
    """Return whether an input layer takes a list of several arrays."""
    if net.pending:
        return False
    plan = net._execution_plan()
    shapes = [plan.by_name[name].layer.in_shapes for name in plan.inputs]
    return any(isinstance(shape, list) and len(shape) > 1 for shape in shapes)


def _measures(net: Net) -> tuple[Measures, str]:
    """Return copies of the net's metric and the compiled metrics, and the name of the first."""
    compiled = net.compiled if isinstance(net.compiled, Compiled) else None
    metrics = {} if compiled is None else compiled.metrics
    first = next((name for name, metric in metrics.items() if metric is net.metric), "")
    if net.metric is not None and not first:
        first, metrics = "metric", {"metric": net.metric, **metrics}
    first = first or next(iter(metrics), "")
    outputs, weighted = ({}, ()) if compiled is None else (compiled.outputs, compiled.weighted)
    return Measures.alone(net.loss, metrics, outputs, weighted), first


def predict(net: Net, x: Any, batch_size: int | None) -> Array:
    """Implement `FeedForwardNet.predict`; a dict for several outputs. Errors: no batch."""
    if batch_size is not None:
        batch_size = checked_count("net.predict", "batch_size", batch_size, 1)
    if batch_size is None or _at_once(net, x, x, batch_size):
        out: Array = widened(net.forward(False, x))
        return out if net.loss is None else net.loss.link(out)
    xp, take = net.device.ops.xp, lambda where, given: fed(where, net, given)
    return joined_batches(
        lambda part: predict(net, part, None), x, batch_size, take, "net.predict", xp
    )


def by_output_name(made: Any, net: Net) -> dict[str, Array]:
    """Return the predictions ``made`` as a dict by output name, even for a single output."""
    return made if isinstance(made, dict) else {output_names(net)[0]: made}


def joined_batches(
    one: Callable[[Any], Any], x: Any, batch_size: int, take: Taking, where: str, xp: Any
) -> Any:
    """Call ``one`` on batches of ``x``, and concatenate the results by the module ``xp``.

    Errors: no batch.
    """
    parts = [one(part) for part in input_batches(x, batch_size, take, where)]
    if not parts:
        raise ArgumentError(
            where,
            expected="at least one batch",
            received="none",
            advice="a generator yields its batches once: make a new one",
        )
    if isinstance(parts[0], dict):
        return {name: xp.concatenate([part[name] for part in parts]) for name in parts[0]}
    return xp.concatenate(parts)


def _in_one_go(net: Net, x: Any, y: Any, weight: Any, measures: Measures, first: str) -> Evaluation:
    weight = joined_weight(y, weight, None)
    sample_count({"y": y, "sample_weight": weight}, where="net.evaluate")
    y, weight = on_device(net.device, y), on_device(net.device, weight)
    if _gathered_by_rows(net, x, y, weight, measures):
        logs = measures.results()
        return Evaluation(logs.get("loss"), logs.get(first), logs)
    out = widened(net.forward(False, x))
    try:
        if net.loss is not None:
            loss = net.loss.evaluate(False, out, y, *weights_for(weight))
            measures.count(out, y)
            measures.add_loss(loss, batch_length(y))
        logs = measures.losses_by_name() if net.loss is not None else {}
        scores = {
            name: _judged(metric, *seen)
            for name, (metric, *seen) in measures.shown(out, y, weight).items()
        }
    except SingaNetError as error:
        raise of_output(error, output_names(net)) from None
    return Evaluation(logs.get("loss"), scores.get(first), logs | scores)


def _judged(metric: Any, *seen: Any) -> Any:
    """Return the result of ``metric`` on one batch: a number or an array."""
    if not isinstance(metric, Metric):
        # A custom metric that only judges single batches.
        return metric.evaluate(*seen)
    alone = metric.anew()
    alone.update(*seen)
    return alone.result() if alone.samples else alone.of_none


def on_device(device: Device, data: Any) -> Any:
    """Put targets or weights on ``device``; return them unchanged for None or the CPU."""
    if device.index is None or data is None:
        return data
    if isinstance(data, Mapping):
        return {name: device.put(part) for name, part in data.items()}
    return device.put(data)


def input_batches(x: Any, batch_size: int, take: Taking, where: str) -> Iterator[Any]:
    """Yield batches of ``x``, arrays or an iterable of batches, converted by ``take``."""
    size, title = checked_count(where, "batch_size", batch_size, 1), where.removeprefix("net.")
    if not holds_arrays(x):
        for item in progress(x, title):
            first = item[0] if isinstance(item, (tuple, list)) else item
            yield take(f"{where}, x", first)
        return
    x = take(f"{where}, x", x)
    for start in progress(range(0, sample_count({"x": x}), size), title):
        part = np.s_[start : start + size]
        if isinstance(x, Mapping):
            yield {name: array[part] for name, array in x.items()}
        else:
            yield x[part]


_SHOWN = 3


@dataclass(frozen=True)
class Quantization:
    """The result of `FeedForwardNet.quantize`.

    Args:
        dtype: "int8" or "int4".
        errors: The relative error of each parameter by name: the root mean square of the difference
            divided by the root mean square of the values.
        nbytes: The bytes of all parameters before and after.
        losses: The losses before and after on the given data, or None.
        perplexities: The exponentials of the losses if the loss is a cross-entropy of classes, or
            None.
    """

    dtype: str
    errors: dict[str, float] = field(repr=False)
    nbytes: tuple[int, int]
    losses: tuple[float, float] | None = None
    perplexities: tuple[float, float] | None = None

    def __str__(self) -> str:
        before, after = self.nbytes
        worst = sorted(self.errors, key=lambda name: -self.errors[name])[:_SHOWN]
        title = f"{len(self.errors)} weights in {self.dtype}"
        lines = [
            f"{title}: {before / 1e6:.1f} -> {after / 1e6:.1f} MB",
            *[f"  {name}: off by {self.errors[name]:.2%}" for name in worst],
        ]
        for what, both in (("loss", self.losses), ("perplexity", self.perplexities)):
            if both is not None:
                change = both[1] / both[0] - 1 if both[0] else 0.0
                lines.append(f"{what} {both[0]:.4f} -> {both[1]:.4f} ({change:+.2%})")
        return "\n".join(lines)


_MOMENTS = 1 << 28
"""The bytes of second moments of inputs that are summed in one pass."""
_FLOATS = ("float16", "float32", "float64")
_ROWS = 4
"""The rows of a batch by default."""


def quantize(
    net: Net, dtype: str, x: Any, y: Any, batch_size: int | None, data: Any = None
) -> Quantization:
    """Implement `FeedForwardNet.quantize`."""
    if x is not None and net.loss is None:
        raise CallOrderError(
            "net.quantize, x",
            expected="a net with a loss, to measure before and after",
            received="a net without a loss",
            advice="omit x, or give the net a loss",
        )
    if data is not None and dtype != "int4":
        raise ArgumentError(
            "net.quantize",
            expected='data=None, or "int4": blocks of 8 bits are computed from the weights alone',
            received=f"data with {dtype!r}",
            advice='omit data, or pass "int4"',
        )
    before = None if x is None else evaluate(net, x, y, batch_size or USUAL_BATCH).loss
    whole = sum(param.nbytes for param in net.params())
    errors = {} if data is None else _by_rows(net, dtype, data, batch_size)
    errors |= hold_blocks(net, dtype, "net.quantize", of=lambda param: param.name not in errors)
    held = sum(param.storage.nbytes for param in net.params())
    after = None if x is None else evaluate(net, x, y, batch_size or USUAL_BATCH).loss
    if before is None or after is None:
        return Quantization(dtype, errors, (whole, held))
    likely = (exp(before), exp(after)) if isinstance(net.loss, SoftmaxCrossEntropy) else None
    return Quantization(dtype, errors, (whole, held), (before, after), likely)


def _by_rows(net: Net, dtype: str, data: Any, batch_size: int | None) -> dict[str, float]:
    """Quantize matrices to 4 bits, some at a time, by their inputs when the net reads ``data``.

    Errors, before any change: no rows, or numbers that are not finite.
    """
    where, errors = "net.quantize, data", dict[str, float]()
    parts = [*input_batches(data, batch_size or _ROWS, lambda at, x: fed(at, net, x), where)]
    if not parts:
        raise DataError(
            where,
            expected="at least one row",
            received="none",
            advice="omit data to compute blocks from the weights alone",
        )
    if not all(map(_is_finite, parts)):
        raise DataError(
            where,
            expected="finite numbers",
            received="NaN or infinity",
            advice="look at numpy.isfinite(data)",
        )
    executor: Any = net.executor
    enabled = executor.enabled
    try:
        # A recording may run a product once more, of which the rows would count twice.
        executor.enabled = False
        while watch(net, "net.quantize", _MOMENTS):
            for part in parts:
                net.forward(False, part)
            errors |= hold_blocks(net, dtype, "net.quantize", of=is_watched)
    finally:
        executor.enabled = enabled
        unwatch(net)
    return errors


def _is_finite(part: Any) -> bool:
    """Return whether all floats of an input are finite."""
    arrays = part.values() if isinstance(part, Mapping) else [part]
    floats = [each for each in arrays if getattr(each, "dtype", None) in _FLOATS]
    return all(bool(np.isfinite(each).all()) for each in floats)


def train_on_batch(net: Net, x: Any, y: Any, sample_weight: Array | None) -> dict[str, Any]:
    """Implement `FeedForwardNet.train_on_batch`."""
    compiled = expect_compiled(net, "net.train_on_batch")
    x, y, weight = _batch(net, x, y, sample_weight, learns=True)
    measures = compiled.measures(net.loss, alone=True)
    step = stepper(net, compiled.scaled(compiled.optimizer))
    loss = step(x, y, weight, None, measures)
    measures.add_loss(loss, batch_length(y))
    return measures.results()


def test_on_batch(net: Net, x: Any, y: Any, sample_weight: Array | None) -> dict[str, Any]:
    """Implement `FeedForwardNet.test_on_batch`."""
    compiled = expect_compiled(net, "net.test_on_batch")
    measures = compiled.measures(net.loss, alone=True)
    gather(net, [_batch(net, x, y, sample_weight)], measures)
    return measures.results()


def _batch(net: Net, x: Any, y: Any, weight: Any, learns: bool = False) -> WeightedBatch:
    x = fed("batch x", net, x, learns)
    y = by_name("batch y", y, output_names(net), all_of_them=False)
    weight = joined_weight(y, weight, None)
    sample_count({"x": x, "y": y, "sample_weight": weight})
    return x, on_device(net.device, y), on_device(net.device, weight)
