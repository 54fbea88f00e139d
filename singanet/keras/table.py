"""The closed table of Keras classes, and what each becomes here."""

from __future__ import annotations

from collections.abc import Callable

from singanet.keras.described import Described
from singanet.keras.plain import PLAIN
from singanet.keras.recurrent import RECURRENT
from singanet.keras.spatial import SPATIAL
from singanet.layers.layer import Layer

TABLE: dict[str, Callable[[Described], list[Layer]]] = {**PLAIN, **SPATIAL, **RECURRENT}
