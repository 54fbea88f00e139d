"""What an optimizer knows of its parameters."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np

from singanet.errors import DataError, UnknownNameError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.regularizer import Regularizer
from singanet.params.param import ParamRoot
from singanet.params.served import is_served
from singanet.params.storage import ByArray, place_of
from singanet.types import Array, Shape

_T = TypeVar("_T")


class ParamState:
    """Settings of one parameter, how often it was updated, and its state arrays, kept flat.

    ``shape`` is None until the first update since the start or since loading. ``held`` are the
    arrays in memory. ``seen`` is a reference to the parameter's array at the last update, if the
    parameter is a net's.
    """

    __slots__ = (
        "_home",
        "_kinds",
        "_loaded",
        "constraint",
        "decay_mult",
        "held",
        "lr_mult",
        "name",
        "penalty_mult",
        "regularizer",
        "seen",
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
        self.seen: Callable[[], Array | None] = nothing
        self.shape: Shape | None = None
        self.held: list[Array] = []
        self._home: Callable[[], list[Array]] | None = None
        self._kinds: list[tuple[int, np.dtype[Any]]] = []
        self._loaded: list[Shape] = []

    @property
    def arrays(self) -> list[Array]:
        """The state arrays, read-only ones where they are kept elsewhere; assigning ends that."""
        return self.held if self._home is None else self._home()

    @arrays.setter
    def arrays(self, arrays: list[Array]) -> None:
        self.held, self._home = arrays, None

    @property
    def is_away(self) -> bool:
        """Whether the arrays are kept elsewhere than in memory."""
        return self._home is not None

    def keep_in(
        self, home: Callable[[], list[Array]], kinds: Iterable[tuple[int, np.dtype[Any]]]
    ) -> None:
        """Let go of the arrays, which ``home`` gives to be read from now on.

        They have the sizes and types ``kinds``.
        """
        self.held, self._home, self._kinds = [], home, list(kinds)

    def kinds(self) -> tuple[list[int], list[np.dtype[Any]]]:
        """Sizes and types of the arrays, without getting them."""
        found = self._kinds
        if self._home is None:
            found = [(array.size, array.dtype) for array in self.held]
        return [size for size, _ in found], [dtype for _, dtype in found]

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """With its arrays, wherever they are."""
        state = {name: getattr(self, name) for name in ParamState.__slots__}
        state["seen"] = nothing
        if self._home is not None:
            state |= {"held": [array.copy() for array in self._home()], "_home": None}
        return None, state

    @property
    def is_scheduled(self) -> bool:
        """Whether the regularizer's coefficient is a schedule, and not multiplied by 0."""
        scheduled = callable(getattr(self.regularizer, "coefficient", None))
        return scheduled and self.penalty_mult != 0.0

    def regularizer_at(self, penalty: Any) -> Regularizer | None:
        """The regularizer, None if ``penalty`` is 0 and goes on being 0.

        Of a schedule nobody asks the value: it differs from step to step in a recorded rule.
        """
        if self.regularizer is None:
            return None
        return self.regularizer if self.is_scheduled or penalty else None

    def settle_as(self, other: ParamState) -> None:
        """Take the settings of ``other``; steps and arrays stay."""
        self.lr_mult, self.decay_mult = other.lr_mult, other.decay_mult
        self.penalty_mult = other.penalty_mult
        self.regularizer, self.constraint = other.regularizer, other.constraint

    def settle_on(self, value: Array, sizes: Sequence[int], buckets: StateBuckets) -> None:
        """Make the arrays for ``value``, or bring loaded ones to its device and type.

        They lie in ``buckets``, if the value lies in a bucket and they have its size.
        """
        if is_served(value):
            # The table has them.
            self.shape, self.arrays = value.shape, []
            return
        xp = ops_for(value).xp
        laid = buckets.take(self.name, value, len(sizes)) if {*sizes} == {value.size} else None
        loaded = [xp.asarray(array, value.dtype) for array in self.arrays]
        if laid is None:
            self.arrays = loaded or [xp.zeros(size, value.dtype) for size in sizes]
        else:
            for place, array in zip(laid, loaded or [0.0] * len(laid), strict=True):
                place[...] = array
            self.arrays = laid
        self.shape = value.shape

    def resume(self, step: int, arrays: Sequence[Array]) -> None:
        """Go on from ``step`` with the ``arrays`` of a dump, in its shapes."""
        self.step, self.shape = step, None
        self.arrays = [array.reshape(-1) for array in arrays]
        self._loaded = [array.shape for array in arrays]

    def shape_of(self, slot: int) -> Shape:
        """The shape of an array in a dump: the parameter's, if it has as many numbers."""
        if self.shape is None and slot < len(self._loaded):
            return self._loaded[slot]
        size = self.arrays[slot].size
        return self.shape if self.shape is not None and size == prod(self.shape) else (size,)

    def forget(self) -> None:
        """Back to before the first update; the settings stay."""
        self.step, self.shape, self.arrays, self._loaded = 0, None, [], []
        self.seen = nothing


def nothing() -> None:
    """A reference to no object, and the mark of an entry that is missing."""


class Owners:
    """The parameters that state kept by name belongs to, as several nets may use one name.

    While another parameter of a name is trained, the state of the first is laid aside, and it goes
    when that parameter does. Loaded or copied state goes to the first parameter of its name.
    """

    def __init__(self) -> None:
        self.net: Callable[[], Any] = nothing
        """A reference to the net whose parameters were all turned to last."""
        self._known: dict[str, weakref.ref[ParamRoot]] = {}
        self._aside: weakref.WeakKeyDictionary[ParamRoot, dict[str, list[Any]]]
        self._aside = weakref.WeakKeyDictionary()

    def turn(self, name: str, root: ParamRoot, *kept: dict[str, Any]) -> bool:
        """Put the state of ``root`` under ``name`` into the dicts ``kept``, none if it is new.

        Returns whether they had the state of another parameter there.
        """
        owner = self._known.get(name)
        before = None if owner is None else owner()
        if before is root:
            return False
        self._known[name] = weakref.ref(root)
        if owner is None:
            return False
        if before is not None:
            entries = [each.get(name, nothing) for each in kept]
            self._aside.setdefault(before, {})[name] = entries
        found = self._aside.get(root, {}).pop(name, None) or [nothing] * len(kept)
        for each, entry in zip(kept, found, strict=True):
            if entry is nothing:
                each.pop(name, None)
            else:
                each[name] = entry
        return True

    def turn_all(self, roots: Sequence[ParamRoot], other: bool, now: _T, new: _T) -> _T:
        """The state of the net with parameters ``roots``: ``new`` if the net has had none yet.

        ``now`` is the state of the last net, which is laid aside where this is an ``other`` one.
        The first parameter stands for the net.
        """
        kept = {"*": now}
        if roots and (other or "*" not in self._known):
            self.turn("*", roots[0], kept)
        return kept.get("*", new)

    def aside(self) -> Iterator[Any]:
        """Each piece of state that is laid aside."""
        for by_name in self._aside.values():
            for entries in by_name.values():
                yield from (entry for entry in entries if entry is not nothing)

    def forget(self) -> None:
        """Give all state to the first parameters that come, and drop what is laid aside."""
        self._known.clear()
        self._aside.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Owners:
        """The owners among the parameters that were copied along before."""
        made = Owners()
        for name, owner in self._known.items():
            copied = memo.get(id(owner()))
            if copied is not None:
                made._known[name] = weakref.ref(copied)
        for root, by_name in self._aside.items():
            if id(root) in memo:
                made._aside[memo[id(root)]] = copy.deepcopy(by_name, memo)
        return made

    def __reduce__(self) -> tuple[type[Owners], tuple[()]]:
        return Owners, ()


@dataclass
class _StateBucket:
    """Flat arrays, one a slot, beside those of a bucket; by their start, who has which slices."""

    arrays: list[Array]
    taken: dict[int, tuple[str, list[Array]]] = field(default_factory=dict)


class StateBuckets:
    """State of parameters that lie in buckets, as slices of flat arrays in the same order."""

    def __init__(self) -> None:
        self._known: ByArray[_StateBucket] = ByArray()

    def take(self, name: str, value: Array, slots: int) -> list[Array] | None:
        """The slices of ``name``, as ``value`` lies, one a slot, with whatever is in them.

        None if the value is in no bucket, or another name has them.
        """
        place = place_of(value)
        if place is None:
            return None
        known = self._known.of(place.bucket)
        if known is None:
            xp = ops_for(value).xp
            flat = [xp.zeros(place.bucket.size, value.dtype) for _ in range(slots)]
            known = _StateBucket(flat)
            self._known.note(place.bucket, known)
        if known.taken.get(place.start, (name,))[0] != name:
            return None
        arrays = [array[place.start : place.stop] for array in known.arrays]
        known.taken[place.start] = name, arrays
        return arrays

    def lacks(self, name: str, value: Array, arrays: list[Array]) -> bool:
        """Whether ``arrays``, as after copying, could lie here and do not."""
        place = place_of(value)
        if place is None or any((a.size, a.dtype) != (value.size, value.dtype) for a in arrays):
            return False
        known = self._known.of(place.bucket)
        taken = None if known is None else known.taken.get(place.start)
        return taken is None or (taken[0] == name and taken[1] is not arrays)

    def __deepcopy__(self, memo: dict[int, Any]) -> StateBuckets:
        """An empty one: arrays that were copied are in none of its buckets yet."""
        return StateBuckets()

    def __reduce__(self) -> tuple[type[StateBuckets], tuple[()]]:
        return StateBuckets, ()


def together(cases: Iterable[Hashable]) -> Hashable:
    """The one case of all parameters, or all of them where they differ."""
    found = tuple(cases)
    return found[0] if len(set(found)) == 1 else found


def dump(states: Mapping[str, ParamState], slots: Sequence[str]) -> dict[str, Array]:
    """Copies of the state of every parameter updated so far, by ``name/slot``."""
    saved: dict[str, Array] = {}
    for name, state in states.items():
        if not state.step or len(state.arrays) < len(slots):
            # Not updated, or by the table that has its rows.
            continue
        saved[f"{name}/step"] = np.array(state.step, np.int64)
        for k, (slot, array) in enumerate(zip(slots, state.arrays, strict=True)):
            saved[f"{name}/{slot}"] = array.reshape(state.shape_of(k)).copy()
    return saved


def parse(
    where: str, saved: Mapping[str, Array], slots: Sequence[str]
) -> dict[str, tuple[int, list[Array]]]:
    """Step and copies of the arrays for every parameter of a dump, checked for gaps."""
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
        parsed[name] = (int(step.reshape(-1)[0]), [arrays[s].copy() for s in slots])
    return parsed
