"""Averaged values, and updates of one block of parameters at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, UnknownNameError
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, at, checked, on_host
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import BLOCK
from singanet.optimizer.state import Grads, Names, Owners, Values, check_lists, loaded_count
from singanet.optimizer.wrapper import Handed, Wrapper, rule_of
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

    _reads_gradients = False

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

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`; gradients are handed on as they are."""
        given = [name for name, grad in zip(names, grads, strict=True) if grad is not None]
        changed = [name for name in given if self.optimizer._will_change(name)]
        yield names, values, grads, scale
        self._changed.update(dict.fromkeys(changed))

    def updated(self, names: Names, values: Values) -> None:
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


Order = Literal["random", "ascending", "descending"]

_DONE = "*/block.steps"
_NUMBERED = re.compile(r"\D*\d+")


class BlockCoordinate(Wrapper):
    """Hands on the gradients of one block of parameters for ``steps`` steps, then of another.

    With `Adam` inside this is BAdam (Luo et al. 2024): state is there for the block at work alone,
    and begins anew with each of its turns; schedules go by the steps of a turn. The others stand
    still. Each turn through all blocks is in the ``order`` that is asked for, a "random" one by
    ``seed``. Layers whose names are the same up to their first number are a block, such as all of
    ``layers/3``; others are one each. A recorded step makes only the gradients that it hands on.
    Accumulators stand around it: what is gathered for several steps has to be of all of them.
    """

    _by_parts = True
    _selects = True
    # Whose turn it is is known by what the whole net trains.
    _across_layers = True

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        steps: int = 50,
        order: Order = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(optimizer)
        where = type(self).__name__
        self.steps = checked_count(where, "steps", steps, 1)
        self.seed = checked_count(where, "seed", seed, 0)
        if order not in ("random", "ascending", "descending"):
            raise ArgumentError(
                f"{where}, argument order",
                expected="'random', 'ascending' or 'descending'",
                received=repr(order),
                advice="the paper takes 'random'",
            )
        self.order: Order = order
        _expect_steps(optimizer)
        self._blocks: dict[str, list[str]] = {}
        self._block_of: dict[str, str] = {}
        # Whole steps so far, and the names that have come since: the step is over, or under way.
        self._done = 0
        self._seen: dict[str, None] = {}
        self._owners = Owners()
        # What a rehearsal takes for the block at work.
        self._largest: str | None = None

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """The parameters of each block, as the net that is trained has them."""
        return self._blocks

    @property
    def at_work(self) -> str:
        """The block whose parameters the next step changes; "" before a net was met."""
        return self._at_work(self._done + bool(self._seen))

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`: each net has turns of its own."""
        roots, now, new = [p.root for p in params], (self._done, self._seen), (0, dict[str, None]())
        self._done, self._seen = self._owners.turn_all(roots, other, now, new)

    def train(self, names: Iterable[str]) -> None:
        """As `Wrapper.train`: these are what blocks are made of."""
        found = blocks_of(names)
        if found == self._blocks:
            return
        self._blocks = found
        self._block_of = {name: block for block, names in found.items() for name in names}

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        self.train(param.name for param in net._execution_plan().trained_params())

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`. Errors: a parameter that is in no block."""
        check_lists("BlockCoordinate", names, values, grads)
        block = self._at_work(self._done + self._begins(names))
        if self._largest is None:
            self._forget(block)
        kept = [k for k, name in enumerate(names) if self._known(name) == block]
        if kept:
            some, handed = [names[k] for k in kept], [grads[k] for k in kept]
            yield some, [values[k] for k in kept], handed, scale
        # Only now: an update that was refused leaves the turn as it was.
        self.skip(names)

    def skip(self, names: Names) -> None:
        if self._begins(names):
            self._done += 1
            self._seen.clear()
        self._seen.update(dict.fromkeys(names))

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Wrapper.previewed`: None for those that stand still."""
        block = self.at_work
        for names, values, grads in items:
            pairs = zip(names, grads, strict=True)
            yield names, values, [g if self._known(n) == block else None for n, g in pairs]
            del grads

    def case(self) -> Hashable:
        """The block at work."""
        return self.at_work if self._largest is None else self._largest

    def _will_change(self, name: str) -> bool:
        turn = self._at_work(self._done + (name in self._seen))
        return self._block_of.get(name) == turn and self.optimizer._will_change(name)

    @contextmanager
    def _before_last(self, names: Names, values: Values) -> Iterator[None]:
        """Within it the block with most elements is at work, and no state is dropped."""
        before = dict(vars(self))
        self.train(names)
        sizes = dict.fromkeys(self._blocks, 0)
        for name, value in zip(names, values, strict=True):
            sizes[self._known(name)] += value.size
        self._seen, self._largest = {}, max(sizes, key=lambda block: sizes[block], default=None)
        try:
            yield
        finally:
            vars(self).update(before)

    def _own_state(self) -> dict[str, Array]:
        """As `Wrapper._own_state`: the steps so far, by which blocks take turns."""
        return {_DONE: np.array(self._done + bool(self._seen), np.int64)}

    def _is_own(self, key: str) -> bool:
        return key == _DONE

    def _parsed(self, own: Mapping[str, Array]) -> int:
        return loaded_count("BlockCoordinate", own, _DONE)

    def _take(self, parsed: Any) -> None:
        self._owners.forget()
        self._done, self._seen = parsed, {}

    def _begins(self, names: Names) -> bool:
        """Whether a step begins now that the gradients of ``names`` come."""
        return any(name in self._seen for name in names)

    def _at_work(self, done: int) -> str:
        """The block of the step that comes after ``done`` others."""
        if self._largest is not None:
            return self._largest
        names = list(self._blocks)
        if not names:
            return ""
        cycle, place = divmod(done // self.steps, len(names))
        if self.order == "random":
            return names[np.random.default_rng([self.seed, cycle]).permutation(len(names))[place]]
        return names[place if self.order == "ascending" else -1 - place]

    def _known(self, name: str) -> str:
        block = self._block_of.get(name)
        if block is None:
            raise UnknownNameError(
                f"BlockCoordinate, parameter {name!r}",
                expected="a parameter of the net that it has met",
                received="another" if self._block_of else "one, before any net was met",
                advice="train by net.step or net.fit, or call meet(net) first",
            )
        return block

    def _forget(self, block: str) -> None:
        """Drop the state of all that stand still while ``block`` is at work."""
        for state in rule_of(self.optimizer).states():
            if state.step and self._block_of.get(state.name) != block:
                state.forget()


def blocks_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The parameters ``names`` by the layer that each is of, up to its first number."""
    found: dict[str, list[str]] = {}
    for name in names:
        layer = name.rpartition("/")[0]
        numbered = _NUMBERED.match(layer)
        found.setdefault(numbered[0] if numbered else layer, []).append(name)
    return found


def _expect_steps(optimizer: Optimizer | Wrapper) -> None:
    """Errors: a rule of a user's own, whose state nobody knows; what gathers over steps."""
    inner: Any = optimizer
    while isinstance(inner, Wrapper) and not inner.gathers:
        inner = inner.optimizer
    kind = type(inner).__name__
    if not isinstance(inner, Optimizer):
        gathers = isinstance(inner, Wrapper)
        raise ArgumentError(
            "BlockCoordinate",
            expected="an optimizer of singanet's, which updates at each step",
            received=f"{kind}, which gathers over steps" if gathers else kind,
            advice=f"write {kind}(BlockCoordinate(...), every)"
            if gathers
            else "derive it from singanet.optimizer.Optimizer",
        )
    if inner.every != 1:
        raise ArgumentError(
            "BlockCoordinate",
            expected="a rule that updates at each step",
            received=f"{kind}, which gathers over {inner.every}",
            advice="write Accumulator(BlockCoordinate(...), every)",
        )
