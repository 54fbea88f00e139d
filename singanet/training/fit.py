"""The loop of `FeedForwardNet.fit`, over the streaming backward."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from singanet.base.tracebacks import users_level
from singanet.base.version import VERSION
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError
from singanet.training.batches import ArrayBatches, Batches, is_finite
from singanet.training.compiled import expect_compiled
from singanet.training.course import StopTraining
from singanet.training.display import EpochLine, History, tell_once
from singanet.training.evaluation import gather, on_device
from singanet.training.feeding import training_batches
from singanet.training.hooks import Hooks
from singanet.training.measures import batch_length
from singanet.training.options import FitOptions
from singanet.training.ranks import ranks_of
from singanet.training.session import Session
from singanet.types import Array


def fit(net: Net, options: FitOptions, begun: Iterator[Any] | None = None) -> History:
    """Implement `FeedForwardNet.fit` without a budget.

    ``begun`` is a started iteration of a source of batches, which the first pass continues.
    """
    compiled = expect_compiled(net, "net.fit")
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
    ranks.expect_same("net.fit", options.facts() | {"epochs begun": compiled.epochs})
    with unless_refused(net):
        data, validation = training_batches(net, options, ranks, begun)
        _expect_enough(net, data)
        _expect_classes(net, options.class_weight)
        optimizer = compiled.clipped(*options.stages)
        ranks.train_by(optimizer)
        session = Session(net, compiled, optimizer, data, validation, options, ranks)
        if isinstance(data, ArrayBatches):
            # A second fit sees new orders; a fit in pieces sees the orders of a whole one.
            data.loader.set_epoch(max(compiled.epochs, options.initial_epoch))
        hooks = Hooks(options.callbacks, session)
    return _train(session, hooks, options)


@contextmanager
def unless_refused(net: Net) -> Iterator[None]:
    """On an error in the block, forget the input shape and columns that the net learned in it."""
    with net._whole() if net.pending else nullcontext(), net.intake.unless_refused():
        yield


def _expect_enough(net: Net, data: Batches) -> None:
    """Refuse a last batch that is too small for a layer, before training starts."""
    if data.smallest is None:
        return
    for step in net._execution_plan().steps:
        if step.in_training and step.layer.traits.fewest_samples > data.smallest:
            raise DataError(
                f"net.fit, layer {step.name!r}",
                expected=f"training batches of at least {step.layer.traits.fewest_samples} samples",
                received=f"a last batch of {data.smallest}",
                advice="omit it with drop_last=True (of fit, or of your loader), or change "
                "batch_size",
            )


def _expect_classes(net: Net, class_weight: Mapping[int, float] | None) -> None:
    """Refuse a weight of a class that the net's only output does not have."""
    outputs = [] if class_weight is None else net.ports().outputs
    if class_weight is None or len(outputs) > 1:
        return
    name, index = outputs[0]
    shape = next(node for node in net.nodes() if node.name == name).output_shapes()[index]
    if len(shape) != 1:
        return
    # One output scores two classes.
    last = max(shape[0], 2) - 1
    unknown = [key for key in class_weight if not 0 <= key <= last]
    if unknown:
        raise ArgumentError(
            "net.fit, class_weight",
            expected=f"classes of the net's output {name!r}",
            received=f"a weight of class {unknown[0]}",
            advice=f"use classes from 0 to {last}",
        )


def _train(session: Session, hooks: Hooks, options: FitOptions) -> History:
    ranks = session.ranks
    try:
        hooks.train_begin()
        if options.resume is not None:
            session._meet()
            state = ranks.spread(partial(_as_state, options.resume))
            if state or isinstance(options.resume, Mapping):
                from singanet.training.restore import restore

                restore(session, state)
            elif options.verbose and session.rank == 0:
                sys.stderr.write(f"no checkpoint in {options.resume} yet: the fit begins\n")
        # The loss tells of an overflow, once: NumPy would warn in every kernel.
        told: Any = {kind: "ignore" for kind in ("over", "invalid") if np.geterr()[kind] == "warn"}
        with ranks.taking_interrupts(), np.errstate(**told):
            if options.verbose and session.rank == 0:
                tell_once(session.net)
            while session.epoch < session.epochs and session.stopped is None:
                _epoch(session, hooks, bool(options.verbose) and session.rank == 0)
    except StopTraining as stop:
        session.stop(str(stop))
    except BaseException as error:
        hooks.error(error)
        raise
    finally:
        try:
            session.rest()
            hooks.train_end()
        finally:
            hooks.release()
    # Callbacks may have set different running state (such as averages) or rates on the ranks.
    ranks.unify(session.net)
    ranks.follow(session)
    session.history.stopped = session.stopped
    return session.history


def _epoch(session: Session, hooks: Hooks, verbose: bool) -> None:
    epoch = session.epoch
    session.phase = "callbacks"
    if session.batch == 0:
        session.measures.start()
    session.begin_epoch()
    for hook in hooks.epoch_begin:
        hook(epoch)
    session._is_whole()
    session.ranks.follow(session)
    data, validation = session.data, session.validation
    title = f"epoch {epoch + 1}/{session.epochs}"
    # In a resumed epoch, the samples of the earlier process do not count for the speed.
    before = session.ranks.figures(session.measures).samples if session.batch else 0
    told = EpochLine(title, data.expected, None, data.counted, before) if verbose else None
    with told or nullcontext() as line:
        if not _batches(session, hooks, line):
            return
        session.phase = "step"
        if line is not None:
            line.trained()
        session.rest()
        ranks, measures = session.ranks, session.measures
        ranks.unify(session.net, measures)
        ranks.merge(measures)
        logs, samples = measures.result(), measures.samples
        if validation is not None:
            measures.start()
            batches = ranks.evaluated(session.net, validation.epoch())
            if line is not None:
                batches = line.validating(batches, validation.expected)
            gather(session.net, batches, measures)
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
    session.phase = "callbacks"
    for hook in hooks.epoch_end:
        hook(epoch, logs)
        # A checkpoint among the later hooks saves the history with measures of the earlier ones.
        session.history._amend(logs)
    session._is_whole()
    session.history._amend(ranks.decide(session, logs))


def _batches(session: Session, hooks: Hooks, line: EpochLine | None) -> bool:
    """Train on the rest of the epoch; return False if a callback stops it early."""
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
        session.phase = "callbacks"
        if hooks.batch_end:
            logs = {"loss": ranks.batch_loss(loss, measures)}
            for hook in hooks.batch_end:
                hook(done, logs)
        session._is_whole()
        if not math.isfinite(loss):
            _warn_once(session, line)
        if line is not None and line.due():
            line.show(ranks.figures(measures), session.batch)
        # Free the batch before drawing the next.
        session.inputs = x = y = weight = None
    session._join()
    if ranks.within:
        for hook in hooks.stop:
            hook()
        return False
    session.inputs = None
    return True


def _warn_once(session: Session, line: EpochLine | None) -> None:
    """Warn once a fit if the loss of an epoch is no longer finite."""
    if session.warned or session.stopping or session.rank != 0:
        return
    # A batch whose labels are all ignored has no loss, and does not change the epoch's.
    if math.isfinite(session.measures.loss()):
        return
    session.warned = True
    if line is not None:
        line.bar.clear()
    advice = (
        "lower the learning rate (net.find_lr tries them), clip the gradients (clip=1.0), or "
        "correct the data"
    )
    if not is_finite(session.inputs):
        advice = "x has numbers that are not finite: numpy.nan_to_num(x) replaces them"
    warnings.warn(
        f"net.fit: the loss is {session.measures.loss()} from epoch {session.epoch + 1}, step "
        f"{session.batch} on; {advice}; "
        "callbacks=[singanet.training.callbacks.StopOnNaN()] finds the first layer",
        RuntimeWarning,
        stacklevel=users_level(),
    )


def _as_state(resume: Any) -> Mapping[str, Array]:
    """Return the state to resume from; empty for a folder without a checkpoint yet."""
    if isinstance(resume, Mapping):
        return resume
    from singanet.training.files import read_training

    return read_training(resume) or {}
