"""Ready nets by name."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any, Literal, overload

from singanet.base.arguments import checked_count, is_int
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.models.entry import ModelEntry
from singanet.models.rbm import RBM
from singanet.models.table import ENTRIES
from singanet.net import FeedForwardNet
from singanet.types import Shape

_BY_NAME = {entry.name: entry for entry in ENTRIES}
_SET_HERE = ("input_shape", "num_classes", "seed")


def entries() -> list[ModelEntry]:
    """Every ready net, in the order of the table."""
    return list(ENTRIES)


def find(name: str) -> ModelEntry:
    """The entry called ``name``. Errors: `UnknownNameError`."""
    if name not in _BY_NAME:
        raise UnknownNameError(
            f"model {name!r}",
            expected=f"one of {one_of(_BY_NAME, 60)}",
            received=repr(name),
            advice=did_you_mean(name, _BY_NAME, "see the list that singanet models prints"),
        )
    return _BY_NAME[name]


@overload
def build(
    name: Literal["rbm"],
    input_shape: Shape | None = None,
    num_classes: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> RBM: ...


@overload
def build(
    name: str,
    input_shape: Shape | None = None,
    num_classes: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> FeedForwardNet: ...


def build(
    name: str,
    input_shape: Shape | None = None,
    num_classes: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> FeedForwardNet | RBM:
    """The net ``name`` for samples of ``input_shape``, with a loss and a metric.

    "rbm" alone is no net: it is an `RBM`, which is trained and tested like one. Shape and
    classes left out are those of the net's usual form; ``options`` go to the family's own
    ``build``. Errors: an unknown name or option; a shape or number of classes that is not
    positive; a shape the net's layers refuse.
    """
    entry = find(name)
    shape = _checked_shape(name, entry.input_shape if input_shape is None else input_shape)
    given = entry.num_classes if num_classes is None else num_classes
    classes = checked_count(f"model {name!r}", "argument num_classes", given, 1)
    make = import_module(f"singanet.models.{entry.module}").build
    known = [option for option in signature(make).parameters if option not in _SET_HERE]
    for option in options:
        if option not in known:
            raise UnknownNameError(
                f"model {name!r}",
                expected=f"options among {one_of(known)}" if known else "no options",
                received=repr(option),
                advice=did_you_mean(option, known, "leave it out"),
            )
    net: FeedForwardNet | RBM = make(shape, classes, seed=seed, **{**entry.options, **options})
    return net


def _checked_shape(name: str, given: Any) -> Shape:
    shape = tuple(given) if isinstance(given, (tuple, list)) else ()
    good = shape and all(is_int(axis) for axis in shape)
    if not good:
        raise ArgumentError(
            f"model {name!r}, argument input_shape",
            expected="positive ints, without the batch axis",
            received=repr(given),
            advice="pass for example (1, 28, 28)",
        )
    return shape
