"""Tables of a net: its layers, parameters, multiply-adds, memory of a step."""

from __future__ import annotations

from singanet.summary.rows import Row, layer_rows, multiply_adds
from singanet.summary.summary import Footprint, measure, summary_table

__all__ = [
    "Footprint",
    "Row",
    "layer_rows",
    "measure",
    "multiply_adds",
    "summary_table",
]
