"""What a stage between several processes is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from singanet.base.collectives import Collectives, SharedBatch
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.running_state import average_state
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Wrapper
from singanet.types import Array, RowSparse


@dataclass
class Traffic:
    """What one process has exchanged with the others so far.

    ``sums`` were begun, of ``nbytes`` bytes of this process. They were under way for ``busy``
    seconds, from the beginning of each until it was seen to be done, seconds of several at a time
    counted once; of these the process has ``waited``, and done something else in the rest.
    """

    sums: int = 0
    nbytes: int = 0
    busy: float = 0.0
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The part of the seconds under way in which the process did something else."""
        return max(0.0, 1.0 - self.waited / self.busy) if self.busy else 0.0

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.sums + other.sums,
            self.nbytes + other.nbytes,
            self.busy + other.busy,
            self.waited + other.waited,
        )

    def since(self, before: Traffic) -> Traffic:
        """What was added after ``before``."""
        return Traffic(
            self.sums - before.sums,
            self.nbytes - before.nbytes,
            self.busy - before.busy,
            self.waited - before.waited,
        )

    def mean(self, runs: int) -> Traffic:
        """That of one of so many runs."""
        return Traffic(self.sums // runs, self.nbytes // runs, self.busy / runs, self.waited / runs)

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {
            "sums": self.sums,
            "bytes": self.nbytes,
            "seconds under way": self.busy,
            "seconds waited": self.waited,
            "hidden": self.hidden,
        }


class Reduction(Protocol):
    """A reducer's round as calls that a program makes, in the order of its updates by the layers.

    ``entries`` name the parameters that are reduced by one call, and ``sparse`` those of them
    whose gradients are rows. Of an entry of dense gradients the program has a flat buffer: these
    side by side, and behind them an element for each, which is the reduction's own. ``factor`` is
    what the sums are multiplied by, known after the first `finish`.
    """

    rank: int
    window: int
    rows_first: bool
    entries: Sequence[Sequence[str]]
    sparse: frozenset[str]
    traffic: Traffic

    @property
    def factor(self) -> float:
        """What sums are multiplied by to be means."""

    @property
    def share(self) -> float:
        """What the gradients of this process weigh in these means."""

    @property
    def under_way(self) -> bool:
        """Whether others may still write to buffers of a round that has no end."""

    def like(self, name: str) -> Array:
        """An array of the type and shape of the gradients of the parameter."""

    def open(self, kind: str) -> None:
        """Begin a round: "step", or "preview" for gradients that are not updated by."""

    def start(self, entry: int, buffer: Array, scales: Sequence[Scale]) -> None:
        """Sum ``buffer``, whose gradients are to be multiplied by ``scales``, over all ranks."""

    def start_rows(self, entry: int, grad: RowSparse, scale: Scale) -> None:
        """Gather the rows of all ranks."""

    def test(self) -> None:
        """Carry on what is under way, which nothing else does while the process computes."""

    def finish(self, entry: int, buffer: Array) -> None:
        """Wait until ``buffer`` holds the sum of ``entry``, the first of those under way."""

    def finish_rows(self, entry: int) -> RowSparse:
        """The rows of all ranks of ``entry``, the first of those under way."""

    def close(self, kind: str) -> None:
        """End the round, of which nothing is under way."""


class Reducer(Wrapper):
    """A stage that hands on what it makes of the gradients of several processes.

    Updates come when the others' gradients have, at the latest in `end`; each process makes all
    of them, those of parameters that it found no gradient for too. `singanet.parallel` has some.
    """

    waits = True

    comm: Collectives
    """What the ranks talk through: `fit` agrees by it on all that is no gradient."""
    batch: SharedBatch
    """What synchronized layers see of it."""
    serves: ClassVar[bool] = False
    """Whether it refuses stages around that have a part in what becomes of values."""
    copies: ClassVar[int] = 2
    """Of what is trained, the copies that it holds at most: sums under way, what is sent."""

    @abstractmethod
    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Train ``net`` from now on, behind the stages ``around``, the first of them outermost.

        Errors: processes whose nets or optimizers differ.
        """

    @property
    def weighs(self) -> bool:
        return True

    @property
    def inside(self) -> Optimizer | Wrapper:
        """What a process that trains alone would update by."""
        return self.optimizer

    @property
    @abstractmethod
    def alone(self) -> bool:
        """Whether gradients are handed on as they are, as there is no other process."""

    @property
    def local(self) -> bool:
        """Whether gradients are handed on as they are, and only `end` asks other processes."""
        return False

    def reduction(self) -> Reduction | None:
        """What a program makes of a step, None where steps are not recorded, or not yet."""
        return None

    def shares(self, samples: float, counts: Mapping[str, float | None]) -> Mapping[str, float]:
        """What this process multiplies the gradients of outputs by, before they are walked back.

        It has ``samples``, and the loss of an output is a mean over so many of ``counts``, None
        for a sum. Weighed by samples these gradients then make those of all in one batch. All
        processes come here. By default the outputs weigh by samples too.
        """
        return {}

    @property
    @abstractmethod
    def exchanged(self) -> tuple[int, int]:
        """The bytes that this process has sent and received since the last `begin`."""

    @abstractmethod
    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """What would be updated by, for the gradients ``items`` of a step, nothing changed."""

    @abstractmethod
    def agree(self, refused: str | None) -> str | None:
        """The layer for which a step is not taken: that of any process, None where none has one."""

    @abstractmethod
    def join(self) -> None:
        """Take part in the others' steps without samples, until all have come here."""

    def recover(self, was: tuple[int, int]) -> None:
        """Forget the step that a rank's death has broken off: rank and number of ranks ``was``."""

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Let the running state of ``net`` be that of all ranks, each weighing by ``samples``.

        Parameters too, where a stage lets them differ meanwhile. All ranks come here at the same
        time: before an evaluation or a checkpoint.
        """
        average_state(net, self.comm, samples)

    def share(self, net: Any) -> None:
        """Tell the synchronized layers of ``net`` whose batch theirs is a part of."""
        for layer in net.layers:
            layer.share(self.batch)

    @abstractmethod
    def around(self, optimizer: Optimizer | Wrapper) -> Reducer:
        """Another stage as this one, around ``optimizer``."""
