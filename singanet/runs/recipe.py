"""The recipe of a run, and its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from singanet.base.files import replacing
from singanet.base.kinds import checked_bytes
from singanet.errors import ArgumentError, did_you_mean, one_of
from singanet.models import Recipe, find
from singanet.optimizer.mixed_precision import as_precision
from singanet.runs.optimizers import USUAL_RATES, check_reducer, make_optimizer
from singanet.runs.run_options import RunOptions, is_published, option
from singanet.runs.tasks.task import held
from singanet.training.batches import checked_class_weight
from singanet.training.options import LEAST


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse, before a run, a path that could not be written after it; ``option`` gave it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(
            f"{option} {str(path)!r}",
            expected="a file in a folder that exists and can be written to",
            received="a folder" if path.is_dir() else str(path),
            advice="create the folder first, or choose another place",
        )


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` to ``path``, whole or not at all. Errors: `FileAccessError`."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(figures, indent=2) + "\n")


FINE_TUNING = Recipe(epochs=10, optimizer="adam", lr=0.001, weight_decay=0.0)
"""Of a net that knows something already: no steps that would take it far from there."""

TEXT_TUNING = Recipe(epochs=1, batch_size=8, optimizer="adafactor", lr=0.001, weight_decay=0.0)
"""Of a published model, with all texts seen once."""

_PAIRS = Recipe(epochs=1, batch_size=8, optimizer="adamw", lr=0.001, weight_decay=0.0)
_BLOCKS = Recipe(epochs=1, batch_size=8, optimizer="adamw", lr=0.0001, weight_decay=0.0)
TUNINGS = {"full": TEXT_TUNING, "lora": _PAIRS, "blocks": _BLOCKS}
"""By what of a published model is trained."""

_KNOWING = 0.1
"""The rate at which its own parameters are trained, as a share of the usual one."""


def own_recipe(model: str | None, from_: str | None, method: str | None = None) -> Recipe:
    """The recipe of what is trained.

    Errors: both, or neither; an unknown ready net; an unknown ``method`` of a published model.
    """
    if (model is None) == (from_ is None):
        received = "neither" if model is None else f"both: {model!r} and {from_!r}"
        raise _wrong("MODEL, --from", "one of them", received, "a file's net needs no MODEL")
    if model is not None:
        return find(model).recipe
    if from_ is None or not is_published(from_):
        return FINE_TUNING
    if method is not None and method not in TUNINGS:
        advice = did_you_mean(method, TUNINGS, "leave it out")
        raise _wrong("--method", f"one of {one_of(TUNINGS)}", repr(method), advice)
    return TUNINGS[method or "full"]


def checked_recipe(options: RunOptions) -> Recipe:
    """The own recipe with what the user said; everything that can be is checked here."""
    own = own_recipe(options.model, options.from_, options.method)
    optimizer = options.optimizer or own.optimizer
    same = optimizer == own.optimizer
    usual_decay = own.weight_decay if same else 0.0
    recipe = Recipe(
        epochs=own.epochs if options.epochs is None else options.epochs,
        batch_size=own.batch_size if options.batch_size is None else options.batch_size,
        optimizer=optimizer,
        lr=usual_rate(options) if options.lr is None else options.lr,
        weight_decay=usual_decay if options.weight_decay is None else options.weight_decay,
        augment=own.augment,
    )
    _check(options, recipe)
    make_optimizer(recipe.optimizer, recipe.lr, recipe.weight_decay, steps=1, warm_up=0)
    check_writable(options.json)
    return recipe


def usual_rate(options: RunOptions) -> float:
    """The learning rate where the user says none: the net's own, or the optimizer's."""
    own = own_recipe(options.model, options.from_, options.method)
    optimizer = options.optimizer or own.optimizer
    if optimizer == own.optimizer:
        return own.lr
    rate = USUAL_RATES.get(optimizer, own.lr)
    return rate * _KNOWING if own in (TEXT_TUNING, _BLOCKS) else rate


def class_weights(options: RunOptions, classes: int = 2**31) -> dict[int, float] | None:
    """Weights by class; files have texts as keys.

    Errors: what is no class, one that the data with their ``classes`` do not have, or no weight.
    """
    given = options.class_weight
    try:
        by_class = None if given is None else {int(k): w for k, w in given.items()}
    except (TypeError, ValueError):
        raise ArgumentError(
            "--class-weight",
            expected="numbers of classes with their weights",
            received=str(given)[:80],
            advice="write 0=1,3=5",
        ) from None
    strange = [key for key in by_class or () if not 0 <= key < classes]
    if strange:
        expected = f"classes from 0 to {classes - 1}, which the data have"
        raise _wrong("--class-weight", expected, str(strange[0]), "leave it out")
    return checked_class_weight(by_class)


def _check(options: RunOptions, recipe: Recipe) -> None:
    """Numbers in their ranges, and a folder where one is needed."""
    counts = {**LEAST, "keep": 1, "save_every": 1, "early_stopping": 0, "seed": 0}
    said = vars(options) | vars(recipe)
    for name, least in counts.items():
        if said[name] is not None and said[name] < least:
            expected = "a positive number" if least else "0 or more"
            raise _wrong(f"--{option(name)}", expected, str(said[name]), f"pass {least} or more")
    if options.clip is not None and not options.clip > 0:
        raise _wrong("--clip", "a positive number", str(options.clip), "1 is usual")
    if options.initial_epoch >= recipe.epochs:
        expected = f"less than the {recipe.epochs} of --epochs, which counts them too"
        raise _wrong("--initial-epoch", expected, str(options.initial_epoch), "raise --epochs")
    if options.kept_back:
        held(2**31, options.kept_back)
    class_weights(options)
    check_reducer(options.parallel, options.ratio, options.every)
    as_precision(options.mixed_precision)
    if options.memory_budget is not None:
        checked_bytes("--memory-budget", options.memory_budget)
    elif options.offload_folder is not None:
        advice = "add --memory-budget SIZE"
        raise _wrong("--offload-folder", "a budget, that the net may need it for", "none", advice)
    needing = {
        "--resume": options.resume,
        "--save-every": options.save_every is not None,
        "--live": options.live,
    }
    for name, given in needing.items():
        if given and options.out is None:
            raise no_folder(name)


def no_folder(option: str) -> ArgumentError:
    """The error for an option that needs ``--out``."""
    return _wrong(option, "a run folder", "none", "add --out RUN_DIR")


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)
