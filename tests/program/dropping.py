"""Programs that drop whatever they can, whether that helps or not."""

from __future__ import annotations

import random

from singanet.program import compile as compiling
from singanet.program.recompute.state import CannotRepeatError, RecomputeState


def drop_all(monkeypatch, seed=0):
    """Let programs that recompute drop all that they can, in an order by chance; the counts."""
    counts = {"dropped": 0, "again": 0}

    def chosen(flow, level, target):
        state, order = RecomputeState(flow, 1 << 30), list(range(len(flow.size)))
        random.Random(seed).shuffle(order)
        for buffer in order:
            if flow.gap(buffer) is None:
                continue
            tried = state.copy()
            try:
                tried.drop(buffer)
            except CannotRepeatError:
                continue
            state = tried
        counts["dropped"] += len(state.dropped)
        counts["again"] += len(state.slot)
        return state

    monkeypatch.setattr(compiling, "chosen", chosen)
    monkeypatch.setattr(compiling, "_smaller", lambda kept, tried: tried)
    return counts
