"""Gradients by two forwards in place of a walk back."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer, Update
from singanet.optimizer.state import Owners, loaded_count
from singanet.optimizer.wrapper import Wrapper
from singanet.params.param import Param
from singanet.types import Array, Shape

_DONE = "*/zeroth_order.steps"


class ZerothOrder(Wrapper):
    """MeZO (Malladi et al. 2023): the rule gets (L(w + ε z) − L(w − ε z)) / 2ε · z, with normal z.

    Both losses are of forwards in evaluation, so that a step takes the memory of a prediction, and
    z of one layer at a time. Nothing of z is kept but ``seed`` and the number of the step, from
    which it is drawn anew, by the names of parameters; the parameters themselves are not moved
    meanwhile. The loss of a step is the mean of both. Around it may be clipping, accumulation (with
    a z for each micro-batch) and reducers (with the same z on all ranks).
    """

    estimates = True
    # The layers of a pipeline's stage know no loss.
    across_layers = True

    def __init__(
        self, optimizer: Optimizer | Wrapper, epsilon: float = 1e-3, seed: int = 0
    ) -> None:
        super().__init__(optimizer)
        self.epsilon = at(checked("ZerothOrder", "epsilon", epsilon, 1e-300), 0)
        self.seed = checked_count("ZerothOrder", "seed", seed, 0)
        self._done = 0
        self._owners = Owners()

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`: each net has steps of its own."""
        self._done = self._owners.turn_all([p.root for p in params], other, self._done, 0)

    def noise(self, name: str, shape: Shape, dtype: Any) -> Array:
        """The z of the parameter ``name`` in this step."""
        rng = np.random.default_rng([self.seed, self._done, zlib.crc32(name.encode())])
        drawn = rng.standard_normal(shape, np.float64 if dtype == np.float64 else np.float32)
        return np.asarray(drawn, dtype)

    def advance(self) -> None:
        """The step is done: the next one draws another z."""
        self._done += 1

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        for stage in around:
            if stage.holds_all:
                raise ArgumentError(
                    "ZerothOrder, mixed precision",
                    expected="a net in one type: there are no gradients that a scale could save",
                    received=type(stage).__name__,
                    advice="leave mixed_precision out, or hold weights in bfloat16 by net.as_type",
                )

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """The same: it stands before the gradients, and does not change them."""
        return items

    def minimize(self, loss: Any, params: Any = None) -> Update:
        """Errors: always, as a named program has the gradients of its walk back."""
        raise ArgumentError(
            "ZerothOrder.minimize",
            expected="net.step or net.fit, which run the net twice",
            received="an Executor",
            advice="minimize by the optimizer inside, or train by net.fit",
        )

    def own_state(self) -> dict[str, Array]:
        """As `Wrapper.own_state`: the number of steps."""
        return {_DONE: np.array(self._done, np.int64)}

    def _is_own(self, key: str) -> bool:
        return key == _DONE

    def _parsed(self, own: Mapping[str, Array]) -> int:
        return loaded_count("ZerothOrder", own, _DONE)

    def _take(self, parsed: Any) -> None:
        self._owners.forget()
        self._done = parsed
