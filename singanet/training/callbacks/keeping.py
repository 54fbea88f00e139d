"""Callbacks for averages and checkpoints."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import with_inner
from singanet.base.files import expect_inside, hold, let_go, path_of
from singanet.base.processes import LEAVING
from singanet.base.tracebacks import users_level
from singanet.checkpoint import FORMATS, write_state
from singanet.checkpoint.sharded import remove_state
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    StateMismatchError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.layers import BatchNormalization
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.averaged import Averaged, average_of, widened
from singanet.params.param import Param
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.stopping import Monitor
from singanet.training.files import FilesInFlight, check_folder
from singanet.types import Array

_EPOCHS = "*/epochs"


class _Averages(Callback):
    """``averages`` of parameters by name; with ``keep_at_end`` they end in the net."""

    _ends_first = True
    _goes_by_params = True

    def __init__(self, keep_at_end: bool) -> None:
        self.keep_at_end = bool(keep_at_end)
        self.averages: dict[str, Array] = {}

    def on_train_end(self) -> None:
        """Copy the averages into the net if ``keep_at_end``."""
        if self._ends_in_net():
            self._put(self.session.params())

    def _ends_in_net(self) -> bool:
        """Whether there are averages, and the net is to have them."""
        return self.keep_at_end and self.session.error is None and bool(self.averages)

    @contextmanager
    def applied(self, net: Net) -> Iterator[None]:
        """Return a context in which the averages are the parameters of ``net``."""
        changing = [param for param in net.params() if not param.is_constant]
        own = {param.name: param.here.copy() for param in changing}
        try:
            self._put(changing)
            yield
        finally:
            for param in changing:
                param.here[...] = own[param.name]

    def _put(self, params: Iterable[Param]) -> None:
        """Write the averages over the values of ``params``; skip read-only ones."""
        for param in params:
            if not param.is_constant:
                param.here[...] = average_of(self.averages, param)

    def state_dict(self) -> dict[str, Array]:
        """Return the averages; for parameters in slices, of this rank's slice."""
        self._cut()
        return dict(self.averages)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the averages in ``state``; a rank with slices takes its own rows.

        Errors: `StateMismatchError` for the averages of another net.
        """
        self._cut()
        for param in self.session.params():
            found = state.get(param.name)
            if found is not None and found.shape == param.shape:
                state = {**state, param.name: param.storage.here_of(found)}
        shapes = {name: array.shape for name, array in self.averages.items()}
        given = {name: array.shape for name, array in state.items()}
        if given != shapes:
            differing = [n for n in {**shapes, **given} if given.get(n) != shapes.get(n)]
            raise StateMismatchError(
                type(self).__name__,
                expected="averages of the net's parameters, or of this rank's slices",
                received=f"others: {one_of(differing, 4)}",
                advice="resume with the net that was saved",
            )
        put = self.session.net.device.put
        for name, array in state.items():
            self.averages[name][...] = put(array)

    def _cut(self) -> None:
        """Shrink each average to this rank's slice of its parameter."""
        for param in self.session.params() if self.averages else ():
            average_of(self.averages, param)


class EMA(_Averages):
    """Computes exponential moving averages a = d a + (1 − d) w of parameters and running state.

    An average a starts as the parameter w. It is updated after every step that updates parameters:
    not while gradients accumulate, or if mixed precision skips the step. It costs one copy of all
    parameters; ranks with slices of parameters average their slices. ``averages`` are the averages
    by name.

    Args:
        decay: Number in [0, 1), d.
        keep_at_end: Whether the averages become the net's parameters if the fit ends without an
            error. Otherwise they stay in ``averages`` until the next fit, and ``with
            ema.applied(net):`` puts them into the net temporarily.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> ema = singanet.training.callbacks.EMA(0.9)
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[ema], verbose=False)
        >>> sorted(ema.averages)
        ['out/bias', 'out/weight']
    """

    def __init__(self, decay: float = 0.999, keep_at_end: bool = True) -> None:
        if not isinstance(decay, (int, float)) or not 0.0 <= decay < 1.0:
            raise ArgumentError(
                "EMA, decay",
                expected="a number in [0, 1)",
                received=brief(decay),
                advice="0.999 averages over about a thousand steps",
            )
        super().__init__(keep_at_end)
        self.decay = float(decay)
        self._stage: Averaged | None = None
        self._by_itself = False

    def on_train_begin(self) -> None:
        """Start with the current parameters, as a stage around the optimizer's rule."""
        net = self.session.net
        self.session._add_stage(self._around)
        # A user's own step may update without the optimizer's stages.
        self._by_itself = type(net).step is not Net.step or "step" in vars(net)

    def _around(self, optimizer: Optimizer | Wrapper) -> Averaged:
        if self._stage is None or self._stage.optimizer is not optimizer:
            self._stage = Averaged(optimizer, self.decay)
        self._stage.begin_with(self.session.params())
        self.averages = self._stage.averages
        return self._stage

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Update the averages if the net's step is not the library's."""
        if self._by_itself and self._stage is not None:
            self._stage.follow(self.averages)


class SWA(_Averages):
    """Averages the parameters of the ends of epochs (stochastic weight averaging).

    After the fit the net has the mean over all epochs from ``start`` on; ``averages`` are the means
    by name. The running statistics of each BatchNormalization are computed anew, as means over the
    batches of one more pass over the training data. A learning rate that stays high in the last
    epochs suits it (Izmailov et al. 2018). It costs one copy of all parameters.

    Args:
        start: The first epoch, from 0 on, whose parameters count.
        keep_at_end: Whether the averages become the net's parameters if the fit ends without an
            error. Otherwise they stay in ``averages`` until the next fit, and ``with
            swa.applied(net):`` puts them into the net temporarily, with averages of statistics.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> swa = singanet.training.callbacks.SWA(start=1)
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[swa], verbose=False)
        >>> swa.epochs
        2
    """

    def __init__(self, start: int, keep_at_end: bool = True) -> None:
        super().__init__(keep_at_end)
        self.start = checked_count("SWA", "start", start, 0)
        self.epochs = 0

    def on_train_begin(self) -> None:
        """Drop the averages of an earlier fit.

        Errors: `ArgumentError` for a pipeline with BatchNormalization, whose statistics are on
        several ranks.
        """
        in_parts = self.session.ranks.here(self.session.net) is not self.session.net
        if in_parts and self._normalized():
            raise ArgumentError(
                "SWA",
                expected="a net on one rank, or without BatchNormalization",
                received="BatchNormalization in a pipeline",
                advice="use EMA, which averages the statistics",
            )
        self.averages, self.epochs = {}, 0

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Include the parameters in the averages from epoch ``start`` on."""
        if epoch < self.start:
            return
        self.epochs += 1
        for param in self.session.params():
            if self.epochs == 1:
                self.averages[param.name] = widened(param.here)
            else:
                average = average_of(self.averages, param)
                average += (param.here - average) / self.epochs

    def on_train_end(self) -> None:
        """Copy the averages into the net and renew its statistics if ``keep_at_end``."""
        super().on_train_end()
        if not self.epochs:
            warnings.warn(
                f"SWA averaged no epoch: it starts with epoch {self.start}, counted from 0, and the"
                f" fit ended after {self.session.epoch}",
                RuntimeWarning,
                stacklevel=users_level(),
            )
        if self._ends_in_net():
            self._renew_statistics()

    def _normalized(self) -> list[BatchNormalization]:
        """Return the layers with statistics, each once, also those in other layers."""
        layers = self.session.net.layers
        parts = {id(part): part for layer in layers for part in with_inner(layer)}
        return [part for part in parts.values() if isinstance(part, BatchNormalization)]

    def _renew_statistics(self) -> None:
        net, layers = self.session.net, self._normalized()
        momenta = [layer.momentum for layer in layers]
        try:
            batches = self.session.ranks.in_step(self.session.data.epoch()) if layers else ()
            for batch, (x, *_) in enumerate(batches):
                for layer in layers:
                    layer.momentum = 1.0 / (batch + 1)
                net.forward(True, x)
                net._forget_pass()
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum

    def state_dict(self) -> dict[str, Array]:
        """Return the averages, see `EMA`, and the number of epochs."""
        return {**super().state_dict(), _EPOCHS: np.array(self.epochs, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the averages. Errors: `StateMismatchError` for the averages of another net."""
        state = dict(state)
        epochs = int(state.pop(_EPOCHS, 0))
        if epochs:
            self.averages = {param.name: widened(param.here) for param in self.session.params()}
        super().load_state_dict(state)
        self.epochs = epochs


class ModelCheckpoint(Callback):
    """Writes the whole training state to ``folder``, and the best weights.

    Files are ``epoch-0003.npz`` and so on; ``step.npz`` within epochs; ``stopped.npz`` if the fit
    stops within an epoch, or ends with an error between two steps; and ``best.npz``. ``net.fit(...,
    resume=folder)`` resumes exactly from the file with the most steps; an error or interrupt within
    a step writes nothing. Files are written atomically. A lock stops other trainings from writing
    to the folder meanwhile.

    With ``asynchronous`` the files are the same to the bit. The copy stays in memory until it is
    written. Only one write is in flight: the next file, the end of the fit, an interrupt and an
    error wait for it. An error of writing is raised at the end of the next step, by the next file
    or at the end of the fit. With several ranks each writes its part of a sharded file. At the end
    of a step the training threads agree that all parts are written, so that only one thread uses
    MPI.

    Args:
        folder: Path of the folder, which is made if it is missing.
        monitor: Name of the measure by which the best epoch is chosen, such as "val_loss"; its
            parameters are written to ``best.npz``. "auto" for ``val_loss``, or ``loss`` without
            validation; None writes no best weights.
        mode: "min" or "max", the better direction; "auto" for the measure's own: "min" for losses,
            `Metric.better` for metrics.
        keep: Positive int, the number of epochs' files to keep: the last ones.
        every_epochs: Positive int, the epochs between two files; the last epoch always has one.
        every_steps: Positive int, the steps between two writes of ``step.npz``; None for none.
        format: "npz", "safetensors" or "hdf5"; or "sharded" for an index and a file of each rank,
            which all ranks write at the same time.
        every_minutes: Positive number; ``step.npz`` is written after the first step that ends so
            long after the last file. None for none.
        clock: Function that returns the time in seconds.
        asynchronous: Whether a background thread writes a copy of the state while training
            continues.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> saving = singanet.training.callbacks.ModelCheckpoint("run", keep=2)
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[saving], verbose=False)
        >>> sorted(path.name for path in saving.folder.glob("epoch*"))
        ['epoch-0002.npz', 'epoch-0003.npz']
    """

    _runs_last = True

    def __init__(
        self,
        folder: str | PathLike[str],
        monitor: str | None = "auto",
        mode: str = "auto",
        keep: int = 3,
        every_epochs: int = 1,
        every_steps: int | None = None,
        format: str = "npz",
        *,
        every_minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        asynchronous: bool = False,
    ) -> None:
        where = "ModelCheckpoint"
        self.folder = path_of(folder, "folder")
        self.monitor = None if monitor is None else Monitor(where, monitor, mode)
        self.keep = checked_count(where, "keep", keep, 1)
        self.every_epochs = checked_count(where, "every_epochs", every_epochs, 1)
        self.every_steps = (
            None if every_steps is None else checked_count(where, "every_steps", every_steps, 1)
        )
        known = ("npz", "safetensors", "hdf5", "sharded")
        if format not in known:
            raise UnknownNameError(
                f"{where}, format",
                expected=one_of(known),
                received=brief(format),
                advice=did_you_mean(format, FORMATS, "npz is usual"),
            )
        self.every_minutes = _checked_minutes(where, every_minutes)
        self.clock = clock
        self.asynchronous = bool(asynchronous)
        self._background = FilesInFlight()
        self._last_written = clock()
        self._suffix = FORMATS[format].suffixes[0]

    def on_train_begin(self) -> None:
        """Make the folder, and lock it.

        Errors: `FileAccessError`, also if another training has locked it; an unknown monitor;
        `ArgumentError` for asynchronous copies of a net with a limit of memory.
        """
        if self.asynchronous:
            _expect_room(self.session.params())
        if self.session.rank == 0:
            check_folder(self.folder)
            hold(self.folder, self.session, self)
        self._last_written = self.clock()
        if self.monitor is not None:
            self.monitor.begin(self.session.names, self.session.compiled.metrics, self.session.adds)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write ``step.npz`` if it is due; complete files written since the last step."""
        self._background.look()
        by_steps = self.every_steps is not None and self.session.step % self.every_steps == 0
        if by_steps or self._minutes_are_over():
            self._write("step")
            _leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the epoch's file and the best weights, and remove old files."""
        best = self.monitor is not None and self.monitor.better(self.monitor.value(logs))
        ended = self.session.stopping or epoch + 1 == self.session.epochs
        due = self.session.of_first(ended) or (epoch + 1) % self.every_epochs == 0
        if best or due:
            self._write(f"epoch-{epoch + 1:04d}" if due else None, best)
        if due and not ended:
            _leave_if_asked()

    def on_train_end(self) -> None:
        """Wait for files in flight, and unlock the folder."""
        try:
            if self.session.error is None:
                self._background.finish()
            else:
                self._background.give_up()
        finally:
            if self.session.rank == 0:
                let_go(self.folder, self)

    def on_stop(self) -> None:
        """Write ``stopped.npz``: the fit stops within an epoch, after a step."""
        self._background.finish()
        self._write("stopped", at_once=True)

    def on_error(self, error: BaseException) -> None:
        """Write ``stopped.npz`` if a step was run and the state is consistent.

        Files in flight are finished first.
        """
        if not self.session._can_write:
            self._background.give_up()
            return
        try:
            self._background.finish()
        finally:
            if self.session.step:
                self._write("stopped", at_once=True)

    def state_dict(self) -> dict[str, Array]:
        """Return the best value so far."""
        if self.monitor is None:
            return {}
        return {"best": np.array(self.monitor.best, np.float64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the best value."""
        if self.monitor is not None:
            self.monitor.best = float(state["best"])

    def _path(self, name: str) -> Path:
        path = self.folder / f"{name}{self._suffix}"
        expect_inside(self.folder, path)
        return path

    def _write(self, name: str | None, best: bool = False, at_once: bool = False) -> None:
        """Write the state to the file ``name``, and the best weights; then remove old files."""
        path = None if name is None else self._path(name)
        then = self._remove_old if name is not None and name.startswith("epoch-") else _nothing
        if self.asynchronous and not at_once:
            # Wait before copying: only one copy at a time is in memory.
            self._background.finish()
            best_path = self._path("best") if best else None
            self._background.start(self.session._copies(path, best_path), then)
        else:
            if best:
                weights = self.session.weights()
                self.session.on_first(lambda: write_state(self._path("best"), weights))
            if path is not None:
                self.session.write(path)
            then()
        if path is not None:
            self._last_written = self.clock()

    def _remove_old(self) -> None:
        """Remove all but the last files of epochs."""
        for old in self._epoch_files()[: -self.keep] if self.session.rank == 0 else ():
            remove_state(old)

    def _minutes_are_over(self) -> bool:
        if self.every_minutes is None:
            return False
        over = self.clock() - self._last_written >= 60.0 * self.every_minutes
        return bool(self.session.of_first(over))

    def _epoch_files(self) -> list[Path]:
        """Return the epochs' files, oldest first."""
        pattern = re.compile(rf"epoch-(\d+){re.escape(self._suffix)}")
        found = {
            path: int(match[1])
            for path in self.folder.iterdir()
            if (match := pattern.fullmatch(path.name))
        }
        return sorted(found, key=lambda path: found[path])


def _nothing() -> None:
    """Remove no old file."""


def _leave_if_asked() -> None:
    """Raise KeyboardInterrupt if the launcher waits for a checkpoint to restart from."""
    if LEAVING.asked:
        LEAVING.leave()


def _expect_room(params: Iterable[Param]) -> None:
    """Refuse a net with a limit of memory. Errors: `ArgumentError`."""
    for param in params:
        if param.storage.bounded:
            raise ArgumentError(
                "ModelCheckpoint, asynchronous",
                expected="a net in memory, since a copy of its state is written",
                received=f"{param.name!r}, which is {param.storage.place}",
                advice=f"omit asynchronous, or {param.storage.way_back}",
            )


def _checked_minutes(where: str, minutes: float | None) -> float | None:
    if minutes is None:
        return None
    number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    if not number or not 0 < minutes < math.inf:
        raise ArgumentError(
            f"{where}, every_minutes",
            expected="a number above 0, or None",
            received=brief(minutes)[:60],
            advice="pass every_minutes=10 to lose no more than ten minutes",
        )
    return float(minutes)
