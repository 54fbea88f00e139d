"""A net whose layers lie on several ranks, one behind the other."""

from singanet.layers.symbol import stage
from singanet.parallel.pipeline.pipeline import Pipeline
from singanet.parallel.pipeline.timetable import schedule

__all__ = ["Pipeline", "schedule", "stage"]
