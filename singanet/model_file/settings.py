"""What a net was compiled with, as data and arrays, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from singanet.config import object_from_config, object_to_config, refusing, wrong
from singanet.errors import ConfigError
from singanet.metric import Metric
from singanet.model_file.layout import OPTIMIZER, PRECISION
from singanet.net import FeedForwardNet
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.training.compiled import Compiled, compile_net
from singanet.types import Array


def describe(compiled: Compiled) -> dict[str, Any]:
    """Optimizer, metrics and mixed precision as JSON types, and how many epochs were begun.

    Errors: `ConfigError` for an optimizer or metric that cannot be described.
    """
    try:
        return {
            "optimizer": object_to_config(compiled.optimizer),
            "metrics": {name: object_to_config(m) for name, m in compiled.metrics.items()},
            "precision": None
            if compiled.precision is None
            else object_to_config(compiled.precision),
            "epochs": compiled.epochs,
        }
    except ConfigError as error:
        raise ConfigError(
            error.where,
            expected=error.expected,
            received=error.received,
            advice=f"{error.advice}; or leave the training out with training=False",
        ) from error


def arrays(compiled: Compiled) -> dict[str, Array]:
    """Copies of what optimizer and mixed precision have gathered, by their names in the file."""
    found = {OPTIMIZER + key: array for key, array in compiled.optimizer.state_dict().items()}
    if compiled.precision is not None:
        learnt = compiled.precision.state_dict()
        found |= {PRECISION + key: array for key, array in learnt.items()}
    return found


def compile_as(
    net: FeedForwardNet,
    described: Any,
    optimizer_state: Mapping[str, Array],
    precision_state: Mapping[str, Array],
) -> None:
    """Compile ``net`` as `describe` says, and let the optimizer go on from its state.

    Errors: `ConfigError` and `UnknownNameError` for what cannot be built, and those of
    `load_state_dict` for a state that is not the optimizer's.
    """
    if not isinstance(described, Mapping) or not isinstance(described.get("metrics"), Mapping):
        raise wrong("the training", "an object with optimizer and metrics", repr(described))
    epochs = described.get("epochs")
    if type(epochs) is not int or epochs < 0:
        raise wrong("the training", "a count under 'epochs'", repr(epochs))
    with refusing("the training"):
        optimizer = object_from_config(described.get("optimizer"), {}, Optimizer, Wrapper)
        metrics = {
            name: object_from_config(entry, {}, Metric)
            for name, entry in described["metrics"].items()
        }
        precision = described.get("precision")
        if precision is not None:
            precision = object_from_config(precision, {}, MixedPrecision)
        measure = net.metric
        compile_net(net, optimizer, None, metrics, precision)
        net.metric = _same(measure, metrics.values())
        optimizer.load_state_dict(optimizer_state)
        if precision is not None:
            precision.load_state_dict(precision_state)
    if net.compiled is not None:
        net.compiled.epochs = epochs


def _same(metric: Metric | None, others: Iterable[Metric]) -> Metric | None:
    """The one of ``others`` that is described as ``metric`` is, since both are often one object."""
    if metric is None:
        return None
    config = object_to_config(metric)
    return next((each for each in others if object_to_config(each) == config), metric)
