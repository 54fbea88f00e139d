"""Plans of several ranks: on each of them the net that records trains as the one by the layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from singanet.errors import SingaNetError
from singanet.optimizer.chain import with_reduction
from singanet.parallel import (
    AllReduce,
    LocalSGD,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SparseAllReduce,
)
from singanet.testing import communicators

from .drawn_nets import Plan, optimizer_of
from .plans import Run, drawn

REDUCERS = {
    "all-reduce": AllReduce,
    "window": partial(AllReduce, window=1),
    "half": partial(AllReduce, dtype="float16"),
    "sparse": partial(SparseAllReduce, ratio=0.3),
    "sparse, forgetful": partial(SparseAllReduce, ratio=0.5, error_feedback=False),
    "sparse, momentum": partial(SparseAllReduce, ratio=0.3, momentum=0.5),
    "sparse, warm": partial(SparseAllReduce, ratio=0.3, warm_up=3),
    "sparse, threshold": partial(SparseAllReduce, threshold=0.01),
    "power": partial(PowerSGD, rank=1, gain=0.0),
    "power, cold": partial(PowerSGD, rank=1, gain=0.0, warm_start=False),
    "local": partial(LocalSGD, every=2),
    "partial": partial(PartialUpdate, partitions=2),
    "state": partial(Sharded, level=1, smallest=16),
    "gradients": partial(Sharded, level=2, smallest=16),
    "parameters": partial(Sharded, level=3, smallest=16),
}
TOGETHER = (
    "draws", "freeze", "generator", "learning rate", "no metric", "on layer", "optimizer setting",
    "other batch", "other length", "predict", "register", "reload",
    "threads", "trainable", "unfreeze", "weights",
)  # fmt: skip
"""Actions that all ranks can carry out at once."""


@dataclass(frozen=True)
class Setting:
    """A plan on so many ranks with a reducer, of which those in ``records`` record."""

    plan: Plan
    reducer: str
    ranks: int
    records: tuple[int, ...]


class Ranked(Run):
    """The twins of one rank, whose data are its own."""

    def __init__(self, setting, comm):
        super().__init__(setting.plan)
        self.recorded.programs.enabled = comm.rank in setting.records
        reduced = partial(with_reduction, reduce=lambda rule: REDUCERS[setting.reducer](rule, comm))
        self.optimizers = tuple(map(reduced, self.optimizers))
        self.data.rng = np.random.default_rng(comm.rank)

    def refusal(self, error):
        """Whichever rank fails first, the others hear of it."""
        return "refused", SingaNetError, ""


def on_ranks(setting):
    """Carry out ``setting``, each rank in a thread."""

    def one(comm):
        with np.errstate(all="ignore"):
            Ranked(setting, comm).run()

    with communicators(setting.ranks) as comms:
        comms.run(one)


def goes(optimizer, reducer):
    """Whether the reducer takes the optimizer."""
    try:
        with_reduction(optimizer_of(optimizer), REDUCERS[reducer])
    except SingaNetError:
        return False
    return True


def drawn_setting(draw, most=3, fewest=0):
    """Draw a setting with so many actions by ``draw``, a generator of Python's."""
    plan = drawn(draw)
    actions = drawn(draw, most, fewest, TOGETHER).actions
    ranks = draw.choice((2, 2, 3, 4))
    records = [rank for rank in range(ranks) if draw.random() < 0.8]
    names = draw.sample(sorted(REDUCERS), len(REDUCERS))
    reducer = next((name for name in names if goes(plan.optimizer, name)), names[0])
    return Setting(replace(plan, actions=actions), reducer, ranks, tuple(records or [0]))
