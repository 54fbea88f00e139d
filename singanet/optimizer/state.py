"""What an optimizer knows of its parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from singanet.errors import DataError, UnknownNameError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.regularizer import Regularizer
from singanet.types import Array, Shape


class ParamState:
    """Settings of one parameter, how often it was updated, and its state arrays, kept flat.

    ``shape`` is None until the first update since the start or since loading.
    """

    __slots__ = (
        "arrays",
        "constraint",
        "decay_mult",
        "lr_mult",
        "name",
        "penalty_mult",
        "regularizer",
        "shape",
        "step",
    )

    def __init__(
        self, name: str, regularizer: Regularizer | None, constraint: Constraint | None
    ) -> None:
        self.name = name
        self.lr_mult = 1.0
        self.decay_mult = 1.0
        self.penalty_mult = 1.0
        self.regularizer = regularizer
        self.constraint = constraint
        self.step = 0
        self.shape: Shape | None = None
        self.arrays: list[Array] = []

    def settle_as(self, other: ParamState) -> None:
        """Take the settings of ``other``; steps and arrays stay."""
        self.lr_mult, self.decay_mult = other.lr_mult, other.decay_mult
        self.penalty_mult = other.penalty_mult
        self.regularizer, self.constraint = other.regularizer, other.constraint

    def settle_on(self, value: Array, sizes: Sequence[int]) -> None:
        """Make the arrays for ``value``, or bring loaded ones to its device and type."""
        xp = ops_for(value).xp
        if self.arrays:
            self.arrays = [xp.asarray(array, value.dtype) for array in self.arrays]
        else:
            self.arrays = [xp.zeros(size, value.dtype) for size in sizes]
        self.shape = value.shape

    def forget(self) -> None:
        """Back to before the first update; the settings stay."""
        self.step, self.shape, self.arrays = 0, None, []


def together(cases: Iterable[Hashable]) -> Hashable:
    """The one case of all parameters, or all of them where they differ."""
    found = tuple(cases)
    return found[0] if len(set(found)) == 1 else found


def dump(states: Mapping[str, ParamState], slots: Sequence[str]) -> dict[str, Array]:
    """Copies of the state of every parameter updated so far, by ``name/slot``."""
    saved: dict[str, Array] = {}
    for name, state in states.items():
        if not state.step:
            continue
        saved[f"{name}/step"] = np.array(state.step, np.int64)
        for slot, array in zip(slots, state.arrays, strict=True):
            whole = state.shape is not None and array.size == int(np.prod(state.shape))
            saved[f"{name}/{slot}"] = array.reshape(state.shape if whole else -1).copy()
    return saved


def parse(
    where: str, saved: Mapping[str, Array], slots: Sequence[str]
) -> dict[str, tuple[int, list[Array]]]:
    """Step and flat copies of the arrays for every parameter of a dump, checked for gaps."""
    known = ("step", *slots)
    found: dict[str, dict[str, Array]] = {}
    for key, array in saved.items():
        name, _, slot = key.rpartition("/")
        if not name or slot not in known:
            raise UnknownNameError(
                f"{where}.load_state_dict",
                expected=f"keys 'parameter/slot' with a slot among {one_of(known)}",
                received=repr(key),
                advice=did_you_mean(slot, known, "load it with the optimizer that saved it"),
            )
        found.setdefault(name, {})[slot] = array
    parsed = {}
    for name, arrays in found.items():
        missing = [slot for slot in known if slot not in arrays]
        step = np.asarray(arrays.get("step", 0))
        if missing or step.size != 1 or step.dtype.kind not in "iu" or step.min() < 0:
            raise DataError(
                f"{where}.load_state_dict, parameter {name!r}",
                expected=f"{one_of(known)}, the step a count",
                received=f"no {one_of(missing)}" if missing else f"step of shape {step.shape}",
                advice="load a complete state_dict of the same kind of optimizer",
            )
        parsed[name] = (int(step.reshape(-1)[0]), [arrays[s].reshape(-1).copy() for s in slots])
    return parsed
