"""The cheapest way through a chain of layers, and layers with side effects.

The recursion is by Beaumont et al., "Optimal checkpointing for heterogeneous chains" (2019), with
several ways to save a stage as in Zhao et al., "Rockmate" (2023). It is optimal among the schedules
that free a checkpoint at the backward of its stage, not before.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.base.described import AS_CONSTRUCTED, Counted
from singanet.base.elsewhere import is_library
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer

SLOTS = 500
"""The maximum number of parts that bytes are divided into."""

_Costs = npt.NDArray[np.float64]


class Option(NamedTuple):
    """A way to run a stage so that its backward may follow.

    ``saved`` bytes are stored for it, including the output. ``forward`` and ``backward`` are the
    peaks of each direction, including the saved bytes. ``cost`` is the time of the units that run
    again within the stage, ``again`` lists them.
    """

    saved: int
    forward: int
    backward: int
    cost: float = 0.0
    again: Any = ()


class ChainStage(NamedTuple):
    """The ``time`` of a stage's forward, its ``output`` bytes, and the peak of a ``sweep``.

    A sweep is a run for the output alone. The bytes do not include the stage's input.
    """

    time: float
    output: int
    sweep: int
    options: tuple[Option, ...]


class Action(NamedTuple):
    """A stage is run for its output, run so that its backward may follow, or goes backward."""

    kind: Literal["sweep", "save", "backward"]
    stage: int
    option: int = 0


class Schedules:
    """The least times of all runs of ``stages`` for every number of bytes up to ``most``."""

    def __init__(self, stages: Sequence[ChainStage], most: int, slots: int = SLOTS) -> None:
        self.stages = stages
        self.slot = max(-(-most // slots), 1)
        self._count = max(most // self.slot, 0)
        self._times = np.concatenate([[0.0], np.cumsum([stage.time for stage in stages])])
        self._outputs = [self._slots(stage.output) for stage in stages]
        sweeps = [self._slots(stage.sweep) for stage in stages]
        # A sweep of a stage includes the output before it; the first stage's is not counted.
        self._sweeps = np.array(
            [sweep + (self._outputs[k - 1] if k else 0) for k, sweep in enumerate(sweeps)], np.int64
        )
        # By the number of swept stages: the slots needed, by first stage.
        count, swept = len(stages), np.array(sweeps, np.int64)
        self._swept: list[npt.NDArray[np.int64]] = [np.zeros(count + 1, np.int64)]
        for length in range(1, count):
            starts = count + 1 - length
            later = swept[:starts] if length == 1 else self._sweeps[length - 1 :]
            self._swept.append(np.maximum(self._swept[-1][:starts], later[:starts]))
        self._options = [
            [
                (self._slots(o.saved), self._slots(o.forward), self._slots(o.backward), o.cost)
                for o in stage.options
            ]
            for stage in stages
        ]
        # By the distance of the last stage from the first: one row per first stage, one column per
        # slot.
        self._least: list[_Costs] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        # The same for runs after a checkpoint, which uses some of the slots.
        self._after: list[_Costs] = []
        for length in range(len(stages)):
            self._add(length)

    def _slots(self, nbytes: int) -> int:
        # To the nearest: rounding up would add up over many stages.
        return int(nbytes / self.slot + 0.5)

    def least(self) -> int | None:
        """The fewest bytes with a schedule; None if ``most`` is too little."""
        fits = np.isfinite(self._least[-1][0]).nonzero()[0]
        return int(fits[0]) * self.slot if len(fits) else None

    def time(self, budget: int) -> float:
        """The least time of all forwards within ``budget`` bytes, infinity if none fits."""
        return float(self._least[-1][0][min(budget // self.slot, self._count)])

    def actions(self, budget: int) -> list[Action]:
        """The actions in their order. `time` has to be finite for ``budget``."""
        made: list[Action] = []
        last = len(self.stages) - 1
        # By a list: nets may be deeper than Python's calls.
        todo: list[Any] = [(0, last, min(budget // self.slot, self._count))]
        while todo:
            item = todo.pop()
            if isinstance(item, Action):
                made.append(item)
                continue
            first, last, room = item
            if first > last:
                continue
            best, split = self._best(first, last, room)
            if split is None:
                saved = self._options[first][best][0]
                made.append(Action("save", first, best))
                todo.append(Action("backward", first))
                todo.append((first + 1, last, room - saved))
            else:
                made += [Action("sweep", k) for k in range(first, split)]
                todo.append((first, split - 1, room))
                todo.append((split, last, room - self._outputs[split - 1]))
        return made

    def _add(self, length: int) -> None:
        """The least times of runs of ``length + 1`` stages."""
        starts = len(self.stages) - length
        found = np.full((starts, self._count + 1), np.inf)
        for first in range(starts):
            for cost, start, rest in self._ways(first, first + length):
                if start <= self._count:
                    row = found[first, start:]
                    np.minimum(row, rest + cost if rest is not None else cost, out=row)
        tried = np.empty_like(found)
        gradients = np.array([self._gradient(first + length) for first in range(starts)], np.int64)
        for split in range(1, length + 1):
            # All first stages at once: the swept stages, the run after the checkpoint, then the
            # swept ones.
            after, before = self._after[length - split], self._least[split - 1]
            np.add(after[split : split + starts], before[:starts], out=tried)
            tried += (self._times[split : split + starts] - self._times[:starts])[:, None]
            swept = self._swept[split][:starts] + gradients
            for begin in (swept > self._starts[split - 1][:starts]).nonzero()[0]:
                tried[begin, : swept[begin]] = np.inf
            np.minimum(found, tried, out=found)
        # The number of slots without a schedule.
        self._starts.append((~np.isfinite(found)).sum(axis=1))
        self._least.append(found)
        after = np.full_like(found, np.inf)
        for first in range(starts):
            taken = self._outputs[first - 1] if first else 0
            if taken <= self._count:
                after[first, taken:] = found[first, : self._count + 1 - taken]
        self._after.append(after)

    def _gradient(self, last: int) -> int:
        """Slots of the gradient that waits while the stages up to ``last`` run again."""
        return self._outputs[last] if last < len(self.stages) - 1 else 0

    def _ways(self, first: int, last: int) -> Iterator[tuple[float, int, Any]]:
        """For each option of ``first`` its time, the fewest slots, times of the rest from there."""
        length = last - first
        for saved, forward, backward, cost in self._options[first]:
            start = max(saved, forward + self._gradient(last), backward)
            rest = None
            if length and start <= self._count:
                rest = self._least[length - 1][first + 1, start - saved : self._count + 1 - saved]
            yield self.stages[first].time + cost, start, rest

    def _best(self, first: int, last: int, room: int) -> tuple[int, int | None]:
        """The option, or the stage after a checkpoint, of the least time."""
        length, best = last - first, (np.inf, 0, None)
        found: tuple[float, int, int | None] = best
        for number, (cost, start, rest) in enumerate(self._ways(first, last)):
            if start <= room:
                time = cost + (0.0 if rest is None else float(rest[room - start]))
                if time < found[0]:
                    found = time, number, None
        for split in range(first + 1, last + 1):
            if self._swept[split - first][first] + self._gradient(last) <= room:
                time = float(
                    self._times[split]
                    - self._times[first]
                    + self._after[length - (split - first)][split, room]
                    + self._least[split - first - 1][first, room]
                )
                if time < found[0]:
                    found = time, 0, split
        return found[1], found[2]


def may_repeat(layer: Layer) -> bool:
    """Whether the layer and its inner layers are singanet's, unchanged, or ``pure``."""
    return all(
        not _is_patched(part) and (is_library(type(part)) or getattr(part, "pure", False))
        for part in _with_inner(layer)
    )


def _with_inner(layer: Layer) -> list[Any]:
    found: list[Any] = [layer]
    for one in found:
        for value in vars(one).values():
            inside: Iterable[Any] = value if type(value) is list else [value]
            found += [
                v for v in inside if isinstance(v, Counted) and all(v is not k for k in found)
            ]
    return found


def _is_patched(part: Any) -> bool:
    return any(callable(getattr(type(part), name, None)) for name in vars(part))


def expect_repeatable(layer: Layer, run: Callable[[Layer, Any, bool], Any]) -> None:
    """Run a copy of ``layer`` twice and compare the outputs and changes.

    ``run(layer, rng, keep)`` is a forward. Errors: `ArgumentError` if the outputs differ, or if it
    changes anything but states (`Layer.add_state`) and draws of ``ctx.rng``.
    """
    try:
        twin = copy.deepcopy(layer)
    except Exception as error:
        raise _refused(layer, f"a layer that cannot be copied for a trial: {error}") from error
    states = [p.value for p in twin.params.values() if p.is_state]
    before = [value.copy() for value in states]
    # Draws from the generators that Python and NumPy have for all would be made twice.
    shared = np.random.get_state(), random.getstate()
    looks = _look(twin)
    outs = []
    try:
        for _ in range(2):
            outs.append(_look(run(twin, np.random.default_rng(0), True)[0]))
            changed = _differing(looks, _look(twin))
            if changed:
                raise _refused(layer, f"a layer that changes {changed}")
            if _look((np.random.get_state(), random.getstate())) != _look(shared):
                raise _refused(layer, "a layer that draws from a shared generator")
            for value, old in zip(states, before, strict=True):
                value[...] = old
    finally:
        np.random.set_state(shared[0])
        random.setstate(shared[1])
    if outs[0] != outs[1]:
        raise _refused(layer, "a layer whose second run gives another output for the same input")


def _refused(layer: Layer, received: str) -> ArgumentError:
    return ArgumentError(
        f"layer {layer.name!r}, recompute=True",
        expected="a forward that may run twice",
        received=received,
        advice="declare what it moves (add_state, ctx.update_state), draw from ctx.rng, "
        "or set recompute to None",
    )


def _differing(before: Any, after: Any) -> str:
    """The attribute or parameter of a layer that differs between two snapshots."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return min(names, default="")


def _look(thing: Any) -> Any:
    """A comparable snapshot of ``thing``."""
    if isinstance(thing, Layer):
        left = ("params", AS_CONSTRUCTED)
        found = {f"the attribute {k!r}": _look(v) for k, v in vars(thing).items() if k not in left}
        for suffix, param in thing.params.items():
            if not param.is_state:
                found[f"the parameter {suffix!r}, which is no state"] = _look(param.value)
        return found
    if isinstance(thing, np.random.Generator):
        return repr(thing.bit_generator.state)
    if hasattr(thing, "tobytes") and hasattr(thing, "shape"):
        return (thing.shape, str(thing.dtype), thing.tobytes())
    if isinstance(thing, Mapping):
        return {repr(key): _look(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_look(value) for value in thing]
    try:
        return pickle.dumps(thing)
    except Exception:  # noqa: BLE001 - what no one can look into is taken to stay
        return id(thing)
