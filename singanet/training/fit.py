"""Training as Keras users expect it, over the streaming backward."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.version import VERSION
from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError, RankLostError
from singanet.training.batches import ArrayBatches, Batches
from singanet.training.callbacks.callback import Callback
from singanet.training.compiled import expect_compiled
from singanet.training.course import StopTraining
from singanet.training.display import EpochLine
from singanet.training.evaluation import gather, on_device
from singanet.training.feeding import training_batches, validation_batches
from singanet.training.history import History
from singanet.training.hooks import Hooks
from singanet.training.measures import batch_length
from singanet.training.ranks import ranks_of
from singanet.training.repair import repairs_of
from singanet.training.restore import restore
from singanet.training.sample_weights import checked_class_weight
from singanet.training.session import Session
from singanet.types import Array


def fit(
    net: Model,
    x: Any,
    y: Any = None,
    batch_size: int = 32,
    epochs: int = 1,
    validation_data: Any = None,
    validation_split: float = 0.0,
    callbacks: Iterable[Callback] = (),
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Array | None = None,
    initial_epoch: int = 0,
    resume: Mapping[str, Array] | str | os.PathLike[str] | None = None,
    clip: float | None = None,
    clip_by: str = "layer",
    accumulate: int = 1,
    steps_per_epoch: int | None = None,
    drop_last: bool = False,
    verbose: bool | int = True,
    micro_batch: int | None = None,
) -> History:
    """`FeedForwardNet.fit`: train until ``epochs`` epochs are done, counted from 0.

    Each step goes through its batch in parts of ``micro_batch`` samples, None for all at once.

    Errors, before the first step: a net that was not compiled, an argument out of range, data
    that do not fit together or leave nothing to train on, what callbacks refuse. Later: targets
    that do not fit, data that end early, and whatever the data or a callback raise, with its own
    traceback; callbacks see it in ``on_error`` first.
    """
    compiled = expect_compiled(net, "net.fit")
    batch_size = checked_count("net.fit", "batch_size", batch_size, 1)
    initial_epoch = checked_count("net.fit", "initial_epoch", initial_epoch, 0)
    epochs = checked_count("net.fit", "epochs", epochs, 1)
    accumulate = checked_count("net.fit", "accumulate", accumulate, 1)
    if steps_per_epoch is not None:
        steps_per_epoch = checked_count("net.fit", "steps_per_epoch", steps_per_epoch, 1)
    if validation_data is not None and validation_split:
        raise ArgumentError(
            "net.fit",
            expected="validation_data or validation_split",
            received="both",
            advice="leave one of them out",
        )
    if not isinstance(callbacks, Iterable):
        raise ArgumentError(
            "net.fit, callbacks",
            expected="a list of callbacks",
            received=f"a {type(callbacks).__name__}",
            advice="write callbacks=[...]",
        )
    callbacks = list(callbacks)
    ranks = ranks_of(net, compiled.optimizer)
    ranks.expect_mergeable("net.fit", compiled.metrics)
    ranks.expect_same(
        "net.compile",
        {
            "version of singanet": VERSION,
            "optimizer": compiled.optimizer,
            "loss": net.loss,
            "metrics": [*compiled.metrics],
            "mixed_precision": compiled.precision,
        },
        "build and compile the net by the same code on all ranks",
    )
    ranks.expect_same(
        "net.fit",
        {
            "batch_size": batch_size,
            "epochs": (initial_epoch, epochs, compiled.epochs, steps_per_epoch),
            "order": (shuffle, drop_last, validation_split, class_weight),
            "steps": (clip, clip_by, accumulate, micro_batch),
            "callbacks": [type(each).__name__ for each in callbacks],
            "validation_data": validation_data is not None,
            "resume": resume is not None,
        },
    )
    data, validation = training_batches(
        net,
        x,
        y,
        batch_size,
        shuffle,
        steps_per_epoch,
        validation_split,
        checked_class_weight(class_weight),
        sample_weight,
        bool(drop_last),
        ranks,
    )
    _expect_enough(net, data)
    if validation_data is not None:
        validation = validation_batches(net, validation_data, micro_batch or batch_size, ranks)
    optimizer = compiled.clipped(clip, clip_by, accumulate)
    ranks.train_by(optimizer)
    session = Session(
        net, compiled, optimizer, data, validation, epochs, callbacks, ranks, micro_batch
    )
    session.epoch = initial_epoch
    if isinstance(data, ArrayBatches):
        # A second fit sees other orders than the first, one fit in pieces the same as a whole.
        data.loader.set_epoch(max(compiled.epochs, initial_epoch))
    return _train(session, Hooks(callbacks, session), resume, bool(verbose))


def _expect_enough(net: Model, data: Batches) -> None:
    """Refuse a last batch that is too small for a layer before the first one is trained on."""
    if data.smallest is None or not isinstance(net, Net):
        return
    for step in net.execution_plan().steps:
        if step.in_training and step.layer.traits.fewest_samples > data.smallest:
            raise DataError(
                f"net.fit, layer {step.name!r}",
                expected=f"training batches of at least {step.layer.traits.fewest_samples} samples",
                received=f"a last batch of {data.smallest}",
                advice="leave it out with drop_last=True (of fit, or of your loader), or change "
                "batch_size",
            )


def _train(session: Session, hooks: Hooks, resume: Any, verbose: bool) -> History:
    ranks = session.ranks
    try:
        hooks.train_begin()
        if resume is not None:
            session.meet()
            restore(session, ranks.spread(partial(_as_state, resume)))
        with ranks.taking_interrupts():
            ranks.keep(partial(repairs_of, session, hooks))
            _epochs(session, hooks, verbose)
    except StopTraining as stop:
        session.stop(str(stop))
    except BaseException as error:
        hooks.error(error)
        raise
    finally:
        try:
            hooks.train_end()
        finally:
            hooks.release()
    # What callbacks have left, averages say, may differ in running state; and a rate.
    ranks.unify(session.net)
    ranks.follow(session)
    session.history.stopped = session.stopped
    return session.history


def _epochs(session: Session, hooks: Hooks, verbose: bool) -> None:
    """Those that are left; again, from where it has gone back to, where a rank has died."""
    while True:
        try:
            while session.epoch < session.epochs and session.stopped is None:
                _epoch(session, hooks, verbose and session.rank == 0)
            session.ranks.end()
        except RankLostError as lost:
            session.ranks.go_back(lost)
        else:
            return


def _epoch(session: Session, hooks: Hooks, verbose: bool) -> None:
    epoch = session.epoch
    session.phase = "told"
    if session.batch == 0:
        session.measures.start()
    for hook in hooks.epoch_begin:
        hook(epoch)
    session.is_whole()
    session.ranks.follow(session)
    steps = session.data.steps or 0
    title = f"epoch {epoch + 1}/{session.epochs}"
    with EpochLine(title, steps) if verbose else nullcontext() as line:
        if not _batches(session, hooks, line):
            return
        session.phase = "step"
        ranks, measures = session.ranks, session.measures
        ranks.unify(session.net, measures)
        ranks.merge(measures)
        logs, samples = measures.result(), measures.samples
        if session.validation is not None:
            measures.start()
            gather(session.net, session.validation.epoch(), measures)
            ranks.merge(measures)
            logs |= {f"val_{name}": value for name, value in measures.result().items()}
        logs |= ranks.traffic(session.batch)
        if line is not None:
            line.finish(logs, samples)
    rate = ranks.rate(session)
    if rate is not None:
        logs.setdefault("lr", rate)
    session.epoch, session.batch = epoch + 1, 0
    session.compiled.epochs = max(session.compiled.epochs, epoch) + 1
    session.history.record(epoch, logs)
    session.phase = "told"
    for hook in hooks.epoch_end:
        hook(epoch, logs)
        # A checkpoint among the later hooks saves the history, with what the earlier ones added.
        session.history.amend(logs)
    session.is_whole()
    session.history.amend(ranks.decide(session, logs))


def _batches(session: Session, hooks: Hooks, line: EpochLine | None) -> bool:
    """Train on the rest of the epoch; False where a callback stops it before its end."""
    net, measures, ranks = session.net, session.measures, session.ranks
    on_layer = hooks.on_layer()
    elsewhere = net.device.index is not None
    for x, y, weight in ranks.batches(session):
        session.phase = "step"
        session.inputs = x
        for hook in hooks.batch_begin:
            hook(session.batch)
        if elsewhere:
            y, weight = on_device(net.device, y), on_device(net.device, weight)
        loss = session.train_batch(x, y, weight, on_layer, measures)
        measures.add_loss(loss, batch_length(y))
        done = session.batch
        session.batch = done + 1
        session.step += 1
        session.phase = "told"
        if hooks.batch_end:
            logs = {"loss": ranks.batch_loss(loss, measures)}
            for hook in hooks.batch_end:
                hook(done, logs)
        session.is_whole()
        if line is not None and line.due():
            line.show(ranks.figures(measures), session.batch)
        # Let go before the next one is drawn.
        session.inputs = x = y = weight = None
    session.join()
    if ranks.within:
        for hook in hooks.stop:
            hook()
        return False
    session.inputs = None
    return True


def _as_state(resume: Any) -> Mapping[str, Array]:
    if isinstance(resume, Mapping):
        return resume
    from singanet.training.files import read_training

    return read_training(resume)
