"""The arguments of a fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Protocol

from singanet.base.arguments import checked_count, is_flag
from singanet.base.files import path_of
from singanet.errors import ArgumentError, brief

if TYPE_CHECKING:
    from singanet.types import Array

MEASURES: Final = ("recompute", "micro-batches", "light state", "offload")
"""Ways to save memory, in the order of trial."""
USUAL: Final = MEASURES[:2]
"""The ways that are allowed by default: they do not change results, and need no folder."""


class Stateful(Protocol):
    """The part of a callback that a training checkpoint stores."""

    def state_dict(self) -> dict[str, Array]:
        """Return arrays by name."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state from `state_dict`."""


@dataclass(frozen=True)
class FitOptions:
    """The validated arguments of `FeedForwardNet.fit`.

    `fit` takes its signature from this class. Errors: an argument out of range; validation data
    twice; callbacks that are not a list.
    """

    x: Any
    y: Any = None
    batch_size: int = 32
    epochs: int = 1
    validation_data: Any = None
    validation_split: float = 0.0
    callbacks: Iterable[Stateful] = ()
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Array | None = None
    initial_epoch: int = 0
    resume: Mapping[str, Array] | str | PathLike[str] | None = None
    clip: float | None = None
    clip_by: str = "layer"
    accumulate: int = 1
    steps_per_epoch: int | None = None
    drop_last: bool = False
    verbose: bool | int = True
    memory_budget: int | str | None = None
    allow: Collection[str] = USUAL
    offload_folder: str | PathLike[str] | None = None
    micro_batch: int | None = field(default=None, init=False)
    """The samples of a micro-batch, the parts of each step; None for the whole batch."""
    largest: int | None = field(default=None, init=False)
    """The largest allowed batch of a source; None for any."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate", "steps_per_epoch"):
            value = getattr(self, name)
            if value is not None or name != "steps_per_epoch":
                self._set(name, checked_count("net.fit", name, value, 1))
        first = checked_count("net.fit", "initial_epoch", self.initial_epoch, 0)
        self._set("initial_epoch", first)
        if self.validation_data is not None and self.validation_split:
            raise ArgumentError(
                "net.fit",
                expected="validation_data or validation_split",
                received="both",
                advice="omit one",
            )
        if not is_flag(self.shuffle):
            raise ArgumentError(
                "net.fit, shuffle",
                expected="True or False",
                received=brief(self.shuffle)[:60],
                advice="write shuffle=True, or shuffle=False",
            )
        if not isinstance(self.callbacks, Iterable):
            raise ArgumentError(
                "net.fit, callbacks",
                expected="a list of callbacks",
                received=f"a {type(self.callbacks).__name__}",
                advice="write callbacks=[...]",
            )
        self._set("callbacks", tuple(self.callbacks))
        if self.resume is not None and not isinstance(self.resume, Mapping):
            self._set("resume", path_of(self.resume, "resume"))
        self._set("class_weight", checked_class_weight(self.class_weight))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def in_parts(self, micro_batch: int | None, largest: int | None = None) -> FitOptions:
        """Return a copy with other `micro_batch` and `largest`."""
        made = copy.copy(self)
        made._set("micro_batch", micro_batch)
        made._set("largest", largest)
        return made

    @property
    def within_budget(self) -> bool:
        """Whether an argument sets a memory budget, or a way to save memory."""
        given = self.memory_budget is not None or self.offload_folder is not None
        return given or self.allow != USUAL

    @property
    def validates(self) -> bool:
        """Whether epochs end with a validation."""
        return self.validation_data is not None or bool(self.validation_split)

    @property
    def stages(self) -> tuple[float | None, str, int]:
        """The stages around the optimizer: a clip, its kind, and an accumulation."""
        return self.clip, self.clip_by, self.accumulate

    def facts(self) -> dict[str, Any]:
        """Return the options that have to be the same on all ranks."""
        return {
            "batch_size": self.batch_size,
            "epochs": (self.initial_epoch, self.epochs, self.steps_per_epoch),
            "order": (self.shuffle, self.drop_last, self.validation_split, self.class_weight),
            "steps": (*self.stages, self.micro_batch),
            "callbacks": [type(each).__name__ for each in self.callbacks],
            "validation_data": self.validation_data is not None,
            "resume": self.resume is not None,
        }


def checked_class_weight(given: Mapping[int, float] | None) -> dict[int, float] | None:
    """Return ``given`` as plain numbers. Errors: an invalid class or weight."""
    if given is None:
        return None
    whole = isinstance(given, Mapping) and all(hasattr(key, "__index__") for key in given)
    weights = list(given.values()) if whole else []
    numbers = all(isinstance(w, Real) for w in weights)
    if not whole or not numbers or not all(math.isfinite(w) and w >= 0 for w in weights):
        raise ArgumentError(
            "net.fit, class_weight",
            expected="a dict from class numbers to finite weights >= 0",
            received=str(given)[:80],
            advice="write {0: 1.0, 1: 5.0}; other classes weigh 1",
        )
    return {int(key): float(weight) for key, weight in given.items()}
