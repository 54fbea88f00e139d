"""Update rules by name, as the benchmarks of optimizers try them: one of each rule and wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet import optimizer as o

LR = 0.001
LIMIT = 1e-3
"""Of everything that clips: so small that every step is clipped."""
EVERY = 4
"""Steps to an update, of everything that accumulates."""

RULES: dict[str, Callable[[], Any]] = {
    "SGD": lambda: o.SGD(lr=LR),
    "SGD, momentum": lambda: o.SGD(lr=LR, momentum=0.9),
    "Nesterov": lambda: o.Nesterov(lr=LR),
    "RMSProp": lambda: o.RMSProp(lr=LR),
    "AdaGrad": lambda: o.AdaGrad(lr=LR),
    "Adam": lambda: o.Adam(lr=LR),
    "AdamW": lambda: o.AdamW(lr=LR),
    "AMSGrad": lambda: o.AMSGrad(lr=LR),
    "Adafactor": lambda: o.Adafactor(lr=LR),
    "FactoredAdam": lambda: o.FactoredAdam(lr=LR),
    "AdaLomo": lambda: o.AdaLomo(lr=LR),
    "LAMB": lambda: o.LAMB(lr=LR),
    "Lion": lambda: o.Lion(lr=LR),
    "clipping by value": lambda: o.ClipByValue(o.SGD(lr=LR), LIMIT),
    "clipping each parameter's norm": lambda: o.SGD(lr=LR, constraint=o.ClipNorm(LIMIT)),
    "clipping each layer's norm": lambda: o.ClipByLayerNorm(o.SGD(lr=LR), LIMIT),
    "clipping by the running norm": lambda: o.ClipByRunningNorm(o.SGD(lr=LR), LIMIT),
    "the weights' norm bounded": lambda: o.SGD(lr=LR, constraint=o.MaxNorm(1.0)),
    "SINGA's L2 constraint": lambda: o.SGD(lr=LR, constraint=o.L2Constraint(1e-6)),
    "L1 regularizer": lambda: o.SGD(lr=LR, regularizer=o.L1Regularizer(1e-4)),
    "accumulation in a buffer": lambda: o.Accumulator(o.SGD(lr=LR), every=EVERY),
    "accumulation in the momentum": lambda: o.AccumulatingSGD(EVERY, lr=LR),
    "accumulation in Adam's moments": lambda: o.AccumulatingAdam(EVERY, lr=LR),
}
