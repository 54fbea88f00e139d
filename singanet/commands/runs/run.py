"""A run of training."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.collectives import of_first
from singanet.base.files import expect_free
from singanet.base.processes import LEAVING
from singanet.commands.runs import optimizers as rules
from singanet.commands.runs.classified import tuning
from singanet.commands.runs.folder import described_net, expect_no_run, folder_callbacks, has_state
from singanet.commands.runs.optimizers import PIPELINE, FiniteLoss, RunFigures
from singanet.commands.runs.own_data import OwnOptions, read_record
from singanet.commands.runs.published import ADAPTER, expect_no_texts, is_published
from singanet.commands.runs.published import MODEL as PUBLISHED
from singanet.commands.runs.recipe import (
    checked_recipe,
    class_weights,
    usual_rate,
    write_json,
)
from singanet.commands.runs.run_options import RunOptions, refusal
from singanet.commands.runs.tasks import BatchShare, Task, load_task
from singanet.commands.runs.trained import seeded_net, task_for
from singanet.data import Batch
from singanet.errors import ArgumentError, SingaNetError
from singanet.models import Recipe, build, find
from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer, Wrapper
from singanet.parallel import Pipeline, init
from singanet.parallel.initialize import servers
from singanet.report import LivePage
from singanet.report.reading import FIGURES
from singanet.report.reading import REPORT as PAGE
from singanet.saving.whole_model import MODEL, description, encoded
from singanet.training.callbacks import (
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    StopOnSignal,
    TensorBoard,
)
from singanet.training.display import History
from singanet.training.files import furthest


class RunInterrupted(Exception):  # noqa: N818 - not an error: requested by the user
    """The end of a run after a step, by a signal; with a run folder, its state is saved there."""

    def __init__(self, number: signal.Signals, folder: Path | None) -> None:
        super().__init__(number.name)
        self.number = number
        self.folder = folder


class DivergedError(ArgumentError):
    """The loss of a run is not finite; the last epoch was not saved."""


@dataclass(frozen=True)
class RunResult:
    """The figures of a run, the text of its test, and where its files are."""

    figures: dict[str, Any]
    report: str
    kept: str


def run(options: RunOptions) -> RunResult:
    """Train, with progress on standard error, and test.

    ``options.out`` is the folder for all files of the run. The test data are used once, at the end.
    Errors: an unknown name, unsuitable data, an option out of range, a folder that is not writable;
    `DivergedError` for a loss that is not finite; `RunInterrupted` after SIGINT or SIGTERM.
    """
    live = LivePage(options.out, ends=False) if options.live and options.out is not None else None
    try:
        return _run(options, [] if live is None else [live])
    finally:
        if live is not None:
            live.finish()


def _run(options: RunOptions, watching: list[Callback]) -> RunResult:
    recipe = checked_recipe(options)
    comm = init()
    resumes = False
    if options.out is not None and comm.rank == 0:
        if options.resume:
            expect_free(options.out)
            resumes = has_state(options.out)
        else:
            expect_no_run(options.out)
    if options.resume:
        resumes = bool(of_first(comm, resumes, "whether there is a checkpoint"))
    net, task, described = _prepared(options, resumes)
    piped = options.parallel == PIPELINE and comm.size > 1
    # Pipeline stages get the same batches.
    task.part = BatchShare(0, 1) if piped else BatchShare(comm.rank, comm.size)
    share = options.kept_back
    validation = task.keep_back(share, options.seed) if share else None
    pipeline = Pipeline(net, micro_batches=options.every or 8) if piped else None
    figures, finite, signals = RunFigures(), FiniteLoss(), StopOnSignal()
    callbacks = [figures, finite, signals, *_keeping(options, task, described), *watching]
    if not resumes and comm.rank == 0:
        task.begin(net)
    # An overflow makes the loss infinite or NaN, which is reported below.
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            history = _fit(net, task, validation, options, recipe, callbacks, resumes)
    except KeyboardInterrupt:
        if comm.size == 1 and not LEAVING.begun:
            raise
        # Several ranks end by agreement, with their state saved.
        raise RunInterrupted(signal.SIGINT, options.out) from None
    if finite.failed is not None:
        raise _not_finite(*finite.failed, recipe.lr, usual_rate(options))
    if signals.received is not None:
        raise RunInterrupted(signals.received, options.out)
    if pipeline is not None:
        pipeline.gather()
    return _tested(net, task, options, figures, history)


def _keeping(options: RunOptions, task: Task, described: bytes | None) -> list[Callback]:
    """Return the callbacks that save the run in its folder, and end it early."""
    callbacks: list[Callback] = []
    if options.out is not None:
        callbacks += folder_callbacks(options.out, options, task, described)
        # Without validation data there are no best weights.
        monitor = options.monitor if options.kept_back else None
        callbacks.append(
            ModelCheckpoint(options.out, monitor, keep=options.keep, every_steps=options.save_every)
        )
    # Last, as a resumption may add them, and the states of callbacks are saved by position.
    if options.early_stopping is not None:
        callbacks.append(EarlyStopping(options.monitor, options.early_stopping))
    if options.tensorboard is not None:
        callbacks.append(TensorBoard(options.tensorboard))
    return callbacks


def _prepared(options: RunOptions, resumes: bool) -> tuple[FeedForwardNet, Task, bytes | None]:
    """Return the net, its task, and for a net from a file the description to save."""
    if options.from_ is not None and is_published(options.from_):
        return *tuning(options), None
    expect_no_texts(options)
    before = options.out if resumes else options.from_
    record = None if before is None else read_record(Path(before))
    own = OwnOptions(options.target, options.leave_out, options.min_count, options.seed, record)
    if options.from_ is None:
        name = str(options.model)
        task = load_task(find(name), options.data, own=own)
        return build(name, seed=options.seed, **task.settings), task, None
    if resumes and options.out is not None:
        net = described_net(options.out)
        return net, task_for(net, options.from_, options.data, own=own), None
    net = seeded_net(options.from_, options.seed)
    task = task_for(net, options.from_, options.data, own=own)
    return net, task, encoded(MODEL, description(net)).tobytes()


def _fit(
    net: FeedForwardNet,
    task: Task,
    validation: Iterable[Batch] | None,
    options: RunOptions,
    recipe: Recipe,
    callbacks: list[Callback],
    resumes: bool,
) -> History:
    batches = task.train_batches(recipe, options.seed, options.shuffle, options.drop_last)
    epochs = recipe.epochs - options.initial_epoch
    steps = options.steps_per_epoch
    steps = task.steps(batches) if steps is None else steps
    if options.accumulate > epochs * steps:
        expected = f"at most {epochs * steps}, the batches of the whole run"
        received = options.accumulate
        raise refusal("--accumulate", expected, received, "choose fewer, or no update is made")
    within: dict[str, Any] = {}
    if options.memory_budget is not None:
        within = {"batch_size": recipe.batch_size, "memory_budget": options.memory_budget}
        within["offload_folder"] = options.offload_folder
    # The rate follows the updates, and rises in the first epoch.
    updates = max(1, steps // options.accumulate)
    numbers = recipe.optimizer, recipe.lr, recipe.weight_decay
    rule: Optimizer | Wrapper
    if options.method == "blocks":
        trained = [param.name for param in net._execution_plan().trained_params()]
        rule = rules.in_blocks(*numbers, trained, epochs * updates, options.seed)
    else:
        rule = rules.make_optimizer(
            *numbers, steps=epochs * updates, warm_up=updates, accumulate=options.accumulate
        )
    alone = task.part.world_size == 1 and servers() is None
    optimizer = (
        rule if alone else rules.reduced(rule, options.parallel, options.ratio, options.every)
    )
    net.compile(optimizer, metrics=task.metrics, mixed_precision=options.mixed_precision)
    weights = class_weights(options, task.num_classes, task.class_names)
    if task.about and not options.quiet and init().rank == 0:
        print(task.about, file=sys.stderr)
    return net.fit(
        batches,
        epochs=recipe.epochs,
        validation_data=validation,
        callbacks=callbacks,
        class_weight=weights,
        initial_epoch=options.initial_epoch,
        # Loaded when it is restored, then freed: a budget has no room for a second net.
        resume=options.out if resumes else None,
        clip=options.clip,
        clip_by=options.clip_by,
        accumulate=1 if recipe.optimizer in rules.FOLDING else options.accumulate,
        steps_per_epoch=options.steps_per_epoch,
        verbose=not options.quiet,
        **within,
    )


def _tested(
    net: FeedForwardNet,
    task: Task,
    options: RunOptions,
    trained: RunFigures,
    history: History,
) -> RunResult:
    comm = init()
    # Some ranks may have died.
    task.part = task.part if task.part.world_size == 1 else BatchShare(comm.rank, comm.size)
    tested = task.evaluate(net) if task.tests else None
    # Pipeline stages have the same samples, other ranks different ones.
    seen = trained.samples if options.parallel != PIPELINE or comm.rank == 0 else 0
    samples = int(comm.all_reduce(np.array([seen]), what="the samples of all ranks")[0])
    figures = {
        "model": options.subject,
        "data": task.name,
        "epochs": len(history.epochs),
        "train_loss": history["loss"][-1],
        "test_loss": None if tested is None else tested.loss,
        "test_accuracy": None if tested is None else tested.metric,
        "seconds": trained.seconds,
        "samples_per_second": samples / trained.seconds,
        "peak_gradient_bytes": trained.peak,
        "parameter_bytes": sum(param.nbytes for param in net.params()),
    }
    for name in task.metrics or ():
        figures[f"test_{name}"] = None if tested is None else tested.logs[name]
    if comm.size > 1:
        figures["ranks"] = comm.size
    if comm.rank == 0:
        task.end(net, figures)
    if options.out is not None and comm.rank == 0:
        write_json(options.out / FIGURES, figures)
    if options.json is not None and comm.rank == 0:
        write_json(options.json, figures)
    kept = _kept(options, task) if comm.rank == 0 else ""
    text = "trained on all data" if tested is None else task.report(tested)
    return RunResult(figures, text, kept)


def _kept(options: RunOptions, task: Task) -> str:
    """Return where the files of a run are, and the commands for them."""
    out = options.out
    if out is None:
        what = "nothing was" if options.json is None else "the net was not"
        return f"{what} kept: add --out RUN_DIR to keep the net, its curves and a page"
    newest = furthest(out)
    states = {newest, *out.glob("epoch-*.npz")}
    of = f" of {len(states)} states" if len(states) > 1 else ""
    names = [PUBLISHED, ADAPTER, f"{newest.name} (newest{of})"]
    names += sorted(path.name for path in out.glob("best.*"))
    found = [name for name in names if (out / name.partition(" ")[0]).exists()]
    folder = shlex.quote(str(out))
    page = out / PAGE if (out / PAGE).exists() else f"singanet report {folder}"
    following = f"singanet {task.afterwards.format(folder)}"
    return f"kept in {out}: {', '.join(found)}\npage: {page}\nnext: {following}"


def _not_finite(epoch: int, loss: float, rate: float, usual: float) -> SingaNetError:
    smaller = f"pass a smaller rate, for example {rate / 10:g}, or --clip 1, or check the data"
    expected = "a learning rate at which the loss stays finite"
    received = f"loss {loss} in epoch {epoch} at --lr {rate:g}"
    advice = smaller if rate <= usual else f"remove it, for --lr {usual:g}"
    return refusal("--lr", expected, received, advice, DivergedError)
