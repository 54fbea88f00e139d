"""What a pass over data came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochResult:
    """Means over the samples of a pass; ``metric`` is None for a net without one."""

    loss: float
    metric: float | None
    samples: int
