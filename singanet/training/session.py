"""A fit under way, and where its batches come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint import FORMATS
from singanet.checkpoint.entry import Source, sources_of
from singanet.checkpoint.formats import OneFile, Writing
from singanet.engine.net import Net
from singanet.errors import CallOrderError
from singanet.optimizer import Accumulator, Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain, state_sources
from singanet.params.param import Param
from singanet.params.param_files import param_sources
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.course import Course
from singanet.training.files import FORMAT, session_entry
from singanet.training.measures import Measures, save_metrics
from singanet.training.options import FitOptions, Stateful
from singanet.training.ranks import World
from singanet.training.steps import MicroBatches, Step, stepper
from singanet.types import Array

WHERE = "session.state"


def training_sources(
    course: Course, ranks: World, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """Parameters, optimizer, generator, position in the data, history, metrics, callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). It resumes to the bit. Of several ranks it is rank 0's, with position and generator of
    each, and what else is each rank's own: see `own_entries`. There ``net/...`` is the running
    state of all, ``local/...`` the rank's; nothing on the others. With ``first_rows`` each rank
    gives what it is to write itself, parts of arrays with the rows that they begin with, by name.
    """
    own = partial(own_sources, course, ranks, first_rows)
    measures = course.measures.copied()
    samples = ranks.own_samples(measures)
    stands = {
        "data": dict(course.position()),
        "generator": course.net.rng.bit_generator.state,
        "samples": samples,
    }
    ranks.merge(measures)
    found, every = ranks.joined(course.net, own, stands, samples, first_rows)
    if ranks.rank:
        return found
    return found + progress_sources(course, ranks, measures, course.position(), every)


def own_sources(
    course: Course, ranks: World, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """What `training_sources` has of this process but for its progress, as it stands there."""
    begins: dict[str, int] | None = None if first_rows is None else {}
    learnt = state_sources(course.optimizer, begins)
    if first_rows is not None and begins is not None:
        first_rows |= {f"optimizer/{name}": first for name, first in begins.items()}
    return [
        *param_sources(ranks.here(course.net).params(), "net/"),
        *named_below("optimizer", learnt),
        *(
            source
            for start, each in keepers(course, ranks).items()
            for source in named_below(start, sources_of(each.state_dict(), WHERE))
        ),
    ]


def keepers(course: Course, ranks: World) -> dict[str, Stateful]:
    """What this rank has that keeps a state beside the optimizer, by where its arrays stand."""
    precision = course.compiled.precision
    found: dict[str, Stateful] = {} if precision is None else {"precision": precision}
    for name, callback in callbacks_by_name(course).items():
        if ranks.runs(callback):
            found[name] = callback
    return found


def callbacks_by_name(course: Course) -> dict[str, Stateful]:
    """The callbacks of all ranks, by where the arrays of each stand."""
    return {
        f"callback/{place}.{type(callback).__name__}": callback
        for place, callback in enumerate(course.callbacks)
    }


def named_below(start: str, sources: Sequence[Source]) -> list[Source]:
    """``sources`` with ``start`` and a slash in front of their names."""
    return [replace(each, name=f"{start}/{each.name}") for each in sources]


def progress_sources(
    course: Course,
    ranks: World,
    measures: Measures,
    position: Mapping[str, int],
    every: Sequence[Mapping[str, Any]] = (),
) -> list[Source]:
    """How far ``course`` is, and what ``measures`` have gathered in the epoch in work.

    ``every`` has position, generator and samples of each of several ranks.
    """
    state: dict[str, Array] = {}
    metrics: dict[str, Any] = {}
    if course.batch:
        gathered, metrics = save_metrics(measures.metrics)
        state |= {f"metric/{key}": v for key, v in gathered.items()}
    about = {
        "format": FORMAT,
        "epoch": course.epoch,
        "batch": course.batch,
        "step": course.step,
        "begun": course.compiled.epochs,
        "losses": measures.losses,
        "samples": measures.samples,
        "metrics": metrics,
        "data": dict(position),
        "seed": int(course.net.seed),
        "generator": course.net.rng.bit_generator.state,
        "ranks": list(every),
        "stages": ranks.places,
        "history": {"epochs": course.history.epochs, "values": dict(course.history)},
    }
    state["session"] = session_entry(about)
    return sources_of(state, WHERE)


class Session(Course):
    """A fit under way, as callbacks see it and as training checkpoints store it.

    ``names`` are the keys of an epoch's logs, ``ranks`` the processes that train together.
    """

    def __init__(
        self,
        net: Net,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        options: FitOptions,
        ranks: World,
    ) -> None:
        super().__init__(net, compiled, optimizer, data, validation, options)
        self.ranks = ranks
        self._in_parts: Callable[[Step], Step] | None = None
        self._outermost = optimizer
        if options.micro_batch is not None:
            # Between batches it holds nothing, so that no checkpoint knows of it.
            gathered = self._outermost = Accumulator(optimizer, 1)
            self._in_parts = partial(MicroBatches, net, gathered, options.micro_batch, ranks.most)
        self.train_batch = self._stepper()
        self.names = self.measures.names()
        if validation is not None:
            self.names += [f"val_{name}" for name in self.names]
        if self.rule.learning_rate is not None and "lr" not in self.names:
            self.names.append("lr")
        self.names += ranks.counted

    def stop(self, reason: str) -> None:
        """End the training after the step in work; the first reason given stands.

        Of several ranks any may ask for it; all end after the same step.
        """
        self.ranks.stop(self, reason)

    @property
    def stopping(self) -> bool:
        """Whether the training is to end before its last epoch, as far as this rank knows."""
        return self.stopped is not None or self.ranks.asked is not None

    @property
    def rank(self) -> int:
        """The rank of this process: 0 prints, and writes files."""
        return self.ranks.rank

    def of_first(self, value: Any) -> Any:
        """What rank 0 says, on all ranks, which call it at the same point: plain data, arrays."""
        return self.ranks.of_first(value, "what rank 0 decides")

    def on_first(self, work: Callable[[], object]) -> None:
        """``work()`` on rank 0, where the parameters of all can be read; all ranks call it."""
        self.ranks.on_first(work)

    def weights(self) -> list[Source]:
        """The parameters, to be written by `on_first` at once; all ranks call it."""
        whole = {each.name: each for each in self.ranks.slices(self.net)}
        return [whole.get(each.name, each) for each in param_sources(self.net.params())]

    def params(self) -> list[Param]:
        """The parameters of the net that are on this rank: all, but of a net on stages."""
        return list(self.ranks.here(self.net).params())

    @property
    def _can_write(self) -> bool:
        """Whether a state can be had after the error that ends the fit: all ranks know of it."""
        return self.phase == "whole" and self.ranks.agreed

    def _add_stage(self, stage: Callable[[Optimizer | Wrapper], Wrapper]) -> None:
        """Let steps go through ``stage`` of the optimizer, from the next one on.

        It is no part of ``optimizer``, nor of its state.
        """
        self._outermost = stage(self._outermost)
        self.train_batch = self._stepper()

    def _stepper(self) -> Step:
        step = stepper(self.net, self.compiled.scaled(self._outermost))
        return self.ranks.stepped(step if self._in_parts is None else self._in_parts(step))

    def _meet(self) -> None:
        """Begin with the values of rank 0, where that was not done: what is loaded stays then."""
        chain = UpdateChain(self.compiled.scaled(self._outermost))
        chain.meet(self.ranks.here(self.net))

    def _join(self) -> None:
        """Say that this process has no more batches for now; others may have."""
        # One that goes on from the end of an epoch has taken no step yet.
        self._meet()
        for stage in UpdateChain(self.compiled.scaled(self._outermost)).reducers:
            stage.join()

    def state(self) -> dict[str, Array]:
        """The state to resume from, as copies by name: see `training_sources`.

        A callback that asks for it sets ``_runs_last``, so that the others have seen the step. All
        ranks ask at the same point: running state is unified, parameters are compared; those
        other than 0 get nothing.
        Errors: `CallOrderError` within a step, of which a half could be in it.
        """
        self._expect_whole()
        return training_state(self)

    def _sources(self) -> list[Source]:
        """What `state` copies, as sources of its arrays, to be written before the next step.

        Each has to be asked for its array: of several ranks the others wait until theirs are.
        Errors: as for `state`.
        """
        self._expect_whole()
        return training_sources(self, self.ranks)

    def write(self, path: Path) -> None:
        """Write `_sources` to ``path``, in the format of its suffix; all ranks call it.

        Rank 0 writes, but a sharded file all ranks do, each what it has. Errors: as for `state`,
        and of files.
        """
        for writing in self._writings(path, self._sources_for(path)):
            writing.write()
            writing.finish()

    def _copies(self, path: Path | None, best: Path | None) -> list[Writing]:
        """What this rank is to write to ``path`` of `_sources`, to ``best`` of `weights`, copied.

        They stay what they are now; one process has none twice. All ranks call it. Errors: as for
        `state`.
        """
        found: list[Writing] = []
        held: dict[str, Source] = {}
        if path is not None:
            sources, first_rows = self._sources_for(path)
            copied = [each.held() for each in sources]
            held = {each.name: each for each in copied} if self.ranks.size == 1 else {}
            found = self._writings(path, (copied, first_rows))
        if best is not None:
            kept: list[Source] = []
            weights = self.weights()
            self.on_first(lambda: kept.extend(_held_weights(weights, held)))
            if self.rank == 0:
                found.append(OneFile(best, kept))
        return found

    def _sources_for(self, path: Path) -> tuple[list[Source], dict[str, int] | None]:
        """What this rank writes to ``path``; of a sharded file the rows that parts begin with."""
        if FORMATS["sharded"].suffixes[0] not in path.name:
            return self._sources(), None
        self._expect_whole()
        first_rows: dict[str, int] = {}
        return training_sources(self, self.ranks, first_rows), first_rows

    def _writings(
        self, path: Path, what: tuple[list[Source], dict[str, int] | None]
    ) -> list[Writing]:
        sources, first_rows = what
        if first_rows is not None:
            return self.ranks.parts(path, sources, first_rows)
        return [OneFile(path, sources)] if self.rank == 0 else []

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
    sources = training_sources(session, session.ranks)
    return {source.name: np.array(source.array()) for source in sources}


def _held_weights(weights: list[Source], held: dict[str, Source]) -> list[Source]:
    """Copies of ``weights``: those of the state that has them already, else new ones."""
    own = [held.get(f"net/{each.name}") for each in weights]
    return [
        each.held() if copy is None else replace(copy, name=each.name)
        for each, copy in zip(weights, own, strict=True)
    ]
