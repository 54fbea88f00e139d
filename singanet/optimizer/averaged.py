"""Moving averages of parameters, and updates of one block of parameters at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, UnknownNameError, brief
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, at, checked, on_host
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import BLOCK
from singanet.optimizer.state import Grads, Names, Owners, Values, check_lists, loaded_count
from singanet.optimizer.wrapper import Handed, StageTraits, Wrapper, rule_of
from singanet.params.param import Param
from singanet.params.storage import Place, place_of
from singanet.types import Array


class Averaged(Wrapper):
    """Moving averages a = d a + (1 − d) w of each parameter w that a step changes.

    `begin_with` must be called first. Running state is averaged in the same steps. A step that only
    accumulates gradients or is skipped changes no average. ``averages`` are by name, and not part
    of `state_dict`. The averages of contiguous parameters are contiguous, too, and updated as one.
    Each process averages its own slices.

    Args:
        optimizer: The optimizer.
        decay: d, in [0, 1).

    """

    traits = StageTraits(reads="nothing")

    def __init__(self, optimizer: Optimizer | Wrapper, decay: float) -> None:
        super().__init__(optimizer)
        self.decay = at(checked("Averaged", "decay", decay, 0.0, 1.0), 0)
        self.averages: dict[str, Array] = {}
        self._params: list[Param] = []
        # Places of parameters, and averages of their buckets, by the ids of the buckets. A
        # reference to each bucket prevents reuse of its id.
        self._places: dict[str, tuple[int, int, int]] = {}
        self._averages: dict[int, Array] = {}
        self._buckets: dict[int, Array] = {}
        self._changed: dict[str, None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the averages without places, which depend on the ids of buckets."""
        return {**vars(self), "_params": [], "_places": {}, "_averages": {}, "_buckets": {}}

    def begin_with(self, params: Iterable[Param]) -> None:
        """Set the averages to the current ``params``.

        If the parameters are the same arrays, so are the averages, so that programs stay valid.
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
        self._averages = {key: widened(bucket) for key, bucket in self._buckets.items()}
        averages = {}
        for param in self._params:
            key, start, stop = self._places.get(param.name, (0, 0, 0))
            averages[param.name] = (
                self._averages[key][start:stop].reshape(param.shape)
                if stop
                else widened(param.here)
            )
        self.averages = averages

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Pass gradients on unchanged, and record the names of changed parameters."""
        given = [name for name, grad in zip(names, grads, strict=True) if grad is not None]
        changed = [name for name in given if self.optimizer._will_change(name)]
        yield names, values, grads, scale
        self._changed.update(dict.fromkeys(changed))

    def updated(self, names: Names, values: Values) -> None:
        self._changed.update(dict.fromkeys(names))

    def end(self) -> None:
        """Update the averages."""
        if self._changed:
            self.follow(self._changed)
            self._changed.clear()

    def _ended(self) -> None:
        self._changed.clear()

    def follow(self, names: Collection[str]) -> None:
        """Update the averages of the parameters ``names`` and of running state."""
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
                self._follow(self._averages[key][start:stop], self._buckets[key][start:stop])

    def _follow(self, average: Array, value: Array) -> None:
        xp = ops_for(average).xp
        # A program passes a stand-in for the parameter, which may be on another device.
        value = xp.asarray(value)
        together = average.flags.c_contiguous and value.flags.c_contiguous
        if on_host(xp) and together and average.size > BLOCK:
            # A block of both stays in the cache, and the difference needs little memory.
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
    """Return the average of ``param``, or of this process's slice, and store it in ``averages``.

    A parameter may be sliced after its average was created.
    """
    found = averages[param.name]
    if found.shape != param.here.shape:
        found = averages[param.name] = param.storage.here_of(found).copy()
    return found


def _key(place: Place) -> tuple[int, int, int]:
    return id(place.bucket), place.start, place.stop


def widened(array: Array) -> Array:
    """Return a copy in at least float32, since float16 loses small steps."""
    made: Array = array.astype(np.promote_types(array.dtype, np.float32))
    return made


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge adjacent ranges."""
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
    """Trains one block of parameters for ``steps`` steps, then another.

    With `Adam` this is BAdam (Luo et al. 2024). Only the current block has state, which is created
    anew in each of its turns. Schedules count the steps of a turn. The parameters of other blocks
    do not change. Layers with the same name up to the first number are a block, such as all of
    ``layers/3``; every other layer is a block. A recorded step computes only the gradients of the
    block. An `Accumulator` must be around the stage, since its steps have gradients of one block.

    Args:
        optimizer: The optimizer of the current block.
        steps: Steps from one block to the next.
        order: The order of blocks in each cycle.
        seed: The seed of the "random" order.

    Examples:
        >>> optimizer = singanet.optimizer.BlockCoordinate(singanet.optimizer.SGD(0.1), steps=50)
        >>> layers = [singanet.layers.Dense(name, 2, input_shape=(2,)) for name in ("a", "b")]
        >>> net = singanet.FeedForwardNet(layers, loss=singanet.loss.SquaredError())
        >>> losses = net.step(np.ones((1, 2)), np.ones((1, 2)), optimizer)
        >>> optimizer.blocks
        {'a': ['a/weight', 'a/bias'], 'b': ['b/weight', 'b/bias']}
    """

    # The current block depends on the parameters of the whole net.
    traits = StageTraits(
        reads="sums",
        selects=True,
        needs=(terms.LAYERS,),
        takes=(terms.STATE,),
        remedy="train blocks in one process",
    )

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
                received=brief(order),
                advice="the paper uses 'random'",
            )
        self.order: Order = order
        self._blocks: dict[str, list[str]] = {}
        self._block_of: dict[str, str] = {}
        # Number of whole steps so far, and the names of the step after them.
        self._done = 0
        self._seen: dict[str, None] = {}
        self._owners = Owners()
        # The current block in a rehearsal.
        self._largest: str | None = None

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """The parameters of each block of the current net."""
        return self._blocks

    @property
    def at_work(self) -> str:
        """The block that the next step changes; "" before the first net."""
        return self._at_work(self._done + bool(self._seen))

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the steps of the net of ``params``."""
        roots, now, new = [p.root for p in params], (self._done, self._seen), (0, dict[str, None]())
        self._done, self._seen = self._owners.turn_all(roots, other, now, new)

    def train(self, names: Iterable[str]) -> None:
        """Divide the parameters ``names`` into blocks."""
        found = blocks_of(names)
        if found == self._blocks:
            return
        self._blocks = found
        self._block_of = {name: block for block, names in found.items() for name in names}

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        self.train(param.name for param in net._execution_plan().trained_params())

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Pass on the gradients of the current block. Errors: a parameter without a block."""
        check_lists("BlockCoordinate", names, values, grads)
        block = self._at_work(self._done + self._begins(names))
        if self._largest is None:
            self._forget(block)
        kept = [k for k, name in enumerate(names) if self._known(name) == block]
        if kept:
            some, handed = [names[k] for k in kept], [grads[k] for k in kept]
            yield some, [values[k] for k in kept], handed, scale
        # After the update, so that a refused update does not change the turn.
        self.skip(names)

    def skip(self, names: Names) -> None:
        if self._begins(names):
            self._done += 1
            self._seen.clear()
        self._seen.update(dict.fromkeys(names))

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Return the gradients of the current block, and None for other parameters."""
        block = self.at_work
        for names, values, grads in items:
            pairs = zip(names, grads, strict=True)
            yield names, values, [g if self._known(n) == block else None for n, g in pairs]
            del grads

    def case(self) -> Hashable:
        """Return the current block."""
        return self.at_work if self._largest is None else self._largest

    def _will_change(self, name: str) -> bool:
        turn = self._at_work(self._done + (name in self._seen))
        return self._block_of.get(name) == turn and self.optimizer._will_change(name)

    @contextmanager
    def _before_last(self, names: Names, values: Values) -> Iterator[None]:
        """Make the largest block the current one within the block, without dropping state."""
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
        """Return the number of steps so far, which determines the current block."""
        return {_DONE: np.array(self._done + bool(self._seen), np.int64)}

    def _is_own(self, key: str) -> bool:
        return key == _DONE

    def _parsed(self, own: Mapping[str, Array]) -> int:
        return loaded_count("BlockCoordinate", own, _DONE)

    def _take(self, parsed: Any) -> None:
        self._owners.forget()
        self._done, self._seen = parsed, {}

    def _begins(self, names: Names) -> bool:
        """Whether the gradients of ``names`` start a new step."""
        return any(name in self._seen for name in names)

    def _at_work(self, done: int) -> str:
        """Return the block of the step after ``done`` steps."""
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
                expected="a parameter of the registered net",
                received="a parameter of another net"
                if self._block_of
                else "a parameter before meet(net)",
                advice="train by net.step or net.fit, or call meet(net) first",
            )
        return block

    def _forget(self, block: str) -> None:
        """Drop the state of all parameters outside of ``block``."""
        for state in rule_of(self.optimizer).states():
            if state.step and self._block_of.get(state.name) != block:
                state.forget()


def blocks_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the parameters ``names`` by layer name up to the first number."""
    found: dict[str, list[str]] = {}
    for name in names:
        layer = name.rpartition("/")[0]
        numbered = _NUMBERED.match(layer)
        found.setdefault(numbered[0] if numbered else layer, []).append(name)
    return found
