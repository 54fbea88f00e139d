"""A net whose layers are on several ranks, in order."""

from singanet.layers.symbol import stage
from singanet.parallel.pipeline.pipeline import Pipeline
from singanet.parallel.pipeline.timetable import schedule

__all__ = ["Pipeline", "schedule", "stage"]
