"""Optimizers by name, as the command line asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.optimizer import (
    LAMB,
    SGD,
    AccumulatingAdam,
    AccumulatingSGD,
    Adadelta,
    Adafactor,
    AdaGrad,
    AdaLomo,
    Adam,
    Adamax,
    AdamW,
    AMSGrad,
    BlockCoordinate,
    FactoredAdam,
    GaLore,
    Lion,
    NAdam,
    Nesterov,
    Optimizer,
    RAdam,
    RMSProp,
)
from singanet.optimizer.block_coordinate import blocks_of
from singanet.optimizer.schedules import Cosine, WarmUp

__all__ = ["FOLDING", "USUAL_RATES", "in_blocks", "make_optimizer"]

_MAKERS: dict[str, tuple[Callable[..., Optimizer], float]] = {
    "sgd": (partial(SGD, momentum=0.9), 0.05),
    "nesterov": (partial(Nesterov, momentum=0.9), 0.05),
    "adam": (Adam, 0.001),
    "adamw": (AdamW, 0.001),
    "amsgrad": (AMSGrad, 0.001),
    "nadam": (NAdam, 0.001),
    "radam": (RAdam, 0.001),
    "adamax": (Adamax, 0.002),
    "adadelta": (Adadelta, 1.0),
    "adagrad": (AdaGrad, 0.01),
    "rmsprop": (RMSProp, 0.001),
    "adafactor": (Adafactor, 0.01),
    "adalomo": (AdaLomo, 0.001),
    "factored_adam": (FactoredAdam, 0.001),
    "galore": (GaLore, 0.001),
    "lamb": (LAMB, 0.002),
    "lion": (Lion, 0.0001),
    "accumulating_sgd": (AccumulatingSGD, 0.05),
    "accumulating_adam": (AccumulatingAdam, 0.001),
}

USUAL_RATES = {name: rate for name, (_, rate) in _MAKERS.items()}
"""The highest learning rate of each where neither the user nor the model's recipe says."""

FOLDING = ("accumulating_sgd", "accumulating_adam")
"""Optimizers that add micro-batches to their own state, and need no accumulator around them."""


_TURN = 50
"""Steps of a block before another one has its turn, where there are enough of them."""


def in_blocks(
    name: str, lr: float, weight_decay: float, names: Iterable[str], steps: int, seed: int
) -> BlockCoordinate:
    """The optimizer ``name`` for one block of the parameters ``names`` at a time.

    Its rate stays ``lr``, since the state of a block begins anew with each turn. Of ``steps`` steps
    each block has one turn at least. Errors: of `make_optimizer`; one that folds micro-batches.
    """
    make_optimizer(name, lr, weight_decay, 1, 0)
    turn = max(1, min(_TURN, steps // max(1, len(blocks_of(names)))))
    return BlockCoordinate(_MAKERS[name][0](lr=lr, weight_decay=weight_decay), turn, seed=seed)


def make_optimizer(
    name: str, lr: float, weight_decay: float, steps: int, warm_up: int, accumulate: int = 1
) -> Optimizer:
    """The optimizer ``name``, its rate rising to ``lr`` and falling to 0 over ``steps``.

    The rise takes ``warm_up`` of them, the fall is half a cosine. Steps are changes of the
    parameters, of ``accumulate`` micro-batches each. Errors: an unknown name; a rate that is not
    a positive number; a weight decay that is negative.
    """
    if name not in _MAKERS:
        raise UnknownNameError(
            f"optimizer {name!r}",
            expected=f"one of {one_of(_MAKERS)}",
            received=repr(name),
            advice=did_you_mean(name, _MAKERS, "choose one of these"),
        )
    if not 0.0 < lr < math.inf:
        raise ArgumentError(
            "--lr",
            expected="a positive number",
            received=str(lr),
            advice=f"{USUAL_RATES[name]} is usual for {name}",
        )
    if not 0.0 <= weight_decay < math.inf:
        raise ArgumentError(
            "--weight-decay",
            expected="0 or more",
            received=str(weight_decay),
            advice="0.0005 is usual for images",
        )
    make = partial(_MAKERS[name][0], every=accumulate) if name in FOLDING else _MAKERS[name][0]
    # The last step of the rise is the first of the fall.
    rise = max(min(warm_up, steps) - 1, 0)
    return make(lr=WarmUp(Cosine(lr, steps - rise), rise), weight_decay=weight_decay)
