"""A fit under way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from singanet.device import cpu
from singanet.engine.model import Model
from singanet.errors import FileFormatError, StateMismatchError, VersionError, one_of
from singanet.metric import Metric
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.history import History
from singanet.training.measures import Measures
from singanet.training.steps import stepper
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
    of the one in work. ``names`` are those that an epoch's logs will have.
    """

    def __init__(
        self,
        net: Model,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        epochs: int,
        callbacks: Sequence[Stateful],
    ) -> None:
        self.net = net
        self.compiled = compiled
        self.optimizer = optimizer
        self._outermost = optimizer
        self.train_batch = stepper(net, compiled.scaled(optimizer))
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
        self.measures = Measures(net.loss, compiled.metrics)
        self.names = self.measures.names()
        if validation is not None:
            self.names += [f"val_{name}" for name in self.names]
        self.resumed = False
        self.stopped: str | None = None
        self.error: BaseException | None = None

    def stop(self, reason: str) -> None:
        """End the training after the step in work; the first reason given stands."""
        self.stopped = self.stopped or reason

    def add_stage(self, stage: Callable[[Optimizer | Wrapper], Wrapper]) -> None:
        """Let steps go through ``stage`` of the optimizer, from the next one on.

        It is no part of ``optimizer``, nor of its state.
        """
        self._outermost = outer = stage(self._outermost)
        precision = self.compiled.precision
        around = outer if precision is None else ScaledUpdates(outer, precision)
        self.train_batch = stepper(self.net, around)

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
        """
        return training_state(self)


VERSION = 1


def training_state(session: Session) -> dict[str, Array]:
    """Parameters, optimizer, generator, position in the data, history, metrics, callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). The arrays are copies on the CPU. Taken after a step it resumes to the bit; a step
    broken in the middle counts as done.
    """
    net = session.net
    state = {f"net/{param.name}": _copy(param.value) for param in net.params()}
    state |= {f"optimizer/{k}": _copy(v) for k, v in session.optimizer.state_dict().items()}
    for place, callback in enumerate(session.callbacks):
        start = f"callback/{place}.{type(callback).__name__}"
        state |= {f"{start}/{key}": _copy(v) for key, v in callback.state_dict().items()}
    if session.compiled.precision is not None:
        learnt = session.compiled.precision.state_dict()
        state |= {f"precision/{k}": _copy(v) for k, v in learnt.items()}
    metrics: dict[str, Any] = {}
    if session.batch:
        arrays, metrics = save_metrics(session.measures.metrics)
        state |= {f"metric/{key}": _copy(v) for key, v in arrays.items()}
    about = {
        "format": "singanet training",
        "version": VERSION,
        "epoch": session.epoch,
        "batch": session.batch,
        "step": session.step,
        "begun": session.compiled.epochs,
        "losses": session.measures.losses,
        "samples": session.measures.samples,
        "metrics": metrics,
        "data": session.data.state_dict(),
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
    shapes; data or an optimizer of another kind; `VersionError`. Parameters are written last.
    """
    about = _about(state)
    _check_net(session.net, state)
    by_callback = _callback_states(session, state)
    precision, scaling = session.compiled.precision, _below("precision/", state)
    _check_precision(precision, scaling)
    session.data.load_state_dict(about["data"])
    session.optimizer.load_state_dict(_below("optimizer/", state))
    if precision is not None:
        precision.load_state_dict(scaling)
    if about["batch"]:
        load_metrics(session.measures.metrics, about["metrics"], _below("metric/", state))
        session.measures.losses = {
            name: (float(total), float(count)) for name, (total, count) in about["losses"].items()
        }
        session.measures.samples = int(about["samples"])
    for callback, own in by_callback:
        callback.load_state_dict(own)
    for param in session.net.params():
        param.value[...] = session.net.device.put(state[f"net/{param.name}"])
    session.net.rng.bit_generator.state = about["generator"]
    session.net.seed = int(about["seed"])
    session.epoch, session.batch = int(about["epoch"]), int(about["batch"])
    session.step, session.compiled.epochs = int(about["step"]), int(about["begun"])
    session.history.clear()
    session.history.epochs = list(about["history"]["epochs"])
    session.history.update(about["history"]["values"])
    session.resumed = True


def _check_precision(precision: MixedPrecision | None, state: Mapping[str, Array]) -> None:
    if (precision is None) != (not state):
        was = "in mixed precision" if state else "without mixed precision"
        raise _mismatch("net.compile", f"a training {was}, as the saved one", "the other kind")


def _about(state: Mapping[str, Array]) -> dict[str, Any]:
    try:
        about = json.loads(bytes(np.asarray(state["session"], np.uint8)))
        is_one = about["format"] == "singanet training"
        version = about["version"]
    except (KeyError, TypeError, ValueError) as error:
        raise _no_training(f"{type(error).__name__}: {error}") from None
    if not is_one:
        raise _no_training(f"format {about['format']!r}")
    if not isinstance(version, int) or version > VERSION:
        raise VersionError(
            "net.fit, resume",
            expected=f"version 1 to {VERSION}",
            received=f"version {version!r}",
            advice="upgrade singanet to go on from it",
        )
    return dict(about)


def _no_training(received: str) -> FileFormatError:
    return FileFormatError(
        "net.fit, resume",
        expected="the state of a training, with its entry 'session'",
        received=received[:120],
        advice="pass what ModelCheckpoint wrote; weights alone are loaded with net.load",
    )


def _check_net(net: Model, state: Mapping[str, Array]) -> None:
    saved = {key: tuple(array.shape) for key, array in _below("net/", state).items()}
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
    for key, array in _below("callback/", state).items():
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


def _below(start: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {key[len(start) :]: array for key, array in state.items() if key.startswith(start)}


def _copy(array: Array) -> Array:
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
    """Put back what `save_metrics` took; a metric that was not there then starts anew."""
    for name, metric in metrics.items():
        for key, value in numbers.get(name, {}).items():
            setattr(metric, key, value)
        for path, array in arrays.items():
            owner, kind, key = path.rsplit("/", 2)
            if owner == name:
                setattr(metric, key, [array.copy()] if kind == "list" else array.copy())
