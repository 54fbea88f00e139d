"""Weights averaged over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from singanet.engine.model import Model
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.training.arrays import saved_parameters
from singanet.training.callbacks.callback import Callback
from singanet.types import Array


class EMA(Callback):
    """a = d a + (1 − d) w after every step, for every parameter w, running state included.

    ``decay`` d; a begins as w. With ``keep_at_end`` the averages are the net's parameters when
    the fit ends without an error, otherwise they are in ``averages`` by name, and
    ``with ema.applied(net):`` lends them to the net. Costs one copy of all parameters.
    """

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

    def on_train_begin(self) -> None:
        """Begin with the parameters as they are."""
        # An average in float16 would round its small steps away.
        self.averages = {
            p.name: p.value.astype(np.promote_types(p.value.dtype, np.float32))
            for p in self.session.net.params()
        }

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Take a step of the averages."""
        for param in self.session.net.params():
            average = self.averages[param.name]
            xp = ops_for(average).xp
            xp.multiply(average, self.decay, out=average)
            average += (1.0 - self.decay) * param.value

    def on_train_end(self) -> None:
        """Hand the averages over to the net, where that was asked for."""
        if self.keep_at_end and self.session.error is None:
            for param in self.session.net.params():
                param.value[...] = self.averages[param.name]

    @contextmanager
    def applied(self, net: Model) -> Iterator[None]:
        """Within the block ``net`` has the averages as its parameters."""
        own = {param.name: param.value.copy() for param in net.params()}
        try:
            for param in net.params():
                param.value[...] = self.averages[param.name]
            yield
        finally:
            for param in net.params():
                param.value[...] = own[param.name]

    def state_dict(self) -> dict[str, Array]:
        """The averages."""
        return dict(self.averages)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on with these averages."""
        self.averages = saved_parameters(self.session.net, state, "EMA")
