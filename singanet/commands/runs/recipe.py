"""The recipe of a run, and its figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from singanet.base.files import expect_suffix, replacing
from singanet.base.kinds import checked_bytes
from singanet.commands.runs.optimizers import USUAL_RATES, check_reducer, make_optimizer
from singanet.commands.runs.published import is_published
from singanet.commands.runs.run_options import OPTIONS, RunOptions, refusal, unknown
from singanet.data.tokens.pairs import METHODS
from singanet.errors import SingaNetError, one_of
from singanet.models import Recipe, find
from singanet.optimizer.mixed_precision import as_precision
from singanet.training.options import checked_class_weight


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse, before a run, a path of ``option`` that could not be written after it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        expected = "a file in an existing, writable folder"
        received = "a folder" if path.is_dir() else path
        advice = "create the folder first, or choose another path"
        raise refusal(f"{option} {str(path)!r}", expected, received, advice)


def check_target(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse, before the work, an ``--out`` with another suffix, or a path that is not writable."""
    expect_suffix("--out", path, suffixes)
    check_writable(path, "--out")


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` to ``path``, atomically. Errors: `FileAccessError`."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


FINE_TUNING = Recipe(epochs=10, optimizer="adam", lr=0.001, weight_decay=0.0)
"""The recipe for a trained net: no large steps."""

TEXT_TUNING = Recipe(epochs=1, batch_size=8, optimizer="adafactor", lr=0.001, weight_decay=0.0)
"""The recipe for a published model, with one pass over the texts."""

_PAIRS = Recipe(epochs=1, batch_size=8, optimizer="adamw", lr=0.001, weight_decay=0.0)
_BLOCKS = Recipe(epochs=1, batch_size=8, optimizer="adamw", lr=0.0001, weight_decay=0.0)
_PREFERENCES = Recipe(epochs=1, batch_size=8, optimizer="adafactor", lr=1e-4, weight_decay=0.0)
_PREFERENCE_PAIRS = Recipe(epochs=1, batch_size=8, optimizer="adamw", lr=1e-4, weight_decay=0.0)
TUNINGS = {"full": TEXT_TUNING, "lora": _PAIRS, "blocks": _BLOCKS}
TUNINGS |= dict.fromkeys(METHODS, _PREFERENCES)
"""Recipes by the trained part of a published model."""

_KNOWING = 0.1
"""The factor of the usual rate for the model's own parameters."""


def own_recipe(
    model: str | None, from_: str | None, method: str | None = None, rank: int | None = None
) -> Recipe:
    """Return the recipe of the net to train.

    Errors: both, or neither; an unknown ready net; an unknown ``method`` of a published model.
    """
    if (model is None) == (from_ is None):
        received = "neither" if model is None else f"both: {model!r} and {from_!r}"
        raise refusal("MODEL, --from", "one, not both", received, "a file's net needs no MODEL")
    if model is not None:
        return find(model).recipe
    if from_ is None or not is_published(from_):
        return FINE_TUNING
    if method is not None and method not in TUNINGS:
        raise unknown("--method", method, TUNINGS, "remove it")
    if method in METHODS and rank is not None:
        return _PREFERENCE_PAIRS
    return TUNINGS[method or "full"]


def checked_recipe(options: RunOptions) -> Recipe:
    """Return the net's recipe with the user's options, after all checks that are possible here."""
    own = _recipe_of(options)
    optimizer = options.optimizer or own.optimizer
    usual = {
        "optimizer": optimizer,
        "lr": usual_rate(options),
        "weight_decay": own.weight_decay if optimizer == own.optimizer else 0.0,
    }
    said = {name: getattr(options, name) for name in ("epochs", "batch_size", "lr", "weight_decay")}
    given = {name: value for name, value in said.items() if value is not None}
    recipe = replace(own, **{**usual, **given})
    _check(options, recipe)
    make_optimizer(recipe.optimizer, recipe.lr, recipe.weight_decay, steps=1, warm_up=0)
    check_writable(options.json)
    return recipe


def usual_rate(options: RunOptions) -> float:
    """Return the default learning rate: the net's own, or the optimizer's."""
    own = _recipe_of(options)
    optimizer = options.optimizer or own.optimizer
    if optimizer == own.optimizer:
        return own.lr
    rate = USUAL_RATES.get(optimizer, own.lr)
    if own == _PREFERENCES:
        return rate * _KNOWING**3
    return rate * _KNOWING if own in (TEXT_TUNING, _BLOCKS) else rate


def _recipe_of(options: RunOptions) -> Recipe:
    return own_recipe(options.model, options.from_, options.method, options.rank)


def class_weights(
    options: RunOptions, classes: int, names: Sequence[str] = ()
) -> dict[int, float] | None:
    """Return weights by the number of the class; keys are ``names`` of classes, or numbers.

    Errors: `ArgumentError` for an unknown class or an invalid weight.
    """
    known = [*names] or [str(k) for k in range(classes)]
    by_class = {}
    for key, weight in (options.class_weight or {}).items():
        if str(key) not in known:
            expected = f"the classes {one_of(known, 12)}, as in the data"
            if not names:
                expected = f"classes from 0 to {classes - 1}, as in the data"
            raise refusal("--class-weight", expected, str(key)[:80], "remove it")
        by_class[known.index(str(key))] = weight
    return checked_class_weight(by_class) if by_class else None


def _check(options: RunOptions, recipe: Recipe) -> None:
    """Check options that depend on each other, and that a folder is given if needed."""
    if options.initial_epoch >= recipe.epochs:
        expected = f"less than --epochs, {recipe.epochs}, which includes them"
        raise refusal("--initial-epoch", expected, options.initial_epoch, "raise --epochs")
    checked_class_weight(dict(enumerate((options.class_weight or {}).values())))
    check_reducer(options.parallel, options.ratio, options.every)
    as_precision(options.mixed_precision)
    if options.memory_budget is not None:
        checked_bytes("--memory-budget", options.memory_budget)
    elif options.offload_folder is not None:
        advice = "add --memory-budget SIZE"
        raise refusal("--offload-folder", "a memory budget as well", "none", advice)
    for name in ("resume", "save_every", "live"):
        if getattr(options, name) and options.out is None:
            raise no_folder(name)


def no_folder(name: str) -> SingaNetError:
    """Return the error for an option that needs ``--out``."""
    flag = f"--{OPTIONS[name].flag}"
    return refusal(flag, "a run folder", "none", "add --out RUN_DIR")
