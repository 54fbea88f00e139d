"""The state of an optimizer, and checks of names, values and gradients."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, put
from singanet.optimizer.regularization import Constraint, Regularizer
from singanet.params.param import ParamRoot
from singanet.params.storage import ByArray, ServedStandIn, is_served, place_of
from singanet.types import Array, RowSparse, Shape

_T = TypeVar("_T")


class ParamState:
    """The settings, the number of updates and the flat state arrays of one parameter.

    ``shape`` is None until the first update after the start or after loading. ``held`` are the
    arrays in memory. ``seen`` is a reference to the parameter's array at the last update, if the
    parameter belongs to a net. ``ratio`` is used by `Muon`: outputs over inputs of a hidden matrix,
    0 for another parameter, None if unknown. ``rests`` is used by `ScheduleFreeAdamW`: the multiple
    of the first array that `Optimizer.rest` has added to the value, 0 in training.
    """

    __slots__ = (
        "_home",
        "_kinds",
        "_loaded",
        "_part",
        "constraint",
        "decay_mult",
        "held",
        "lr_mult",
        "name",
        "penalty_mult",
        "ratio",
        "regularizer",
        "rests",
        "rows",
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
        self.ratio: float | None = None
        self.rests = 0.0
        self.regularizer = regularizer
        self.constraint = constraint
        self.step = 0
        self.seen: Callable[[], Array | None] = nothing
        self.shape: Shape | None = None
        self.held: list[Array] = []
        self._home: Callable[[], list[Array]] | None = None
        self._part: Callable[[slice], AbstractContextManager[list[Array]]] | None = None
        self.rows: Sequence[slice] = ()
        self._kinds: list[tuple[int, np.dtype[Any]]] = []
        self._loaded: list[Shape] = []

    @property
    def arrays(self) -> list[Array]:
        """The state arrays. Stored arrays are read-only; an assignment keeps them here."""
        return self.held if self._home is None else self._home()

    @arrays.setter
    def arrays(self, arrays: list[Array]) -> None:
        self.held, self._home, self._part, self.rows = arrays, None, None, ()

    @property
    def is_away(self) -> bool:
        """Whether the arrays are stored elsewhere."""
        return self._home is not None

    def keep_in(
        self,
        home: Callable[[], list[Array]],
        kinds: Iterable[tuple[int, np.dtype[Any]]],
        rows: Sequence[slice] = (),
        part: Callable[[slice], AbstractContextManager[list[Array]]] | None = None,
    ) -> None:
        """Release the arrays, and read them from ``home`` from now on.

        ``kinds`` are their sizes and dtypes. Of an array that is not read as a whole ``part``
        returns the arrays of some ``rows``, which may be changed in its block.
        """
        self.held, self._home, self._kinds = [], home, list(kinds)
        self.rows, self._part = rows, part

    @property
    def part_bytes(self) -> int:
        """The most bytes of a part of the state arrays, 0 if they are not in parts."""
        if not self.rows:
            return 0
        rows = self.rows[0].stop - self.rows[0].start
        return (
            sum(size * dtype.itemsize for size, dtype in self._kinds) * rows // self.rows[-1].stop
        )

    def parts(self, grad: Any) -> Iterable[tuple[slice | None, Any, list[Array]]]:
        """Return ``grad`` and the state arrays by the rows that are updated together.

        None are all rows. Rows without a gradient in a row-sparse one are left out.
        """
        return ((None, grad, self.arrays),) if self._part is None else self._in_parts(grad)

    def _in_parts(self, grad: Any) -> Iterator[tuple[slice | None, Any, list[Array]]]:
        assert self._part is not None
        for rows in self.rows:
            own = gradient_of_rows(grad, rows)
            if own is not None:
                with self._part(rows) as arrays:
                    yield rows, own, arrays

    def kinds(self) -> tuple[list[int], list[np.dtype[Any]]]:
        """Return sizes and dtypes of the arrays, without reading them."""
        found = self._kinds
        if self._home is None:
            found = [(array.size, array.dtype) for array in self.held]
        return [size for size, _ in found], [dtype for _, dtype in found]

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return the attributes, with copies of stored arrays."""
        state = {name: getattr(self, name) for name in ParamState.__slots__}
        state["seen"] = nothing
        if self._home is not None:
            state |= {
                "held": [array.copy() for array in self._home()],
                "_home": None,
                "_part": None,
                "rows": (),
            }
        return None, state

    @property
    def is_scheduled(self) -> bool:
        """Whether the regularizer's coefficient is a schedule, and not multiplied by 0."""
        scheduled = callable(getattr(self.regularizer, "coefficient", None))
        return scheduled and self.penalty_mult != 0.0

    def regularizer_at(self, penalty: Any) -> Regularizer | None:
        """Return the regularizer, or None if ``penalty`` is 0 at every step.

        The value of a schedule is not used, since it changes from step to step in a recorded rule.
        """
        if self.regularizer is None:
            return None
        return self.regularizer if self.is_scheduled or penalty else None

    def settle_as(self, other: ParamState) -> None:
        """Copy the settings of ``other``, without steps and arrays."""
        self.lr_mult, self.decay_mult = other.lr_mult, other.decay_mult
        self.penalty_mult = other.penalty_mult
        self.regularizer, self.constraint = other.regularizer, other.constraint

    def settle_on(self, value: Array, sizes: Sequence[int], buckets: StateBuckets) -> None:
        """Create the arrays for ``value``, or convert loaded arrays to its device and dtype.

        They are slices of ``buckets``, if the value is in a bucket and they have its size.
        """
        if is_served(value):
            # The table has them.
            self.shape, self.arrays = value.shape, []
            return
        xp = ops_for(value).xp
        laid = buckets.take(self.name, value, len(sizes)) if {*sizes} == {value.size} else None
        loaded = [put(xp, array, value.dtype) for array in self.arrays]
        if laid is None:
            self.arrays = loaded or [xp.zeros(size, value.dtype) for size in sizes]
        else:
            for place, array in zip(laid, loaded or [0.0] * len(laid), strict=True):
                place[...] = array
            self.arrays = laid
        self.shape = value.shape

    def is_beside(self, value: Array) -> bool:
        """Whether the arrays have the type of ``value`` and are on its device, or are elsewhere."""
        return all(type(a) is type(value) and a.dtype == value.dtype for a in self.held)

    def resume(self, step: int, arrays: Sequence[Array], rests: float = 0.0) -> None:
        """Continue from ``step`` with the ``arrays`` of a dump, and remember their shapes."""
        self.step, self.shape, self.rests = step, None, rests
        self.arrays = [array.reshape(-1) for array in arrays]
        self._loaded = [array.shape for array in arrays]

    def shape_of(self, slot: int) -> Shape:
        """Return the shape of an array in a dump: the parameter's, if the sizes are equal."""
        if self.shape is None and slot < len(self._loaded):
            return self._loaded[slot]
        size = self.arrays[slot].size
        return self.shape if self.shape is not None and size == prod(self.shape) else (size,)

    def forget(self) -> None:
        """Reset to the state before the first update, without changing the settings."""
        self.step, self.shape, self.arrays, self._loaded = 0, None, [], []
        self.seen, self.rests = nothing, 0.0


def gradient_of_rows(grad: Any, rows: slice) -> Any:
    """Return the gradient of some rows of a parameter, None if there is none."""
    if not isinstance(grad, RowSparse):
        return grad[rows]
    first, last = grad.indices.searchsorted([rows.start, rows.stop])
    if first == last:
        return None
    return RowSparse(grad.indices[first:last] - rows.start, grad.rows[first:last])


def nothing() -> None:
    """A reference to no object, also the mark of a missing entry."""


class Owners:
    """The owners of state that is stored by name, since several nets may use the same name.

    While another parameter with the name is trained, the state of the first is stored aside, until
    that parameter is deleted. Loaded or copied state belongs to the first parameter of its name.
    """

    def __init__(self) -> None:
        self.net: Callable[[], Any] = nothing
        """A reference to the current net."""
        self._known: dict[str, weakref.ref[ParamRoot]] = {}
        self._aside: weakref.WeakKeyDictionary[ParamRoot, dict[str, list[Any]]]
        self._aside = weakref.WeakKeyDictionary()

    def turn(self, name: str, root: ParamRoot, *kept: dict[str, Any]) -> bool:
        """Put the state of ``root``, if any, under ``name`` into the dicts ``kept``.

        Returns True if they had the state of another parameter there.
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
        """Return the state of the net with parameters ``roots``, or ``new`` if it has none.

        ``now`` is the state of the last net, which is stored aside if this is an ``other`` net.
        The first parameter identifies the net.
        """
        kept = {"*": now}
        if roots and (other or "*" not in self._known):
            self.turn("*", roots[0], kept)
        return kept.get("*", new)

    def aside(self) -> Iterator[Any]:
        """Yield each piece of state that is stored aside."""
        for by_name in self._aside.values():
            for entries in by_name.values():
                yield from (entry for entry in entries if entry is not nothing)

    def forget(self) -> None:
        """Assign all state to the next parameters of its names, and drop state stored aside."""
        self._known.clear()
        self._aside.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Owners:
        """Return the owners among the parameters copied before."""
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
    """Flat state arrays of a bucket, one a slot; ``taken`` maps a start to name and slices."""

    arrays: list[Array]
    taken: dict[int, tuple[str, list[Array]]] = field(default_factory=dict)


class StateBuckets:
    """State of parameters in buckets, as slices of flat arrays in the same order."""

    def __init__(self) -> None:
        self._known: ByArray[_StateBucket] = ByArray()

    def take(self, name: str, value: Array, slots: int) -> list[Array] | None:
        """Return the slices for ``name`` at the place of ``value``, one a slot.

        Returns None if the value is in no bucket, or if another name has the slices.
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
        """Whether ``arrays`` could be slices of a bucket and are not, as after copying."""
        place = place_of(value)
        if place is None or any((a.size, a.dtype) != (value.size, value.dtype) for a in arrays):
            return False
        known = self._known.of(place.bucket)
        taken = None if known is None else known.taken.get(place.start)
        return taken is None or (taken[0] == name and taken[1] is not arrays)

    def __deepcopy__(self, memo: dict[int, Any]) -> StateBuckets:
        """Return an empty object, since copied arrays are in no bucket."""
        return StateBuckets()

    def __reduce__(self) -> tuple[type[StateBuckets], tuple[()]]:
        return StateBuckets, ()


def together(cases: Iterable[Hashable]) -> Hashable:
    """Return the common case of all parameters, or all cases if they differ."""
    found = tuple(cases)
    return found[0] if len(set(found)) == 1 else found


def dump(states: Mapping[str, ParamState], slots: Sequence[str]) -> dict[str, Array]:
    """Return copies of the state of every updated parameter, by ``name/slot``."""
    saved: dict[str, Array] = {}
    for name, state in states.items():
        if not state.step or len(state.arrays) < len(slots):
            # Not updated, or updated by a served table.
            continue
        saved[f"{name}/step"] = np.array(state.step, np.int64)
        if state.rests:
            saved[f"{name}/rests"] = np.array(state.rests)
        for k, (slot, array) in enumerate(zip(slots, state.arrays, strict=True)):
            saved[f"{name}/{slot}"] = array.reshape(state.shape_of(k)).copy()
    return saved


def parse(
    where: str, saved: Mapping[str, Array], slots: Sequence[str]
) -> dict[str, tuple[int, list[Array], float]]:
    """Return step, copies of the arrays and ``rests`` of every parameter.

    Errors: an unknown or missing entry.
    """
    known = ("step", *slots)
    found: dict[str, dict[str, Array]] = {}
    for key, array in saved.items():
        name, _, slot = key.rpartition("/")
        if not name or slot not in (*known, "rests"):
            raise UnknownNameError(
                f"{where}.load_state_dict",
                expected=f"keys 'parameter/slot' with a slot among {one_of(known)}",
                received=brief(key),
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
        rests = float(np.asarray(arrays.get("rests", 0.0)).reshape(-1)[0])
        parsed[name] = (int(step.reshape(-1)[0]), [arrays[s].copy() for s in slots], rests)
    return parsed


Grad = Array | RowSparse | tuple[Array, Array] | None
Names: TypeAlias = Sequence[str]
Values: TypeAlias = Sequence[Array]
Grads: TypeAlias = Sequence[Grad]


def check_lists(where: str, names: Names, values: Sequence[Any], grads: Any) -> None:
    """Check that the three lists have one length and that no name is repeated."""
    if not len(names) == len(values) == len(grads):
        raise ArgumentError(
            where,
            expected="equal numbers of names, values and gradients",
            received=f"{len(names)} names, {len(values)} values and {len(grads)} gradients",
            advice="pass one item of net.backward as it is",
        )
    if len(names) > 1 and len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ArgumentError(
            where,
            expected="different names, since state is stored by name",
            received=f"{twice!r} more than once",
            advice="sum the gradients of a shared parameter",
        )


def check_type(where: str, name: str, dtype: np.dtype[Any]) -> None:
    """Check that an optimizer can update parameters of ``dtype``."""
    if dtype.name not in ("float32", "float64"):
        raise _not_float(f"{where}, parameter {name!r}", f"an array of {dtype}")


def _not_float(where: str, received: str) -> ArgumentError:
    return ArgumentError(
        where,
        expected="an array of float32 or float64",
        received=received,
        advice="train float16 by net.compile(..., mixed_precision='float16')"
        if received.endswith("float16")
        else "pass the live parameter array",
    )


def check_fit(where: str, name: str, value: Any, grad: Any, known: Shape | None) -> None:
    """Check that ``grad`` fits ``value``, and ``value`` the shape of its state."""
    shape = getattr(value, "shape", None)
    if shape is None:
        raise _not_float(f"{where}, parameter {name!r}", type(value).__name__)
    if known is None:
        check_type(where, name, value.dtype)
    if known is not None and known != shape:
        raise ShapeError(
            f"{where}, parameter {name!r}",
            expected=f"shape {known}, as in its state",
            received=f"a value of shape {shape}",
            advice="give every parameter its own name, or start a new optimizer",
        )
    if not isinstance(grad, tuple) and isinstance(value, ServedStandIn):
        raise ArgumentError(
            f"{where}, parameter {name!r}",
            expected="gradients of looked-up rows, since the parameter is a table",
            received="a gradient of all rows",
            advice="let only Embeddings read the table",
        )
    if isinstance(grad, tuple):
        _check_rows(f"{where}, parameter {name!r}", shape, *grad)
    elif getattr(grad, "shape", None) != shape:
        raise ShapeError(
            f"{where}, parameter {name!r}",
            expected=f"a gradient of the value's shape {shape}",
            received=f"shape {grad.shape}" if hasattr(grad, "shape") else type(grad).__name__,
            advice="pass names, values and gradients in the same order",
        )


def check_loaded(where: str, state: ParamState, sizes: Sequence[int], value: Array) -> None:
    """Check that loaded state fits its parameter, at the first update."""
    received = tuple(array.size for array in state.arrays)
    if received != tuple(sizes):
        raise ShapeError(
            f"{where}, parameter {state.name!r}",
            expected=f"state of {tuple(sizes)} elements for a value of shape {value.shape}",
            received=f"loaded state of {received} elements",
            advice="load the state of the same net and the same kind of optimizer",
        )


def checked_name(where: str, name: str | None) -> str:
    """Return ``name``, or raise `ArgumentError` if it is None, as in SINGA's interface."""
    if not isinstance(name, str):
        raise ArgumentError(
            where,
            expected="the parameter's name, since state is stored by name",
            received=f"name={name!r}",
            advice="pass name=",
        )
    return name


def no_rate(where: str) -> ArgumentError:
    """Return the error for an update without a rate, which only `apply_with_lr` allows."""
    return ArgumentError(
        where,
        expected="a learning rate",
        received="learning_rate=None",
        advice="construct the optimizer with learning_rate=, or call apply_with_lr",
    )


def not_finite(where: str, name: str, rate: float, step: int) -> ArgumentError:
    """Return the error for the ``rate`` of parameter ``name`` at ``step``."""
    return ArgumentError(
        f"{where}, parameter {name!r}",
        expected="a finite learning rate",
        received=f"{rate} at step {step}",
        advice="correct the schedule or the multiplier",
    )


def _check_rows(where: str, shape: Shape, indices: Array, rows: Array) -> None:
    fits = indices.ndim == 1 and shape and rows.shape == indices.shape + shape[1:]
    if not fits or indices.dtype.kind not in "iu":
        raise ShapeError(
            where,
            expected=f"integer indices (n,) and rows (n, ...) of a value of shape {shape}",
            received=f"indices {indices.shape} of {indices.dtype} and rows {rows.shape}",
            advice="pass RowSparse(indices, rows)",
        )
    if not indices.size:
        return
    xp = ops_for(indices).xp
    first, last = int(indices[0]), int(indices[-1])
    if not bool(xp.all(indices[1:] > indices[:-1])) or first < 0 or last >= shape[0]:
        raise DataError(
            where,
            expected=f"strictly increasing row indices from 0 to below {shape[0]}",
            received=f"{indices.size} indices from {first} to {last}",
            advice="sort them and sum the rows of equal indices",
        )


def checked_every(where: str, every: SupportsIndex) -> int:
    """Check ``every``, a number of micro-batches."""
    return checked_count(where, "every", every, 1, advice="1 updates at every micro-batch")


def refuse_rows(where: str, names: Names, grads: Grads) -> None:
    """Raise an error if a gradient is row-sparse."""
    for name, grad in zip(names, grads, strict=False):
        if isinstance(grad, tuple):
            raise ArgumentError(
                f"{where}, parameter {name!r}",
                expected="a dense gradient",
                received="a row-sparse gradient",
                advice="use Accumulator, which tracks the rows",
            )


def loaded_count(where: str, own: Mapping[str, Array], key: str) -> int:
    """Return the number of steps under ``key``. Errors: a missing key, or not a count."""
    done = own.get(key)
    if done is None or done.size != 1 or done.dtype.kind not in "iu" or done.min() < 0:
        raise DataError(
            f"{where}.load_state_dict",
            expected=f"the key {key!r}, a count",
            received="a state without it" if done is None else f"{done}"[:40],
            advice=f"load the state of a {where}",
        )
    return int(done.reshape(-1)[0])


class ParamUpdate(NamedTuple):
    """The arrays of one update of one parameter, and the numbers of its step.

    The gradient is ``grad`` times ``scale``. ``value`` and the flat state ``arrays`` change in
    place. ``penalty`` is the coefficient of the regularizer, ``scalars`` are the numbers of the
    rule, and ``kept`` is the factor of the value before the rule, for decoupled decay.
    """

    state: ParamState
    value: Array
    grad: Array
    arrays: list[Array]
    penalty: float
    scalars: tuple[float, ...]
    scale: Scale = 1.0
    kept: float = 1.0

    @property
    def regularizer(self) -> Regularizer | None:
        """The regularizer, or None if its penalty is 0 at every step."""
        return self.state.regularizer_at(self.penalty)
