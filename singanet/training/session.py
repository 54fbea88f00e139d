"""A fit in progress, and its state for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.elsewhere import is_library
from singanet.engine.net import Net
from singanet.errors import CallOrderError
from singanet.optimizer import Accumulator, Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain, state_sources
from singanet.params.param import Param
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.course import Course
from singanet.training.measures import Measures, save_metrics
from singanet.training.options import FitOptions, Stateful
from singanet.training.ranks import ProcessGroup
from singanet.training.steps import MicroBatches, Step, stepper
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source
    from singanet.checkpoint.formats import Writing

WHERE = "session.state"


def training_sources(
    course: Course, ranks: ProcessGroup, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """Return parameters, optimizer, generator, data position, history, metrics and callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). Resumption is exact to the bit. With several ranks rank 0 gets the state, with the
    position and generator of each and the entries that differ by rank: see `own_entries`. There
    ``net/...`` is the running state of all, ``local/...`` the rank's; the others get nothing. With
    ``first_rows`` each rank gets the entries that it writes itself, and ``first_rows`` the first
    row of each part, by name.
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
    course: Course, ranks: ProcessGroup, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """Return this process's part of `training_sources`, without the progress."""
    from singanet.checkpoint.entry import sources_of
    from singanet.params.param_files import param_sources

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


def keepers(course: Course, ranks: ProcessGroup) -> dict[str, Stateful]:
    """Return this rank's objects with a state, except the optimizer, by their keys' prefix."""
    precision = course.compiled.precision
    found: dict[str, Stateful] = {} if precision is None else {"precision": precision}
    for name, callback in callbacks_by_name(course).items():
        if ranks.runs(callback):
            found[name] = callback
    return found


def callbacks_by_name(course: Course) -> dict[str, Stateful]:
    """Return the callbacks of all ranks, by their keys' prefix."""
    return {
        f"callback/{place}.{type(callback).__name__}": callback
        for place, callback in enumerate(course.callbacks)
    }


def named_below(start: str, sources: Sequence[Source]) -> list[Source]:
    """Return ``sources`` with ``start`` and a slash before their names."""
    return [replace(each, name=f"{start}/{each.name}") for each in sources]


def progress_sources(
    course: Course,
    ranks: ProcessGroup,
    measures: Measures,
    position: Mapping[str, int],
    every: Sequence[Mapping[str, Any]] = (),
) -> list[Source]:
    """Return the position of ``course``, and the ``measures`` of the current epoch.

    ``every`` has position, generator and samples of each of several ranks.
    """
    from singanet.checkpoint.entry import sources_of
    from singanet.training.files import FORMAT, session_entry

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
    """A fit in progress, for callbacks and training checkpoints; `FeedForwardNet.fit` makes it.

    ``epoch`` of ``epochs`` and ``batch`` count from 0; after a step they are the next step's.
    ``step`` counts the steps of the whole training. ``names`` are the names of an epoch's measures.

    Args:
        net: The net that trains.
        compiled: The optimizer, loss and metrics that `compile` set.
        optimizer: The optimizer, with the clip and the accumulation of `fit` around it.
        data: The batches to train on.
        validation: The batches to validate on, or None.
        options: The arguments of `fit`.
        ranks: The processes that train together.
    """

    def __init__(
        self,
        net: Net,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        options: FitOptions,
        ranks: ProcessGroup,
    ) -> None:
        super().__init__(net, compiled, optimizer, data, validation, options)
        self.ranks = ranks
        self._in_parts: Callable[[Step], Step] | None = None
        self._outermost = optimizer
        if options.micro_batch is not None:
            # Between batches it is empty, so checkpoints ignore it.
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
        """End the training after the current step for ``reason``, a text; the first reason counts.

        With several ranks any may call it; all end after the same step.
        """
        self.ranks.stop(self, reason)

    @property
    def stopping(self) -> bool:
        """Whether this rank knows that the training ends before its last epoch."""
        return self.stopped is not None or self.ranks.asked is not None

    @property
    def rank(self) -> int:
        """The rank of this process: 0 prints, and writes files."""
        return self.ranks.rank

    @property
    def adds(self) -> bool:
        """Whether a callback of the user's own may add measures to the logs of an epoch."""
        return any(
            "on_epoch_end" in vars(kind) and not is_library(kind)
            for callback in self.callbacks
            for kind in type(callback).__mro__
        )

    def of_first(self, value: Any) -> Any:
        """Return rank 0's ``value``, plain data or arrays; all ranks call it at the same point."""
        return self.ranks.of_first(value, "the decision of rank 0")

    def on_first(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on rank 0, with all parameters readable; all ranks call it."""
        self.ranks.on_first(work)

    def weights(self) -> list[Source]:
        """Return the parameters, for `on_first` to write at once; all ranks call it."""
        from singanet.params.param_files import param_sources

        self.rest()
        whole = {each.name: each for each in self.ranks.slices(self.net)}
        return [whole.get(each.name, each) for each in param_sources(self.net.params())]

    def params(self) -> list[Param]:
        """Return the net's parameters on this rank: all, except in a pipeline."""
        return list(self.ranks.here(self.net).params())

    @property
    def _can_write(self) -> bool:
        """Whether a state can be saved after the error that ends the fit: all ranks know of it."""
        return self.phase == "whole" and self.ranks.agreed

    def _add_stage(self, stage: Callable[[Optimizer | Wrapper], Wrapper]) -> None:
        """Add ``stage`` around the optimizer from the next step.

        It is not part of ``optimizer``, nor of its state.
        """
        self._outermost = stage(self._outermost)
        self.train_batch = self._stepper()

    def rest(self) -> None:
        """Set the parameters to their values for evaluation; the next step moves them back."""
        chain = UpdateChain(self.compiled.scaled(self._outermost))
        if chain.rests:
            chain.optimizer.rest(self.params())

    def _stepper(self) -> Step:
        step = stepper(self.net, self.compiled.scaled(self._outermost))
        return self.ranks.stepped(step if self._in_parts is None else self._in_parts(step))

    def _meet(self) -> None:
        """Broadcast rank 0's parameters if that was not done, so that a later load stays."""
        chain = UpdateChain(self.compiled.scaled(self._outermost))
        chain.meet(self.ranks.here(self.net))

    def _join(self) -> None:
        """Tell the other ranks that this process has no more batches in the epoch."""
        # A fit that resumes at the end of an epoch has run no step yet.
        self._meet()
        for stage in UpdateChain(self.compiled.scaled(self._outermost)).reducers:
            stage.join()

    def state(self) -> dict[str, Array]:
        """Return copies of the training's state by name, from which `fit` resumes.

        A callback that calls it sets ``_runs_last``, so that the others have seen the step. All
        ranks call it at the same point: running state is unified, parameters are compared; ranks
        other than 0 get nothing. Errors: `CallOrderError` within a step.
        """
        self._expect_whole()
        self.rest()
        return training_state(self)

    def _sources(self) -> list[Source]:
        """Return the arrays of `state` as sources, to be written before the next step.

        The caller has to fetch every source: other ranks wait for theirs. Errors: as for `state`.
        """
        self._expect_whole()
        self.rest()
        return training_sources(self, self.ranks)

    def write(self, path: Path) -> None:
        """Write the state to ``path``, in the format of its suffix; all ranks call it.

        Rank 0 writes; in a sharded file every rank writes its part. Errors: as for `state`, and of
        files.
        """
        for writing in self._writings(path, self._sources_for(path)):
            writing.write()
            writing.finish()

    def _copies(self, path: Path | None, best: Path | None) -> list[Writing]:
        """Return writings of copied `_sources` to ``path`` and copied `weights` to ``best``.

        The copies do not change later; one process shares them. Each rank gets its own; all ranks
        call it. Errors: as for `state`.
        """
        from singanet.checkpoint.formats import OneFile

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
            self.on_first(lambda: kept.extend(_copied_weights(weights, held)))
            if self.rank == 0:
                found.append(OneFile(best, kept))
        return found

    def _sources_for(self, path: Path) -> tuple[list[Source], dict[str, int] | None]:
        """Return this rank's sources for ``path``; for a sharded file also their first rows."""
        from singanet.checkpoint.formats import FORMATS

        if FORMATS["sharded"].suffixes[0] not in path.name:
            return self._sources(), None
        self._expect_whole()
        self.rest()
        first_rows: dict[str, int] = {}
        return training_sources(self, self.ranks, first_rows), first_rows

    def _writings(
        self, path: Path, what: tuple[list[Source], dict[str, int] | None]
    ) -> list[Writing]:
        from singanet.checkpoint.formats import OneFile

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
                advice="call it in on_batch_end, on_epoch_end or on_stop",
            )


def training_state(session: Session) -> dict[str, Array]:
    """Return copies of `training_sources` on the CPU."""
    sources = training_sources(session, session.ranks)
    return {source.name: np.array(source.array()) for source in sources}


def _copied_weights(weights: list[Source], held: dict[str, Source]) -> list[Source]:
    """Return copies of ``weights``; reuse the copies of the state."""
    own = [held.get(f"net/{each.name}") for each in weights]
    return [
        each.held() if copy is None else replace(copy, name=each.name)
        for each, copy in zip(weights, own, strict=True)
    ]
