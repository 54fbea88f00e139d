"""Half a cosine wave down, once or again and again."""

from __future__ import annotations

import math

from singanet.optimizer.schedules.schedule import Schedule


class Cosine(Schedule):
    """final + (value − final) (1 + cos(π step / steps)) / 2, then ``final`` (Loshchilov 2017)."""

    def __init__(self, value: float, steps: int, final: float = 0.0) -> None:
        self.value = self._number("value", value)
        self.steps = self._count("steps", steps)
        self.final = self._number("final", final)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        part = min(step / self.steps, 1.0)
        return self.final + (self.value - self.final) * (1.0 + math.cos(math.pi * part)) / 2.0


class CosineRestarts(Schedule):
    """`Cosine` over ``steps``, begun anew at each end, ``longer`` times as long as before.

    Each begins at ``shrink`` times where the one before began. SGDR of Loshchilov and Hutter,
    2017; PyTorch's CosineAnnealingWarmRestarts, and with ``longer`` 2 Keras' CosineDecayRestarts.
    """

    def __init__(
        self,
        value: float,
        steps: int,
        final: float = 0.0,
        longer: int = 1,
        shrink: float = 1.0,
    ) -> None:
        self.value = self._number("value", value)
        self.steps = self._count("steps", steps)
        self.final = self._number("final", final)
        self.longer = self._count("longer", longer)
        self.shrink = self._number("shrink", shrink, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        cycle, length = 0, self.steps
        if self.longer == 1:
            cycle, step = divmod(step, length)
        else:
            while step >= length:
                step, cycle, length = step - length, cycle + 1, length * self.longer
        top = self.value * self.shrink**cycle
        wave = (1.0 + math.cos(math.pi * step / length)) / 2.0
        return self.final + (top - self.final) * wave
