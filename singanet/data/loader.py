"""What every loader offers, so that prefetching and checkpoints can use any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

Batch: TypeAlias = tuple[Any, Any]
"""``(x, y)``: each an array, or a dict of arrays."""


class Loader(Protocol):
    """Batches by epoch, with a position that can be saved and restored.

    Iterating goes on from the current position to the end of the epoch. The position counts
    the batches handed out, so one saved while a batch is worked on is the position after it.
    """

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of the epoch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The current position."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position saved by `state_dict`."""
        ...
