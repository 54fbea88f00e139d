"""Callbacks that stop a fit or change its rate."""

from __future__ import annotations

import inspect
import math
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, DataError, UnknownNameError, brief, did_you_mean, one_of
from singanet.optimizer.schedules import Plateau
from singanet.params.param_files import keep_params, put_params
from singanet.training.batches import is_finite, saved_parameters
from singanet.training.callbacks.callback import Callback
from singanet.training.course import StopTraining
from singanet.types import Array, Gradient

_DATA = "data x"


class StopOnNaN(Callback):
    """Ends the fit at the first loss or gradient that is not finite, before its update.

    One more forward of the batch finds the cause: the data, or the first layer in forward order
    whose output is not finite, or else the first in backward order whose gradient is not.
    ``history.stopped`` describes it, and ``layer`` is the layer's name (None for the data and the
    loss). It checks every gradient, which costs a read and a boolean for each number.

    Args:
        error: Whether the fit raises a `DataError` instead of ending without an error.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> check = singanet.training.callbacks.StopOnNaN()
        >>> history = net.fit(np.full((2, 2), np.nan), np.eye(2), callbacks=[check], verbose=False)
        >>> history.stopped[:31]
        'data x: expected finite numbers'
    """

    def __init__(self, error: bool = False) -> None:
        self.error = bool(error)
        self.layer: str | None = None

    def on_train_begin(self) -> None:
        """Reset the result of an earlier fit."""
        self.layer = None

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Check the gradients of a layer."""
        for name, grad in zip(names, grads, strict=True):
            if not is_finite(grad):
                layer = self.session.layer
                self._end(f"layer {layer!r}, gradient of {name!r}", layer)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Check the loss."""
        if not math.isfinite(logs["loss"]):
            self._end("loss", None)

    def _end(self, otherwise: str, layer: str | None) -> None:
        where, self.layer = self._first_output() or (otherwise, layer)
        reason = DataError(
            where,
            expected="finite numbers",
            received=f"NaN or infinity in epoch {self.session.epoch + 1}, "
            f"step {self.session.step + 1}",
            advice="replace them, as numpy.nan_to_num(x) does, or leave these samples out"
            if where == _DATA
            else "lower the learning rate, clip the gradients, or check the data",
        )
        if self.error:
            raise reason
        raise StopTraining(str(reason))

    def _first_output(self) -> tuple[str, str | None] | None:
        """Return the first output in forward order that is not finite, None if all are finite."""
        if not is_finite(self.session.inputs):
            return _DATA, None
        if self.session.ranks.apart:
            return None  # no rank has all layers
        for name, output in self._outputs().items():
            if not is_finite(output):
                return f"layer {name!r}, output", name
        return None

    def _outputs(self) -> dict[str, Any]:
        """Return every layer's output in training mode, in forward order, and restore the net."""
        net: Any = self.session.net
        generator = net.rng.bit_generator.state
        kept = {param.name: param.value.copy() for param in net.params() if param.is_state}
        names = [node.name for node in net.nodes()]
        outputs: dict[str, Any] = net.forward(True, self.session.inputs, output=names)
        net.rng.bit_generator.state = generator
        for param in net.params():
            if param.name in kept:
                param.value[...] = kept[param.name]
        # An evaluation frees the arrays that the training forward stored for a backward.
        net.forward(False, self.session.inputs)
        return outputs


class StopOnSignal(Callback):
    """Lets the current step finish at SIGINT or SIGTERM, and then ends the fit without an error.

    ``received`` is the signal, or None; `ModelCheckpoint` saves the training state. A second signal
    acts as without this callback. Outside the main thread, which alone receives signals in Python,
    it does nothing.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> signals = singanet.training.callbacks.StopOnSignal()
        >>> history = net.fit(np.eye(2), np.eye(2), callbacks=[signals], verbose=False)
        >>> signals.received is None
        True
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(self) -> None:
        """Install the signal handlers."""
        self.received = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)

    def on_train_end(self) -> None:
        """Restore the previous handlers."""
        self._restore_handlers()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.session.stop(f"received {self.received.name}")
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._before.items():
            # None is a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}


class LearningRate(Callback):
    """Sets the optimizer's learning rate at the start of every epoch.

    For schedules by step use `singanet.optimizer.schedules` as the optimizer's rate.

    Args:
        schedule: Function that takes the epoch's number, from 0 on, and returns the rate, a number
            from 0 on. If it requires a second argument, it also gets the rate of the previous
            epoch.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> rates = singanet.training.callbacks.LearningRate(lambda epoch: 0.5**epoch)
        >>> net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[rates], verbose=False)["lr"]
        [1.0, 0.5, 0.25]
    """

    def __init__(self, schedule: Callable[[int], float] | Callable[[int, float], float]) -> None:
        if not callable(schedule):
            raise ArgumentError(
                "LearningRate",
                expected="a function of the epoch",
                received=brief(schedule),
                advice="write LearningRate(lambda epoch: 0.1 * 0.9**epoch)",
            )
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int) -> None:
        """Set the rate. Errors: a rate that is not a finite number >= 0."""
        schedule: Any = self.schedule
        before = (self.session.rule.rate(),) if _needs_two(schedule) else ()
        rate = schedule(epoch, *before)
        if not isinstance(rate, (int, float)) or not 0.0 <= rate < float("inf"):
            raise ArgumentError(
                f"LearningRate, epoch {epoch}",
                expected="a finite rate >= 0",
                received=brief(rate),
                advice="correct the schedule",
            )
        self.session.rule.learning_rate = float(rate)


def _needs_two(schedule: Callable[..., float]) -> bool:
    """Return whether ``schedule`` requires more than one argument."""
    try:
        inspect.signature(schedule).bind(0)
    except TypeError:
        return True
    except ValueError:  # a built-in function without a signature
        return False
    return False


class Monitor:
    """The best value of a measure so far.

    A value is better if it beats the best by more than ``min_delta``; NaN never is.

    Args:
        where: The text that errors begin with, such as the callback's name.
        name: Name of the measure; "auto" for ``val_loss``, or ``loss`` without validation.
        mode: "min" or "max", the better direction; "auto" for the measure's own: "min" for losses,
            `Metric.better` for metrics. "auto" is refused for other measures.
        min_delta: Number, whose absolute value is the least improvement.

    Examples:
        >>> monitor = singanet.training.callbacks.Monitor("mine", "loss")
        >>> monitor.begin(["loss"])
        >>> [monitor.better(loss) for loss in (0.5, 0.7, 0.4)], monitor.best
        ([True, False, True], 0.4)
    """

    def __init__(self, where: str, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ArgumentError(
                f"{where}, mode",
                expected="'auto', 'min' or 'max'",
                received=brief(mode),
                advice="'min' for a loss, 'max' for an accuracy",
            )
        self._where = where
        self.name = name
        self.mode = mode
        self.direction = "min" if mode == "auto" else mode
        self.min_delta = abs(float(min_delta))
        self.best = math.nan

    def begin(
        self, names: Iterable[str], metrics: Mapping[str, Any] | None = None, added: bool = False
    ) -> None:
        """Reset the best value, and resolve ``name`` and ``mode`` for the measures ``names``.

        ``metrics`` are the metrics among them; if ``added``, callbacks may add others. Errors: an
        unknown name; ``mode`` "auto" for a measure without a known direction.
        """
        known = list(names)
        if self.name == "auto":
            self.name = "val_loss" if "val_loss" in known else "loss"
        if self.name not in known and not added:
            raise self._unknown(
                known,
                "pass validation_data to net.fit"
                if self.name.startswith("val_") and "val_loss" not in known
                else did_you_mean(self.name, known, "choose a listed name"),
            )
        self.direction = self._asked(metrics or {}) if self.mode == "auto" else self.mode
        self.best = math.nan

    def _unknown(self, known: Iterable[str], advice: str) -> UnknownNameError:
        return UnknownNameError(
            f"{self._where}, monitor",
            expected=one_of(known),
            received=brief(self.name),
            advice=advice,
        )

    def value(self, logs: Mapping[str, float]) -> float:
        """Return the measure of an epoch. Errors: no callback has added it to ``logs``."""
        if self.name not in logs:
            raise self._unknown(
                logs, "put the callback that adds it to logs in on_epoch_end before this one"
            )
        return logs[self.name]

    def _asked(self, metrics: Mapping[str, Any]) -> str:
        """Return "min" or "max", as the measure defines it."""
        name = self.name.removeprefix("val_")
        if name not in metrics and (name == "loss" or name.endswith("_loss")):
            return "min"
        metric = metrics.get(name)
        found: str | None = getattr(metric, "better", None)
        if found in ("min", "max"):
            return found
        what = f"a {type(metric).__name__}, without `better`" if metric else "no metric"
        raise ArgumentError(
            f"{self._where}, mode",
            expected=f"'min' or 'max' for {self.name!r}, whose better direction is unknown",
            received=f"'auto' for {what}",
            advice="pass mode='max' if more is better"
            + (f", or write better = 'max' in the class {type(metric).__name__}" if metric else ""),
        )

    def better(self, value: float) -> bool:
        """Return whether ``value`` is better than the best; if so, store it."""
        if math.isnan(value):
            return False
        gain = value - self.best if self.direction == "max" else self.best - value
        if math.isnan(self.best) or gain > self.min_delta:
            self.best = value
            return True
        return False


class EarlyStopping(Callback):
    """Stops when a measure has not improved for ``patience`` epochs, as Keras' does.

    ``best_epoch`` is the epoch of the best value. The restored weights replace the averages of an
    `EMA`, which stay in its ``averages``.

    Args:
        monitor: Name of the measure, such as "val_loss"; "auto" for ``val_loss``, or ``loss``
            without validation.
        patience: Int from 0 on, the epochs without improvement after which it stops.
        min_delta: Number, the least improvement that counts.
        mode: "min" or "max", the better direction; "auto" for the measure's own: "min" for losses,
            `Metric.better` for metrics.
        restore_best_weights: Whether to restore the parameters and running state of ``best_epoch``
            when the fit ends without an error; costs one copy of all parameters.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> early = singanet.training.callbacks.EarlyStopping("loss", patience=1, min_delta=9)
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=5, callbacks=[early], verbose=False)
        >>> len(history["loss"]), early.best_epoch
        (2, 0)
    """

    def __init__(
        self,
        monitor: str = "auto",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best_weights: bool = True,
    ) -> None:
        self.monitor = Monitor("EarlyStopping", monitor, mode, min_delta)
        self.patience = checked_count("EarlyStopping", "patience", patience, 0)
        self.restore_best_weights = bool(restore_best_weights)
        self.best_epoch = -1
        self._waited = 0
        self._best_values: dict[str, Array] = {}

    def on_train_begin(self) -> None:
        """Reset the result of an earlier fit. Errors: an unknown monitor."""
        self.monitor.begin(self.session.names, self.session.compiled.metrics, self.session.adds)
        self.best_epoch, self._waited, self._best_values = -1, 0, {}

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Store the parameters of a better epoch, or count epochs without improvement."""
        if self.monitor.better(self.monitor.value(logs)):
            self.best_epoch, self._waited = epoch, 0
            if self.restore_best_weights:
                self._keep()
            return
        self._waited += 1
        if self._waited >= self.patience:
            self.session.stop(
                f"{self.monitor.name} has not improved on {self.monitor.best:.6g}, "
                f"of epoch {self.best_epoch + 1}, for {self._waited} epochs"
            )

    def on_train_end(self) -> None:
        """Restore the best parameters."""
        if self._best_values and self.session.error is None:
            params, put = self.session.params(), self.session.net.device.put
            put_params(params, self._best_values, put, "EarlyStopping")
        self._best_values = {}

    def _keep(self) -> None:
        keep_params(self.session.params(), self._best_values)

    def state_dict(self) -> dict[str, Array]:
        """Return the best value, its epoch and parameters, and the epochs waited."""
        numbers = {
            "best": np.array(self.monitor.best, np.float64),
            "best_epoch": np.array(self.best_epoch, np.int64),
            "waited": np.array(self._waited, np.int64),
        }
        return {**numbers, **{f"kept/{name}": array for name, array in self._best_values.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state from `state_dict`."""
        kept = {key[5:]: array for key, array in state.items() if key.startswith("kept/")}
        if kept:
            changing = [param for param in self.session.params() if not param.is_constant]
            kept = saved_parameters(changing, self.session.net.device, kept, "EarlyStopping")
        self.monitor.best = float(state["best"])
        self.best_epoch, self._waited = int(state["best_epoch"]), int(state["waited"])
        self._best_values = kept


class ReduceOnPlateau(Callback):
    """Passes a measure to a `Plateau` schedule after every epoch, which lowers the learning rate.

    The schedule belongs to the optimizer, so its state is saved with it. If the optimizer's rate is
    a number, it becomes a `Plateau` with the arguments below.

    Args:
        monitor: Name of the measure, such as "val_loss"; "auto" for ``val_loss``, or ``loss``
            without validation.
        factor: Number in (0, 1) by which the rate is multiplied.
        patience: Int from 0 on, the epochs without improvement before the rate is lowered.
        threshold: Number from 0 on, the least improvement that counts, relative to the best value.
        min_lr: Number from 0 on, below which the rate does not fall.
        mode: "min" or "max", the better direction; "auto" for the measure's own: "min" for losses,
            `Metric.better` for metrics.
        cooldown: Int from 0 on, the epochs after a change of the rate that do not count.
        absolute: Whether ``threshold`` is a difference instead.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> lower = singanet.training.callbacks.ReduceOnPlateau("loss", patience=0, threshold=0.9)
        >>> net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[lower], verbose=False)["lr"]
        [0.01, 0.01, 0.001]
    """

    def __init__(
        self,
        monitor: str = "auto",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        min_lr: float = 0.0,
        mode: str = "auto",
        cooldown: int = 0,
        absolute: bool = False,
    ) -> None:
        self.monitor = Monitor("ReduceOnPlateau", monitor, mode)
        self._made = partial(
            Plateau,
            factor=factor,
            patience=patience,
            threshold=threshold,
            min_lr=min_lr,
            cooldown=cooldown,
            absolute=absolute,
        )
        # Check the arguments now.
        self._made(1.0)

    def on_train_begin(self) -> None:
        """Set the optimizer's schedule. Errors: its rate follows another schedule."""
        self.monitor.begin(self.session.names, self.session.compiled.metrics, self.session.adds)
        rule = self.session.rule
        if isinstance(rule.learning_rate, (int, float)):
            rule.learning_rate = self._made(float(rule.learning_rate), mode=self.monitor.direction)
        if not isinstance(rule.learning_rate, Plateau):
            raise ArgumentError(
                "ReduceOnPlateau",
                expected="an optimizer whose learning_rate is a number or a Plateau",
                received=f"learning_rate={type(rule.learning_rate).__name__}",
                advice="construct the optimizer with learning_rate=0.1, for example",
            )
        if rule.learning_rate.mode != self.monitor.direction:
            raise ArgumentError(
                "ReduceOnPlateau, mode",
                expected=f"{self.monitor.direction!r} of the optimizer's Plateau, as"
                f" {self.monitor.name!r} needs",
                received=brief(rule.learning_rate.mode),
                advice=f"construct it with Plateau(..., mode={self.monitor.direction!r})",
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Pass the epoch's value to the schedule."""
        plateau = self.session.rule.learning_rate
        if isinstance(plateau, Plateau):
            plateau.observe(self.monitor.value(logs))
