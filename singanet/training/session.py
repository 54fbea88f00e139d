"""A fit under way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, Literal, Protocol

import numpy as np

from singanet.device import cpu
from singanet.engine.model import Model
from singanet.errors import CallOrderError, SingaNetError, StateMismatchError, one_of
from singanet.metric import Metric
from singanet.optimizer import Accumulator, MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.stages import reducers
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.history import History
from singanet.training.measures import Measures
from singanet.training.micro_batches import MicroBatches
from singanet.training.progress import FORMAT, VERSION, Progress, parse_progress
from singanet.training.steps import Step, stepper
from singanet.types import Array


class Stateful(Protocol):
    """What a training checkpoint keeps of a callback."""

    def state_dict(self) -> dict[str, Array]:
        """Arrays by name."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave."""


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way to end a fit at once
    """Raised by a callback to end the fit now, within a step if need be, without an error."""


class Session:
    """What callbacks see of a fit, and what a training checkpoint is made of.

    ``epoch`` of ``epochs`` and ``batch`` count from 0 and name what is in work; once a step is
    done they name the next. ``step`` counts the steps of the whole training, ``inputs`` is the x
    of the one in work. ``names`` are those that an epoch's logs will have. ``phase`` is "step"
    while a step or a validation is under way, "told" while callbacks hear of it, and else "whole".
    Steps go through batches in parts of ``micro_batch`` samples, where that is given.
    """

    phase: Literal["whole", "step", "told"] = "whole"

    def __init__(
        self,
        net: Model,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        epochs: int,
        callbacks: Sequence[Stateful],
        micro_batch: int | None = None,
    ) -> None:
        self.net = net
        self.compiled = compiled
        self.optimizer = optimizer
        self._micro_batch = micro_batch
        # Between batches it holds nothing, so that no checkpoint knows of it.
        self._gathered = None if micro_batch is None else Accumulator(optimizer, 1)
        self._outermost: Optimizer | Wrapper = self._gathered or optimizer
        self.train_batch = self._stepper()
        self.data = data
        self.validation = validation
        self.epochs = epochs
        self.callbacks = callbacks
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self.layer = ""
        self.inputs: Any = None
        self.history = History()
        self.measures = Measures(net.loss, compiled.metrics, compiled.outputs)
        self.names = self.measures.names()
        if validation is not None:
            self.names += [f"val_{name}" for name in self.names]
        if self.rule.lr is not None and "lr" not in self.names:
            self.names.append("lr")
        self.resumed = False
        self.stopped: str | None = None
        self.error: BaseException | None = None
        self._position: Mapping[str, int] | None = None

    def is_whole(self) -> None:
        """What is here goes together: every callback has heard of the last step."""
        # A batch that is drawn next and not trained on is drawn once more.
        self._position = self.data.state_dict()
        self.phase = "whole"

    def position(self) -> Mapping[str, int]:
        """That of the data after the last step."""
        if self.phase == "whole" and self._position is not None:
            return self._position
        return self.data.state_dict()

    def stop(self, reason: str) -> None:
        """End the training after the step in work; the first reason given stands."""
        self.stopped = self.stopped or reason

    def add_stage(self, stage: Callable[[Optimizer | Wrapper], Wrapper]) -> None:
        """Let steps go through ``stage`` of the optimizer, from the next one on.

        It is no part of ``optimizer``, nor of its state.
        """
        self._outermost = stage(self._outermost)
        self.train_batch = self._stepper()

    def _stepper(self) -> Step:
        outer = self.compiled.scaled(self._outermost)
        if self._gathered is None or self._micro_batch is None:
            return stepper(self.net, outer)
        return MicroBatches(self.net, self._gathered, outer, self._micro_batch)

    def join(self) -> None:
        """Say that this process has no more batches for now; others may have."""
        for stage in reducers(self._outermost):
            stage.join()

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers, whose ``lr`` is the learning rate."""
        inner = self.optimizer
        while isinstance(inner, Wrapper):
            inner = inner.optimizer
        return inner

    def state(self) -> dict[str, Array]:
        """All that is needed to go on from here, as arrays by name: see `training_state`.

        A callback that asks for it sets ``runs_last``, so that the others have seen the step.
        Errors: `CallOrderError` within a step, of which a half could be in it.
        """
        if self.phase == "step":
            raise CallOrderError(
                "session.state",
                expected="the end of a step or of an epoch",
                received="a call within a step",
                advice="ask in on_batch_end, on_epoch_end or on_stop",
            )
        return training_state(self)


def training_state(session: Session) -> dict[str, Array]:
    """Parameters, optimizer, generator, position in the data, history, metrics, callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). The arrays are copies on the CPU. It resumes to the bit.
    """
    net = session.net
    state = {f"net/{param.name}": host_copy(param.value) for param in net.params()}
    state |= {f"optimizer/{k}": host_copy(v) for k, v in session.optimizer.state_dict().items()}
    for place, callback in enumerate(session.callbacks):
        start = f"callback/{place}.{type(callback).__name__}"
        state |= {f"{start}/{key}": host_copy(v) for key, v in callback.state_dict().items()}
    if session.compiled.precision is not None:
        learnt = session.compiled.precision.state_dict()
        state |= {f"precision/{k}": host_copy(v) for k, v in learnt.items()}
    metrics: dict[str, Any] = {}
    if session.batch:
        arrays, metrics = save_metrics(session.measures.metrics)
        state |= {f"metric/{key}": host_copy(v) for key, v in arrays.items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": session.epoch,
        "batch": session.batch,
        "step": session.step,
        "begun": session.compiled.epochs,
        "losses": session.measures.losses,
        "samples": session.measures.samples,
        "metrics": metrics,
        "data": dict(session.position()),
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        "history": {"epochs": session.history.epochs, "values": dict(session.history)},
    }
    text = json.dumps(about, default=lambda array: np.asarray(array).tolist())
    state["session"] = np.frombuffer(text.encode(), np.uint8).copy()
    return state


def restore(session: Session, state: Mapping[str, Array]) -> None:
    """Bring ``session`` to where the one of `training_state` stood.

    Errors: `StateMismatchError` for parameters or callbacks that differ, naming them with both
    shapes, and for state that data, optimizer, metrics or callbacks do not take; `FileFormatError`
    for a state that is not whole; `VersionError`. After any of them all is as it was.
    """
    net = session.net
    progress = parse_progress(state, net.rng.bit_generator)
    check_net(net, state)
    by_callback = _callback_states(session, state)
    precision, scaling = session.compiled.precision, below("precision/", state)
    _check_precision(precision, scaling)
    with _undoing(session):
        session.data.load_state_dict(progress.data)
        steps = session.data.steps
        if steps is not None and progress.batch > steps:
            received = f"batch {progress.batch}"
            raise _mismatch("net.fit, resume", f"at most {steps} batches an epoch", received)
        session.optimizer.load_state_dict(below("optimizer/", state))
        session.rule.check_loaded({param.name: param.value for param in net.params()})
        if precision is not None:
            precision.load_state_dict(scaling)
        if progress.batch:
            metrics, arrays = session.measures.metrics, below("metric/", state)
            load_metrics(metrics, progress.metrics, arrays)
            session.measures.losses = dict(progress.losses)
            session.measures.samples = progress.samples
        for callback, own in by_callback:
            callback.load_state_dict(own)
        for param in net.params():
            param.value[...] = net.device.put(state[f"net/{param.name}"])
    _go_on(session, progress)


def _go_on(session: Session, progress: Progress) -> None:
    session.net.rng.bit_generator.state = progress.generator
    session.net.seed = progress.seed
    session.epoch, session.batch = progress.epoch, progress.batch
    session.step, session.compiled.epochs = progress.step, progress.begun
    session.history.clear()
    session.history.epochs = list(progress.epochs)
    session.history.update(progress.values)
    session.resumed = True


@contextmanager
def _undoing(session: Session) -> Iterator[None]:
    """Put back what the block loaded before it failed; parameters are loaded last.

    Errors: `StateMismatchError` for whatever data, metrics and callbacks raise that is not ours.
    """
    optimizer, precision = session.optimizer.state_dict(), session.compiled.precision
    scaling = None if precision is None else precision.state_dict()
    data, measures = session.data.state_dict(), copy(session.measures)
    metrics = {name: vars(metric).copy() for name, metric in measures.metrics.items()}
    callbacks = [
        (callback, {key: host_copy(array) for key, array in callback.state_dict().items()})
        for callback in session.callbacks
    ]
    try:
        yield
    except BaseException as error:
        session.data.load_state_dict(data)
        session.optimizer.load_state_dict(optimizer)
        if precision is not None and scaling is not None:
            precision.load_state_dict(scaling)
        session.measures.losses = dict(measures.losses)
        session.measures.samples = measures.samples
        for name, metric in session.measures.metrics.items():
            vars(metric).clear()
            vars(metric).update(metrics[name])
        for callback, own in callbacks:
            with suppress(Exception):  # it may be the one that failed
                callback.load_state_dict(own)
        if isinstance(error, SingaNetError) or not isinstance(error, Exception):
            raise
        received = f"{type(error).__name__}: {error}"[:200]
        raise _mismatch("net.fit, resume", "a state of this training", received) from error


def _check_precision(precision: MixedPrecision | None, state: Mapping[str, Array]) -> None:
    if (precision is None) != (not state):
        was = "in mixed precision" if state else "without mixed precision"
        raise _mismatch("net.compile", f"a training {was}, as the saved one", "the other kind")


def check_net(net: Model, state: Mapping[str, Array]) -> None:
    """Errors: `StateMismatchError` where ``state`` has other parameters than ``net``."""
    saved = {key: tuple(array.shape) for key, array in below("net/", state).items()}
    own = {param.name: param.shape for param in net.params()}
    for name, shape in own.items():
        if saved.get(name) != shape:
            received = f"shape {saved[name]}" if name in saved else "no such parameter"
            raise _mismatch(f"parameter {name!r}", f"shape {shape}, as in the net", received)
    extra = [name for name in saved if name not in own]
    if extra:
        expected = f"the parameters of the net, {len(own)} in all"
        raise _mismatch("net.fit, resume", expected, f"{one_of(extra, 4)} as well")


def _callback_states(session: Session, state: Mapping[str, Array]) -> list[tuple[Any, Any]]:
    groups: dict[str, dict[str, Array]] = {}
    for key, array in below("callback/", state).items():
        who, _, rest = key.partition("/")
        groups.setdefault(who, {})[rest] = array
    found = []
    for place, callback in enumerate(session.callbacks):
        own = groups.pop(f"{place}.{type(callback).__name__}", None)
        if own is not None:
            found.append((callback, own))
    if groups:
        given = [f"{k}.{type(c).__name__}" for k, c in enumerate(session.callbacks)]
        raise _mismatch(
            "net.fit, callbacks",
            f"{one_of(sorted(groups))}, whose state was saved",
            one_of(given) or "none",
        )
    return found


def _mismatch(where: str, expected: str, received: str) -> StateMismatchError:
    return StateMismatchError(
        where,
        expected=expected,
        received=received,
        advice="resume with the net, optimizer and callbacks that were saved; nothing was changed",
    )


def below(start: str, state: Mapping[str, Array]) -> dict[str, Array]:
    """The entries whose keys begin with ``start``, by what follows it."""
    return {key[len(start) :]: array for key, array in state.items() if key.startswith(start)}


def host_copy(array: Array) -> Array:
    """A copy on the CPU."""
    return np.array(cpu().put(array))


_Arrays = dict[str, Array]


def save_metrics(metrics: Mapping[str, Metric]) -> tuple[_Arrays, dict[str, Any]]:
    """The arrays among the attributes of each metric, and the numbers, both by metric.

    A list of arrays becomes one: what metrics keep so, they join in the end.
    """
    arrays: _Arrays = {}
    numbers: dict[str, Any] = {}
    for name, metric in metrics.items():
        numbers[name] = {}
        for key, value in vars(metric).items():
            if isinstance(value, (int, float)):
                numbers[name][key] = value
            elif hasattr(value, "dtype") and hasattr(value, "shape"):
                arrays[f"{name}/array/{key}"] = value
            elif isinstance(value, list) and value and all(hasattr(v, "dtype") for v in value):
                arrays[f"{name}/list/{key}"] = np.concatenate(value)
    return arrays, numbers


def load_metrics(
    metrics: Mapping[str, Metric], numbers: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Put back what `save_metrics` took; a metric that was not there then starts anew.

    Errors: `StateMismatchError` for what a metric has no place for, and what its result raises.
    """
    for name, metric in metrics.items():
        own = vars(metric)
        for key, value in numbers.get(name, {}).items():
            if not isinstance(own.get(key), (int, float)):
                raise _mismatch(f"metric {name!r}", "its own numbers", repr(key)[:60])
            own[key] = type(own[key])(value)
        for path, array in arrays.items():
            owner, kind, key = path.rsplit("/", 2)
            if owner == name:
                # What is begun by the first sample cannot be there before it.
                now = own.get(key, 0)
                fits = array.shape == now.shape if hasattr(now, "shape") else bool(metric.samples)
                fits = fits and isinstance(now, list) == (kind == "list")
                if isinstance(now, (int, float)) or not fits:
                    raise _mismatch(f"metric {name!r}", "its own arrays", repr(key)[:60])
                own[key] = [array.copy()] if kind == "list" else array.copy()
        if metric.samples:
            copy(metric).result()  # raises for arrays that do not fit together
