"""Which part of each parameter a rank updates, and keeps the optimizer's state of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.checkpoint.entry import Source
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.params.param import Param
from singanet.types import Array, RowSparse, Shape


class Cut:
    """The rows of parameters, one part a rank: as many for each, or all of them for one rank.

    Parts lie in the order of ranks. Of a parameter a rank that has no rows keeps no state, and
    only counts its steps. Stages made around one another have one in common, as their rule is one.
    """

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest
        """The bytes of a parameter that is not worth a message of its own, at most."""
        self.shapes: dict[str, Shape] = {}
        self._rows: dict[str, list[int]] = {}
        self.loaded = False
        """Whether arrays of the rule may be those of whole parameters, as they were loaded."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def clear(self) -> None:
        """Forget all parts: what is loaded is whole."""
        self.shapes, self._rows, self.loaded = {}, {}, True

    def planned(
        self, params: Sequence[Param], chain: UpdateChain, size: int
    ) -> dict[str, list[int]]:
        """Where the parts of ``params`` begin, in rows, for ``size`` ranks, by name.

        Those that are small, and those whose elements the rule does not treat alike,
        are one rank's, the one that has the least so far: the largest first.
        """
        made: dict[str, list[int]] = {}
        whole = []
        for param in params:
            rows = param.shape[0] if param.shape else 1
            if param.nbytes > self.smallest and rows > 1 and _by_parts(chain, param):
                made[param.name] = [rows * rank // size for rank in range(size + 1)]
            else:
                whole.append(param)
        having = [0] * size
        for param in sorted(whole, key=lambda param: -param.nbytes):
            owner = having.index(min(having))
            having[owner] += param.nbytes
            rows = param.shape[0] if param.shape else 1
            made[param.name] = [0] * (owner + 1) + [rows] * (size - owner)
        return made

    def spared(self, params: Sequence[Param], chain: UpdateChain, size: int) -> int:
        """The bytes of state of ``params`` that others keep for the rank that keeps most."""
        kept, planned = [0] * size, self.planned(params, chain, size)
        for param in params:
            rows, whole = planned[param.name], chain.state_bytes(param)
            for rank in range(size):
                kept[rank] += whole * (rows[rank + 1] - rows[rank]) // max(rows[-1], 1)
        return sum(map(chain.state_bytes, params)) - max(kept)

    def differs(self, planned: Mapping[str, list[int]]) -> bool:
        """Whether any of the parameters that are cut is to be cut otherwise, or not at all."""
        return any(planned.get(name) != rows for name, rows in self._rows.items())

    def take(self, planned: Mapping[str, list[int]], params: Sequence[Param]) -> None:
        """Let the parts be as ``planned``."""
        self._rows = dict(planned)
        self.shapes = {param.name: param.shape for param in params}

    def rows(self, name: str) -> list[int]:
        """Where the parts of the parameter begin, in rows; then how many rows there are."""
        return self._rows[name]

    def has(self, name: str) -> bool:
        """Whether the parameter is updated in parts."""
        return name in self._rows

    def bounds(self, name: str) -> list[int]:
        """As `rows`, in elements."""
        width = prod(self.shapes[name][1:])
        return [row * width for row in self._rows[name]]

    def part(self, name: str, array: Any, rank: int) -> Any:
        """The part of ``array``, or of `RowSparse` rows, that is ``rank``'s; None for no rows."""
        start, stop = self._rows[name][rank : rank + 2]
        if start == stop:
            return None
        if isinstance(array, RowSparse):
            indices = ops_for(array.indices).host(array.indices)
            own = slice(*np.searchsorted(indices, (start, stop)))
            return RowSparse(array.indices[own] - start, array.rows[own])
        return array if stop - start == self._rows[name][-1] else array[start:stop]

    # -- the state of the rule ---------------------------------------------------------------------

    def cut_loaded(self, rule: Optimizer, rank: int) -> None:
        """Keep of loaded arrays of ``rule`` those that are ``rank``'s, and of these its parts."""
        self.loaded = False
        states = {state.name: state for state in rule.states()}
        for name, rows in self._rows.items():
            state = states.get(name)
            if state is None or state.shape is not None or not state.arrays:
                continue
            own = rows[rank + 1] - rows[rank]
            start, stop = self.bounds(name)[rank : rank + 2]
            if own == rows[-1] or any(a.size != prod(self.shapes[name]) for a in state.arrays):
                # Of another size it is told by the rule.
                state.arrays = state.arrays if own else []
            else:
                state.resume(
                    state.step, [a[start:stop].copy() for a in state.arrays] if own else ()
                )

    def whole(self, comm: Collectives, rule: Optimizer, state: Mapping[str, Array]) -> Any:
        """``state`` of the rank that it is of, with the arrays of all ranks; all come here.

        Parts of an array are put together, one array after the other.
        """
        if self.loaded:
            return state
        slots, known = ("step", *rule.slots), [state.name for state in rule.states()]
        keys = [f"{name}/{slot}" for name in known if name in self._rows for slot in slots]
        forms = {key: (state[key].shape, state[key].dtype.str) for key in keys if key in state}
        every = gathered(comm, forms, "the state of the optimizer that ranks have")
        made: dict[str, Array] = {}
        for key in keys:
            having = [rank for rank, each in enumerate(every) if key in each]
            if not having:
                continue
            shape, dtype = every[having[0]][key]
            sizes = [prod(each[key][0]) if key in each else 0 for each in every]
            if key.endswith("/step"):
                # Others may count steps in which a stage held the parameter back.
                rows = self._rows[key.rpartition("/")[0]]
                owner = next(rank for rank in having if rows[rank] < rows[rank + 1])
                sizes = [int(rank == owner) for rank in range(comm.size)]
            elif len(having) > 1:
                shape = self.shapes[key.rpartition("/")[0]]
            bounds = np.cumsum([0, *sizes]).tolist()
            flat = np.empty(bounds[-1], dtype)
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            if own.start < own.stop:
                flat[own] = ops_for(state[key]).host(state[key]).reshape(-1)
            made[key] = comm._gather_parts(flat, bounds, what=key).reshape(shape)
        # In the order of one process's, as far as ranks know it.
        return {**made, **{key: array for key, array in state.items() if key not in made}}

    def own_sources(
        self, rank: int, state: Sequence[Source], first_rows: dict[str, int]
    ) -> list[Source]:
        """What ``rank`` writes of the ``state`` that it has; as `Reducer._own_parts`.

        What is of no parameter all have, and so rank 0 writes it.
        """
        made = []
        for each in state:
            name, _, slot = each.name.rpartition("/")
            if name not in self._rows:
                if rank == 0:
                    first_rows[each.name] = 0
                    made.append(each)
                continue
            rows, shape = self._rows[name], self.shapes[name]
            start, stop = rows[rank : rank + 2]
            owner = next(k for k, (a, b) in enumerate(pairwise(rows)) if a < b)
            if start == stop or (slot == "step" and rank != owner):
                continue
            width, first_rows[each.name] = prod(shape[1:]), 0
            if stop - start < rows[-1] and prod(each.shape) == (stop - start) * width:
                first_rows[each.name] = start
                each = replace(each, shape=(stop - start, *shape[1:]))
            made.append(each)
        return made


def _by_parts(chain: UpdateChain, param: Param) -> bool:
    """Whether the rule of ``chain`` updates rows of ``param`` apart as it does together."""
    rule = chain.own_rule
    size = prod(param.shape)
    alike = rule is not None and {*rule._slot_sizes(param.shape)} <= {size}
    return alike and chain.treats_alike(param)
