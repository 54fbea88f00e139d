"""Weights averaged over the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.errors import ArgumentError, StateMismatchError, one_of
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.averaged import Averaged, average_of
from singanet.params.param import Param
from singanet.training.callbacks.callback import Callback
from singanet.types import Array


class EMA(Callback):
    """a = d a + (1 − d) w after every step that updates, for every parameter and running state w.

    ``decay`` d; a begins as w, and what is not trained stays that. A batch whose gradients are
    only accumulated, or whose step mixed precision skips, is no such step. With ``keep_at_end``
    the averages are the net's parameters when the fit ends without an error, otherwise they are
    in ``averages`` by name until the next fit, and ``with ema.applied(net):`` lends them to the
    net. Costs one copy of all parameters; of those in slices each rank averages its own.
    """

    ends_first = True
    goes_by_params = True

    def __init__(self, decay: float = 0.999, keep_at_end: bool = True) -> None:
        if not isinstance(decay, (int, float)) or not 0.0 <= decay < 1.0:
            raise ArgumentError(
                "EMA, decay",
                expected="a number in [0, 1)",
                received=repr(decay),
                advice="0.999 averages over about a thousand steps",
            )
        self.decay = float(decay)
        self.keep_at_end = bool(keep_at_end)
        self.averages: dict[str, Array] = {}
        self._stage: Averaged | None = None
        self._by_itself = False

    def on_train_begin(self) -> None:
        """Begin with the parameters as they are, behind the optimizer's rule."""
        net = self.session.net
        self.session.add_stage(self._around)
        # What a step of the user's own updates by, nobody knows.
        self._by_itself = type(net).step is not Net.step or "step" in vars(net)

    def _around(self, optimizer: Optimizer | Wrapper) -> Averaged:
        if self._stage is None or self._stage.optimizer is not optimizer:
            self._stage = Averaged(optimizer, self.decay)
        self._stage.begin_with(self.session.params())
        self.averages = self._stage.averages
        return self._stage

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Take a step of the averages, where the net's step is not the library's."""
        if self._by_itself and self._stage is not None:
            self._stage.follow(self.averages)

    def on_train_end(self) -> None:
        """Hand the averages over to the net, where that was asked for."""
        if self.keep_at_end and self.session.error is None:
            self._put(self.session.params())

    @contextmanager
    def applied(self, net: Model) -> Iterator[None]:
        """Within the block ``net`` has the averages as its parameters."""
        changing = [param for param in net.params() if not param.is_constant]
        own = {param.name: param.here.copy() for param in changing}
        try:
            self._put(changing)
            yield
        finally:
            for param in changing:
                param.here[...] = own[param.name]

    def _put(self, params: Iterable[Param]) -> None:
        """Write the averages over the values of ``params``; read-only ones never differ."""
        for param in params:
            if not param.is_constant:
                param.here[...] = average_of(self.averages, param)

    def state_dict(self) -> dict[str, Array]:
        """The averages, of parameters in slices those of this rank's."""
        self._cut()
        return dict(self.averages)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on with these averages, of which a rank with slices takes its own.

        Errors: `StateMismatchError` for those of another net.
        """
        self._cut()
        for param in self.session.params():
            found = state.get(param.name)
            if found is not None and found.shape == param.shape:
                state = {**state, param.name: param.storage.here_of(found)}
        shapes = {name: array.shape for name, array in self.averages.items()}
        given = {name: array.shape for name, array in state.items()}
        if given != shapes:
            differing = [n for n in {**shapes, **given} if given.get(n) != shapes.get(n)]
            raise StateMismatchError(
                "EMA",
                expected="averages of the net's parameters, or of the slices that are here",
                received=f"others: {one_of(differing, 4)}",
                advice="resume with the net that was saved",
            )
        put = self.session.net.device.put
        for name, array in state.items():
            self.averages[name][...] = put(array)

    def _cut(self) -> None:
        """Have no more of any average than there is of its parameter here."""
        for param in self.session.params() if self.averages else ():
            average_of(self.averages, param)
