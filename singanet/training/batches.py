"""Batches of an epoch, from whatever holds the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from singanet.data import ArrayLoader
from singanet.errors import DataError
from singanet.types import Array

WeightedBatch: TypeAlias = tuple[Any, Any, Array | None]
"""``(x, y, sample_weight or None)``."""


class Batches(ABC):
    """Epochs of batches. ``steps`` is how many an epoch has, None where that is not known.

    With a given number of steps an epoch ends after them, and the next goes on where it ended,
    from the front again when the data have been gone through.
    """

    steps: int | None
    _given: int | None = None
    _stream: Iterator[WeightedBatch] | None = None

    def epoch(self, done: int = 0) -> Iterator[WeightedBatch]:
        """The batches of an epoch of which ``done`` were handed out before.

        Errors: the data end before the epoch does.
        """
        if self._given is None:
            if self.steps is not None and 0 < self.steps <= done:
                return
            count = done
            for item in self.one_pass():
                count += 1
                yield item
            if count == 0:
                raise _ended("at least one batch", "none")
            return
        for k in range(done, self._given):
            batch = self._next()
            if batch is None:
                raise _ended(f"{self._given} batches an epoch", f"{k}")
            yield batch

    def _next(self) -> WeightedBatch | None:
        """The next batch across passes, None where a new pass has none."""
        for _ in range(2):
            fresh = self._stream is None
            if self._stream is None:
                self._stream = self.one_pass()
            for batch in self._stream:
                return batch
            self._stream = None
            if fresh:
                break
        return None

    @abstractmethod
    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the data."""

    @abstractmethod
    def state_dict(self) -> dict[str, int]:
        """The position, as whole numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position."""


class ArrayBatches(Batches):
    """Batches of arrays in memory; order as `ArrayLoader` has it."""

    def __init__(
        self,
        x: Any,
        y: Any,
        weight: Array | None,
        batch_size: int,
        shuffle: bool,
        seed: int,
        steps: int | None = None,
    ) -> None:
        self._packed = weight is not None
        targets = y
        if weight is not None:
            # One more entry beside the targets, so that one loader cuts all three alike.
            named = y if isinstance(y, Mapping) else {"y": y}
            targets = {**{f"y/{name}": part for name, part in named.items()}, "weight": weight}
        self._single = not isinstance(y, Mapping)
        self.loader = ArrayLoader(x, targets, batch_size, shuffle, seed)
        self.steps = len(self.loader) if steps is None else steps
        self._given = steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the loader's epoch."""
        if not self._packed:
            for x, y in self.loader:
                yield x, y, None
            return
        for x, packed in self.loader:
            weight = packed.pop("weight")
            named = {name[2:]: part for name, part in packed.items()}
            yield x, named["y"] if self._single else named, weight

    def state_dict(self) -> dict[str, int]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go there; the seed becomes the one that was saved, for the order to be the same."""
        own = self.loader.seed
        self._stream = None
        self.loader.seed = int(state.get("seed", own))
        try:
            self.loader.load_state_dict(state)
        except BaseException:
            self.loader.seed = own
            raise


def _ended(expected: str, received: str) -> DataError:
    return DataError(
        "net.fit, data",
        expected=expected,
        received=f"{received}, then the end",
        advice="a generator ends once and for all: pass a function of the epoch that returns "
        "batches, a loader, or fewer steps and epochs",
    )
