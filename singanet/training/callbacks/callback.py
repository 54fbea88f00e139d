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
    """The base class of callbacks, whose hooks `fit` calls.

    Hooks that are not overridden cost nothing. ``self.session`` is the running fit: its net,
    optimizer, epoch, batch, step, the ``layer`` of the current gradients, and ``stop(reason)``.
    Epochs and batches count from 0. If a callback raises, the fit ends with that error, and the net
    stays usable.

    Examples:
        >>> class Epochs(singanet.training.Callback):
        ...     def on_epoch_end(self, epoch, logs):
        ...         logs["twice"] = 2.0 * epoch
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> net.fit(np.eye(2), np.eye(2), epochs=2, callbacks=[Epochs()], verbose=False)["twice"]
        [0.0, 2.0]
    """

    _session: Session | None = None
    _runs_last = False
    """Whether its hooks run after the other callbacks' hooks, as a checkpoint's must."""
    _ends_first = False
    """Whether its `on_train_end` runs first, so that other callbacks see its result."""
    first_rank_only = False
    """Whether only rank 0 runs it if several train together, since it prints or writes files.

    It evaluates alone there. All other callbacks run on every rank, with the same logs.
    """
    _goes_by_params = False
    """Whether its state has an array for each parameter, by its name. Ranks with slices of a
    parameter save slices of the array; another number of ranks joins and splits the rows anew."""

    @property
    def session(self) -> Session:
        """The running fit. Errors: `CallOrderError` outside of one."""
        if self._session is None:
            raise CallOrderError(
                type(self).__name__,
                expected="a running fit",
                received="none",
                advice="pass it in net.fit(..., callbacks=[...])",
            )
        return self._session

    def on_train_begin(self) -> None:
        """Run before the first step: check here for errors that must not come after the last."""

    def on_train_end(self) -> None:
        """Run after the last step, also if the fit ends with an error (``session.error``)."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before the first batch of ``epoch``; again if the fit resumes within the epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Run after the validation of ``epoch``.

        ``logs`` has the epoch's measures by name; numbers that are added to it are recorded in the
        history too.
        """

    def on_batch_begin(self, batch: int) -> None:
        """Run before the step with ``batch``, its number in the epoch."""

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Run after the step with ``batch``; ``logs`` has its loss before the update."""

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Run on a layer's gradients ``grads`` before their update.

        Do not store references to them. ``names`` and ``values`` are the names and arrays of its
        parameters. The lists are empty for a layer without parameters; ``session.layer`` is its
        name.
        """

    def on_stop(self) -> None:
        """Run after the last step if the fit stops within an epoch, because ``stop`` was called."""

    def on_error(self, error: BaseException) -> None:
        """Run before the fit ends with ``error``."""

    def state_dict(self) -> dict[str, Array]:
        """Return the callback's state, as arrays by name, for resumption."""
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore ``state``, a result of `state_dict`."""
