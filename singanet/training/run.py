"""A training run from start to report, as the command line asks for it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singanet.data import ArrayLoader, Dataset, load
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.execution import LayerGradients
from singanet.models import build
from singanet.net import FeedForwardNet
from singanet.optimizer import SGD, Adam, Optimizer
from singanet.training.loop import evaluate, fit_epoch
from singanet.training.progress import Progress

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class RunOptions:
    """What to train, on what, and how."""

    model: str
    data: str
    epochs: int = 20
    batch_size: int = 32
    optimizer: str = "sgd"
    lr: float | None = None
    seed: int = 0
    json: Path | None = None


def make_optimizer(name: str, lr: float | None) -> Optimizer:
    """The optimizer ``name``, with its usual learning rate where ``lr`` is None."""
    if name == "sgd":
        return SGD(lr=0.05 if lr is None else lr, momentum=0.9, weight_decay=1e-4)
    if name == "adam":
        return Adam(lr=0.001 if lr is None else lr)
    known = ("sgd", "adam")
    raise UnknownNameError(
        f"optimizer {name!r}",
        expected=f"one of {one_of(known)}",
        received=repr(name),
        advice=did_you_mean(name, known, "choose one of these"),
    )


def run(options: RunOptions) -> dict[str, Any]:
    """Train, report progress on standard error, and return the figures of the run."""
    _check(options)
    data = load(options.data)
    net = build(options.model, data.sample_shape, data.num_classes, seed=options.seed)
    optimizer = make_optimizer(options.optimizer, options.lr)
    peak = 0

    def on_layer(item: LayerGradients) -> None:
        nonlocal peak
        peak = max(peak, sum(grad.nbytes for grad in item.grads))

    batches = ArrayLoader(data.x_train, data.y_train, options.batch_size, seed=options.seed)
    start = time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        with Progress(f"epoch {epoch}/{options.epochs}", len(batches)) as progress:
            trained = fit_epoch(net, batches, optimizer, progress.update, on_layer)
    seconds = time.perf_counter() - start
    tested = evaluate(net, _test_batches(data))
    return {
        "model": options.model,
        "data": options.data,
        "epochs": options.epochs,
        "train_loss": trained.loss,
        "test_loss": tested.loss,
        "test_accuracy": tested.metric,
        "seconds": seconds,
        "samples_per_second": options.epochs * len(data.x_train) / seconds,
        "peak_gradient_bytes": peak,
        "parameter_bytes": parameter_bytes(net),
    }


def parameter_bytes(net: FeedForwardNet) -> int:
    """Bytes of all parameters, running state included."""
    return sum(value.nbytes for value in net.param_values())


def _test_batches(data: Dataset) -> ArrayLoader:
    return ArrayLoader(data.x_test, data.y_test, EVALUATION_BATCH, shuffle=False)


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` beside ``path``, then move them over it."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(figures, indent=2) + "\n")
    beside.replace(path)


def _check(options: RunOptions) -> None:
    """Refuse before training what would fail after it."""
    for what, value in (("--epochs", options.epochs), ("--batch-size", options.batch_size)):
        if value < 1:
            raise ArgumentError(
                what, expected="a positive number", received=str(value), advice="pass 1 or more"
            )
    if options.seed < 0:
        raise ArgumentError(
            "--seed", expected="0 or more", received=str(options.seed), advice="pass another seed"
        )
    folder = options.json.resolve().parent if options.json else None
    if folder and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ArgumentError(
            "--json",
            expected="a file in a folder that exists and can be written to",
            received=str(options.json),
            advice="create the folder first",
        )
