"""Options, each defined once: its type, its help, its bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from singanet.errors import (
    ArgumentError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)

USUAL_SPLIT = 0.1
_PASSING = ("offload_folder", "out", "resume", "json", "quiet", "live")


def refusal(
    where: str,
    expected: str,
    received: object,
    advice: str,
    kind: type[SingaNetError] = ArgumentError,
) -> SingaNetError:
    """Return an error of ``kind`` with these parts."""
    return kind(where, expected=expected, received=str(received), advice=advice)


def unknown(where: str, name: str, known: Iterable[str], otherwise: str) -> SingaNetError:
    """Return the error for a ``name`` that is not in ``known``."""
    advice = did_you_mean(name, known, otherwise)
    return refusal(where, one_of(known), repr(name), advice, UnknownNameError)


class NumberRange(NamedTuple):
    """The range of a number: its text, its test, and the advice outside of it."""

    expected: str
    holds: Callable[[float], bool]
    advice: str


def positive(advice: str = "pass 1 or more") -> NumberRange:
    """Return the range of finite numbers above 0."""
    return NumberRange("a positive number", lambda value: 0 < value < math.inf, advice)


def not_negative(advice: str = "pass 0 or more") -> NumberRange:
    """Return the range of finite numbers from 0."""
    return NumberRange("0 or more", lambda value: 0 <= value < math.inf, advice)


SHARE = NumberRange(
    "a share from 0 to below 1",
    lambda value: 0.0 <= value < 1.0,
    "0.1 is a tenth of the training data, 0 none",
)


@dataclass(frozen=True)
class OptionHint:
    """An argument of a command, a key of a file, or both.

    ``several`` means a list of ``kind``; ``short`` are additional flags, ``more`` are arguments for
    argparse.
    """

    name: str
    kind: type
    metavar: str | None = None
    help: str | None = None
    bound: NumberRange | None = None
    several: bool = False
    short: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """The name on the command line, without dashes."""
        return self.name.rstrip("_").replace("_", "-")

    @property
    def kinds_in_files(self) -> tuple[type, ...]:
        """The allowed types in a file."""
        return _IN_FILES.get(self.kind, (self.kind,))

    def check(self, value: Any) -> None:
        """Errors: `ArgumentError` for a number out of bounds; None is within."""
        if self.bound is not None and value is not None and not self.bound.holds(value):
            raise refusal(f"--{self.flag}", self.bound.expected, value, self.bound.advice)


_IN_FILES: dict[type, tuple[type, ...]] = {float: (float, int), Path: (str,)}


def options_of(owner: Any) -> dict[str, OptionHint]:
    """Return the options of a dataclass's fields, or a function's arguments, by name.

    Their hints are ``Annotated[type, metavar, help, ...]``, with an optional `NumberRange`, a tuple
    of short flags and a dict for argparse.
    """
    # Not as a function, for which Python 3.10 would wrap hints of arguments with None as default.
    hints = owner.__annotations__
    bare = owner if isinstance(owner, type) else SimpleNamespace(__annotations__=hints)
    names = vars(sys.modules[owner.__module__])
    found = {}
    for name, hint in get_type_hints(bare, names, include_extras=True).items():
        if not hasattr(hint, "__metadata__"):
            continue
        one, *words = get_args(hint)
        one = get_args(one)[0] if NoneType in get_args(one) else one
        several = get_origin(one) is list
        given: dict[str, Any] = {_PLACES[type(word)]: word for word in words[2:]}
        given["kind"] = get_args(one)[0] if several else get_origin(one) or one
        given |= dict(zip(("metavar", "help"), words, strict=False))
        found[name] = OptionHint(name=name, several=several, **given)
    return found


_PLACES = {NumberRange: "bound", tuple: "short", dict: "more"}


@dataclass(frozen=True)
class RunOptions:
    """The options of a training; None means the value of the model's recipe.

    Each field is an option of ``singanet train``, with its metavar and help, and a key of files.
    The batch size counts the samples of all processes. Errors: `ArgumentError` for a number out of
    bounds.
    """

    model: Annotated[str | None, "MODEL", "a ready net; `singanet models` lists them"] = None
    data: Annotated[
        str | None,
        "DATA",
        "digits, scenes, FILE.npz, FILE.npy, a folder of MNIST or CIFAR, a folder with a folder of "
        "images per class; for language models plays or a text file; for tables FILE.csv, "
        "FILE.parquet, census, movielens or clicks (default: the first for the net)",
    ] = None
    epochs: Annotated[
        int | None, "N", "passes over the data (default: the net's recipe)", positive()
    ] = None
    batch_size: Annotated[
        int | None,
        "N",
        "samples in a step, of all processes (default: the net's recipe)",
        positive(),
    ] = None
    optimizer: Annotated[
        str | None, "NAME", "sgd, adam, adamw, ... (default: the net's recipe)"
    ] = None
    lr: Annotated[
        float | None, "F", "highest learning rate; it rises, then falls (default: the net's recipe)"
    ] = None
    weight_decay: Annotated[
        float | None,
        "F",
        "share of a weight that an update at rate 1 takes away (default: the net's recipe)",
        not_negative("0.0005 is usual for images"),
    ] = None
    clip: Annotated[
        float | None, "F", "bound on gradients (default: none)", positive("1 is usual")
    ] = None
    clip_by: Annotated[
        str, "HOW", "bound the norm of a layer, global (of all), running, or each value"
    ] = "layer"
    accumulate: Annotated[int, "N", "batches for an update, by their mean", positive()] = 1
    memory_budget: Annotated[
        str | None, "SIZE", "bytes such as 600MB: recompute or split to fit (default: no limit)"
    ] = None
    offload_folder: Annotated[str | None, "DIR", "a folder for the net if nothing else fits"] = None
    mixed_precision: Annotated[
        str | None,
        "TYPE",
        "float16: half the memory; bfloat16: faster products, or auto (default: float32)",
    ] = None
    seed: Annotated[int, "N", "number for every random draw", not_negative()] = 0
    parallel: Annotated[
        str,
        "HOW",
        "way to combine gradients: allreduce, half, sharded, sparse, powersgd, partial, local, ps,"
        " hybrid or pipeline",
    ] = "allreduce"
    ratio: Annotated[float | None, "F", "share of the gradients, 0 to 1, that sparse sends"] = None
    every: Annotated[int | None, "N", "steps of local, parts of partial, micro-batches"] = None
    validation_split: Annotated[
        float | None,
        "F",
        "share of the training data, 0 to 1, to validate with (default: 0.1 with --out or "
        "--early-stopping, else 0)",
        SHARE,
    ] = None
    early_stopping: Annotated[
        int | None, "N", "end after N epochs without gain (default: never)", not_negative()
    ] = None
    monitor: Annotated[
        str, "NAME", "measure for --early-stopping and best weights (default: val_loss)"
    ] = "auto"
    class_weight: Annotated[
        dict[Any, float] | None,
        "K=F,...",
        "weights of the loss by class, such as 0=1,3=5 or no=1,yes=5; others weigh 1",
    ] = None
    shuffle: Annotated[bool, "", "samples in their own order"] = True
    drop_last: Annotated[bool, "", "drop a last batch that is not full"] = False
    steps_per_epoch: Annotated[
        int | None, "N", "batches in an epoch (default: all)", positive()
    ] = None
    initial_epoch: Annotated[int, "N", "count epochs from here, up to --epochs", not_negative()] = 0
    quiet: Annotated[bool, "", "no progress on standard error"] = False
    out: Annotated[Path | None, "RUN_DIR", "save checkpoints, curves and figures here"] = None
    live: Annotated[bool, "", "update RUN_DIR/report.html during the training"] = False
    resume: Annotated[bool, "", "resume the run in RUN_DIR, to the bit"] = False
    keep: Annotated[int, "N", "epochs whose checkpoints are kept", positive()] = 3
    save_every: Annotated[
        int | None, "N", "steps between further checkpoints (default: none)", positive()
    ] = None
    tensorboard: Annotated[str | None, "DIR", "event files for TensorBoard"] = None
    json: Annotated[Path | None, "FILE", "write the figures here"] = None
    from_: Annotated[
        str | None,
        "FILE|FOLDER",
        "instead of MODEL: the net of a run or in a .singanet, .keras or .onnx file, with its "
        "weights, or a published model, as for finetune",
    ] = None
    validation: Annotated[
        str | None, "FILE", "texts to validate with, in place of --validation-split"
    ] = None
    length: Annotated[int | None, "N", "tokens of a row (default: 512, or the model's maximum)"] = (
        None
    )
    pack: Annotated[bool, "", "a row for each text, not several in a row"] = True
    too_long: Annotated[
        str | None,
        "HOW",
        "refuse, skip or cut texts longer than --length (default: refuse)",
    ] = None
    prompt: Annotated[
        str | None, "TEXT", "start of the samples before and after (default: from the data)"
    ] = None
    method: Annotated[
        str | None,
        "HOW",
        "trained part of a published model: full, lora or blocks (default: full); or all of it by"
        " preferences: dpo, orpo, kto or reward",
    ] = None
    head: Annotated[
        str | None,
        "KIND",
        "sequence-classification: classes of the texts in a table (default: the next words)",
    ] = None
    text: Annotated[
        str | None, "COLUMN", "texts of a table with --head (default: its only column of texts)"
    ] = None
    rank: Annotated[
        int | None, "N", "rank of low-rank pairs: of lora (default: 8), or by preferences"
    ] = None
    beta: Annotated[
        float | None,
        "F",
        "of dpo and kto: above 0, a large value keeps the model close to where it began; of orpo "
        "the weight of the odds (default: 0.1)",
        positive("0.1 is usual"),
    ] = None
    target: Annotated[
        str | None, "COLUMN|FILE.npy", "classes of --data: the column of a table, or an array"
    ] = None
    leave_out: Annotated[str | None, "COLUMN,...", "columns of a table to ignore"] = None
    min_count: Annotated[
        int, "N", "texts of a table in fewer rows count as unknown", positive()
    ] = 1

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            option.check(getattr(self, name))

    @property
    def subject(self) -> str:
        """The name of the model or the file."""
        return str(self.model or self.from_)

    @property
    def kept_back(self) -> float:
        """The share of the training data to validate with."""
        if self.validation is not None:
            return USUAL_SPLIT
        if self.validation_split is not None:
            return self.validation_split
        return USUAL_SPLIT if self.out is not None or self.early_stopping is not None else 0.0

    def lasting(self) -> dict[str, Any]:
        """Return the options that a resumption needs: all except outputs and the flag to resume."""
        return {k: v for k, v in asdict(self).items() if k not in _PASSING}


OPTIONS = options_of(RunOptions)
GROUPS = {
    "net and data": (
        *("model", "from_", "data", "target", "leave_out", "min_count", "validation_split"),
        *("validation", "class_weight", "shuffle", "drop_last"),
    ),
    "course": (
        *("epochs", "batch_size", "steps_per_epoch", "initial_epoch", "early_stopping", "monitor"),
        "seed",
    ),
    "optimizer": ("optimizer", "lr", "weight_decay", "clip", "clip_by", "accumulate"),
    "memory": ("memory_budget", "offload_folder", "mixed_precision"),
    "results": ("out", "resume", "live", "keep", "save_every", "json", "tensorboard", "quiet"),
    "published models": (
        *("head", "text", "method", "rank", "beta", "length", "pack", "too_long", "prompt"),
    ),
    "several processes": ("parallel", "ratio", "every"),
}
"""The options by the title under which the help shows them."""
LASTING = {name: each for name, each in OPTIONS.items() if name not in _PASSING}
"""The options that a resumption needs."""
