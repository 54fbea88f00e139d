"""Recompute: what of the forward pass is dropped and made again, so that a step needs less."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from singanet.errors import ArgumentError
from singanet.program.recompute.flow import Flow
from singanet.program.recompute.state import CannotRepeatError, RecomputeState

Recompute = Literal["none", "cheap"] | int
"""Nothing; what takes a pass over memory; or whatever keeps an arena of so many bytes."""

_CHEAP, _DEAR = 1, 1 << 30
_WORTH = 16
"""Bytes gone over for each that is dropped: NumPy's normalisation takes twelve, oneDNN's three."""

_LEAST = 2000
"""Buffers below the peak by this factor are not worth looking at."""


def checked_recompute(where: str, value: object) -> Recompute:
    """``value``, if it is a level. Errors: anything else."""
    if isinstance(value, str) and value in ("none", "cheap"):
        return "none" if value == "none" else "cheap"
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ArgumentError(
        f"{where}, recompute",
        expected="'none', 'cheap', or the bytes that the arena may take",
        received=repr(value),
        advice="start with recompute='cheap'; program.report() tells what it saves",
    )


def chosen(flow: Flow, level: Recompute, target: int) -> RecomputeState:
    """What to drop at ``level``: so little as brings the peak to ``target``, or all that helps.

    Buffers with most bytes for the cost come first; one is dropped where that lowers the bytes
    needed when most are, and no other moment needs more than that.
    """
    state = _lowered(RecomputeState(flow, _CHEAP), target, _WORTH)
    if level != "cheap" and state.peak > target:
        state.most = _DEAR
        state = _lowered(state, target, math.inf)
    return state


def _lowered(state: RecomputeState, target: int, worth: float) -> RecomputeState:
    flow, best, candidates = state.flow, state, _candidates(state)
    while True:
        before = best.peak
        for buffer, (first, last) in candidates.items():
            moment = int(state.live.argmax())
            if state.live[moment] <= target:
                return state
            if buffer in state.dropped or not first < moment <= last:
                continue
            tried = _dropped(state, buffer)
            if tried is None or tried.live[moment] >= state.live[moment]:
                continue
            if tried.cost - state.cost > worth * flow.size[buffer]:
                continue
            if tried.peak <= state.peak:
                state = tried
                best = state if state.peak < best.peak else best
        if best.peak == before:
            return best


def _candidates(state: RecomputeState) -> dict[int, tuple[int, int]]:
    """Buffers with the gaps in which nobody needs them, most bytes for the cost first."""
    flow, least = state.flow, state.peak // _LEAST
    ratios: dict[int, float] = {}
    gaps: dict[int, tuple[int, int]] = {}
    for buffer, size in enumerate(flow.size):
        gap = flow.gap(buffer) if size > least else None
        if gap is None or buffer in state.dropped:
            continue
        back = flow.uses[buffer][flow.split[buffer]]
        if flow.makes_again(buffer, back, state.most):
            tried = _dropped(state, buffer)
            if tried is not None:
                gaps[buffer] = gap
                ratios[buffer] = size / max(tried.cost - state.cost, 1)
    return {buffer: gaps[buffer] for buffer in sorted(gaps, key=lambda b: -ratios[b])}


def _dropped(state: RecomputeState, buffer: int) -> RecomputeState | None:
    """``state`` without ``buffer``, if that can be."""
    tried = state.copy()
    try:
        tried.drop(buffer)
    except CannotRepeatError:
        return None
    return tried


class CannotKeepError(ArgumentError):
    """An arena takes ``least`` bytes, however much is made again."""

    def __init__(self, budget: int, least: int) -> None:
        super().__init__(
            "recompute",
            expected=f"bytes that the arena can be kept in; the least found is {least:,}",
            received=f"{budget:,}",
            advice="give it more, or take a smaller batch",
        )
        self.least = least
