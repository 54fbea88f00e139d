"""Batches from the user's own generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.calls import misdefined, never_began
from singanet.base.described import Described
from singanet.data.loader import Batch, checked_rank, restored_position
from singanet.errors import ArgumentError, DataError


class GeneratorLoader(Described):
    """Batches from ``source(epoch)``, called anew for each epoch.

    ``source`` takes the number of the epoch and returns an iterable of ``(x, y)``. Where it
    depends on nothing else, so does the order, and a restored position is exact: the batches
    before it are drawn again and dropped. Of several processes rank *r* takes the batches
    r, r + world_size, ...; the first ranks may take one more. Its length is not known. A position
    goes on with another number of ranks: what all of them had taken is not taken again.
    """

    may_be_empty = False
    """Whether other processes may have batches where this one has none."""

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
        # Batches of the epoch that were taken by another number of ranks.
        self._before = 0

    def __iter__(self) -> Iterator[Batch]:
        epoch, position, drawn = self.epoch, self.position, 0
        first = self._before + self.rank + position * self.world_size
        for batch in self._batches(epoch):
            drawn += 1
            if drawn <= first or (drawn - 1 - first) % self.world_size:
                continue
            # Counted before it is handed out, as `ArrayLoader` counts.
            position += 1
            self.epoch, self.position = epoch, position
            checked = _checked_batch(batch)
            del batch
            yield checked
            # Nobody holds a batch while the next one is made: there would be memory for two.
            del checked
        if not drawn and not self.may_be_empty:
            raise DataError(
                "GeneratorLoader",
                expected="at least one batch",
                received=f"none in epoch {epoch}",
                advice="return a new iterable at each call of source",
            )
        # Nothing was left where the position was saved after the last batch: as much is an epoch
        # whose end is known only now.
        self.set_epoch(epoch + 1)

    def _batches(self, epoch: int) -> Iterable[Batch]:
        try:
            return self.source(epoch)
        except TypeError as error:
            if never_began(error):
                wanted = "def source(epoch): a function of the number of the epoch alone"
                raise misdefined("GeneratorLoader, source", self.source, wanted) from None
            raise

    def share_out(self, rank: int, world_size: int) -> None:
        """Be that of ``rank`` of so many once a position is loaded; as `ArrayLoader.share_out`."""
        self.rank, self.world_size = checked_rank("GeneratorLoader", rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``."""
        self.epoch = checked_count("GeneratorLoader", "epoch", epoch, 0)
        self.position = self._before = 0

    def state_dict(self) -> dict[str, int]:
        """The position, and of how many ranks it is."""
        before, ranks = self._before, self.world_size
        return {
            "epoch": self.epoch,
            "position": self.position,
            "world_size": ranks,
            "before": before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, also of another number of ranks. Errors: `ArgumentError`."""
        where, most = "GeneratorLoader", 1 << 62
        epoch, position = restored_position(where, state, {}, most)
        before = int(state.get("before", 0))
        ranks = checked_count(f"{where}, state", "world_size", int(state.get("world_size", 1)), 1)
        if ranks != self.world_size:
            before, position = before + position * ranks, 0
        self.epoch, self.position = epoch, position
        self._before = checked_count(f"{where}, state", "before", before, 0)


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
