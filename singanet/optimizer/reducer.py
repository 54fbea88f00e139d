"""What a stage between several processes is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper


class Reducer(Wrapper):
    """A stage that hands on what it makes of the gradients of several processes.

    Updates come when the others' gradients have, at the latest in `end`; each process makes all
    of them, those of parameters that it found no gradient for too. `singanet.parallel` has some.
    """

    differs_by_rank: ClassVar[bool] = False
    """Whether each process has state of its own, and so a file of its own to go on from."""

    @abstractmethod
    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Train ``net`` from now on, behind the stages ``around``, the first of them outermost.

        Errors: processes whose nets or optimizers differ.
        """

    @abstractmethod
    def begin(self, count: float | None) -> None:
        """The gradients to come are of a mean over ``count`` positions; None: of a sum."""

    @property
    @abstractmethod
    def traffic(self) -> tuple[int, int]:
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

    @abstractmethod
    def around(self, optimizer: Optimizer | Wrapper) -> Reducer:
        """Another stage as this one, around ``optimizer``."""
