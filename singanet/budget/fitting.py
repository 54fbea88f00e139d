"""`fit` within a budget of bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.heap import large_arrays_apart, trim
from singanet.base.kinds import checked_bytes
from singanet.base.terms import FIT, PARTS, RECORDED, SHAPES, Terms
from singanet.budget.search import OFFLOAD, expect_measures, light_optimizer, plan_memory
from singanet.engine.backward import arrays_in, ones
from singanet.errors import ArgumentError
from singanet.offload import offload
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain, without_reductions
from singanet.params.param import expect_stored
from singanet.program.programs import Programs, programs_of
from singanet.program.recompute import Recompute
from singanet.training.batches import by_name, output_names, parts_of, sample_count
from singanet.training.callbacks import EMA, SWA, EarlyStopping, ModelCheckpoint
from singanet.training.callbacks.logging import MemoryCheck
from singanet.training.compiled import Compiled, expect_compiled
from singanet.training.display import History
from singanet.training.feeding import first_of, holds_arrays, take_shape
from singanet.training.fit import fit, unless_refused
from singanet.training.options import FitOptions
from singanet.training.ranks import ProcessGroup, ranks_of
from singanet.training.resident import held_bytes
from singanet.training.steps import wrapped

if TYPE_CHECKING:
    from singanet.engine.net import Net

_WHERE = "net.fit"
TERMS = Terms(needs=(RECORDED, SHAPES, FIT), exact=(PARTS,), keeps="bits")
"""The terms of a budget of memory."""


@large_arrays_apart()
def fit_within(net: Net, options: FitOptions) -> History:
    """Implement `FeedForwardNet.fit` with a budget.

    With several ranks each has the budget for its part of a batch. Steps are planned for the
    largest batch: the ``batch_size`` of arrays or a loader, the longest batch of a list, otherwise
    the first batch. If the budget is refused, a generator has lost that batch.

    Errors before the first step: an invalid, missing or too small budget; checkpoints in the
    background; a net that is offloaded already; a folder that `offload` refuses, or none if
    offloading is allowed; the errors of `fit`. Errors later: a batch larger than planned.
    """
    x, memory_budget, folder = options.x, options.memory_budget, options.offload_folder
    expect_measures(_WHERE, options.allow)
    _expect_budget(memory_budget)
    compiled = expect_compiled(net, _WHERE)
    _expect_no_copies(options)
    with unless_refused(net):
        take_shape(net, x)
        allow = _allowed(net, options.allow, folder)
        ranks = ranks_of(net, compiled.optimizer)
        light = light_optimizer(compiled.optimizer)
        verbose = bool(options.verbose) and ranks.rank == 0
        size, targets, begun = _largest_batch(net, options, ranks)
        optimizer = _without_reductions(compiled, options)
        before = _bytes_without(net, optimizer)
        with net._unfilled() as filling:
            plan = plan_memory(
                net,
                size,
                optimizer,
                memory_budget,
                _extent(net, x),
                allow,
                _outside_steps(net, x, targets, size, options, compiled),
                targets,
                light if isinstance(light, str) else _scaled(compiled, light, options),
                ranks.size == 1 and _same_shape(x, size, options),
                filling,
                _WHERE,
                at_once=ranks.size == 1,
                widths=len(getattr(getattr(x, "loader", x), "widths", (0,))),
            )
    if verbose:
        sys.stderr.write(f"{plan}\n")
    limit, shown = checked_bytes(_WHERE, memory_budget), None if verbose else StringIO()
    check = MemoryCheck(plan.peak, limit, before, shown, net.device)
    chosen = plan.chosen
    del plan
    trim()
    programs = programs_of(net)
    if chosen.keep is not None and folder is not None:
        offload(net, folder, chosen.keep, optimizer, resume=False)
    if chosen.optimizer is not None and not isinstance(light, str):
        compiled.exchange(light)
    # Parts may be smaller than planned.
    micro = -ranks.most(-chosen.micro_batch)
    options = replace(options, callbacks=[*options.callbacks, check], verbose=verbose)
    options = options.in_parts(micro if micro < size else None, size)
    with _carried_out(programs, chosen.recompute):
        return fit(net, options, begun)


def _expect_budget(memory_budget: int | str | None) -> None:
    """Refuse ways to save memory without a budget. Errors: `ArgumentError`."""
    if memory_budget is None:
        raise ArgumentError(
            f"{_WHERE}, memory_budget",
            expected="bytes, in addition to allow or offload_folder",
            received="None",
            advice="write for example memory_budget='600MB', or leave the others out",
        )


def _allowed(
    net: Net, allow: Collection[str], offload_folder: str | os.PathLike[str] | None
) -> Collection[str]:
    """Return ``allow``, with offloading if there is a folder. Errors: `ArgumentError`."""
    if offload_folder is not None:
        expect_stored(net.params(), f"{_WHERE}, offload_folder")
        return list(dict.fromkeys((*allow, OFFLOAD)))
    if OFFLOAD in allow:
        raise ArgumentError(
            f"{_WHERE}, offload_folder",
            expected=f"a folder, since {OFFLOAD!r} is allowed",
            received="None",
            advice="name an empty or a new folder",
        )
    return allow


def _largest_batch(
    net: Net, options: FitOptions, ranks: ProcessGroup
) -> tuple[int, Any, Iterator[Any] | None]:
    """Return the samples of the largest batch, its targets, and a started iteration, if any."""
    x, y, begun = options.x, options.y, None
    if holds_arrays(x):
        size = -(-options.batch_size // ranks.part[1])
    else:
        size, y, begun = _largest(x, ranks.size > 1)
        size = ranks.most(size)
    if y is None:
        return size, None, begun
    # Repeat targets if there are fewer samples than in a batch.
    named = by_name(f"{_WHERE}, y", y, output_names(net), all_of_them=False)
    return size, _resized(named, size), begun


def _without_reductions(compiled: Compiled, options: FitOptions) -> Optimizer | Wrapper:
    """Return the optimizer of the plan, without reductions over processes.

    The bytes of their sums are planned separately.
    """
    if not UpdateChain(compiled.optimizer).reducers:
        return compiled.scaled(compiled.clipped(*options.stages))
    return _scaled(compiled, without_reductions(compiled.optimizer), options)


def _scaled(compiled: Compiled, rule: Optimizer | Wrapper, options: FitOptions) -> Any:
    """Return ``rule`` with the stages of the fit and the compiled optimizer's loss scaling."""
    return compiled.scaled(wrapped(rule, *options.stages))


def _expect_no_copies(options: FitOptions) -> None:
    """Refuse asynchronous checkpoints, whose copies exceed the budget. Errors: `ArgumentError`."""
    if any(isinstance(each, ModelCheckpoint) and each.asynchronous for each in options.callbacks):
        raise ArgumentError(
            f"{_WHERE}, memory_budget",
            expected="checkpoints that are written one array at a time",
            received="ModelCheckpoint(asynchronous=True), which copies the whole state",
            advice="leave out asynchronous or the budget",
        )


def _bytes_without(net: Net, optimizer: Optimizer | Wrapper) -> int | None:
    """Return the process's bytes without parameters and state; None if the system has no count.

    Parameters and state that exist already count in the budget.
    """
    held = held_bytes(net.device)
    if held is None:
        return None
    layers = {id(step.layer): step.layer for step in net.planned().steps}.values()
    params = [param for layer in layers for param in layer.params.values() if param.filled]
    own = sum(param.storage.nbytes for param in {id(p): p for p in params}.values())
    return held - own - UpdateChain(optimizer).held_bytes()


def _resized(y: Any, size: int) -> Any:
    if isinstance(y, dict):
        return {name: _resized(part, size) for name, part in y.items()}
    first = y[:size]
    return np.resize(first, (size, *first.shape[1:]))


@contextmanager
def _carried_out(programs: Programs, recompute: Recompute) -> Iterator[None]:
    """Record programs from the first step, with ``recompute``; afterwards restore the settings."""
    before = programs.at_once, programs.recompute
    # Programs with another recomputation would also take memory.
    programs.clear()
    programs.at_once, programs.recompute = True, recompute
    try:
        yield
    finally:
        programs.at_once, programs.recompute = before


def _largest(source: Any, may_be_empty: bool) -> tuple[int, Any, Iterator[Any] | None]:
    """Return the samples of the largest batch of ``source``, targets, and a started iteration.

    If nothing defines it, it is the first batch, and larger ones are refused later. Errors: no
    batch.
    """
    inner = getattr(source, "loader", source)
    said = getattr(source, "batch_size", getattr(inner, "batch_size", None))
    if said is not None:
        return int(said), None, None
    if isinstance(source, (list, tuple)):
        batch, begun = max(source, key=lambda each: _samples(each, may_be_empty)), None
    else:
        batch, begun = first_of(_WHERE, source)
    return _samples(batch, may_be_empty), parts_of(_WHERE, batch)[1], begun


def _samples(batch: Any, may_be_empty: bool) -> int:
    return sample_count({"x": parts_of(_WHERE, batch)[0]}, may_be_empty)


def _extent(net: Net, x: Any) -> int | None:
    """Return the longest axis of any extent in the data; None if every axis is known."""
    plan, found = net._execution_plan(), []
    for name in plan.inputs:
        shape = plan.by_name[name].layer.in_shapes or ()
        if not isinstance(shape, list) and -1 in shape:
            data = x[name] if isinstance(x, dict) else x
            # A loader of rows has their maximal length; a row may be longer than a text.
            source = getattr(x, "loader", x)
            length = getattr(source, "longest_row", getattr(source, "length", None))
            if not hasattr(data, "shape") and length is None:
                raise ArgumentError(
                    f"{_WHERE}, memory_budget",
                    expected="arrays or a loader with a length, for an axis of any extent",
                    received=f"a {type(data).__name__}",
                    advice="pass arrays, or build the net with whole shapes",
                )
            axes = getattr(data, "shape", (None, *[length] * len(shape)))[1:]
            found += [n for n, axis in zip(axes, shape, strict=False) if axis == -1]
    return max(found, default=None)


def _same_shape(x: Any, size: int, options: FitOptions) -> bool:
    """Return whether every batch of a fit has ``size`` samples, also in validation."""
    arrays = arrays_in(x) if holds_arrays(x) else []
    whole = options.drop_last or all(len(array) % size == 0 for array in arrays)
    return bool(arrays) and whole and not options.validates


def _outside_steps(
    net: Net,
    x: Any,
    y: Any,
    size: int,
    options: FitOptions,
    compiled: Compiled,
) -> dict[str, int]:
    """Return the bytes of waiting batches, callbacks, checkpoints and pending sums, by purpose."""
    reducers = UpdateChain(compiled.optimizer).reducers
    fed = ones(net._execution_plan(), 1, net.device, _extent(net, x))
    sample = sum(array.nbytes for array in arrays_in(fed))
    # Unknown targets are assumed to be as large as the inputs.
    sample += sample if y is None else sum(a.nbytes // max(len(a), 1) for a in arrays_in(y))
    # The current batch, and the freed memory of the last one, into which the next may not fit.
    waiting = int(getattr(x, "capacity", 0)) + 2 + options.validates
    # The batches of a device's loader wait on the host.
    waiting = waiting if net.device.ops.xp is np else 2
    sizes = [param.nbytes for param in net.params()]
    saves = any(isinstance(each, ModelCheckpoint) for each in options.callbacks)
    copies = sum(
        isinstance(each, (EMA, SWA))
        or (isinstance(each, EarlyStopping) and each.restore_best_weights)
        for each in options.callbacks
    )
    own = sum(int(getattr(each, "memory_bytes", 0)) for each in options.callbacks)
    trained = sum(param.nbytes for param in net.params() if param.trainable)
    return {
        "sums": trained * sum(stage.traits.copies for stage in reducers if not stage._alone),
        "state of other ranks": -sum(stage._spared(net) for stage in reducers if not stage._alone),
        "batches": waiting * size * sample,
        "callbacks": copies * sum(sizes) + own,
        # Files are written one array at a time, copied if its memory order differs.
        "checkpoint": max(sizes, default=0) * saves,
    }
