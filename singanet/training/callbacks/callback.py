"""The base class of callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from singanet.base.described import Described
from singanet.errors import CallOrderError
from singanet.types import Array, Gradient

if TYPE_CHECKING:
    from singanet.training.session import Session


class Callback(Described):
    """Sees a `fit` at work; override what you need, the rest costs nothing.

    ``self.session`` is the fit under way: its net, optimizer, epoch, batch, step, the ``layer``
    whose gradients are being handed out, and ``stop(reason)``. Epochs and batches count from 0.
    A callback that raises ends the fit with that error, the net usable.
    """

    _session: Session | None = None
    _runs_last = False
    """Whether its hooks run after those of the others, as a checkpoint's must."""
    _ends_first = False
    """Whether its `on_train_end` comes before those of the others, which see what it leaves."""
    first_rank_only = False
    """Whether only rank 0 has it run, of several that train together: what prints, writes files.

    It evaluates on its own there. All others run on every rank, with the same logs.
    """
    _goes_by_params = False
    """Whether its state has an array a parameter, by its name, of which ranks with slices of that
    have theirs: on another number of ranks it goes on with all rows."""

    @property
    def session(self) -> Session:
        """The fit under way. Errors: `CallOrderError` outside of one."""
        if self._session is None:
            raise CallOrderError(
                type(self).__name__,
                expected="a fit under way",
                received="none",
                advice="pass it in net.fit(..., callbacks=[...])",
            )
        return self._session

    def on_train_begin(self) -> None:
        """Before the first step: check here what must not fail after the last."""

    def on_train_end(self) -> None:
        """After the last step, also where the fit ends with an error (``session.error``)."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before the first batch of ``epoch``; again where it is resumed in the middle."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """After validation; numbers added to ``logs`` are recorded in the history too."""

    def on_batch_begin(self, batch: int) -> None:
        """Before a step."""

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """After a step; ``logs`` holds this batch's loss from before its update."""

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """A layer's gradients, before they are applied; keep none of them.

        The lists are empty for a layer without parameters; ``session.layer`` names it.
        """

    def on_stop(self) -> None:
        """The fit stops within an epoch, at the end of a step, because ``stop`` was called."""

    def on_error(self, error: BaseException) -> None:
        """The fit is about to end with ``error``."""

    def state_dict(self) -> dict[str, Array]:
        """The state with which this callback goes on after a resumption."""
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on where the one of the `state_dict` stood."""
