"""Up and down again and again."""

from __future__ import annotations

from singanet.optimizer.schedules.schedule import Schedule


class Cyclic(Schedule):
    """From ``low`` straight to ``high`` in ``up`` steps, and back in ``down``, over and over.

    The height of cycle c at step t is (high − low) · ``shrink``^c · ``decay``^t. ``shrink`` ½ is
    PyTorch's triangular2, ``decay`` its exp_range; ``down`` is ``up`` where left out. Smith, 2017.
    """

    def __init__(
        self,
        low: float,
        high: float,
        up: int,
        down: int | None = None,
        shrink: float = 1.0,
        decay: float = 1.0,
    ) -> None:
        self.low = self._number("low", low)
        self.high = self._number("high", high)
        self.up = self._count("up", up)
        self.down = self.up if down is None else self._count("down", down)
        self.shrink = self._number("shrink", shrink, 0.0)
        self.decay = self._number("decay", decay, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        cycle, place = divmod(step, self.up + self.down)
        part = place / self.up if place <= self.up else 1.0 - (place - self.up) / self.down
        height: float = self.shrink**cycle * self.decay**step
        return self.low + (self.high - self.low) * part * height
