"""Keras' names of the groups of its layers' arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence

from singanet.checkpoint.keras.layer import LayerDescription


def groups(layers: Sequence[LayerDescription]) -> list[str]:
    """Keras' group of each layer: where it is known to be, else by its class."""
    found = iter(numbered([layer.kind for layer in layers if not layer.place]))
    return [layer.place or next(found) for layer in layers]


def numbered(classes: Sequence[str]) -> list[str]:
    """The groups of layers of these classes: in snake case, numbered from the second on."""
    counts: dict[str, int] = {}
    found = []
    for name in map(snake_case, classes):
        count = counts[name] = counts.get(name, -1) + 1
        found.append(f"{name}_{count}" if count else name)
    return found


def snake_case(name: str) -> str:
    """As Keras does it: BatchNormalization → batch_normalization, PReLU → p_re_lu."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
