"""Optimizers, reducers and callbacks of a run from its options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from singanet import optimizer as rules
from singanet import parallel
from singanet.commands.runs.run_options import OptionHint, positive, refusal, unknown
from singanet.errors import one_of
from singanet.optimizer.averaged import blocks_of
from singanet.optimizer.reducer import Reducer
from singanet.optimizer.schedules import Cosine, WarmUp
from singanet.training.callbacks import Callback
from singanet.training.course import StopTraining
from singanet.training.measures import batch_length
from singanet.types import Array, Gradient

_MAKERS: dict[str, tuple[Callable[..., rules.Optimizer], float]] = {
    "sgd": (partial(rules.SGD, momentum=0.9), 0.05),
    "nesterov": (partial(rules.Nesterov, momentum=0.9), 0.05),
    "adam": (rules.Adam, 0.001),
    "adamw": (rules.AdamW, 0.001),
    "amsgrad": (rules.AMSGrad, 0.001),
    "nadam": (rules.NAdam, 0.001),
    "radam": (rules.RAdam, 0.001),
    "adamax": (rules.Adamax, 0.002),
    "adadelta": (rules.Adadelta, 1.0),
    "adagrad": (rules.AdaGrad, 0.01),
    "rmsprop": (rules.RMSProp, 0.001),
    "adafactor": (rules.Adafactor, 0.01),
    "adalomo": (rules.AdaLomo, 0.001),
    "factored_adam": (rules.FactoredAdam, 0.001),
    "galore": (rules.GaLore, 0.001),
    "lamb": (rules.LAMB, 0.002),
    "lion": (rules.Lion, 0.0001),
    "muon": (rules.Muon, 0.02),
    "schedule_free_adamw": (rules.ScheduleFreeAdamW, 0.0025),
    "accumulating_sgd": (rules.AccumulatingSGD, 0.05),
    "accumulating_adam": (rules.AccumulatingAdam, 0.001),
}

USUAL_RATES = {name: rate for name, (_, rate) in _MAKERS.items()}
"""The highest learning rate of each, if neither the user nor the recipe sets one."""

_OTHERS_SHARE = 0.05
"""The rate of `Muon`'s other rule, AdamW, in rates of its own."""

FOLDING = ("accumulating_sgd", "accumulating_adam")
"""Optimizers that add micro-batches to their own state, without an accumulator."""


_BLOCK_STEPS = 50
"""Steps of a block before the next one, if there are enough steps."""


def in_blocks(
    name: str, lr: float, weight_decay: float, names: Iterable[str], steps: int, seed: int
) -> rules.BlockCoordinate:
    """Return the optimizer ``name`` for one block of the parameters ``names`` at a time.

    Its rate stays ``lr``, as the state of a block restarts in each turn. Each block has at least
    one turn in ``steps`` steps. Errors: as `make_optimizer`; an optimizer that folds micro-batches.
    """
    make_optimizer(name, lr, weight_decay, 1, 0)
    turn = max(1, min(_BLOCK_STEPS, steps // max(1, len(blocks_of(names)))))
    rule = _made(name, lr, weight_decay, lambda rate: rate, {})
    return rules.BlockCoordinate(rule, turn, seed=seed)


def make_optimizer(
    name: str, lr: float, weight_decay: float, steps: int, warm_up: int, accumulate: int = 1
) -> rules.Optimizer:
    """Return the optimizer ``name``; its rate rises to ``lr`` and falls to 0 over ``steps``.

    The rise takes ``warm_up`` of them; the fall is half a cosine. A schedule-free rule keeps
    ``lr``. A step is an update, of
    ``accumulate`` micro-batches. Errors: an unknown name; a rate that is not a positive number.
    """
    if name not in _MAKERS:
        raise unknown(f"optimizer {name!r}", name, _MAKERS, "choose a listed name")
    rate = positive(f"{USUAL_RATES[name]} is usual for {name}")
    OptionHint("lr", float, bound=rate).check(lr)
    # The last step of the rise is the first of the fall.
    rise = max(min(warm_up, steps) - 1, 0)

    more: dict[str, Any] = {"every": accumulate} if name in FOLDING else {}
    falls = _MAKERS[name][0] is not rules.ScheduleFreeAdamW

    def course(top: float) -> WarmUp:
        return WarmUp(Cosine(top, steps - rise) if falls else top, rise)

    return _made(name, lr, weight_decay, course, more)


def _made(
    name: str,
    lr: float,
    weight_decay: float,
    course: Callable[[float], Any],
    more: Mapping[str, Any],
) -> rules.Optimizer:
    """Return the optimizer ``name`` with the rate ``course(lr)``, and Muon's other rule with it."""
    if name == "muon":
        others = rules.AdamW(course(_OTHERS_SHARE * lr), weight_decay=weight_decay)
        more = {**more, "others": others}
    return _MAKERS[name][0](learning_rate=course(lr), weight_decay=weight_decay, **more)


class ReducerMaker(NamedTuple):
    """A function that makes the stage, its arguments by option, and its fixed arguments.

    ``served`` means that it needs parameter servers.
    """

    make: Callable[..., Reducer]
    options: dict[str, str]
    fixed: dict[str, Any]
    served: bool = False


REDUCERS = {
    "allreduce": ReducerMaker(parallel.AllReduce, {}, {}),
    "half": ReducerMaker(parallel.AllReduce, {}, {"dtype": "float16"}),
    "sparse": ReducerMaker(parallel.SparseAllReduce, {"ratio": "ratio"}, {}),
    "sharded": ReducerMaker(parallel.Sharded, {}, {"level": 2}),
    "powersgd": ReducerMaker(parallel.PowerSGD, {}, {}),
    "partial": ReducerMaker(parallel.PartialUpdate, {"every": "partitions"}, {}),
    "local": ReducerMaker(parallel.LocalSGD, {"every": "every"}, {}),
    "ps": ReducerMaker(parallel.ParameterServer, {}, {}, served=True),
    "hybrid": ReducerMaker(parallel.Hybrid, {}, {}, served=True),
}


PIPELINE = "pipeline"
"""Not an optimizer stage: the net's layers are distributed over the ranks in sequence."""

WAYS = (*REDUCERS, PIPELINE)


def check_reducer(name: str, ratio: float | None, every: int | None) -> None:
    """Errors: an unknown name; an option that does not apply to it, or out of range."""
    if name not in WAYS:
        advice = "allreduce sums all gradients unchanged"
        raise unknown(f"--parallel {name!r}", name, WAYS, advice)
    for option, value, most in (("ratio", ratio, 1.0), ("every", every, float("inf"))):
        having = [each for each, way in REDUCERS.items() if option in way.options]
        having += [PIPELINE] * (option == "every")
        if value is not None and not (name in having and 0 < value <= most):
            expected = f"a positive number, with --parallel {' or '.join(having)}"
            received = f"{value} with --parallel {name}"
            raise refusal(f"--{option}", expected, received, f"remove --{option}")


def expect_servers(name: str, servers: int) -> None:
    """Errors: servers that the method ``name`` does not use, or no servers if it needs them."""
    served = name in REDUCERS and REDUCERS[name].served
    if served != bool(servers):
        having = [each for each, way in REDUCERS.items() if way.served]
        expected = f"parameter servers, with --parallel {one_of(having)}"
        advice = "write singanet launch -n 3 --servers 1 train MODEL --parallel ps"
        raise refusal("--servers", expected, f"{servers} with --parallel {name}", advice)


def reduced(
    optimizer: rules.Optimizer | rules.Wrapper,
    name: str,
    ratio: float | None = None,
    every: int | None = None,
) -> Reducer:
    """Wrap ``optimizer`` in the stage ``name``, over all processes of the job."""
    check_reducer(name, ratio, every)
    way, given = REDUCERS[name], {"ratio": ratio, "every": every}
    said = {way.options[k]: value for k, value in given.items() if value is not None}
    return way.make(optimizer, **way.fixed, **said)


class RunFigures(Callback):
    """A callback that counts seconds, samples, and the most bytes of gradients; resumable."""

    def __init__(self) -> None:
        self.samples = 0
        self.peak = 0
        self._before = 0.0
        self._start: float | None = None
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of training, without pauses between its parts."""
        if self._start is None:
            return self._before
        end = time.perf_counter() if self._end is None else self._end
        return self._before + end - self._start

    def on_train_begin(self) -> None:
        self._start = time.perf_counter()

    def on_train_end(self) -> None:
        self._end = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        self.samples += batch_length(self.session.inputs)

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        self.peak = max(self.peak, sum(grad.nbytes for grad in grads))

    def state_dict(self) -> dict[str, Array]:
        return {"figures": np.array([self.seconds, self.samples, self.peak], np.float64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        seconds, samples, peak = state["figures"]
        self._before, self.samples, self.peak = float(seconds), int(samples), int(peak)


class FiniteLoss(Callback):
    """A callback that ends the training, without saving, if an epoch's loss is not finite."""

    def __init__(self) -> None:
        self.failed: tuple[int, float] | None = None

    def on_train_begin(self) -> None:
        """Turn off the warning, as the command reports the loss itself."""
        self.session.warned = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if not math.isfinite(logs["loss"]):
            self.failed = epoch + 1, logs["loss"]
            raise StopTraining(f"loss {logs['loss']}")
