"""What the command line says about a training, and the recipe that comes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from singanet.errors import ArgumentError
from singanet.models import ModelEntry, Recipe
from singanet.training.figures import check_writable
from singanet.training.optimizers import USUAL_RATES, make_optimizer


@dataclass(frozen=True)
class RunOptions:
    """What to train, on what, and how; None leaves it to the model's own recipe.

    ``out`` is the run folder: with ``resume`` the training that stands there goes on. The last
    ``keep`` epochs' checkpoints stay; with ``save_every`` there is one after so many steps too.
    """

    model: str
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

    def lasting(self) -> dict[str, Any]:
        """What a resumption needs: all but where it is written and whether it goes on."""
        return {k: v for k, v in asdict(self).items() if k not in ("out", "resume", "json")}


LASTING = tuple(f.name for f in fields(RunOptions) if f.name not in ("out", "resume", "json"))
"""The names of these."""

KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "data", "optimizer", "clip_by", "out", "json"), (str,)),
    **dict.fromkeys(("epochs", "batch_size", "accumulate", "seed", "keep", "save_every"), (int,)),
    **dict.fromkeys(("lr", "weight_decay", "clip"), (float, int)),
    "resume": (bool,),
}
"""The types that each option may have in a file."""


def checked_recipe(options: RunOptions, entry: ModelEntry) -> Recipe:
    """The recipe of ``entry`` with what the user said; everything that can be is checked here."""
    own = entry.recipe
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
    save_every = 1 if options.save_every is None else options.save_every
    for what, value in (
        ("--epochs", recipe.epochs),
        ("--batch-size", recipe.batch_size),
        ("--accumulate", options.accumulate),
        ("--keep", options.keep),
        ("--save-every", save_every),
        ("--clip", 1 if options.clip is None else options.clip),
    ):
        if not value > 0:
            raise ArgumentError(
                what, expected="a positive number", received=str(value), advice="pass 1 or more"
            )
    if options.seed < 0:
        raise ArgumentError(
            "--seed", expected="0 or more", received=str(options.seed), advice="pass another seed"
        )
    if options.out is None and (options.resume or options.save_every is not None):
        raise ArgumentError(
            "--resume" if options.resume else "--save-every",
            expected="a run folder",
            received="none",
            advice="add --out RUN_DIR",
        )
    make_optimizer(recipe.optimizer, recipe.lr, recipe.weight_decay, steps=1, warm_up=0)
    check_writable(options.json)
    return recipe
