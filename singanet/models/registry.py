"""The table of ready nets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.net import FeedForwardNet
from singanet.types import Shape


@dataclass(frozen=True)
class ModelEntry:
    """A line of the table: the function ``module.build``, called with ``options``."""

    name: str
    description: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)


_ENTRIES = (
    ModelEntry("mlp", "two hidden layers of 256 and 128 units", "mlp"),
    ModelEntry("lenet", "two convolutions with pooling, two dense layers", "lenet"),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}


def entries() -> list[ModelEntry]:
    """Every ready net, in the order of the table."""
    return list(_ENTRIES)


def build(
    name: str, input_shape: Shape, num_classes: int, seed: int | None = None
) -> FeedForwardNet:
    """The net ``name`` for samples of ``input_shape``, with a loss and a metric.

    Errors: an unknown name; a shape or number of classes that is not positive; a shape the
    net's layers refuse.
    """
    if name not in _BY_NAME:
        raise UnknownNameError(
            f"model {name!r}",
            expected=f"one of {one_of(_BY_NAME, 40)}",
            received=repr(name),
            advice=did_you_mean(name, _BY_NAME, "see the list that singanet models prints"),
        )
    shape = tuple(input_shape)
    if not shape or not all(isinstance(axis, int) and axis > 0 for axis in shape):
        raise ArgumentError(
            f"model {name!r}, argument input_shape",
            expected="positive ints, without the batch axis",
            received=repr(input_shape),
            advice="pass for example (1, 28, 28)",
        )
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ArgumentError(
            f"model {name!r}, argument num_classes",
            expected="a positive int",
            received=repr(num_classes),
            advice="pass the number of classes",
        )
    entry = _BY_NAME[name]
    module = import_module(f"singanet.models.{entry.module}")
    net: FeedForwardNet = module.build(shape, num_classes, seed=seed, **entry.options)
    return net
