"""What an optimizer knows of its parameters."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from singanet.errors import DataError, UnknownNameError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.regularizer import Regularizer
from singanet.params.param import ParamRoot
from singanet.params.served import is_served
from singanet.params.storage import ByArray, place_of
from singanet.types import Array, Shape


class ParamState:
    """Settings of one parameter, how often it was updated, and its state arrays, kept flat.

    ``shape`` is None until the first update since the start or since loading. ``held`` are the
    arrays in memory, ``seen`` refers to the array of a net's parameter that it was last asked for.
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
    """In the place of a reference."""


class Owners:
    """Whose is what is kept by name, of several nets that have the same names.

    What is kept of a parameter is laid aside while another one of its name is trained, and goes
    with it. What was loaded or copied is anybody's until the first one of its name comes.
    """

    def __init__(self) -> None:
        self.net: Callable[[], Any] = nothing
        """Refers to the net of the last `turn` of all parameters."""
        self._known: dict[str, weakref.ref[ParamRoot]] = {}
        self._aside: weakref.WeakKeyDictionary[ParamRoot, dict[str, list[Any]]]
        self._aside = weakref.WeakKeyDictionary()

    def turn(self, name: str, root: ParamRoot, *kept: dict[str, Any]) -> bool:
        """Let ``kept`` have under ``name`` what they had for ``root``, nothing if it is new.

        Returns whether they had another parameter's.
        """
        owner = self._known.get(name)
        before = None if owner is None else owner()
        if before is root:
            return False
        self._known[name] = weakref.ref(root)
        if owner is None:
            return False
        if before is not None:
            entries = [each.get(name, _NOTHING) for each in kept]
            self._aside.setdefault(before, {})[name] = entries
        found = self._aside.get(root, {}).pop(name, None) or [_NOTHING] * len(kept)
        for each, entry in zip(kept, found, strict=True):
            if entry is _NOTHING:
                each.pop(name, None)
            else:
                each[name] = entry
        return True

    def turn_all(self, root: ParamRoot, other: bool, kept: dict[str, Any]) -> bool:
        """`turn` of what ``kept`` has under "*": of a whole net, which is an ``other`` one or not.

        The net is known by one of its parameters, ``root``.
        """
        return (other or "*" not in self._known) and self.turn("*", root, kept)

    def aside(self) -> Iterator[Any]:
        """What is laid aside."""
        for by_name in self._aside.values():
            for entries in by_name.values():
                yield from (entry for entry in entries if entry is not _NOTHING)

    def forget(self) -> None:
        """What is kept is anybody's again, and nothing is laid aside."""
        self._known.clear()
        self._aside.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Owners:
        """That of the nets that were copied along before."""
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


class _Nothing:
    """In the place of what is not kept."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Nothing:
        return self


_NOTHING = _Nothing()


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
