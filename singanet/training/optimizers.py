"""Optimizers by name, as the command line asks for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.optimizer import SGD, Adam, Optimizer

__all__ = ["USUAL_RATES", "WarmUpCosine", "make_optimizer"]

USUAL_RATES = {"sgd": 0.05, "adam": 0.001}
"""The highest learning rate of each where neither the user nor the model's recipe says."""


@dataclass(frozen=True)
class WarmUpCosine:
    """A straight rise to ``peak`` in ``warm_up`` steps, then half a cosine down to 0 at ``steps``.

    Loshchilov and Hutter, 2017, without restarts.
    """

    peak: float
    warm_up: int
    steps: int

    def __call__(self, step: int) -> float:
        """The rate at ``step``, 0 being the first."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return 0.5 * self.peak * (1.0 + math.cos(math.pi * min(done, 1.0)))


def make_optimizer(
    name: str, lr: float, weight_decay: float, steps: int, warm_up: int
) -> Optimizer:
    """The optimizer ``name``, its rate rising to ``lr`` and falling to 0 over ``steps``.

    Errors: an unknown name; a rate that is not a positive number.
    """
    if name not in USUAL_RATES:
        raise UnknownNameError(
            f"optimizer {name!r}",
            expected=f"one of {one_of(USUAL_RATES)}",
            received=repr(name),
            advice=did_you_mean(name, USUAL_RATES, "choose one of these"),
        )
    if not 0.0 < lr < math.inf:
        raise ArgumentError(
            "--lr",
            expected="a positive number",
            received=str(lr),
            advice=f"{USUAL_RATES[name]} is usual for {name}",
        )
    rate = WarmUpCosine(lr, min(warm_up, steps), steps)
    if name == "sgd":
        return SGD(lr=rate, momentum=0.9, weight_decay=weight_decay)
    return Adam(lr=rate, weight_decay=weight_decay)
