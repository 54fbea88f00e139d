"""What a stage between several processes is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from singanet.base.collectives import Collectives, SharedBatch
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.running_state import average_state
from singanet.optimizer.wrapper import Wrapper


class Reducer(Wrapper):
    """A stage that hands on what it makes of the gradients of several processes.

    Updates come when the others' gradients have, at the latest in `end`; each process makes all
    of them, those of parameters that it found no gradient for too. `singanet.parallel` has some.
    """

    comm: Collectives
    """What the ranks talk through: `fit` agrees by it on all that is no gradient."""
    batch: SharedBatch
    """What synchronized layers see of it."""

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
