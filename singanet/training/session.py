"""A fit under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np

from singanet.base.seeding import seeded_apart
from singanet.checkpoint.entry import Source, sources_of
from singanet.device import cpu
from singanet.engine.model import Model
from singanet.errors import CallOrderError, SingaNetError, StateMismatchError, one_of
from singanet.metric import Metric
from singanet.optimizer import Accumulator, MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.sources import state_sources
from singanet.params.param import Param
from singanet.training.batches import Batches, WeightedBatch
from singanet.training.compiled import Compiled
from singanet.training.files import session_entry
from singanet.training.history import History
from singanet.training.measures import Measures
from singanet.training.micro_batches import MicroBatches
from singanet.training.own_state import as_of_rank, is_own, own_entries
from singanet.training.progress import FORMAT, Progress, parse_progress
from singanet.training.ranks import FitRanks
from singanet.training.steps import Step, stepper, with_empty_batches
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
        ranks: FitRanks | None = None,
    ) -> None:
        self.net = net
        self.ranks = ranks
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
        self.measures = compiled.measures(net.loss)
        self.names = self.measures.names()
        if validation is not None:
            self.names += [f"val_{name}" for name in self.names]
        if self.rule.lr is not None and "lr" not in self.names:
            self.names.append("lr")
        if ranks is not None:
            self.names += ["bytes_sent", "bytes_received"]
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
        """End the training after the step in work; the first reason given stands.

        Of several ranks any may ask for it; all end after the same step.
        """
        if self.ranks is None:
            self.stopped = self.stopped or reason
        else:
            self.ranks.asked = self.ranks.asked or reason

    @property
    def stopping(self) -> bool:
        """Whether the training is to end before its last epoch, as far as this rank knows."""
        return self.stopped is not None or (self.ranks is not None and self.ranks.asked is not None)

    @property
    def rank(self) -> int:
        """Which of the ranks that train together this is: 0 prints, and writes files."""
        return 0 if self.ranks is None else self.ranks.rank

    def runs(self, callback: Stateful) -> bool:
        """Whether ``callback`` is one that this rank runs."""
        return self.rank == 0 or not getattr(callback, "first_rank_only", False)

    def of_first(self, value: Any) -> Any:
        """What rank 0 says, on all ranks, which call it at the same point: plain data, arrays."""
        return value if self.ranks is None else self.ranks.of_first(value, "what rank 0 decides")

    def on_first(self, work: Callable[[], object]) -> None:
        """``work()`` on rank 0, where the parameters of all can be read; all ranks call it."""
        if self.ranks is None:
            work()
        else:
            self.ranks.on_first(work)

    def params(self) -> list[Param]:
        """The parameters of the net that are on this rank: all, but of a net on stages."""
        here = self.net if self.ranks is None else self.ranks.here(self.net)
        return list(here.params())

    @property
    def can_write(self) -> bool:
        """Whether a state can be had after the error that ends the fit: all ranks know of it."""
        return self.phase == "whole" and (self.ranks is None or self.ranks.agreed)

    def batches(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the epoch in work."""
        return self.data.epoch(self.batch) if self.ranks is None else self.ranks.batches(self)

    def ended_within(self) -> bool:
        """Whether the training ends after a batch that is not the last one of its epoch."""
        if self.ranks is not None:
            return self.ranks.within
        return self.stopped is not None and self.batch != self.data.steps

    def add_stage(self, stage: Callable[[Optimizer | Wrapper], Wrapper]) -> None:
        """Let steps go through ``stage`` of the optimizer, from the next one on.

        It is no part of ``optimizer``, nor of its state.
        """
        self._outermost = stage(self._outermost)
        self.train_batch = self._stepper()

    def _stepper(self) -> Step:
        outer = self.compiled.scaled(self._outermost)
        step: Step = stepper(self.net, outer)
        if self._gathered is not None and self._micro_batch is not None:
            most = None if self.ranks is None else self.ranks.most
            step = MicroBatches(self.net, self._gathered, outer, self._micro_batch, most)
        return step if self.ranks is None else with_empty_batches(step)

    def meet(self) -> None:
        """Begin with the values of rank 0, where that was not done: what is loaded stays then."""
        here = self.net if self.ranks is None else self.ranks.here(self.net)
        UpdateChain(self.compiled.scaled(self._outermost)).meet(here)

    def join(self) -> None:
        """Say that this process has no more batches for now; others may have."""
        # One that goes on from the end of an epoch has taken no step yet.
        self.meet()
        for stage in UpdateChain(self.compiled.scaled(self._outermost)).reducers:
            stage.join()

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers, whose ``lr`` is the learning rate."""
        rule: Optimizer = UpdateChain(self.optimizer).rule
        return rule

    def state(self) -> dict[str, Array]:
        """All that is needed to go on from here, as copies by name: see `training_sources`.

        A callback that asks for it sets ``runs_last``, so that the others have seen the step. All
        ranks ask at the same point: running state is unified, parameters are compared; those
        other than 0 get nothing.
        Errors: `CallOrderError` within a step, of which a half could be in it.
        """
        self._expect_whole()
        return training_state(self)

    def sources(self) -> list[Source]:
        """What `state` copies, as sources of its arrays, to be written before the next step.

        Each has to be asked for its array: of several ranks the others wait until theirs are.
        Errors: as for `state`.
        """
        self._expect_whole()
        return training_sources(self)

    def _expect_whole(self) -> None:
        if self.phase == "step":
            raise CallOrderError(
                "session.state",
                expected="the end of a step or of an epoch",
                received="a call within a step",
                advice="ask in on_batch_end, on_epoch_end or on_stop",
            )


def training_state(session: Session) -> dict[str, Array]:
    """Copies on the CPU of what `training_sources` gives."""
    return {source.name: np.array(source.array()) for source in training_sources(session)}


def training_sources(session: Session) -> list[Source]:
    """Parameters, optimizer, generator, position in the data, history, metrics, callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). It resumes to the bit. Of several ranks it is rank 0's, with position and generator of
    each, and what else is each rank's own: see `own_entries`. There ``net/...`` is the running
    state of all, ``local/...`` the rank's; nothing on the others.
    """
    net, measures = session.net, session.measures
    every: list[dict[str, Any]] = []
    if session.ranks is None:
        found = own_sources(session)
    else:
        # A training that is saved goes on as one that is not: each rank with its running state.
        here = session.params()
        moved = [param for param in here if param.is_state and not param.is_constant]
        local = {f"local/{param.name}": _copy(param.value) for param in moved}
        every = session.ranks.state_of_all(session)
        measures = session.ranks.merged(measures)
        # The running state of all stands in the parameters only here.
        merged = {f"net/{param.name}": _copy(param.value) for param in moved}
        for param in moved:
            param.value[...] = net.device.put(local[f"local/{param.name}"])
        where = "session.state"
        shared = [replace(_source(param), name=f"net/{param.name}") for param in here]
        in_file = {each.name: each for each in [*shared, *sources_of(merged, where)]}
        learnt = [*_learnt(session), *sources_of(local, where)]
        apart = [*in_file.values(), *learnt] if session.ranks.apart else learnt
        learnt += own_entries(session.ranks.comm, apart)
        if session.rank:
            return []
        in_file |= {each.name: each for each in learnt}
        found = [replace(s, name=key) for key, s in session.ranks.whole(in_file).items()]
    return found + progress_sources(session, measures, session.position(), every)


def own_sources(session: Session) -> list[Source]:
    """What `training_sources` has of this process but for its progress, as it stands there."""
    own = [replace(each, name=f"net/{each.name}") for each in param_sources(session.net)]
    return own + _learnt(session)


def _learnt(session: Session) -> list[Source]:
    """The state of optimizer, precision and callbacks."""
    own = state_sources(session.optimizer)
    learnt = [replace(each, name=f"optimizer/{each.name}") for each in own]
    if session.compiled.precision is not None:
        scaling = sources_of(session.compiled.precision.state_dict(), "session.state")
        learnt += [replace(each, name=f"precision/{each.name}") for each in scaling]
    for place, callback in enumerate(session.callbacks):
        start = f"callback/{place}.{type(callback).__name__}"
        if session.runs(callback):
            kept = sources_of(callback.state_dict(), "session.state")
            learnt += [replace(each, name=f"{start}/{each.name}") for each in kept]
    return learnt


def progress_sources(
    session: Session,
    measures: Measures,
    position: Mapping[str, int],
    every: Sequence[Mapping[str, Any]] = (),
) -> list[Source]:
    """How far ``session`` is, and what ``measures`` have gathered in the epoch in work.

    ``every`` has position, generator and samples of each of several ranks.
    """
    state: dict[str, Array] = {}
    metrics: dict[str, Any] = {}
    if session.batch:
        gathered, metrics = save_metrics(measures.metrics)
        state |= {f"metric/{key}": v for key, v in gathered.items()}
    about = {
        "format": FORMAT,
        "epoch": session.epoch,
        "batch": session.batch,
        "step": session.step,
        "begun": session.compiled.epochs,
        "losses": measures.losses,
        "samples": measures.samples,
        "metrics": metrics,
        "data": dict(position),
        "seed": int(session.net.seed),
        "generator": session.net.rng.bit_generator.state,
        "ranks": list(every),
        "history": {"epochs": session.history.epochs, "values": dict(session.history)},
    }
    if session.ranks is not None and session.ranks.apart:
        about["stages"] = session.ranks.places
    state["session"] = session_entry(about)
    return sources_of(state, "session.state")


def param_sources(net: Model) -> list[Source]:
    """The parameters of ``net``, one after the other, wherever they are."""
    return list(map(_source, net.params()))


def _source(param: Param) -> Source:
    dtype = np.dtype(param.array_type).newbyteorder("<")
    return Source(param.name, param.shape, dtype, param.peek, param.parts)


def restore(session: Session, state: Mapping[str, Array]) -> None:
    """Bring ``session`` to where the one of `training_sources` stood.

    Errors: `StateMismatchError` for parameters or callbacks that differ, naming them with both
    shapes, and for state that data, optimizer, metrics or callbacks do not take; `FileFormatError`
    for a state that is not whole; `VersionError`. After any of them all is as it was.
    """
    net = session.net
    progress = parse_progress(state, net.rng.bit_generator)
    data, generator = _own_part(session, progress, state)
    state = as_of_rank(state, session.rank if _is_as_it_was(session, progress) else 0)
    if _is_as_it_was(session, progress):
        state |= {f"net/{name}": array for name, array in _below("local/", state).items()}
    check_net(net, state)
    by_callback = _callback_states(session, state)
    precision, scaling = session.compiled.precision, _below("precision/", state)
    _check_precision(precision, scaling)
    with _on_stages(session, progress), _undoing(session):
        session.data.load_state_dict(data)
        steps = session.data.steps
        if steps is not None and progress.batch > steps:
            received = f"batch {progress.batch}"
            raise _mismatch("net.fit, resume", f"at most {steps} batches an epoch", received)
        here = session.params()
        learnt = _below("optimizer/", state)
        away = {param.name for param in net.params()} - {param.name for param in here}
        session.optimizer.load_state_dict(
            {key: array for key, array in learnt.items() if key.rpartition("/")[0] not in away}
        )
        session.rule.check_loaded({param.name: param.value for param in here})
        if precision is not None:
            precision.load_state_dict(scaling)
        # What was gathered so far counts once.
        if progress.batch and (session.ranks is None or session.ranks.has_measured):
            metrics, arrays = session.measures.metrics, _below("metric/", state)
            load_metrics(metrics, progress.metrics, arrays)
            session.measures.losses = dict(progress.losses)
            session.measures.samples = progress.samples
        for callback, own in by_callback:
            callback.load_state_dict(own)
        for param in here:
            param.put(net.device.put(state[f"net/{param.name}"]))
    if session.ranks is not None:
        same = bool(progress.ranks) and _is_as_it_was(session, progress)
        seen = progress.ranks[session.rank].samples if same else 0
        session.ranks.go_on(seen, session.measures)
    session.net.rng.bit_generator.state = generator
    _go_on(session, progress)


def _on_stages(session: Session, progress: Progress) -> AbstractContextManager[None]:
    """Layers on the stages that they were saved on: each stage goes on from draws of its own."""
    as_it_was = session.ranks is not None and _is_as_it_was(session, progress)
    return session.ranks.moved(progress.stages) if session.ranks and as_it_was else nullcontext()


def _is_as_it_was(session: Session, progress: Progress) -> bool:
    """Whether there are as many ranks as were saved."""
    size = 1 if session.ranks is None else session.ranks.size
    return size == max(len(progress.ranks), 1)


def _own_part(
    session: Session, progress: Progress, state: Mapping[str, Array]
) -> tuple[dict[str, int], Any]:
    """Position and generator: this rank's own, or where others were saved what follows on them.

    Errors: a position, or parts of micro-batches, that say nothing to another number of ranks.
    """
    size = 1 if session.ranks is None else session.ranks.size
    if _is_as_it_was(session, progress):
        own = progress.ranks[session.rank] if progress.ranks else None
        return (own.data, own.generator) if own else (progress.data, progress.generator)
    if "drawn" in progress.data:
        raise _mismatch(
            "net.fit, resume",
            f"{max(len(progress.ranks), 1)} ranks, as they were, for data that keep no position",
            f"{size}",
        )
    keys = (key.split("/", 2)[2] if is_own(key) else key for key in state)
    if any(key.startswith("optimizer/") and key.endswith("/gathered") for key in keys):
        raise _mismatch(
            "net.fit, resume",
            f"as many ranks as were, {max(len(progress.ranks), 1)}, between micro-batches",
            f"{size}",
        )
    like = session.net.rng.bit_generator
    return progress.data, seeded_apart(progress.generator, like, session.rank)


def _go_on(session: Session, progress: Progress) -> None:
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
        (callback, {key: _copy(array) for key, array in callback.state_dict().items()})
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
        if own is not None and session.runs(callback):
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
