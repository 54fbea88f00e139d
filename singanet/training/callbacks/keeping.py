"""Callbacks that keep averages and checkpoints."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.files import expect_inside, hold, let_go, path_of
from singanet.base.processes import LEAVING
from singanet.checkpoint import FORMATS, write_state
from singanet.checkpoint.sharded import remove_state
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    StateMismatchError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.averaged import Averaged, average_of
from singanet.params.param import Param
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.stopping import Monitor
from singanet.training.files import FilesInFlight, check_folder
from singanet.types import Array


class EMA(Callback):
    """a = d a + (1 − d) w after every step that updates, for every parameter and running state w.

    ``decay`` d; a begins as w, and what is not trained stays that. A batch whose gradients are
    only accumulated, or whose step mixed precision skips, is no such step. With ``keep_at_end``
    the averages are the net's parameters when the fit ends without an error, otherwise they are
    in ``averages`` by name until the next fit, and ``with ema.applied(net):`` lends them to the
    net. Costs one copy of all parameters; of those in slices each rank averages its own.
    """

    _ends_first = True
    _goes_by_params = True

    def __init__(self, decay: float = 0.999, keep_at_end: bool = True) -> None:
        if not isinstance(decay, (int, float)) or not 0.0 <= decay < 1.0:
            raise ArgumentError(
                "EMA, decay",
                expected="a number in [0, 1)",
                received=repr(decay),
                advice="0.999 averages over about a thousand steps",
            )
        self.decay = float(decay)
        self.keep_at_end = bool(keep_at_end)
        self.averages: dict[str, Array] = {}
        self._stage: Averaged | None = None
        self._by_itself = False

    def on_train_begin(self) -> None:
        """Begin with the parameters as they are, behind the optimizer's rule."""
        net = self.session.net
        self.session._add_stage(self._around)
        # What a step of the user's own updates by, nobody knows.
        self._by_itself = type(net).step is not Net.step or "step" in vars(net)

    def _around(self, optimizer: Optimizer | Wrapper) -> Averaged:
        if self._stage is None or self._stage.optimizer is not optimizer:
            self._stage = Averaged(optimizer, self.decay)
        self._stage.begin_with(self.session.params())
        self.averages = self._stage.averages
        return self._stage

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Take a step of the averages, where the net's step is not the library's."""
        if self._by_itself and self._stage is not None:
            self._stage.follow(self.averages)

    def on_train_end(self) -> None:
        """Hand the averages over to the net, where that was asked for."""
        if self.keep_at_end and self.session.error is None:
            self._put(self.session.params())

    @contextmanager
    def applied(self, net: Net) -> Iterator[None]:
        """Within the block ``net`` has the averages as its parameters."""
        changing = [param for param in net.params() if not param.is_constant]
        own = {param.name: param.here.copy() for param in changing}
        try:
            self._put(changing)
            yield
        finally:
            for param in changing:
                param.here[...] = own[param.name]

    def _put(self, params: Iterable[Param]) -> None:
        """Write the averages over the values of ``params``; read-only ones never differ."""
        for param in params:
            if not param.is_constant:
                param.here[...] = average_of(self.averages, param)

    def state_dict(self) -> dict[str, Array]:
        """The averages, of parameters in slices those of this rank's."""
        self._cut()
        return dict(self.averages)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on with these averages, of which a rank with slices takes its own.

        Errors: `StateMismatchError` for those of another net.
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
                "EMA",
                expected="averages of the net's parameters, or of the slices that are here",
                received=f"others: {one_of(differing, 4)}",
                advice="resume with the net that was saved",
            )
        put = self.session.net.device.put
        for name, array in state.items():
            self.averages[name][...] = put(array)

    def _cut(self) -> None:
        """Have no more of any average than there is of its parameter here."""
        for param in self.session.params() if self.averages else ():
            average_of(self.averages, param)


class ModelCheckpoint(Callback):
    """Writes the whole training state to ``folder``, and the best weights beside it.

    After every ``every_epochs`` epochs ``epoch-0003.npz``, of which the last ``keep`` stay;
    ``step.npz`` after every ``every_steps`` steps, and at the end of the first step
    ``every_minutes`` after the last file, by ``clock``, which tells seconds; ``stopped.npz``
    where the fit stops within an epoch, or ends with an error between two steps.
    ``net.fit(..., resume=folder)`` goes on from whichever got furthest, to the bit; so an error or
    interrupt within a step writes nothing, and the file before it counts. ``best.npz`` holds the
    parameters alone, by their names, from the epoch in which ``monitor`` was best; None writes
    none. Files appear whole or not at all; with ``format="sharded"`` they are an index and a file
    of each rank, which all ranks write at the same time. No second training can write to the
    folder meanwhile.

    With ``asynchronous`` files are written while steps go on. They are of a copy of the state,
    which is held in memory until it is written, and are what they would be without, to the bit.
    One is in flight: the next waits for it, as do the end of the fit, an interrupt and an error. An
    error of writing is raised at the end of the next step, by the next file or at the end of the
    fit. Of several ranks each writes its part of a sharded file by itself; they agree that all is
    there, which makes it count, at the end of a step and in the thread that trains, so that MPI
    has one thread to serve.
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
                received=repr(format),
                advice=did_you_mean(format, FORMATS, "npz is the usual one"),
            )
        self.every_minutes = _checked_minutes(where, every_minutes)
        self.clock = clock
        self.asynchronous = bool(asynchronous)
        self._background = FilesInFlight()
        self._last_written = clock()
        self._suffix = FORMATS[format].suffixes[0]

    def on_train_begin(self) -> None:
        """Make the folder, and lock it.

        Errors: `FileAccessError`, also where another training has it; nothing of the monitor's
        name; `ArgumentError` for copies of a net that is told how much memory to keep.
        """
        if self.asynchronous:
            _expect_room(self.session.params())
        if self.session.rank == 0:
            check_folder(self.folder)
            hold(self.folder, self.session, self)
        self._last_written = self.clock()
        if self.monitor is not None:
            self.monitor.begin(self.session.names, self.session.compiled.metrics)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write ``step.npz`` where it is due; end what was written since the step before."""
        self._background.look()
        by_steps = self.every_steps is not None and self.session.step % self.every_steps == 0
        if by_steps or self._minutes_are_over():
            self._write("step")
            _leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the epoch's file and the best weights, and remove what is too old."""
        best = self.monitor is not None and self.monitor.better(logs[self.monitor.name])
        ended = self.session.stopping or epoch + 1 == self.session.epochs
        due = self.session.of_first(ended) or (epoch + 1) % self.every_epochs == 0
        if best or due:
            self._write(f"epoch-{epoch + 1:04d}" if due else None, best)
        if due and not ended:
            _leave_if_asked()

    def on_train_end(self) -> None:
        """Wait for what is in flight, and let other trainings write to the folder."""
        try:
            if self.session.error is None:
                self._background.finish()
            else:
                self._background.give_up()
        finally:
            if self.session.rank == 0:
                let_go(self.folder, self)

    def on_stop(self) -> None:
        """Write ``stopped.npz``: the fit ends within an epoch, at the end of a step."""
        self._background.finish()
        self._write("stopped", at_once=True)

    def on_error(self, error: BaseException) -> None:
        """Write ``stopped.npz``, if any step was taken and the last one is whole.

        What is in flight is waited for.
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
        """The best value so far."""
        if self.monitor is None:
            return {}
        return {"best": np.array(self.monitor.best, np.float64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        if self.monitor is not None:
            self.monitor.best = float(state["best"])

    def _path(self, name: str) -> Path:
        path = self.folder / f"{name}{self._suffix}"
        expect_inside(self.folder, path)
        return path

    def _write(self, name: str | None, best: bool = False, at_once: bool = False) -> None:
        """Write the state to the file called ``name``, and the best weights; old files go then."""
        path = None if name is None else self._path(name)
        then = self._remove_old if name is not None and name.startswith("epoch-") else _nothing
        if self.asynchronous and not at_once:
            # Not before: there is one copy at a time.
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
        """Remove the files of epochs but the last ones."""
        for old in self._epoch_files()[: -self.keep] if self.session.rank == 0 else ():
            remove_state(old)

    def _minutes_are_over(self) -> bool:
        if self.every_minutes is None:
            return False
        over = self.clock() - self._last_written >= 60.0 * self.every_minutes
        return bool(self.session.of_first(over))

    def _epoch_files(self) -> list[Path]:
        """The epochs' files, the oldest first."""
        pattern = re.compile(rf"epoch-(\d+){re.escape(self._suffix)}")
        found = {
            path: int(match[1])
            for path in self.folder.iterdir()
            if (match := pattern.fullmatch(path.name))
        }
        return sorted(found, key=lambda path: found[path])


def _nothing() -> None:
    """What follows a file beside which none is too old."""


def _leave_if_asked() -> None:
    """Errors: KeyboardInterrupt where the launcher waits for a checkpoint to go on from."""
    if LEAVING.asked:
        LEAVING.leave()


def _expect_room(params: Iterable[Param]) -> None:
    """Errors: `ArgumentError` for a parameter of a net that keeps so many bytes in memory."""
    for param in params:
        if param.storage.bounded:
            raise ArgumentError(
                "ModelCheckpoint, asynchronous",
                expected="a net in memory, as a copy of its state is held while it is written",
                received=f"{param.name!r}, which is {param.storage.place}",
                advice=f"leave asynchronous out, or {param.storage.way_back}",
            )


def _checked_minutes(where: str, minutes: float | None) -> float | None:
    if minutes is None:
        return None
    number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    if not number or not 0 < minutes < math.inf:
        raise ArgumentError(
            f"{where}, every_minutes",
            expected="a number above 0, or None",
            received=repr(minutes)[:60],
            advice="pass every_minutes=10 to lose no more than ten minutes",
        )
    return float(minutes)
