"""An entry of the table of ready nets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from singanet.types import Shape


@dataclass(frozen=True)
class Recipe:
    """How a net is trained where the user does not say otherwise.

    ``lr`` is the highest learning rate of the run; the optimizer is a name that
    `singanet train --optimizer` takes. ``augment`` lets training images be shifted a little.
    """

    epochs: int = 20
    batch_size: int = 32
    optimizer: str = "sgd"
    lr: float = 0.05
    weight_decay: float = 5e-4
    augment: bool = False


@dataclass(frozen=True)
class ModelEntry:
    """A line of the table: the function ``module.build``, called with ``options``.

    ``task`` is the kind of data it learns from. ``input_shape`` and ``num_classes`` are those of
    its usual form, and ``parameters`` is how many numbers are trained in that form: weights,
    biases, and the factors and offsets of normalisation, without running means and variances.
    """

    name: str
    description: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    input_shape: Shape = (3, 32, 32)
    num_classes: int = 10
    task: str = "classification"
    recipe: Recipe = field(default_factory=Recipe)
    parameters: int = 0
