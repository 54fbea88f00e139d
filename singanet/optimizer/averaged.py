"""Moving averages of parameters, behind the rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.checks import Grad
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.norm import BLOCK
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, on_host
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.param import Param
from singanet.params.storage import Place, place_of
from singanet.types import Array


class Averaged(Wrapper):
    """a = d a + (1 − d) w, d the ``decay``, once a step, for each w that the step has changed.

    `begin_with` has to be called first. Running state is averaged in the same steps; where
    gradients are only gathered, or the step is skipped, nothing is. ``averages`` are by name, and
    no part of `state_dict`; those of parameters that lie side by side do so, too, and move as one.
    Of parameters in slices each process averages its own.
    """

    reads_gradients = False

    def __init__(self, optimizer: Optimizer | Wrapper, decay: float) -> None:
        super().__init__(optimizer)
        self.decay = at(checked("Averaged", "decay", decay, 0.0, 1.0), 0)
        self.averages: dict[str, Array] = {}
        self._params: list[Param] = []
        # Where parameters lie, and the averages beside their buckets, by the ids of these. Those
        # are kept, so that no others get the ids.
        self._places: dict[str, tuple[int, int, int]] = {}
        self._beside: dict[int, Array] = {}
        self._buckets: dict[int, Array] = {}
        self._changed: dict[str, None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The averages without their places, as those go by the ids of buckets."""
        return {**vars(self), "_params": [], "_places": {}, "_beside": {}, "_buckets": {}}

    def begin_with(self, params: Iterable[Param]) -> None:
        """Let the averages be what ``params`` are now.

        They stay the same arrays where the parameters are, so that programs stay, too.
        """
        given = list(params)
        found = {param.name: place_of(param.here) for param in given}
        places = {name: place for name, place in found.items() if place is not None}
        keys = {name: _key(place) for name, place in places.items()}
        self._changed.clear()
        if given == self._params and keys == self._places:
            for param in given:
                self.averages[param.name][...] = param.here
            return
        self._params, self._places = given, keys
        self._buckets = {id(place.bucket): place.bucket for place in places.values()}
        self._beside = {key: _widened(bucket) for key, bucket in self._buckets.items()}
        averages = {}
        for param in self._params:
            key, start, stop = self._places.get(param.name, (0, 0, 0))
            averages[param.name] = (
                self._beside[key][start:stop].reshape(param.shape) if stop else _widened(param.here)
            )
        self.averages = averages

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`; gradients are handed on as they are."""
        given = [name for name, grad in zip(names, grads, strict=True) if grad is not None]
        changed = [name for name in given if self.optimizer.will_change(name)]
        yield names, values, grads, scale
        self._changed.update(dict.fromkeys(changed))

    def updated(self, names: Sequence[str], values: Sequence[Array]) -> None:
        self._changed.update(dict.fromkeys(names))

    def end(self) -> None:
        """As `Wrapper.end`: a step of the averages."""
        if self._changed:
            self.follow(self._changed)
            self._changed.clear()

    def follow(self, names: Collection[str]) -> None:
        """A step of the averages of the parameters ``names``, and of running state."""
        runs: dict[int, list[tuple[int, int]]] = {}
        for param in self._params:
            name, value = param.name, param.here
            if name not in names and not (param.is_state and not param.is_constant):
                continue
            place = place_of(value)
            if place is not None and _key(place) == self._places.get(name):
                runs.setdefault(id(place.bucket), []).append((place.start, place.stop))
            else:
                self._follow(average_of(self.averages, param), value)
        for key, ranges in runs.items():
            for start, stop in _joined(ranges):
                self._follow(self._beside[key][start:stop], self._buckets[key][start:stop])

    def _follow(self, average: Array, value: Array) -> None:
        xp = ops_for(average).xp
        # A program passes a stand-in for the parameter, which may be on another device.
        value = xp.asarray(value)
        together = average.flags.c_contiguous and value.flags.c_contiguous
        if on_host(xp) and together and average.size > BLOCK:
            # A block of both stays in the cache, and the difference takes no memory.
            a, w = average.reshape(-1), value.reshape(-1)
            starts = range(0, a.size, BLOCK)
            parts = [(a[k : k + BLOCK], w[k : k + BLOCK]) for k in starts]
        else:
            parts = [(average, value)]
        for a, w in parts:
            short = xp.subtract(w, a)
            xp.multiply(short, 1.0 - self.decay, out=short)
            xp.add(a, short, out=a)


def average_of(averages: dict[str, Array], param: Param) -> Array:
    """The average of ``param``, or of the slice of it that is here; so ``averages`` have it then.

    A parameter may come into slices after its average has begun.
    """
    found = averages[param.name]
    if found.shape != param.here.shape:
        found = averages[param.name] = param.storage.here_of(found).copy()
    return found


def _key(place: Place) -> tuple[int, int, int]:
    return id(place.bucket), place.start, place.stop


def _widened(array: Array) -> Array:
    """A copy in which small steps are not rounded away, as they were in float16."""
    made: Array = array.astype(np.promote_types(array.dtype, np.float32))
    return made


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that follow on each other as one."""
    found: Any = None
    for start, stop in sorted(ranges):
        if found is not None and found[1] == start:
            found = found[0], stop
            continue
        if found is not None:
            yield found
        found = start, stop
    if found is not None:
        yield found
