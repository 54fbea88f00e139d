"""Batches of an epoch, from whatever holds the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from singanet.base.arguments import checked_count
from singanet.data import ArrayLoader
from singanet.engine.model import Model
from singanet.errors import ArgumentError, DataError
from singanet.training.arrays import by_name, fed, output_names, sample_count
from singanet.training.sample_weights import joined_weight
from singanet.types import Array

WeightedBatch: TypeAlias = tuple[Any, Any, Array | None]
"""``(x, y, sample_weight or None)``."""


class Batches(ABC):
    """Epochs of batches. ``steps`` is the number of batches of an epoch, None if unknown.

    With a given number of steps an epoch ends after them, and the next goes on where it ended,
    from the front again when the data have been gone through.
    """

    steps: int | None
    smallest: int | None
    """Samples of the smallest batch, None if unknown."""
    last: int | None = None
    """How many batches the epoch before had, None before its end."""
    counted: tuple[str, int] = ("samples", 1)
    """What a speed is told in, and how many of these a sample has."""
    may_be_empty = False
    """Whether other processes may have batches where this one has none."""
    where = "net.fit"
    """Who was given the data, as errors say it."""
    _given: int | None = None
    _stream: Iterator[WeightedBatch] | None = None

    @property
    def expected(self) -> int | None:
        """Batches of an epoch: ``steps``, or else as many as before; None before the first."""
        return self.steps or self.last

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
                # Nobody holds a batch while the next one is drawn: there would be memory for two.
                del item
            if count == 0 and not self.may_be_empty:
                raise ended(self.where, "at least one batch", "none")
            self.last = count
            return
        for k in range(done, self._given):
            batch = self._next()
            if batch is None:
                raise ended(self.where, f"{self._given} batches an epoch", f"{k}")
            yield batch
            del batch

    def _next(self) -> WeightedBatch | None:
        """The next batch across passes, None if two new passes have none.

        One may have none: it goes on from a position saved after the last batch.
        """
        for _ in range(3):
            if self._stream is None:
                self._stream = self.one_pass()
            for batch in self._stream:
                return batch
            self._stream = None
        return None

    def can_share_out(self, ranks: int) -> bool:
        """Whether `share_out` will find each sample once; they are now of one of ``ranks``."""
        return False

    @abstractmethod
    def share_out(self, rank: int, ranks: int) -> None:
        """Be those of ``rank`` of so many, from the position that is loaded next."""

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
        drop_last: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._packed = weight is not None
        targets = y
        if weight is not None:
            # One more entry beside the targets, so that one loader cuts all three alike.
            named = y if isinstance(y, Mapping) else {"y": y}
            targets = {**{f"y/{name}": part for name, part in named.items()}, "weight": weight}
        self._single = not isinstance(y, Mapping)
        # Of several processes each has its part of every batch.
        self.loader = ArrayLoader(x, targets, batch_size, shuffle, seed, drop_last, *part, True)
        self.smallest = self.loader.smallest_batch
        self.steps = len(self.loader) if steps is None else steps
        self._given = steps

    def can_share_out(self, ranks: int) -> bool:
        return True

    def share_out(self, rank: int, ranks: int) -> None:
        self.loader.share_out(rank, ranks)

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the loader's epoch."""
        return map(self._weighted, self.loader)

    def _weighted(self, batch: tuple[Any, Any]) -> WeightedBatch:
        x, y = batch
        if not self._packed:
            return x, y, None
        weight = y.pop("weight")
        named = {name[2:]: part for name, part in y.items()}
        return x, named["y"] if self._single else named, weight

    def state_dict(self) -> dict[str, int]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go there; the seed becomes the one that was saved, for the order to be the same."""
        own = self.loader.seed
        seed = checked_count("net.fit, resume", "seed", state.get("seed", own), 0)
        self._stream = None
        self.loader.seed = seed
        try:
            self.loader.load_state_dict(state)
        except BaseException:
            self.loader.seed = own
            raise


def ended(where: str, expected: str, received: str) -> DataError:
    """The error for data that end too early."""
    return DataError(
        f"{where}, batches",
        expected=expected,
        received=f"{received}, then the end",
        advice="a generator ends once and for all: pass a function of the epoch that returns "
        "batches, a loader, or fewer steps and epochs",
    )


class IteratedBatches(Batches):
    """Batches of ``source``, each ``(x, y)`` or ``(x, y, sample_weight)``.

    A source with ``state_dict`` and ``load_state_dict`` keeps its own position. Of any other the
    batches handed out are counted, and a position is found again by drawing and dropping as
    many: exact where the source gives the same batches again. The first pass goes on with an
    iteration that was ``begun`` before. Batches of more than the ``largest`` samples are refused.
    """

    def __init__(
        self,
        net: Model,
        source: Iterable[Any],
        steps: int | None,
        class_weight: Mapping[int, float] | None = None,
        learns: bool = False,
        begun: Iterator[Any] | None = None,
        where: str = "net.fit",
        largest: int | None = None,
    ) -> None:
        self.source = source
        self.where = where
        self._begun, self._largest = begun, largest
        self._net, self._learns = net, learns
        self._outputs = output_names(net)
        self._class_weight = class_weight
        self._keeps_position = keeps_position(source)
        self._endless = isinstance(source, Iterator)
        self._drawn = 0
        self._skip = 0
        self._given = steps
        self.smallest = getattr(source, "smallest_batch", None)
        self.counted = getattr(source, "counted", self.counted)
        self.steps = self._length() if steps is None else steps

    def can_share_out(self, ranks: int) -> bool:
        """As `Batches`: where the source has its ``share_out``, and knows of the others."""
        knows = getattr(self.source, "world_size", 1) == ranks
        return self._keeps_position and knows and hasattr(self.source, "share_out")

    def share_out(self, rank: int, ranks: int) -> None:
        self.source.share_out(rank, ranks)  # type: ignore[attr-defined]
        if self._given is None:
            self.steps = self._length()

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the source."""
        batches = iter(self.source) if self._begun is None else self._begun
        self._begun = None
        if not self._endless:
            self._drawn = 0
        for _ in range(self._skip):
            next(batches, None)
            self._drawn += 1
        self._skip = 0
        for item in batches:
            self._drawn += 1
            batch = self._checked(item)
            del item
            yield batch
            del batch
        if not self._endless:
            self._drawn = 0

    def state_dict(self) -> dict[str, int]:
        """The source's own position, or how many batches were drawn from it."""
        if self._keeps_position:
            state = self.source.state_dict()  # type: ignore[attr-defined]
            return {f"source.{key}": int(value) for key, value in state.items()}
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position."""
        self._stream = None
        if self._keeps_position and "drawn" not in state:
            plain = {key.partition(".")[2]: value for key, value in state.items()}
            self.source.load_state_dict(plain)  # type: ignore[attr-defined]
        elif "drawn" in state and not self._keeps_position:
            self._skip = int(state["drawn"])
        else:
            raise DataError(
                "net.fit, resume",
                expected="the kind of data whose position was saved",
                received=f"a {type(self.source).__name__}",
                advice="resume with the same data",
            )

    def _length(self) -> int | None:
        """``len(source)``, None without one: asking some iterables raises."""
        try:
            length = len(self.source)  # type: ignore[arg-type]
        except TypeError:
            return None
        if length == 0:
            raise ArgumentError(
                f"{self.where}, batches",
                expected="at least one batch",
                received=f"a {type(self.source).__name__} of length 0",
                advice="check how the data were read or selected",
            )
        return int(length)

    def _checked(self, item: Any) -> WeightedBatch:
        x, y, weight = parts_of(self.where, item)
        x = fed(f"{self.where}, batch x", self._net, x, self._learns)
        y = by_name(f"{self.where}, batch y", y, self._outputs, all_of_them=False)
        weight = joined_weight(y, weight, self._class_weight)
        # Of a batch of all processes a part may be empty.
        count = sample_count({"x": x, "y": y, "sample_weight": weight}, self.may_be_empty)
        if self._largest is not None and count > self._largest:
            raise DataError(
                "net.fit, memory_budget",
                expected=f"batches of at most {self._largest} samples, as the steps were planned",
                received=f"a batch of {count}",
                advice="let the first batch be the largest, or batch_size of the source say it",
            )
        return x, y, weight


def keeps_position(source: Any) -> bool:
    """Whether a source of batches says where it is, and goes there."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def parts_of(where: str, item: Any) -> tuple[Any, Any, Any]:
    """x, y and sample_weight or None of a batch. Errors: `DataError` for what is no batch."""
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        raise DataError(
            f"{where}, batches",
            expected="batches (x, y) or (x, y, sample_weight)",
            received=f"a {type(item).__name__}"
            + (f" of {len(item)}" if isinstance(item, (tuple, list)) else ""),
            advice="yield x, y",
        )
    x, y, *weight = item
    return x, y, weight[0] if weight else None
