"""Optimizers, reducers and callbacks of a run from its options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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
    Wrapper,
)
from singanet.optimizer.averaged import blocks_of
from singanet.optimizer.reducer import Reducer
from singanet.optimizer.schedules import Cosine, WarmUp
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SparseAllReduce,
)
from singanet.training.callbacks import Callback
from singanet.training.course import StopTraining
from singanet.training.measures import batch_length
from singanet.types import Array, Gradient

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


class ReducerMaker(NamedTuple):
    """A function that makes the stage, its arguments by option, and its fixed arguments.

    ``served`` says whether some of the ranks hold parameters for the others.
    """

    make: Callable[..., Reducer]
    options: dict[str, str]
    fixed: dict[str, Any]
    served: bool = False


REDUCERS = {
    "allreduce": ReducerMaker(AllReduce, {}, {}),
    "half": ReducerMaker(AllReduce, {}, {"dtype": "float16"}),
    "sparse": ReducerMaker(SparseAllReduce, {"ratio": "ratio"}, {}),
    "sharded": ReducerMaker(Sharded, {}, {"level": 2}),
    "powersgd": ReducerMaker(PowerSGD, {}, {}),
    "partial": ReducerMaker(PartialUpdate, {"every": "partitions"}, {}),
    "local": ReducerMaker(LocalSGD, {"every": "every"}, {}),
    "ps": ReducerMaker(ParameterServer, {}, {}, served=True),
    "hybrid": ReducerMaker(Hybrid, {}, {}, served=True),
}


PIPELINE = "pipeline"
"""What is no stage of an optimizer: the net's layers lie on the ranks, one behind the other."""

WAYS = (*REDUCERS, PIPELINE)


def check_reducer(name: str, ratio: float | None, every: int | None) -> None:
    """Errors: an unknown name; an option that this way does not have, or out of range."""
    if name not in WAYS:
        raise UnknownNameError(
            f"--parallel {name!r}",
            expected=f"one of {one_of(WAYS)}",
            received=repr(name),
            advice=did_you_mean(name, WAYS, "allreduce sums all gradients as they are"),
        )
    for option, value, most in (("ratio", ratio, 1.0), ("every", every, float("inf"))):
        having = [each for each, way in REDUCERS.items() if option in way.options]
        having += [PIPELINE] * (option == "every")
        if value is not None and not (name in having and 0 < value <= most):
            raise ArgumentError(
                f"--{option}",
                expected=f"a positive number, with --parallel {' or '.join(having)}",
                received=f"{value} with --parallel {name}",
                advice=f"leave --{option} out",
            )


def expect_servers(name: str, servers: int) -> None:
    """Errors: servers that the method ``name`` does not ask, or no servers for one that does."""
    served = name in REDUCERS and REDUCERS[name].served
    if served != bool(servers):
        having = [each for each, way in REDUCERS.items() if way.served]
        raise ArgumentError(
            "--servers",
            expected=f"ranks that hold parameters, with --parallel {one_of(having)}",
            received=f"{servers} with --parallel {name}",
            advice="write singanet launch -n 3 --servers 1 train MODEL --parallel ps",
        )


def reduced(
    optimizer: Optimizer | Wrapper, name: str, ratio: float | None = None, every: int | None = None
) -> Reducer:
    """``optimizer`` behind the stage ``name``, between all processes that were started."""
    check_reducer(name, ratio, every)
    way, given = REDUCERS[name], {"ratio": ratio, "every": every}
    said = {way.options[k]: value for k, value in given.items() if value is not None}
    return way.make(optimizer, **way.fixed, **said)


class RunFigures(Callback):
    """Seconds, samples, and the most bytes of gradients at once; resumed with the training."""

    def __init__(self) -> None:
        self.samples = 0
        self.peak = 0
        self._before = 0.0
        self._start: float | None = None
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        """From the beginning of the training, without the time between two parts of it."""
        if self._start is None:
            return self._before
        end = time.perf_counter() if self._end is None else self._end
        return self._before + end - self._start

    def on_train_begin(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_train_end(self) -> None:
        """Stop it."""
        self._end = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Count."""
        self.samples += batch_length(self.session.inputs)

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Measure."""
        self.peak = max(self.peak, sum(grad.nbytes for grad in grads))

    def state_dict(self) -> dict[str, Array]:
        """The figures so far."""
        return {"figures": np.array([self.seconds, self.samples, self.peak], np.float64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        seconds, samples, peak = state["figures"]
        self._before, self.samples, self.peak = float(seconds), int(samples), int(peak)


class FiniteLoss(Callback):
    """Ends the training, and saves nothing of it, where an epoch's loss is not finite."""

    def __init__(self) -> None:
        self.failed: tuple[int, float] | None = None

    def on_train_begin(self) -> None:
        """Say that the command tells of it itself."""
        self.session.warned = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Look."""
        if not math.isfinite(logs["loss"]):
            self.failed = epoch + 1, logs["loss"]
            raise StopTraining(f"loss {logs['loss']}")
