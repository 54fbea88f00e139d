"""A training run from start to report, as the command line asks for it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet.errors import ArgumentError
from singanet.execution import LayerGradients
from singanet.models import ModelEntry, Recipe, build, find
from singanet.net import FeedForwardNet
from singanet.training.figures import check_writable
from singanet.training.loop import EpochResult, evaluate, fit_epoch
from singanet.training.optimizers import USUAL_RATES, make_optimizer
from singanet.training.progress import Progress
from singanet.training.tasks import load_task


@dataclass(frozen=True)
class RunOptions:
    """What to train, on what, and how; None leaves it to the model's own recipe."""

    model: str
    data: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    seed: int = 0
    json: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """The figures of a run, and its test in words."""

    figures: dict[str, Any]
    report: str


def run(options: RunOptions) -> RunResult:
    """Train, showing progress on standard error, and test.

    Errors: an unknown name, data that cannot be trained on, an option out of range; a loss that
    is no longer finite.
    """
    entry = find(options.model)
    recipe = _recipe(options, entry)
    task = load_task(entry, options.data)
    net = build(entry.name, task.input_shape, task.num_classes, options.seed, **task.options)
    batches = task.train_batches(recipe, options.seed)
    steps = recipe.epochs * len(batches)
    optimizer = make_optimizer(
        recipe.optimizer, recipe.lr, recipe.weight_decay, steps, warm_up=len(batches)
    )
    peak = 0

    def on_layer(item: LayerGradients) -> None:
        nonlocal peak
        peak = max(peak, sum(grad.nbytes for grad in item.grads))

    start = time.perf_counter()
    samples = 0
    # What overflows ends in a loss that is not finite, which is reported in words.
    with np.errstate(over="ignore", invalid="ignore"):
        for epoch in range(1, recipe.epochs + 1):
            with Progress(f"epoch {epoch}/{recipe.epochs}", len(batches)) as progress:
                trained = fit_epoch(net, batches, optimizer, progress.update, on_layer)
            _expect_finite(trained, epoch, recipe)
            samples += trained.samples
        seconds = time.perf_counter() - start
        tested = evaluate(net, task.test_batches())
    figures = {
        "model": entry.name,
        "data": task.name,
        "epochs": recipe.epochs,
        "train_loss": trained.loss,
        "test_loss": tested.loss,
        "test_accuracy": task.accuracy(tested),
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "peak_gradient_bytes": peak,
        "parameter_bytes": parameter_bytes(net),
    }
    return RunResult(figures, task.report(tested))


def parameter_bytes(net: FeedForwardNet) -> int:
    """Bytes of all parameters, running state included."""
    return sum(value.nbytes for value in net.param_values())


def _recipe(options: RunOptions, entry: ModelEntry) -> Recipe:
    """The recipe of ``entry`` with what the user said; everything that can be is checked here."""
    own = entry.recipe
    optimizer = options.optimizer or own.optimizer
    same = optimizer == own.optimizer
    usual = own.lr if same else USUAL_RATES.get(optimizer, own.lr)
    recipe = Recipe(
        epochs=own.epochs if options.epochs is None else options.epochs,
        batch_size=own.batch_size if options.batch_size is None else options.batch_size,
        optimizer=optimizer,
        lr=usual if options.lr is None else options.lr,
        weight_decay=own.weight_decay if same else 0.0,
        augment=own.augment,
    )
    for what, value in (("--epochs", recipe.epochs), ("--batch-size", recipe.batch_size)):
        if value < 1:
            raise ArgumentError(
                what, expected="a positive number", received=str(value), advice="pass 1 or more"
            )
    if options.seed < 0:
        raise ArgumentError(
            "--seed", expected="0 or more", received=str(options.seed), advice="pass another seed"
        )
    make_optimizer(recipe.optimizer, recipe.lr, recipe.weight_decay, steps=1, warm_up=0)
    check_writable(options.json)
    return recipe


def _expect_finite(trained: EpochResult, epoch: int, recipe: Recipe) -> None:
    if not math.isfinite(trained.loss):
        raise ArgumentError(
            "--lr",
            expected="a learning rate at which the loss stays finite",
            received=f"loss {trained.loss} in epoch {epoch} at --lr {recipe.lr:g}",
            advice=f"pass a smaller one, for example {recipe.lr / 10:g}",
        )
