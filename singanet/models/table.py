"""The table of ready nets; the modules that build them are imported when one is asked for."""

from __future__ import annotations

from singanet.models.entry import ModelEntry, Recipe

__all__ = ["ENTRIES"]

ENTRIES = (
    ModelEntry("mlp", "two hidden layers of 256 and 128 units", "mlp", input_shape=(1, 28, 28)),
    ModelEntry(
        "lenet",
        "two convolutions with pooling, two dense layers",
        "lenet",
        input_shape=(1, 28, 28),
        recipe=Recipe(epochs=30, augment=True),
    ),
)
