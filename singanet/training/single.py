"""Single batches, trained on or tested with what the net was compiled with."""

from __future__ import annotations

from typing import Any

from singanet.engine.model import Model
from singanet.training.arrays import by_name, fed, output_names, sample_count
from singanet.training.batches import WeightedBatch
from singanet.training.compiled import expect_compiled
from singanet.training.evaluation import gather, on_device
from singanet.training.measures import batch_length
from singanet.training.sample_weights import joined_weight
from singanet.training.steps import stepper
from singanet.types import Array


def train_on_batch(net: Model, x: Any, y: Any, sample_weight: Array | None) -> dict[str, Any]:
    """`FeedForwardNet.train_on_batch`."""
    compiled = expect_compiled(net, "net.train_on_batch")
    x, y, weight = _batch(net, x, y, sample_weight, learns=True)
    measures = compiled.measures(net.loss, alone=True)
    step = stepper(net, compiled.scaled(compiled.optimizer))
    loss = step(x, y, weight, None, measures)
    measures.add_loss(loss, batch_length(y))
    return measures.results()


def test_on_batch(net: Model, x: Any, y: Any, sample_weight: Array | None) -> dict[str, Any]:
    """`FeedForwardNet.test_on_batch`."""
    compiled = expect_compiled(net, "net.test_on_batch")
    measures = compiled.measures(net.loss, alone=True)
    gather(net, [_batch(net, x, y, sample_weight)], measures)
    return measures.results()


def _batch(net: Model, x: Any, y: Any, weight: Any, learns: bool = False) -> WeightedBatch:
    x = fed("batch x", net, x, learns)
    y = by_name("batch y", y, output_names(net), all_of_them=False)
    weight = joined_weight(y, weight, None)
    sample_count({"x": x, "y": y, "sample_weight": weight})
    return x, on_device(net.device, y), on_device(net.device, weight)
