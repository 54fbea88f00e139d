"""What the command line says about a training, and the recipe that comes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from singanet.base.sizes import checked_bytes
from singanet.errors import ArgumentError
from singanet.models import Recipe, find
from singanet.optimizer.mixed_precision import as_precision
from singanet.runs.figures import check_writable
from singanet.runs.optimizers import USUAL_RATES, make_optimizer
from singanet.runs.reducers import check_reducer
from singanet.runs.tasks.split import held
from singanet.training.sample_weights import checked_class_weight

USUAL_SPLIT = 0.1
_PASSING = ("offload_folder", "out", "resume", "json", "quiet")


@dataclass(frozen=True)
class RunOptions:
    """What to train, on what, and how; None leaves it to the model's own recipe.

    It is the ready net ``model`` or the net in the file ``from_`` of a whole model.
    ``out`` is the run folder: with ``resume`` the training that stands there goes on. The last
    ``keep`` epochs' checkpoints stay; with ``save_every`` there is one after so many steps too.
    ``validation_split`` of the training data is kept back to choose the best weights and the end
    by; None is a tenth where either is asked for. ``early_stopping`` is a number of epochs.
    ``parallel`` is what several processes do, with the ``ratio`` of gradients that are sent or the
    steps ``every`` which they meet; the batch size is that of all of them together.
    """

    model: str | None = None
    data: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    clip_by: str = "layer"
    accumulate: int = 1
    seed: int = 0
    out: Path | None = None
    resume: bool = False
    keep: int = 3
    save_every: int | None = None
    json: Path | None = None
    validation_split: float | None = None
    early_stopping: int | None = None
    monitor: str = "auto"
    class_weight: dict[Any, float] | None = None
    shuffle: bool = True
    drop_last: bool = False
    steps_per_epoch: int | None = None
    initial_epoch: int = 0
    mixed_precision: str | None = None
    tensorboard: str | None = None
    quiet: bool = False
    memory_budget: str | None = None
    offload_folder: str | None = None
    parallel: str = "allreduce"
    ratio: float | None = None
    every: int | None = None
    from_: str | None = None

    @property
    def subject(self) -> str:
        """What is trained, in words."""
        return str(self.model or self.from_)

    @property
    def kept_back(self) -> float:
        """The share of the training data to validate with."""
        if self.validation_split is not None:
            return self.validation_split
        return USUAL_SPLIT if self.out is not None or self.early_stopping is not None else 0.0

    def lasting(self) -> dict[str, Any]:
        """What a resumption needs: all but where it is written and whether it goes on."""
        return {k: v for k, v in asdict(self).items() if k not in _PASSING}


LASTING = tuple(f.name for f in fields(RunOptions) if f.name not in _PASSING)
"""The names of these."""

KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "from_", "data", "optimizer", "clip_by", "out", "json"), (str,)),
    **dict.fromkeys(
        ("monitor", "mixed_precision", "tensorboard", "memory_budget", "parallel"), (str,)
    ),
    "offload_folder": (str,),
    **dict.fromkeys(("epochs", "batch_size", "accumulate", "seed", "keep", "save_every"), (int,)),
    **dict.fromkeys(("early_stopping", "steps_per_epoch", "initial_epoch", "every"), (int,)),
    **dict.fromkeys(("lr", "weight_decay", "clip", "validation_split", "ratio"), (float, int)),
    **dict.fromkeys(("resume", "shuffle", "drop_last", "quiet"), (bool,)),
    "class_weight": (dict,),
}
"""The types that each option may have in a file."""


FINE_TUNING = Recipe(epochs=10, optimizer="adam", lr=0.001, weight_decay=0.0)
"""Of a net that knows something already: no steps that would take it far from there."""


def option(name: str) -> str:
    """The field ``name`` of `RunOptions` as it is written on the command line, without dashes."""
    return name.rstrip("_").replace("_", "-")


def own_recipe(model: str | None, from_: str | None) -> Recipe:
    """The recipe of what is trained. Errors: both, or neither; an unknown ready net."""
    if (model is None) == (from_ is None):
        received = "neither" if model is None else f"both: {model!r} and {from_!r}"
        raise _wrong("MODEL, --from", "one of them", received, "a file's net needs no MODEL")
    return FINE_TUNING if model is None else find(model).recipe


def checked_recipe(options: RunOptions) -> Recipe:
    """The own recipe with what the user said; everything that can be is checked here."""
    own = own_recipe(options.model, options.from_)
    optimizer = options.optimizer or own.optimizer
    same = optimizer == own.optimizer
    usual_rate = own.lr if same else USUAL_RATES.get(optimizer, own.lr)
    usual_decay = own.weight_decay if same else 0.0
    recipe = Recipe(
        epochs=own.epochs if options.epochs is None else options.epochs,
        batch_size=own.batch_size if options.batch_size is None else options.batch_size,
        optimizer=optimizer,
        lr=usual_rate if options.lr is None else options.lr,
        weight_decay=usual_decay if options.weight_decay is None else options.weight_decay,
        augment=own.augment,
    )
    _check(options, recipe)
    make_optimizer(recipe.optimizer, recipe.lr, recipe.weight_decay, steps=1, warm_up=0)
    check_writable(options.json)
    return recipe


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
    for what, value, least in (
        ("--epochs", recipe.epochs, 1),
        ("--batch-size", recipe.batch_size, 1),
        ("--accumulate", options.accumulate, 1),
        ("--keep", options.keep, 1),
        ("--save-every", options.save_every, 1),
        ("--steps-per-epoch", options.steps_per_epoch, 1),
        ("--early-stopping", options.early_stopping, 0),
        ("--initial-epoch", options.initial_epoch, 0),
        ("--seed", options.seed, 0),
    ):
        if value is not None and value < least:
            expected = "a positive number" if least else "0 or more"
            raise _wrong(what, expected, str(value), f"pass {least} or more")
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
    if options.out is None and (options.resume or options.save_every is not None):
        raise no_folder("--resume" if options.resume else "--save-every")


def no_folder(option: str) -> ArgumentError:
    """The error for an option that needs ``--out``."""
    return _wrong(option, "a run folder", "none", "add --out RUN_DIR")


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)
