"""The processes of a fit: one by itself, several that train alike, several with parts of a net."""

from __future__ import annotations

from singanet.training.ranks.several import FitRanks, ranks_of
from singanet.training.ranks.world import World

__all__ = ["FitRanks", "World", "ranks_of"]
