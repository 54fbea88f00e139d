"""The processes of a fit: a single one, data-parallel ranks, or the ranks of a pipeline."""

from __future__ import annotations

from singanet.training.ranks.several import FitRanks, ranks_of
from singanet.training.ranks.world import World

__all__ = ["FitRanks", "World", "ranks_of"]
