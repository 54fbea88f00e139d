"""What processes that talk on the host see of a buffer on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.types import Array


class HostCopy:
    """A copy on the host of a device's buffer, there and back by one transfer each.

    Its memory stays from step to step. A step that an error has left takes it along, as others may
    write to it still.
    """

    def __init__(self) -> None:
        self._spare: Array | None = None
        self._told: Array | None = None

    def tell(self, buffer: Any) -> Array:
        """The copy of what is in ``buffer``, for others to sum."""
        spare, self._spare = self._spare, None
        told = self._told = np.empty(buffer.shape, buffer.dtype) if spare is None else spare
        buffer.get(out=told)
        return told

    @property
    def told(self) -> Array | None:
        """The copy that others sum; None if there is none."""
        return self._told

    def hear(self, buffer: Any) -> None:
        """Bring over to ``buffer`` what they made of it."""
        buffer.set(self._told)
        self._spare, self._told = self._told, None
