"""Batches from the user's own generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.data.loader import Batch, checked_rank, restored_position
from singanet.errors import ArgumentError, DataError


class GeneratorLoader(Described):
    """Batches from ``source(epoch)``, called anew for each epoch.

    ``source`` takes the number of the epoch and returns an iterable of ``(x, y)``. Where it
    depends on nothing else, so does the order, and a restored position is exact: the batches
    before it are drawn again and dropped. Of several processes rank *r* takes the batches
    r, r + world_size, ...; the first ranks may take one more. Its length is not known.
    """

    def __init__(
        self, source: Callable[[int], Iterable[Batch]], rank: int = 0, world_size: int = 1
    ) -> None:
        if not callable(source):
            raise ArgumentError(
                "GeneratorLoader, source",
                expected="a function of the epoch that returns batches",
                received=f"a {type(source).__name__}",
                advice="give the function itself: a running generator ends after one epoch",
            )
        self.source = source
        self.rank, self.world_size = checked_rank("GeneratorLoader", rank, world_size)
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[Batch]:
        epoch, position = self.epoch, self.position
        skipped = self.rank + position * self.world_size
        for batch in islice(iter(self.source(epoch)), skipped, None, self.world_size):
            # Counted before it is handed out, as `ArrayLoader` counts.
            position += 1
            self.epoch, self.position = epoch, position
            yield _checked_batch(batch)
        if position == 0:
            raise DataError(
                "GeneratorLoader",
                expected=f"a batch for rank {self.rank} of {self.world_size}",
                received=f"none in epoch {epoch}",
                advice="return a new iterable at each call of source",
            )
        # Nothing was left where the position was saved after the last batch: as much is an epoch
        # whose end is known only now.
        self.epoch, self.position = epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``."""
        self.epoch = checked_count("GeneratorLoader", "epoch", epoch, 0)
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """The position, and what must be equal where it is restored."""
        return {"epoch": self.epoch, "position": self.position, "world_size": self.world_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: `ArgumentError` where world_size differs."""
        identity = {"world_size": self.world_size}
        self.epoch, self.position = restored_position("GeneratorLoader", state, identity, 1 << 62)


def _checked_batch(batch: Any) -> Batch:
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise DataError(
            "GeneratorLoader",
            expected="batches that are tuples (x, y)",
            received=f"a {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, tuple) else ""),
            advice="yield x, y",
        )
    return batch
