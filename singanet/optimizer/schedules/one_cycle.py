"""Up, then down to almost nothing."""

from __future__ import annotations

import math

from singanet.optimizer.schedules.schedule import Schedule


class OneCycle(Schedule):
    """From peak / start_div by half a cosine up to ``peak``, then down (Smith and Topin 2019).

    Of ``steps``, the share ``rise`` goes up; the last one is at peak / (start_div · final_div),
    as are all after it. With ``rise`` 1 the last one is at the peak. PyTorch's OneCycleLR with its
    two phases.
    """

    def __init__(
        self,
        peak: float,
        steps: int,
        rise: float = 0.3,
        start_div: float = 25.0,
        final_div: float = 1e4,
    ) -> None:
        self.peak = self._number("peak", peak)
        self.steps = self._count("steps", steps, 2)
        self.rise = self._number("rise", rise, 0.0, 1.0)
        self.start = self.peak / self._number("start_div", start_div, 1.0)
        self.final = self.start / self._number("final_div", final_div, 1.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        last = self.steps - 1
        top = self.rise * self.steps - 1
        if step <= top:
            return _wave(self.start, self.peak, step / top if top else 1.0)
        if step >= last:
            return self.final
        return _wave(self.peak, self.final, (step - top) / (last - top))


def _wave(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1.0 + math.cos(math.pi * part)) / 2.0
